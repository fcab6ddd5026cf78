"""Whether a series grows: a slope with an interval over its steady part, against a stated bound.

Samples of a process's memory hang together from one to the next, so they are first averaged in at
most 40 blocks; the slope is Sen's (the median of all pairs' slopes), its 95% interval the one from
Kendall's statistic (Gilbert, Statistical Methods for Environmental Pollution Monitoring, 1987,
16.4.2). Both shrug off a few outliers, and a series that stands still has the interval 0 to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median

BLOCKS = 40
#: 97.5% point of the normal distribution.
Z = 1.96


@dataclass(frozen=True, slots=True)
class Trend:
    """Slope by unit of time with its 95% interval; ``None`` of fewer than eight blocks."""

    first: float
    last: float
    highest: float
    slope: float | None
    low: float | None
    high: float | None

    def verdict(self, bound: float) -> str:
        """``flat`` only if the whole interval is inside the bound."""
        if self.slope is None or self.low is None or self.high is None:
            return "too short to say"
        if max(abs(self.low), abs(self.high)) <= bound:
            return "flat"
        if self.low > bound:
            return "**grows**"
        return "falls" if self.high < 0 else "not shown"


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """The slope of values over their times, which ascend.

    Args:
        times: In the unit the slope shall be by.
        values: As many.
    """
    size = max(1, len(values) // BLOCKS)
    cuts = range(0, len(values) - size + 1, size)
    xs = [fmean(times[at : at + size]) for at in cuts]
    ys = [fmean(values[at : at + size]) for at in cuts]
    n = len(ys)
    ends = values[0], values[-1], max(values)
    if n < 8:
        return Trend(*ends, None, None, None)
    pairs = combinations(zip(xs, ys, strict=True), 2)
    slopes = sorted((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairs)
    ties = [ys.count(value) for value in set(ys)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    reach = Z * sqrt(max(variance, 0.0))
    low = int((len(slopes) - reach) / 2)
    high = int((len(slopes) + reach) / 2) + 1
    low, high = max(low - 1, 0), min(high, len(slopes) - 1)
    return Trend(*ends, median(slopes), slopes[low], slopes[high])
