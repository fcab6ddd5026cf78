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
class WallMap:
    """The offsets under which recent wall times may have been taken, newest first.

    Attributes:
        offsets: ``(offset_ns, last_true_ns)``: wall minus monotonic, and the monotonic time at
            which that offset was last measured.
    """

    offsets: tuple[tuple[int, int], ...] = ()

    @property
    def offset_ns(self) -> int:
        """The offset as last measured; 0 before the first measurement."""
        return self.offsets[0][0] if self.offsets else 0

    def observed(self, offset_ns: int, now_ns: int) -> WallMap:
        """The map after one more measurement of the offset at monotonic time ``now_ns``."""
        kept = self.offsets
        if kept and abs(kept[0][0] - offset_ns) <= STEP_NS:
            kept = kept[1:]
        kept = tuple(o for o in kept if now_ns - o[1] <= REMEMBER_NS)
        return WallMap(((offset_ns, now_ns), *kept))

    def stepped(self, previous: WallMap) -> bool:
        """Whether the wall clock was stepped since ``previous``."""
        return bool(previous.offsets) and abs(self.offset_ns - previous.offset_ns) > STEP_NS

    def to_monotonic(self, wall_ns: int, after_ns: int, until_ns: int) -> int | None:
        """The monotonic time of ``wall_ns``, known to lie in ``(after_ns, until_ns]``.

        Returns:
            The time under the newest offset that puts it into the range, or ``None`` when none
            does: then the stamp is not from this clock, and no time is better than a wrong one.
        """
        for offset_ns, _ in self.offsets:
            t_ns = wall_ns - offset_ns
            if after_ns < t_ns <= until_ns:
                return t_ns
        return None
