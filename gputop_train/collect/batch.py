"""What the timeline hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputop_train.model import Interval, MemorySample, Step


@dataclass(frozen=True, slots=True)
class Batch:
    """What became certain since the last one.

    Attributes:
        steps: In order, without gaps in their indices.
        intervals: Interruptions; those before the first step are left out.
        memory: Allocator readings.
        events: One-off facts as ``(t_ns, kind)``: ``fork``, ``empty_cache``, ``words_lost``.
        eval_sub: Nanoseconds of evaluation by part (``data_wait``, ``h2d``, ``forward``, ``sync``,
            ``other``), summed over this batch.
        tail: Only from ``finish``: nanoseconds by label after the last step, ``None`` where no step
            was seen.
        tail_ns: Begin and end of that tail.
    """

    steps: tuple[Step, ...] = ()
    intervals: tuple[Interval, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    events: tuple[tuple[int, str], ...] = ()
    eval_sub: Mapping[str, int] | None = None
    tail: Mapping[str, int] | None = None
    tail_ns: tuple[int, int] | None = None
