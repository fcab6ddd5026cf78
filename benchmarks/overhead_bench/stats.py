"""From block times to a ratio with an interval, and from an interval to a verdict.

The unit is a quad, four neighbouring blocks of as many steps each: A B B A or B A A B. Its ratio
``(b1 + b2) / (a1 + a2)`` is free of linear drift. What is estimated is the *mean* of the logarithms
of these ratios, never a median of steps or of quads: the probe's helper works in bursts (5 and 1
times a second), and a median would not see what strikes fewer than half of the blocks.

A quad that something else disturbed is recognised by the disagreement of blocks of the *same* kind,
A with A and B with B, and weighs less; which of the two it was, and which way the ratio points,
plays no part. Blocks of the same kind may differ by 5% before that: no burst of the helper is as
large a part of a block.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

AGREE = 0.05  # blocks of one kind may differ by so much before their quad weighs less
RESAMPLES = 2000
LEAST_WORTH = 6.0
WIDEST_PASS = 0.03  # beyond, an upper bound that is low enough is luck
TAIL = 0.025

#: Student's t at 97.5% for 1.. degrees of freedom; 1.96 beyond.
# fmt: off
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
      2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064)
# fmt: on


@dataclass(frozen=True, slots=True)
class Quad:
    """Seconds a step in the two plain and the two other blocks of one quad."""

    a: tuple[float, float]
    b: tuple[float, float]

    @property
    def log_ratio(self) -> float:
        """Logarithm of B over A."""
        return math.log((self.b[0] + self.b[1]) / (self.a[0] + self.a[1]))

    @property
    def weight(self) -> float:
        """1 while blocks of one kind agree, less the more they differ."""
        apart = max(abs(math.log(self.a[0] / self.a[1])), abs(math.log(self.b[0] / self.b[1])))
        return min(1.0, (AGREE / apart) ** 2) if apart else 1.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Upper less lower bound."""
        return self.high - self.low


def weighted_mean(quads: Sequence[Quad]) -> float:
    """Mean log ratio."""
    total = sum(q.weight for q in quads)
    return sum(q.weight * q.log_ratio for q in quads) / total


def compare(real: Sequence[Quad], null: Sequence[Quad]) -> dict[str, Interval]:
    """Ratio, null control and their difference, each with its bootstrap interval over quads."""
    rng = random.Random(0)
    ratios, nulls = _means(real, rng), _means(null, rng)
    differences = [math.exp(r) - math.exp(n) for r, n in zip(ratios, nulls, strict=True)]
    ratio, bias = math.exp(weighted_mean(real)), math.exp(weighted_mean(null))
    return {
        "ratio": interval(ratio, [math.exp(r) for r in ratios]),
        "null": interval(bias, [math.exp(n) for n in nulls]),
        "difference": interval(ratio - bias, differences),
    }


def _means(quads: Sequence[Quad], rng: random.Random) -> list[float]:
    drawn = [(q.weight, q.weight * q.log_ratio) for q in quads]
    found = []
    for _ in range(RESAMPLES):
        sample = rng.choices(drawn, k=len(drawn))
        found.append(sum(wl for _, wl in sample) / sum(w for w, _ in sample))
    return found


def interval(value: float, resampled: list[float]) -> Interval:
    """A value with its 95% interval by resampling."""
    resampled.sort()
    low = resampled[int(TAIL * len(resampled))]
    high = resampled[int((1 - TAIL) * len(resampled)) - 1]
    return Interval(value, low, high)


def narrow_enough(real: Sequence[Quad], null: Sequence[Quad], width: float, least: int) -> bool:
    """Whether to stop early. Looks at the width of the interval, never at where it lies."""
    if min(len(real), len(null)) < least:
        return False
    variance = 0.0
    for quads in (real, null):
        variance += statistics.variance([q.log_ratio for q in quads]) / len(quads)
    return 2 * 1.96 * math.sqrt(variance) <= width


def paired(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Mean ratio of second over first with Student's interval; None below two pairs.

    For whole runs, of which there are few: each pair is two processes that ran one after the other.
    """
    logs = [math.log(second / first) for first, second in pairs]
    if len(logs) < 2:
        return None
    mean = statistics.fmean(logs)
    t = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def bar(step_ms: float) -> float | None:
    """What the upper bound of ratio less null bias may be: 1.01 from 2 ms, 1.015 from 1 ms."""
    if step_ms >= 2.0:
        return 1.01
    return 1.015 if step_ms >= 1.0 else None


def undisturbed(quads: Sequence[Quad]) -> float:
    """How many undisturbed quads these are worth."""
    return sum(quad.weight for quad in quads)


def verdict(difference: Interval, limit: float | None, worth: float = math.inf) -> str:
    """``pass``, ``fail``, ``inconclusive``, or ``no bar`` for steps under 1 ms.

    Args:
        difference: Of ratio and null control.
        limit: The bar, as a ratio.
        worth: Undisturbed quads that were had; too few prove nothing.
    """
    if limit is None:
        return "no bar"
    if worth < LEAST_WORTH:
        return "inconclusive"
    if 1 + difference.high <= limit:
        return "pass" if difference.width <= WIDEST_PASS else "inconclusive"
    return "fail" if 1 + difference.low > limit else "inconclusive"
