"""Unique set size (USS) of processes, read seldom and in a thread of its own.

``smaps_rollup`` makes the kernel walk the process's page tables: tens of milliseconds a GiB, and
under the process's memory lock, which the process needs for ``mmap``. So: one process at a time,
never a big one, no process more often than 0.2% of its reading cost, and never on the thread that
drives the monitor, since a process stuck in the kernel with that lock held would hold us too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputop_train.collect.procfs import read_text

if TYPE_CHECKING:
    from gputop_train.collect.procs import ProcStat

#: Processes with more resident memory are left alone.
MAX_RSS_BYTES = 2 << 30

#: Shortest time between two readings of one process.
MIN_INTERVAL_NS = 10_000_000_000

#: A reading that took c is repeated after 500 c at the earliest: 0.2% of the process's time.
COST_FACTOR = 500

Key = tuple[int, int]  # pid, start ticks


def parse_uss(text: str | None) -> int | None:
    """Private bytes of a ``smaps_rollup`` text: pages no other process maps."""
    total: int | None = None
    for line in (text or "").splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:")):
            total = (total or 0) + int(line.split()[1]) * 1024
    return total


class UssReader:
    """Reads the USS of whichever asked-for process is due, one at a time."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Key | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Key, int | None, int]] = queue.SimpleQueue()
        self._pending: Key | None = None
        self._due_ns: dict[Key, int] = {}
        self._asked_ns = 0
        self._thread: threading.Thread | None = None

    def ask(self, now_ns: int, processes: Sequence[ProcStat]) -> None:
        """Have the process that is longest due read, unless one is being read."""
        keys = {(p.pid, p.start_ticks) for p in processes}
        self._due_ns = {key: due for key, due in self._due_ns.items() if key in keys}
        if self._pending is not None:
            return
        candidates = [
            (self._due_ns.get((p.pid, p.start_ticks), 0), (p.pid, p.start_ticks))
            for p in processes
            if 0 < p.rss <= MAX_RSS_BYTES
        ]
        if not candidates:
            return
        due_ns, key = min(candidates)
        if due_ns > now_ns:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gputop-uss", daemon=True)
            self._thread.start()
        self._pending = key
        self._asked_ns = now_ns
        self._requests.put(key)

    def collect(self) -> dict[Key, int]:
        """Readings finished since the last call."""
        done: dict[Key, int] = {}
        while True:
            try:
                key, uss, cost_ns = self._answers.get_nowait()
            except queue.Empty:
                return done
            self._pending = None
            self._due_ns[key] = self._asked_ns + max(MIN_INTERVAL_NS, COST_FACTOR * cost_ns)
            if uss is not None:
                done[key] = uss

    def close(self) -> None:
        """Let the thread end; a reading stuck in the kernel is left behind (daemon thread)."""
        self._requests.put(None)

    def _run(self) -> None:
        while (key := self._requests.get()) is not None:
            began_ns = time.monotonic_ns()
            uss = parse_uss(read_text(f"/proc/{key[0]}/smaps_rollup"))
            self._answers.put((key, uss, time.monotonic_ns() - began_ns))
