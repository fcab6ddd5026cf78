"""What pairs of neighbouring legs prove about a change: speed-up, interval, verdict. Pure.

A leg's value is its mean wall time per sample, stalls included. Host speed drifts, so a leg is
compared only with the one that ran next to it: a pair gives one log ratio, and everything rests on
how the pairs agree. Steps within a leg are no independent witnesses (Kalibera and Jones, *Rigorous
Benchmarking in Reasonable Time*, ISMM 2013): what varies from start to start of a process is in
none of them. ``docs/trial-statistics.md`` has the formulas and what was measured about them,
``benchmarks/trial_interval.py`` measures it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop_train.trial.leg_checks import leg_error, losses_agree
from gputop_train.trial.record import Compared, LegResult
from gputop_train.trial.student import student_quantile

#: Confidence of one look: an interval that may be looked at after every pair from the third on
#: (Jennison and Turnbull 1989, repeated confidence intervals; Pocock 1977 has 98.4% for each of
#: five looks). With 98% the one at which a trial of up to twelve pairs stops holds the truth in
#: 94.7% of made trials at worst, 97% usually (benchmarks/results/trial_interval.md).
LOOK_LEVEL = 0.98
#: Confidence where the number of rounds was fixed beforehand and nobody stopped early.
FIXED_LEVEL = 0.95
#: From so many pairs on the fastest and the slowest are left out of the interval's centre, and its
#: width is the winsorised one (Tukey and McLaughlin 1963; Yuen 1974). Below, a pair less costs more
#: than an odd one spoils.
TRIM_FROM = 7
#: A change smaller than this is never claimed, and none is denied above it.
SMALLEST = 0.01
#: A change below this is not worth having: three such in a row end a search (the articles' rule).
NEGLIGIBLE = 0.03
#: Half-width at which an interval is tight enough, as a part of the time and of the change.
TIGHT, TIGHT_PART = 0.02, 0.10
#: Pairs before which no early stop is allowed.
MIN_PAIRS = 3
#: Measured steps of one side, all legs together, below which nothing is claimed (the catalogue's
#: "fewer than 20 in either arm: cannot tell yet").
MIN_STEPS = 20


def compare(
    baseline: Sequence[LegResult],
    arm: Sequence[LegResult],
    *,
    by_sample: bool = True,
    peeked: bool = True,
    same_losses: bool = False,
) -> Compared:
    """Compare an arm with the baseline over pairs of legs that ran next to each other.

    Args:
        baseline: Legs of the script as it is; the i-th ran next to the i-th of ``arm``.
        arm: Legs with the change. A pair counts when both were measured.
        by_sample: Compare time per sample; else per step, which is right only where the number of
            samples in a step is the same on both sides.
        peeked: Whether the trial may stop early by what it sees. ``False`` where the rounds were
            fixed beforehand: the interval is then narrower.
        same_losses: Whether the change claims to compute the same: a first loss that differs by
            more than the baseline's own legs do makes the result inconclusive.

    Returns:
        The median ratio, its 95% interval, and a verdict; ``why`` says what an inconclusive one
        lacks. Speed-up and interval are given as far as measured, whatever the verdict.
    """
    pairs = _pairs(baseline, arm, by_sample)
    logs = [math.log(before / after) for _, _, before, after in pairs]
    if not logs:
        return Compared(None, None, "inconclusive", 0, _unmeasured(baseline, arm, by_sample))
    centre = _median(logs)
    # Nobody stops before the third pair: two are all there was time for, not what was chosen.
    looked = peeked and len(logs) >= MIN_PAIRS
    interval = log_interval(logs, LOOK_LEVEL if looked else FIXED_LEVEL)
    speedup = math.exp(centre)
    shown = None if interval is None else (math.exp(interval[0]), math.exp(interval[1]))
    why = _unsound(pairs, same_losses)
    if not why and interval is None:
        why = (
            "One pair does not show how much legs differ by chance: two pairs are the least, "
            "three are better."
        )
    if why or interval is None:
        return Compared(speedup, shown, "inconclusive", len(logs), why)
    low, high = interval
    least = math.log1p(SMALLEST)
    if low > 0 and centre >= least:
        return Compared(speedup, shown, "faster", len(logs))
    if high < 0 and centre <= -least:
        return Compared(speedup, shown, "slower", len(logs))
    if -least <= low and high <= least:
        return Compared(speedup, shown, "no difference", len(logs))
    return Compared(speedup, shown, "inconclusive", len(logs), _undecided(pairs, logs, interval))


def tight_enough(compared: Compared) -> bool:
    """Whether more pairs would teach little: the stopping rule, asked after each pair.

    It looks at the interval's width, not at whether it excludes 1: stopping at the first look that
    finds something finds it in three times as many null trials where legs differ by 5%
    (``benchmarks/results/trial_interval.md``).
    """
    if compared.interval is None or compared.speedup is None or compared.pairs < MIN_PAIRS:
        return False
    low, high = (math.log(end) for end in compared.interval)
    if (high - low) / 2 <= max(TIGHT, TIGHT_PART * abs(math.log(compared.speedup))):
        return True
    return below_worth(compared)


def below_worth(compared: Compared) -> bool:
    """Whether the whole interval lies within 3% of no change."""
    if compared.interval is None:
        return False
    worth = math.log1p(NEGLIGIBLE)
    return -worth <= math.log(compared.interval[0]) and math.log(compared.interval[1]) <= worth


def log_interval(logs: Sequence[float], level: float) -> tuple[float, float] | None:
    """Interval of the centre of a few log ratios.

    Student's interval with the bootstrap's standard error. For a mean that error needs no
    resampling: over all resamples, corrected for their narrowness, it is ``s / sqrt(n)``
    (Hesterberg 2015, *What Teachers Should Know About the Bootstrap*). The percentiles of the
    resamples themselves cannot reach beyond the outermost pair and cover 74% with three.

    Args:
        logs: Log ratios of the pairs, in any order.
        level: Confidence, such as 0.95.

    Returns:
        Lower and upper end, the median always within; ``None`` for fewer than two.
    """
    n = len(logs)
    if n < 2:
        return None
    kept = sorted(logs)
    count = n
    if n >= TRIM_FROM:
        count = n - 2
        winsorised = [kept[1], *kept[1:-1], kept[-2]]
        centre = math.fsum(kept[1:-1]) / count
        spread = _deviation(winsorised)
        error = math.sqrt((n - 1) / (count * (count - 1))) * spread
    else:
        centre = math.fsum(kept) / n
        error = _deviation(kept) / math.sqrt(n)
    half = student_quantile(0.5 + level / 2, count - 1) * error
    middle = _median(kept)
    return min(centre - half, middle), max(centre + half, middle)


def pairs_needed(logs: Sequence[float], half_width: float = TIGHT) -> int | None:
    """How many pairs as spread as these make the interval tight.

    Args:
        logs: Log ratios of the pairs so far, two at least.
        half_width: Of the interval, as a part of the time.

    Returns:
        ``None`` where even a hundred would not do.
    """
    if len(logs) < 2:
        return None
    spread = _deviation(logs)
    for n in range(MIN_PAIRS, 101):
        if student_quantile(0.5 + LOOK_LEVEL / 2, n - 1) * spread / math.sqrt(n) <= half_width:
            return n
    return None


def leg_value(leg: LegResult, by_sample: bool) -> float | None:
    """Mean time per sample (us) or step (ns), stalls included; ``None`` = not measured."""
    value = leg.time_per_sample_us if by_sample else leg.step_mean_ns
    return value if leg.status == "measured" and value and math.isfinite(value) else None


_Pair = tuple[LegResult, LegResult, float, float]


def _pairs(baseline: Sequence[LegResult], arm: Sequence[LegResult], by_sample: bool) -> list[_Pair]:
    found: list[_Pair] = []
    for before, after in zip(baseline, arm, strict=False):
        first, second = leg_value(before, by_sample), leg_value(after, by_sample)
        if first is not None and second is not None:
            found.append((before, after, first, second))
    return found


def _unmeasured(baseline: Sequence[LegResult], arm: Sequence[LegResult], by_sample: bool) -> str:
    for side in (baseline, arm):
        broken = next((leg for leg in side if leg.status != "measured" and leg.why), None)
        if broken is not None:
            return broken.why
    if baseline and arm and by_sample:
        legs = (baseline[0], arm[0])
        if all(leg.step_ns for leg in legs):
            return "How many samples a step takes was not counted: no DataLoader feeds it."
    return "No pair of legs was measured."


def _unsound(pairs: Sequence[_Pair], same_losses: bool) -> str:
    """Why the pairs prove nothing, however they agree; empty where they may."""
    before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    steps = min(sum(len(leg.step_ns) for leg in side) for side in (before, after))
    if steps < MIN_STEPS:
        return f"Only {steps} steps were measured on a side; {MIN_STEPS} are needed to claim any."
    if any(leg.loss_finite is False for leg in after) and not any(
        leg.loss_finite is False for leg in before
    ):
        return "The loss became NaN or infinite with the change, and not without it."
    steady = all(losses_agree(before[0], leg) is None for leg in before[1:])
    if same_losses and steady:
        return losses_agree(before[0], after[0]) or ""
    return ""


def _undecided(pairs: Sequence[_Pair], logs: Sequence[float], interval: tuple[float, float]) -> str:
    low, high = interval
    span = f"between {_words(low)} and {_words(high)}"
    if low > 0 or high < 0:
        return f"A difference of {abs(math.expm1(_median(logs))):.1%} is too small to claim."
    if -math.log1p(NEGLIGIBLE) <= low and high <= math.log1p(NEGLIGIBLE):
        return f"Any difference is under {NEGLIGIBLE:.0%}: {span}."
    told = f"{len(logs)} pairs leave it {span}."
    needed = pairs_needed(logs)
    if needed is None:
        return f"{told} The legs differ too much from each other on this machine now."
    if needed <= len(logs):
        return told
    if _steps_explain(pairs, logs):
        return f"{told} The steps themselves vary: longer legs (--steps) would help."
    return f"{told} About {needed} pairs would tell."


def _steps_explain(pairs: Sequence[_Pair], logs: Sequence[float]) -> bool:
    """Whether the steps' own scatter makes most of what the pairs differ by."""
    within = 0.0
    for before, after, _, _ in pairs:
        first, second = leg_error(before.step_ns), leg_error(after.step_ns)
        if first is None or second is None:
            return False
        within += (first**2 + second**2) / len(pairs)
    return within >= 0.5 * _deviation(logs) ** 2


def _words(log_ratio: float) -> str:
    """``2.0% faster``: of a speed-up's logarithm."""
    change = math.expm1(abs(log_ratio))
    if change < 0.0005:
        return "no change"
    return f"{change:.1%} {'faster' if log_ratio > 0 else 'slower'}"


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _deviation(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
