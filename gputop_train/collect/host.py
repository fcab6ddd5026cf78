"""The host as the run may use it: CPU, memory, swap, ``/dev/shm``, pressure, and its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputop_train.collect.cgroup import CgroupLimits, parse_keys, read_limits
from gputop_train.collect.procfs import read_text
from gputop_train.collect.procs import ProcessCollector, parse_kib
from gputop_train.collect.traffic import TrafficReader
from gputop_train.model import HostSample, ProcSample

#: Records are about once a second, however often ``sample`` is called (the supervisor: 2 Hz).
PERIOD_NS = 1_000_000_000
#: With many processes seldomer: reading one takes about 65 us of CPU, and so much time for each
#: keeps them all at a third of a percent of a core.
PERIOD_PER_PROCESS_NS, LONGEST_PERIOD_NS = 20_000_000, 5_000_000_000

#: Limits hardly ever change while a run goes on, and finding them reads a dozen files.
LIMITS_PERIOD_NS = 10_000_000_000

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class HostBatch:
    """What one call of ``HostCollector.sample`` gathered; usually empty between seconds."""

    host: tuple[HostSample, ...] = ()
    procs: tuple[ProcSample, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Machine totals of ``/proc/stat`` in clock ticks, and how many CPUs they sum over.

    ``each`` has ``(busy, total)`` of every CPU, in the order of the file.
    """

    busy: int
    iowait: int
    total: int
    cpus: int
    each: tuple[tuple[int, int], ...] = ()


def parse_cpu_times(text: str | None) -> CpuTimes | None:
    """Read the ``cpu`` lines of ``/proc/stat`` (proc_stat(5)).

    Busy is everything but idle and iowait; guest time is inside user time already.
    """
    totals: list[int] | None = None
    each: list[tuple[int, int]] = []
    for line in (text or "").splitlines():
        if not line.startswith("cpu"):
            continue
        ticks = [int(n) for n in line.split()[1:9]]
        if line.startswith("cpu "):
            totals = ticks
        else:
            each.append((sum(ticks) - sum(ticks[3:5]), sum(ticks)))
    if totals is None or len(totals) < 5 or not each:
        return None
    idle, iowait = totals[3], totals[4]
    busy = sum(totals) - idle - iowait
    return CpuTimes(busy, iowait, sum(totals), len(each), tuple(each))


def cores_between(before: CpuTimes | None, now: CpuTimes | None) -> tuple[float, float] | None:
    """Cores busy and cores in iowait between two readings; ``None`` when nothing was counted.

    The kernel lets iowait run backwards (proc_stat(5)); that reads as none.
    """
    if before is None or now is None or now.total <= before.total:
        return None
    scale = now.cpus / (now.total - before.total)
    return max(0, now.busy - before.busy) * scale, max(0, now.iowait - before.iowait) * scale


def each_core_between(
    before: CpuTimes | None, now: CpuTimes | None
) -> tuple[int | None, ...] | None:
    """Percent busy of every CPU between two readings; ``None`` while CPUs come and go."""
    if before is None or now is None or len(before.each) != len(now.each):
        return None
    pairs = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before.each, now.each, strict=True)]
    if not any(total > 0 for _, total in pairs):
        return None
    return tuple(
        min(100, max(0, round(100 * busy / total))) if total > 0 else None for busy, total in pairs
    )


def parse_psi(text: str | None) -> float | None:
    """Percent of the last 10 s in which some task was held up (``some avg10=``)."""
    for line in (text or "").splitlines():
        if line.startswith("some "):
            for field in line.split():
                if field.startswith("avg10="):
                    return float(field[len("avg10=") :])
    return None


def swap_in_rate(before: tuple[int, int] | None, now: tuple[int, int] | None) -> float | None:
    """Bytes/s read back from swap between two ``(t_ns, pages since boot)`` of ``pswpin``."""
    if before is None or now is None or now[0] <= before[0]:
        return None
    return max(0, now[1] - before[1]) * _PAGE_BYTES / ((now[0] - before[0]) / 1e9)


class HostCollector:
    """Samples the host and the run's processes about once a second.

    Args:
        pids: Gives the run's processes, pid to role (``trainer``, ``worker``, ``other``).
        ranks: Gives the rank of those processes that have one.
        period_ns: Time between two records.

    Attributes:
        missing: Signals this machine does not give, with one sentence of why.
    """

    def __init__(
        self,
        pids: Callable[[], Mapping[int, str]],
        *,
        ranks: Callable[[], Mapping[int, int]] | None = None,
        period_ns: int = PERIOD_NS,
    ) -> None:
        self._pids = pids
        self._ranks = ranks
        self._period_ns = period_ns
        self._processes = ProcessCollector()
        self._own_missing: dict[str, str] = {}
        self._due_ns: int | None = None
        self._cpu: CpuTimes | None = None
        self._traffic = TrafficReader()
        self._swap: tuple[int, int] | None = None  # t_ns, pages swapped in since boot
        self._limits = CgroupLimits()
        self._limits_due_ns: int | None = None
        self._limits_of: int | None = None

    @property
    def missing(self) -> dict[str, str]:
        """Signals that are absent here, with one sentence of why."""
        return {**self._own_missing, **self._processes.missing}

    def sample(self, now_ns: int, *, stretch: float = 1.0) -> HostBatch:
        """What is due at ``now_ns`` (``CLOCK_MONOTONIC``). Never raises.

        Args:
            now_ns: The time.
            stretch: Factor on the time between two records.
        """
        if self._due_ns is not None and now_ns < self._due_ns:
            return HostBatch()
        batch = self._read(now_ns)
        share_ns = min(len(batch.procs) * PERIOD_PER_PROCESS_NS, LONGEST_PERIOD_NS)
        self._due_ns = now_ns + int(max(self._period_ns, share_ns) * stretch)
        return batch

    def _read(self, now_ns: int) -> HostBatch:
        try:
            roles = dict(self._pids())
            ranks = dict(self._ranks()) if self._ranks is not None else None
            procs = tuple(self._processes.sample(now_ns, roles, ranks))
            batch = HostBatch((self._host(now_ns, _trainer(roles)),), procs)
        except Exception as error:  # a monitor that cannot read its host must not fall over
            self._own_missing["host"] = f"Reading the host failed ({error!r}); it goes on trying."
            return HostBatch()
        self._own_missing.pop("host", None)
        return batch

    def close(self) -> None:
        """Stop the helper thread."""
        self._processes.close()

    def _host(self, now_ns: int, trainer: int | None) -> HostSample:
        cpu = parse_cpu_times(read_text("/proc/stat"))
        cores, each = cores_between(self._cpu, cpu), each_core_between(self._cpu, cpu)
        self._cpu = cpu
        traffic = self._traffic.sample(now_ns)
        limits = self._current_limits(now_ns, trainer)
        meminfo = read_text("/proc/meminfo")
        shm = _shm()
        pressure = {name: parse_psi(read_text(f"/proc/pressure/{name}")) for name in _PRESSURES}
        if all(value is None for value in pressure.values()):
            self._own_missing.setdefault(
                "psi", "This kernel does not measure pressure (/proc/pressure); nothing to do."
            )
        return HostSample(
            t_ns=now_ns,
            cpu_busy=cores[0] if cores else None,
            iowait=cores[1] if cores else None,
            cpus_total=cpu.cpus if cpu else None,
            cpus_allowed=cpus_allowed(trainer),
            cpu_quota=limits.cpu_quota,
            mem_available=parse_kib(meminfo, "MemAvailable"),
            mem_total=parse_kib(meminfo, "MemTotal"),
            mem_limit=limits.mem_limit,
            swap_in_bytes_per_s=self._swap_in(now_ns),
            shm_used=shm[0] if shm else None,
            shm_total=shm[1] if shm else None,
            psi_cpu=pressure["cpu"],
            psi_io=pressure["io"],
            psi_memory=pressure["memory"],
            load1=_load1(),
            mem_limit_used=limits.mem_used,
            cores=each,
            disk_read_bytes_per_s=traffic.disk_read,
            disk_write_bytes_per_s=traffic.disk_write,
            net_rx_bytes_per_s=traffic.net_rx,
            net_tx_bytes_per_s=traffic.net_tx,
        )

    def _current_limits(self, now_ns: int, trainer: int | None) -> CgroupLimits:
        due = self._limits_due_ns is None or now_ns >= self._limits_due_ns
        if due or trainer != self._limits_of:
            who = "self" if trainer is None else str(trainer)
            cgroup = read_text(f"/proc/{who}/cgroup")
            self._limits = read_limits(cgroup, read_text("/proc/self/mountinfo"))
            self._limits_due_ns = now_ns + LIMITS_PERIOD_NS
            self._limits_of = trainer
        return self._limits

    def _swap_in(self, now_ns: int) -> float | None:
        pages = parse_keys(read_text("/proc/vmstat")).get("pswpin")
        before, self._swap = self._swap, None if pages is None else (now_ns, pages)
        return swap_in_rate(before, self._swap)


_PRESSURES = ("cpu", "io", "memory")


def _trainer(roles: Mapping[int, str]) -> int | None:
    return min((pid for pid, role in roles.items() if role == "trainer"), default=None)


def cpus_allowed(pid: int | None) -> int | None:
    """CPUs a process may run on, by its affinity; ours for ``None``."""
    try:
        return len(os.sched_getaffinity(pid or 0))
    except (OSError, AttributeError):
        return None


def _shm() -> tuple[int, int] | None:
    try:
        fs = os.statvfs("/dev/shm")
    except OSError:
        return None
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize, fs.f_blocks * fs.f_frsize


def _load1() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
