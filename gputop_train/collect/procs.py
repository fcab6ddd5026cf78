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


def parse_io(text: str | None) -> tuple[int, int] | None:
    """Bytes a process read from and wrote to storage (``read_bytes``, ``write_bytes``).

    Reads served by the page cache do not count, nor does tmpfs (proc_pid_io(5)).
    """
    values = dict(line.split(": ", 1) for line in (text or "").splitlines() if ": " in line)
    try:
        return int(values["read_bytes"]), int(values["write_bytes"])
    except (KeyError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of one process at one time."""

    t_ns: int
    stat: ProcStat
    io: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a process did between two readings; ``None`` where that is not known."""

    cpu: float | None = None
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None


def rates_between(before: Reading | None, now: Reading) -> Rates:
    """Cores used and bytes moved per second between two readings of one PID.

    A PID the kernel has given to another process meanwhile shows by its start time: no rates.
    """
    if before is None or before.stat.start_ticks != now.stat.start_ticks:
        return Rates()
    elapsed_s = (now.t_ns - before.t_ns) / 1e9
    if elapsed_s <= 0:
        return Rates()
    cpu = max(0, now.stat.cpu_ticks - before.stat.cpu_ticks) / _TICKS_PER_S / elapsed_s
    if before.io is None or now.io is None:
        return Rates(cpu)
    read, written = (max(0, n - b) / elapsed_s for b, n in zip(before.io, now.io, strict=True))
    return Rates(cpu, read, written)


class ProcessCollector:
    """Samples a set of processes; rates are over the time since the previous call.

    Attributes:
        missing: ``proc_io`` and ``uss`` with one sentence of why, when they are refused.
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
            reading = Reading(now_ns, stat, self._read_io(stat))
            readings[pid] = reading
            rates = rates_between(self._previous.get(pid), reading)
            samples.append(
                ProcSample(
                    t_ns=now_ns,
                    pid=pid,
                    role=role,
                    cpu=rates.cpu,
                    rss=stat.rss,
                    rss_anon=parse_kib(read_text(f"/proc/{pid}/status"), "RssAnon"),
                    uss=uss.get((pid, stat.start_ticks)),
                    read_bytes_per_s=rates.read_bytes_per_s,
                    write_bytes_per_s=rates.write_bytes_per_s,
                    state=stat.state,
                    rank=(ranks or {}).get(pid),
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

    def _read_io(self, stat: ProcStat) -> tuple[int, int] | None:
        io = parse_io(read_text(f"/proc/{stat.pid}/io"))
        living = stat.state not in "ZX" and Path(f"/proc/{stat.pid}").exists()
        if io is None and living:
            self.missing["proc_io"] = (
                "The kernel does not show us what the run's processes read and write "
                "(/proc/PID/io); run the monitor as the same user as the training."
            )
        return io


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
