"""What a process did before its first step: when it came how far, and which lines it was seen at.

No thread and no timer: both would be there in every process that merely imports torch, forks
included. The lines come from garbage collections, which Python runs while it makes objects: code
that scans or tokenises a data set in Python is met many times a second, code that waits or computes
in C hardly ever. So few looks mean "not known", not "nothing".
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from . import began_ns, ring, sites
from .state import S, ident, now

LOOK_NS = 50_000_000  # shortest time between two looks
MAX_LINES = 64
MAX_DEPTH = 400  # an import within imports is deep
TOLD_LINES = 5

#: First time of each: torch_ns (its import was over), loader_ns (a DataLoader was built),
#: iter_ns (one was iterated), armed_ns (a backward or an optimizer step), step_ns (the latter).
marks: dict[str, int] = {}
_looks: dict[tuple[str, int, str], int] = {}
_count = [0]
_due_ns = [0]


def mark(name: str) -> None:
    """Note the time, the first time something happens."""
    if name not in marks:
        marks[name] = now()


def look(depth: int) -> None:
    """A garbage collection begins before any training: which line of the person's is at work?"""
    t_ns = now()
    if t_ns < _due_ns[0] or S.armed or ident() != S.thread_id:
        return
    _due_ns[0] = t_ns + LOOK_NS
    _count[0] += 1
    frame: Any = sys._getframe(depth)
    for _ in range(MAX_DEPTH):
        if frame is None:
            return
        code = frame.f_code
        if not sites.is_library(code):
            key = (code.co_filename, frame.f_lineno or 0, code.co_name)
            if key in _looks or len(_looks) < MAX_LINES:
                _looks[key] = _looks.get(key, 0) + 1
            return
        frame = frame.f_back


def report() -> dict[str, Any]:
    """For the snapshot; times are CLOCK_MONOTONIC nanoseconds."""
    most = sorted(_looks.items(), key=lambda item: -item[1])[:TOLD_LINES]
    return {
        "process_ns": _process_began(),
        "torch_begin_ns": began_ns.get("torch"),
        **marks,
        "looks": _count[0],
        "look_ns": LOOK_NS,
        "lines": [[file, line, func, count] for (file, line, func), count in most],
    }


_began: dict[int, int | None] = {}


def _process_began() -> int | None:
    """When this process was started (a fork counts), to a clock tick."""
    pid = os.getpid()
    if pid not in _began:
        ticks = ring.start_ticks(pid)
        since_boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        began = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        _began[pid] = now() - (since_boot - began) if ticks else None
    return _began[pid]


def reset() -> None:
    """After a fork: this process has its own beginning; torch it has from its parent."""
    for name in ("loader_ns", "iter_ns", "armed_ns", "step_ns"):
        marks.pop(name, None)
    _looks.clear()
    _count[0] = 0
