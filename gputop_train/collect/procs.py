"""What each process of the run costs (CPU, memory, file traffic), and which ones belong to it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gputop_train.collect.procfs import read_text
from gputop_train.collect.uss import UssReader
from gputop_train.model import ProcSample

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcStat:
    """The fields of ``/proc/PID/stat`` we use (proc_pid_stat(5)).

    Attributes:
        cpu_ticks: User and system time of all threads, in clock ticks.
        sys_ticks: Of them, system time.
        major_faults: Pages that had to come from storage: swapped out, or of a mapped file.
        start_ticks: Start after boot, in clock ticks: with the PID it names a process for good.
        rss: Resident bytes, shared pages included.
    """

    pid: int
    state: str
    ppid: int
    session: int
    cpu_ticks: int
    start_ticks: int
    rss: int
    sys_ticks: int = 0
    major_faults: int = 0
    threads: int | None = None


def parse_stat(text: str | None) -> ProcStat | None:
    """Read a ``/proc/PID/stat`` line; ``None`` when it is absent or malformed.

    The name in parentheses may hold blanks and parentheses itself, so fields count from the last.
    """
    head, separator, tail = (text or "").rpartition(")")
    fields = tail.split()
    if not separator or len(fields) < 22:
        return None
    try:
        return ProcStat(
            pid=int(head.partition("(")[0]),
            state=fields[0],
            ppid=int(fields[1]),
            session=int(fields[3]),
            cpu_ticks=int(fields[11]) + int(fields[12]),
            start_ticks=int(fields[19]),
            rss=int(fields[21]) * _PAGE_BYTES,
            sys_ticks=int(fields[12]),
            major_faults=int(fields[9]),
            threads=int(fields[17]),
        )
    except ValueError:
        return None


def parse_kib(text: str | None, key: str) -> int | None:
    """Bytes of a ``Key:   123 kB`` line of ``status`` or ``smaps_rollup``."""
    start = f"\n{text}".find(f"\n{key}:")
    if text is None or start < 0:
        return None
    fields = text[start + len(key) + 1 :].split(None, 2)
    return int(fields[0]) * 1024 if fields and fields[0].isdigit() else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a process read and wrote since it began (proc_pid_io(5)).

    Attributes:
        read: Bytes fetched from storage. What the page cache served does not count, nor does tmpfs.
        written: Bytes sent towards storage.
        through: Bytes all read calls gave, the page cache's and pipes' included (``rchar``).
        calls: Read calls (``syscr``).
    """

    read: int
    written: int
    through: int
    calls: int


def parse_io(text: str | None) -> Traffic | None:
    """Read a ``/proc/PID/io`` text; ``None`` when it is absent or malformed."""
    values = dict(line.split(": ", 1) for line in (text or "").splitlines() if ": " in line)
    try:
        return Traffic(
            *(int(values[name]) for name in ("read_bytes", "write_bytes", "rchar", "syscr"))
        )
    except (KeyError, ValueError):
        return None


def parse_run_delay(text: str | None) -> int | None:
    """Nanoseconds a thread was ready to run and did not (2nd field of ``schedstat``).

    A kernel that keeps no such account shows three zeros: ``None``.
    """
    fields = (text or "").split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields) or fields[0] == "0":
        return None
    return int(fields[1])


def parse_cpus_allowed(text: str | None) -> int | None:
    """How many CPUs the ``Cpus_allowed_list`` of a ``status`` text names (``0-3,8``)."""
    start = (text or "").find("\nCpus_allowed_list:")
    if text is None or start < 0:
        return None
    count = 0
    for part in text[start + 19 :].split("\n", 1)[0].split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return None
        count += int(last or first) - int(first) + 1
    return count


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one process at one time."""

    t_ns: int
    stat: ProcStat
    io: Traffic | None = None
    run_delay_ns: int | None = None
    main_ticks: int | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a process did between two readings, as ``ProcSample`` names it; ``None`` = unknown."""

    cpu: float | None = None
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None
    cpu_sys: float | None = None
    run_delay: float | None = None
    rchar_per_s: float | None = None
    reads_per_s: float | None = None
    major_faults_per_s: float | None = None
    main_cpu: float | None = None


def rates_between(before: Reading | None, now: Reading) -> Rates:
    """Cores used and bytes moved per second between two readings of one PID.

    A PID the kernel has given to another process meanwhile shows by its start time: no rates.
    """
    if before is None or before.stat.start_ticks != now.stat.start_ticks:
        return Rates()
    elapsed_s = (now.t_ns - before.t_ns) / 1e9
    if elapsed_s <= 0:
        return Rates()

    def rate(old: int | None, new: int | None) -> float | None:
        return None if old is None or new is None else max(0, new - old) / elapsed_s

    def traffic(name: str) -> float | None:
        return rate(getattr(before.io, name, None), getattr(now.io, name, None))

    cpu = rate(before.stat.cpu_ticks, now.stat.cpu_ticks)
    cpu_sys = rate(before.stat.sys_ticks, now.stat.sys_ticks)
    waited = rate(before.run_delay_ns, now.run_delay_ns)
    main = rate(before.main_ticks, now.main_ticks)
    return Rates(
        cpu=None if cpu is None else cpu / _TICKS_PER_S,
        read_bytes_per_s=traffic("read"),
        write_bytes_per_s=traffic("written"),
        cpu_sys=None if cpu_sys is None else cpu_sys / _TICKS_PER_S,
        run_delay=None if waited is None else waited / 1e9,
        rchar_per_s=traffic("through"),
        reads_per_s=traffic("calls"),
        major_faults_per_s=rate(before.stat.major_faults, now.stat.major_faults),
        main_cpu=None if main is None else main / _TICKS_PER_S,
    )


class ProcessCollector:
    """Samples a set of processes; rates are over the time since the previous call.

    Attributes:
        missing: ``proc_io`` and ``run_delay`` with one sentence of why, when they are not there.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._previous: dict[int, Reading] = {}
        self._uss = UssReader()

    def sample(
        self, now_ns: int, roles: Mapping[int, str], ranks: Mapping[int, int] | None = None
    ) -> list[ProcSample]:
        """One sample for each process of ``roles`` (pid to role) that is still there."""
        samples: list[ProcSample] = []
        readings: dict[int, Reading] = {}
        uss = self._uss.collect()
        for pid, role in roles.items():
            stat = parse_stat(read_text(f"/proc/{pid}/stat"))
            if stat is None:
                continue
            main = _main_ticks(pid) if role == "trainer" else None
            reading = Reading(now_ns, stat, self._read_io(stat), self._read_delay(stat), main)
            readings[pid] = reading
            rates = rates_between(self._previous.get(pid), reading)
            status = read_text(f"/proc/{pid}/status")
            samples.append(
                ProcSample(
                    t_ns=now_ns,
                    pid=pid,
                    role=role,
                    cpu=rates.cpu,
                    rss=stat.rss,
                    rss_anon=parse_kib(status, "RssAnon"),
                    uss=uss.get((pid, stat.start_ticks)),
                    read_bytes_per_s=rates.read_bytes_per_s,
                    write_bytes_per_s=rates.write_bytes_per_s,
                    state=stat.state,
                    rank=(ranks or {}).get(pid),
                    cpu_sys=rates.cpu_sys,
                    run_delay=rates.run_delay,
                    cpus_allowed=parse_cpus_allowed(status),
                    threads=stat.threads,
                    rchar_per_s=rates.rchar_per_s,
                    reads_per_s=rates.reads_per_s,
                    major_faults_per_s=rates.major_faults_per_s,
                    main_cpu=rates.main_cpu,
                )
            )
        self._previous = readings
        # No rule needs the trainer's (RssAnon tells its growth), so its memory lock is left alone.
        others = [r.stat for pid, r in readings.items() if roles[pid] != "trainer"]
        self._uss.ask(now_ns, others)
        return samples

    def close(self) -> None:
        """Stop the helper thread."""
        self._uss.close()

    def _read_delay(self, stat: ProcStat) -> int | None:
        """Of the main thread: all threads of a trainer would be hundreds of files."""
        delay_ns = parse_run_delay(read_text(f"/proc/{stat.pid}/schedstat"))
        if delay_ns is None and _living(stat):
            self.missing["run_delay"] = (
                "The kernel does not tell how long the run's processes wait for a core "
                "(/proc/PID/schedstat)."
            )
        return delay_ns

    def _read_io(self, stat: ProcStat) -> Traffic | None:
        io = parse_io(read_text(f"/proc/{stat.pid}/io"))
        if io is None and _living(stat):
            self.missing["proc_io"] = (
                "The kernel does not show us what the run's processes read and write "
                "(/proc/PID/io); run the monitor as the same user as the training."
            )
        return io


def _main_ticks(pid: int) -> int | None:
    """Time of the main thread alone, which is the one that trains in almost every script."""
    stat = parse_stat(read_text(f"/proc/{pid}/task/{pid}/stat"))
    return None if stat is None else stat.cpu_ticks


def _living(stat: ProcStat) -> bool:
    return stat.state not in "ZX" and Path(f"/proc/{stat.pid}").exists()


def process_table() -> dict[int, ProcStat]:
    """Every process we may see. Costs about 20 us each: meant for once in a second or two."""
    table: dict[int, ProcStat] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path for each would double the cost
        if name.isdigit():
            stat = parse_stat(read_text(f"/proc/{name}/stat"))
            if stat is not None:
                table[stat.pid] = stat
    return table


def in_session(table: Mapping[int, ProcStat], sid: int) -> set[int]:
    """Processes of a session: the run's, orphans included, unless one began a session itself."""
    return {pid for pid, stat in table.items() if stat.session == sid}


def descendants(table: Mapping[int, ProcStat], roots: Iterable[int]) -> set[int]:
    """All children of ``roots``, theirs too, without the roots themselves."""
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.ppid, []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found - set(roots)


def children_of_session(sid: int) -> set[int]:
    """Processes of session ``sid`` and whatever they started, in whatever session."""
    table = process_table()
    members = in_session(table, sid)
    return members | descendants(table, members)


def assign_roles(
    pids: Iterable[int], trainers: Collection[int], workers: Collection[int]
) -> dict[int, str]:
    """The role of each process: ``trainer``, ``worker`` (of a loader) or ``other``."""
    return {
        pid: "trainer" if pid in trainers else "worker" if pid in workers else "other"
        for pid in pids
    }
