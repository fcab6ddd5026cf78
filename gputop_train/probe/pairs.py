"""What pairs of GPU events say about one line: idle GPU around a read, the time of a copy.

The reader sums the same events by step (docs/wire-format.md); by line they are summed here, where
the line is known. On the training thread, when a sampled step's events have completed.
"""

from __future__ import annotations

from typing import Any

from . import sites
from . import words as W

#: Device time from a read's return to the next read is the read's up to this much: a script may
#: launch in between. The reader draws the same line (collect/gpu_edges.py).
MAX_BETWEEN_READS_NS = 50_000
IDLE = 2  # flag of a mark: the stream was idle when it was recorded
_SYNC_BEGIN, _SYNC_END = W.SYNC_EDGE * 2, W.SYNC_EDGE * 2 + 1
_COPY_END = W.H2D_EDGE * 2 + 1
#: Begins of waits before which a script launches next to nothing.
_NEXT = (W.DATA * 2, W.SAVE * 2, W.LOGGING * 2, W.H2D_EDGE * 2, _SYNC_BEGIN)


def note(marks: list[tuple[int, Any, int, int]], offsets: list[int]) -> None:
    """Add one step's reads and copies to their lines. Never raises.

    Args:
        marks: ``(edge, event, flags, bytes << 16 | site)`` in recording order.
        offsets: Device time of each since the first, ns.
    """
    try:
        last = len(marks) - 1
        for n in range(1, len(marks)):
            edge, _, _, argument = marks[n]
            if argument and edge in (_SYNC_END, _COPY_END) and marks[n - 1][0] == edge - 1:
                follows = n < last and edge == _SYNC_END
                after = _after(marks[n + 1], offsets[n + 1] - offsets[n]) if follows else 0
                sites.pair(argument, offsets[n] - offsets[n - 1], after)
    except Exception:
        pass


def _after(mark: tuple[int, Any, int, int], gap_ns: int) -> int:
    edge, _, flags, _ = mark
    if edge not in _NEXT or not flags & IDLE:
        return 0
    return min(gap_ns, MAX_BETWEEN_READS_NS) if edge == _SYNC_BEGIN else gap_ns
