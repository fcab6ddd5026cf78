"""What the supervisor itself costs, and how far its optional parts hold back to keep that small."""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from collections.abc import Callable

from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId

#: Above this share of one core the optional parts (judging, NVML, host and process readings) slow
#: down, step by step, until it is kept; below half of it they come back to their own pace.
TARGET = 0.02
#: A share is taken over so long, or one expensive second would count as the usual.
WINDOW_NS = 20_000_000_000
#: Reading the rings and storing steps cannot wait; slower than this the rest would be of no use.
MOST = 4.0
_STEP = 1.5


class OwnCost:
    """CPU time of this process and its children against the time it has lived.

    Args:
        cpu_s: CPU seconds so far.
        stretch: Factor on the periods of what is optional, from 1 to ``MOST``.
    """

    def __init__(self, cpu_s: Callable[[], float] | None = None) -> None:
        self.stretch = 1.0
        self._cpu_s = cpu_s or _cpu_s
        self._born_s = _born_s()
        self._mark: tuple[int, float] | None = None

    def told(self) -> dict[str, float]:
        """CPU and wall seconds since this process began, its start-up included."""
        wall_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self._born_s
        return {"cpu_s": self._cpu_s(), "wall_s": wall_s}

    def observe(self, now_ns: int) -> float:
        """Look at the clock, adapt once a window is over, and give the factor."""
        if self._mark is None:  # whatever came before is start-up
            self._mark = (now_ns, self._cpu_s())
        began_ns, before_s = self._mark
        if now_ns - began_ns >= WINDOW_NS:
            cpu_s = self._cpu_s()
            share = (cpu_s - before_s) / ((now_ns - began_ns) / 1e9)
            self._mark = (now_ns, cpu_s)
            if share > TARGET:
                self.stretch = min(MOST, self.stretch * _STEP)
            elif share < TARGET / 2:
                self.stretch = max(1.0, self.stretch / _STEP)
        return self.stretch


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def _born_s() -> float:
    ticks = identity.start_ticks(os.getpid())
    if ticks is None:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return ticks / os.sysconf("SC_CLK_TCK")


def call_at_end(process: ProcessId, call: Callable[[], None]) -> bool:
    """Call once when a process ends, from a thread that sleeps till then.

    Returns:
        Whether that is arranged; not on a kernel without pidfds, nor for a process that is gone.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        return False
    if not identity.is_alive(process):  # the PID may have become another's before it was opened
        os.close(pidfd)
        return False

    def wait() -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        os.close(pidfd)
        call()

    threading.Thread(target=wait, name="end", daemon=True).start()
    return True
