"""Wall clock to ``CLOCK_MONOTONIC``, also across a step of the wall clock.

The NVIDIA driver stamps its utilisation samples with the wall clock; everything else here runs on
``CLOCK_MONOTONIC``. The two differ by an offset that NTP's slewing leaves alone (it slews both) and
that only a step of the wall clock changes (``date -s``, ``settimeofday``, a resumed virtual
machine). A sample stamped before a step must be mapped with the offset of that time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

#: A change of the offset beyond this is a step of the wall clock. Two reads of the clocks are apart
#: by microseconds, by a scheduler slice at worst, and the tightest of several pairs is taken.
STEP_NS = 5_000_000

#: The driver keeps about 24 s of samples (120 of 200 ms), so an offset older than this is useless.
REMEMBER_NS = 60_000_000_000


def measure_offset_ns(pairs: int = 3) -> int:
    """Wall time minus ``CLOCK_MONOTONIC``, in nanoseconds, from the tightest of ``pairs`` reads."""
    best_width: int | None = None
    offset = 0
    for _ in range(pairs):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        width = after - before
        if best_width is None or width < best_width:
            best_width = width
            offset = wall - (before + after) // 2
    return offset


@dataclass(frozen=True, slots=True)
class Offset:
    """Wall time minus ``CLOCK_MONOTONIC``, and the monotonic times it was first and last seen."""

    offset_ns: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class WallMap:
    """The offsets under which recent wall times may have been taken, newest first."""

    offsets: tuple[Offset, ...] = ()

    def observed(self, offset_ns: int, now_ns: int) -> WallMap:
        """The map after one more measurement of the offset at monotonic time ``now_ns``."""
        kept, first_ns = self.offsets, now_ns
        if kept and abs(kept[0].offset_ns - offset_ns) <= STEP_NS:
            kept, first_ns = kept[1:], kept[0].first_ns
        kept = tuple(o for o in kept if now_ns - o.last_ns <= REMEMBER_NS)
        return WallMap((Offset(offset_ns, first_ns, now_ns), *kept))

    def earliest_wall_ns(self, t_ns: int) -> int:
        """The smallest wall time that may have been read at monotonic time ``t_ns``."""
        return min((t_ns + o.offset_ns for o in self.offsets), default=0)

    def to_monotonic(self, wall_ns: int, after_ns: int, until_ns: int) -> int | None:
        """The monotonic time of ``wall_ns``, known to lie in ``(after_ns, until_ns]``.

        A step is only known to have happened between two measurements. A time read between those
        two may be off by the step, if that is shorter than the time between them.

        Returns:
            The time under the newest offset that puts it into the range and into the time that
            offset was in force, or ``None``: then the stamp is not from this clock, and no time is
            better than a wrong one.
        """
        for offset, older in zip(self.offsets, (*self.offsets[1:], None), strict=True):
            t_ns = wall_ns - offset.offset_ns
            in_force_ns = after_ns if older is None else max(after_ns, older.last_ns)
            if in_force_ns < t_ns <= until_ns:
                return t_ns
        return None
