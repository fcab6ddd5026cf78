"""Quantiles of Student's t for whole degrees of freedom, without a statistics package. Pure."""

from __future__ import annotations

import math
from functools import lru_cache


def student_cdf(t: float, freedom: int) -> float:
    """Probability of a value up to ``t`` with ``freedom`` >= 1 degrees of freedom.

    The finite series for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 or not odd else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + inside / 2


@lru_cache(maxsize=512)
def student_quantile(probability: float, freedom: int) -> float:
    """Value below which ``probability`` (0.5..1, exclusive) of Student's t lies, by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high
