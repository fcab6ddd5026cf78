"""Small, deterministic statistics for diagnosis. Every random draw uses a fixed seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Same store, same verdict: resampling never depends on when or where it runs.
SEED = 20_240_131
RESAMPLES = 400
#: Fewer observations than this in either arm: "cannot tell yet" (catalogue, section 2).
MIN_ARM = 20


def median(values: Sequence[float] | Floats) -> float | None:
    """Median, or ``None`` for no values."""
    return float(np.median(np.asarray(values, dtype=float))) if len(values) else None


def quantile(values: Sequence[float] | Floats, q: float) -> float | None:
    """Quantile ``q`` (0..1) by linear interpolation, or ``None`` for no values."""
    return float(np.quantile(np.asarray(values, dtype=float), q)) if len(values) else None


@dataclass(frozen=True, slots=True)
class Contrast:
    """Difference of medians of two arms with its 95% bootstrap interval, in the input's unit."""

    difference: float
    low: float
    high: float
    n_with: int
    n_without: int


def contrast(
    with_event: Sequence[float], without: Sequence[float], min_arm: int = MIN_ARM
) -> Contrast | None:
    """Natural experiment: how much longer are steps with the event than steps without it?

    Returns:
        ``None`` when either arm has fewer than ``min_arm`` observations: it cannot be told yet.
    """
    if len(with_event) < min_arm or len(without) < min_arm:
        return None
    a, b = np.asarray(with_event, dtype=float), np.asarray(without, dtype=float)
    rng = np.random.default_rng(SEED)
    draws = _resampled_medians(a, rng) - _resampled_medians(b, rng)
    low, high = np.quantile(draws, [0.025, 0.975])
    difference = float(np.median(a) - np.median(b))
    return Contrast(difference, float(low), float(high), len(a), len(b))


def _resampled_medians(values: Floats, rng: np.random.Generator) -> Floats:
    # Above 2,000 values the interval no longer needs them all; memory and time would.
    if len(values) > 2000:
        values = values[np.linspace(0, len(values) - 1, 2000).astype(int)]
    picks = rng.integers(0, len(values), (RESAMPLES, len(values)))
    return np.asarray(np.median(values[picks], axis=1))


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> tuple[float, float] | None:
    """95% bootstrap interval of ``sum(parts) / sum(wholes)``, resampling whole steps."""
    n = len(parts)
    if n < MIN_ARM:
        return None
    p, w = np.asarray(parts, dtype=float), np.asarray(wholes, dtype=float)
    if n > 2000:
        keep = np.linspace(0, n - 1, 2000).astype(int)
        p, w, n = p[keep], w[keep], 2000
    picks = np.random.default_rng(SEED).integers(0, n, (RESAMPLES, n))
    total = w[picks].sum(axis=1)
    if not np.all(total > 0):
        return None
    low, high = np.quantile(p[picks].sum(axis=1) / total, [0.025, 0.975])
    return float(low), float(high)


def theil_sen(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Median of all pairwise slopes; ``None`` for fewer than two distinct ``x``."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    i, j = np.triu_indices(len(xs), 1)
    dx = xs[j] - xs[i]
    ok = dx != 0
    if not ok.any():
        return None
    return float(np.median((ys[j] - ys[i])[ok] / dx[ok]))


def mann_kendall(y: Sequence[float]) -> float:
    """One-sided p-value of an increasing trend (Mann 1945, Kendall 1975; tie-corrected).

    Returns 1.0 when there is nothing to test.
    """
    ys = np.asarray(y, dtype=float)
    n = len(ys)
    if n < 4:
        return 1.0
    i, j = np.triu_indices(n, 1)
    s = float(np.sign(ys[j] - ys[i]).sum())
    _, ties = np.unique(ys, return_counts=True)
    tied = float((ties * (ties - 1) * (2 * ties + 5)).sum())
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    if variance <= 0 or s <= 0:
        return 1.0
    z = (s - 1) / math.sqrt(variance)
    return 0.5 * math.erfc(z / math.sqrt(2))
