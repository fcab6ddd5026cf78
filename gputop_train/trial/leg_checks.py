"""What one leg says by itself: how far its mean can be trusted, whether its losses are sane."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gputop_train.trial.record import LegResult

#: Steps below which a leg's scatter is not judged.
MIN_STEPS = 10
#: Autocorrelation from which a lag is a period (proposed): saves every k steps, one of n workers.
PERIODIC = 0.5
#: Of two losses computed from the same batch and weights in different precision:
#: ``torch.testing.assert_close`` takes this for bfloat16, the coarsest a setting switches to.
LOSS_RTOL, LOSS_ATOL = 1.6e-2, 1e-5


def leg_error(step_ns: Sequence[int]) -> float | None:
    """Relative standard error of a leg's mean step, for steps that depend on each other.

    Overlapping batch means (Meketon and Schmeiser 1984), which is what the moving-block bootstrap
    (Kuensch 1989) of a mean converges to. Blocks are one period long where the steps have one, so
    that a save every k steps, which is in every block, does not count as chance.

    Args:
        step_ns: Durations in order.

    Returns:
        A part of the mean (0.01 = 1%); ``None`` for fewer than ten steps.
    """
    n = len(step_ns)
    if n < MIN_STEPS:
        return None
    steps = np.asarray(step_ns, dtype=float)
    mean = float(steps.mean())
    if mean <= 0:
        return None
    block = _block(steps)
    sums = np.cumsum(np.concatenate([[0.0], steps]))
    means = (sums[block:] - sums[:-block]) / block
    # The factor of an unbiased estimate for independent steps.
    variance = block / (n - block) * float(np.mean((means - mean) ** 2))
    return math.sqrt(variance) / mean


def _block(steps: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Length of a block: ``n^(1/3)`` (Hall, Horowitz and Jing 1995), or a multiple of a period."""
    n = len(steps)
    least = max(2, round(math.pow(n, 1 / 3)))
    off = steps - steps.mean()
    power = float(off @ off)
    if power <= 0:
        return least
    # Up to a third: a period must have been seen three times.
    likeness = [float(off[:-lag] @ off[lag:]) / power for lag in range(2, n // 3 + 1)]
    if not likeness or max(likeness) < PERIODIC:
        return least
    period = 2 + likeness.index(max(likeness))
    return period * math.ceil(least / period)


def losses_agree(a: LegResult, b: LegResult) -> str | None:
    """Whether two legs' first losses are those of the same computation.

    Each further loss may differ by one tolerance more: an update carries on what differed before it
    (proposed). Legs of which one knows no losses agree: nothing contradicts it.

    Returns:
        ``None`` where they agree, else one sentence.
    """
    if a.loss_finite is False or b.loss_finite is False:
        if a.loss_finite is b.loss_finite:
            return None
        name = a.arm if a.loss_finite is False else b.arm
        return f"The loss became NaN or infinite in a leg of {name}."
    for index, (first, second) in enumerate(zip(a.first_losses, b.first_losses, strict=False)):
        if math.isfinite(first) != math.isfinite(second):
            return f"The loss of step {index + 1} is not finite on one side."
        largest = max(abs(first), abs(second))
        off = abs(first - second)
        if off > LOSS_ATOL and off > LOSS_RTOL * (index + 1) * largest:
            return (
                f"The loss of step {index + 1} differs by {off / largest:.1%}: "
                f"{first:.4g} with {a.arm}, {second:.4g} with {b.arm}."
            )
    return None
