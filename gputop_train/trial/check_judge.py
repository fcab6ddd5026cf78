"""From two sides of a check to its result. Pure.

Time is judged by its interval: all of it beyond what is allowed is a regression, all of it within
passes, and what lies across the limit is inconclusive, never a guess. What does not drift with the
host is judged by itself, whatever came of time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gputop_train.report import format as fmt
from gputop_train.report.compare_difference import explain
from gputop_train.report.compare_side import Times
from gputop_train.trial import stats, yardstick
from gputop_train.trial.check_record import Check, Gate, Limits, Result, Side, Timing
from gputop_train.trial.record import LegResult
from gputop_train.trial.student import student_quantile

#: Name -> (in words, unit, what more of it is allowed as a part, and as a number).
#: Counts of a step are whole numbers in the loop: what is allowed is what one more at each end of
#: the measured steps makes of them; bytes are estimated where copies are fast (docs/the-report.md).
#: A recompilation or a graph break more is always one too many.
INVARIANTS: Mapping[str, tuple[str, str, float, float]] = {
    "syncs_per_step": ("syncs a step", "count", 0.01, 0.05),
    "h2d_bytes_per_step": ("bytes copied a step", "bytes", 0.05, 1024.0),
    "kernels_per_step": ("kernels a step", "count", 0.02, 1.0),
    "recompiles": ("recompilations", "count", 0.0, 0.0),
    "graph_breaks": ("graph breaks", "count", 0.0, 0.0),
}
PEAK = "peak_allocated"


def time_of_pairs(
    older: Sequence[LegResult],
    newer: Sequence[LegResult],
    limits: Limits,
    *,
    rounds_fixed: bool = False,
) -> Timing:
    """Judge time by legs that ran next to each other, the i-th of one side with that of the other.

    Args:
        older: Legs of the older code.
        newer: Legs of the newer code.
        limits: What is allowed.
        rounds_fixed: Nobody may stop early by what is seen.
    """
    counted = all(leg.samples_per_step for leg in (*older, *newer) if leg.status == "measured")
    found = stats.compare(older, newer, by_sample=counted, peeked=not rounds_fixed)
    if found.speedup is None:
        return Timing(None, None, 0, "inconclusive", found.why)
    ratio = 1 / found.speedup
    interval = None if found.interval is None else (1 / found.interval[1], 1 / found.interval[0])
    if interval is None:
        return Timing(ratio, None, found.pairs, "inconclusive", found.why)
    unsound = _unsound(older, newer)
    if unsound is not None:
        return Timing(ratio, interval, found.pairs, "inconclusive", unsound)
    unit = "sample" if counted else "step"
    told = f"A {unit} takes {_ratio(ratio, interval)} the time"
    across = f"{_pairs_needed(older, newer, counted, limits)}"
    return _against(ratio, interval, found.pairs, limits, told, across)


def is_decided(timing: Timing, limits: Limits) -> bool:
    """Whether more legs would only confirm it: the stopping rule of a check.

    As in ``stats``, not before the third pair, and each look at an interval wide enough for it.
    """
    if timing.interval is None or timing.pairs < stats.MIN_PAIRS:
        return False
    bound = 1 + limits.slowdown
    return timing.interval[0] > bound or timing.interval[1] <= bound


def time_of_stored(older: Side, newer: Side, foreign: Sequence[str], limits: Limits) -> Timing:
    """Judge time against a stored baseline, which is possible on the same machine alone.

    Args:
        older: As it was stored.
        newer: As it was measured now.
        foreign: In what the machines differ, in words.
        limits: What is allowed.
    """
    by_sample = bool(older.per_sample_us and newer.per_sample_us)
    before = older.per_sample_us if by_sample else older.step_ms
    now = newer.per_sample_us if by_sample else newer.step_ms
    if not before or not now:
        why = "The baseline holds no time." if not before else "No leg was measured."
        return Timing(None, None, 0, "inconclusive", why)
    interval = _unpaired(before, now)
    ratio = math.exp(_mean_log(now) - _mean_log(before))
    if foreign:
        why = "Time was not judged: hosts differ and drift (" + "; ".join(foreign[:3]) + ")."
        return Timing(ratio, interval, 0, "inconclusive", why)
    if interval is None or newer.steps < stats.MIN_STEPS or older.steps < stats.MIN_STEPS:
        fewest = min(newer.steps, older.steps)
        why = f"A side has {fewest} measured steps in {min(len(before), len(now))} legs: too few."
        return Timing(ratio, interval, 0, "inconclusive", why)
    if newer.loss_finite is False and older.loss_finite is not False:
        return Timing(ratio, interval, 0, "inconclusive", _NAN)
    least, most = yardstick.ratio(_lists(older.yardstick), _lists(newer.yardstick))
    drift = ""
    if most - 1 >= _TOLD or 1 - least >= _TOLD:
        drift = f" (the host itself is between {_times(least)} and {_times(most)} as slow as then)"
    told = f"A {'sample' if by_sample else 'step'} takes {_ratio(ratio, interval)} the time{drift}"
    across = "Compare with the code itself instead, interleaved: --baseline-ref."
    # What the host's own drift may explain is nobody's regression; nor may it hide one.
    low, high = interval[0] / most, interval[1] / least
    judged = _against(ratio, (low, high), 0, limits, told, across)
    return Timing(ratio, interval, 0, judged.verdict, judged.reason)


_TOLD = 0.02
_NAN = "The loss became NaN or infinite, and in the older code it did not."


def gates(older: Side, newer: Side, limits: Limits) -> tuple[Gate, ...]:
    """Hold what does not drift against each other."""
    peak = _peak(older, newer, limits)
    names = [n for n in INVARIANTS if n in older.invariants or n in newer.invariants]
    return (*([peak] if peak is not None else []), *(_gate(n, older, newer) for n in names))


def judge(
    older: Side,
    newer: Side,
    timing: Timing,
    limits: Limits,
    *,
    notes: Sequence[str] = (),
    trial: str | None = None,
) -> Check:
    """Put everything together.

    Args:
        older: What it is held against.
        newer: What was checked.
        timing: What came of time.
        limits: What is allowed.
        notes: On the comparison itself.
        trial: Where the legs are kept.
    """
    held = gates(older, newer, limits)
    worse = [_worse(gate) for gate in held if gate.ok is False]
    fine = [gate for gate in held if gate.ok]
    verdict = timing.verdict if limits.time else None
    result: Result
    if worse or verdict == "regression":
        result = "regression"
    elif verdict == "inconclusive" or (verdict is None and not fine):
        result = "inconclusive"
    else:
        result = "pass"
    told = [timing.reason] if limits.time else ["Time was not judged: --no-time."]
    reasons = [*worse, *told] if worse and verdict != "regression" else [*told, *worse]
    if verdict is None and not fine and not worse:
        reasons.append("Nothing that does not drift was measured on both sides.")
    return Check(
        result=result,
        baseline=older.title,
        # That nothing recompiles, as before, is not worth a sentence.
        reasons=(*reasons, *(_fine(gate) for gate in fine if gate.before or gate.now)),
        timing=timing,
        gates=held,
        older=older,
        newer=newer,
        limits=limits,
        where=_where(older, newer) if _differs(timing) else "",
        notes=tuple(notes),
        trial=trial,
    )


def _differs(timing: Timing) -> bool:
    """Whether there is a difference to explain: an interval that excludes none."""
    return timing.interval is not None and not timing.interval[0] <= 1 <= timing.interval[1]


def _unsound(older: Sequence[LegResult], newer: Sequence[LegResult]) -> str | None:
    """Why pairs prove nothing however they agree."""
    steps = min(sum(len(leg.step_ns) for leg in side) for side in (older, newer))
    if steps < stats.MIN_STEPS:
        return (
            f"Only {steps} steps were measured on a side, and {stats.MIN_STEPS} are needed: give "
            f"--steps {stats.MIN_STEPS} or more, or more data."
        )
    if any(leg.loss_finite is False for leg in newer) and not any(
        leg.loss_finite is False for leg in older
    ):
        return _NAN
    return None


def _against(
    ratio: float,
    interval: tuple[float, float],
    pairs: int,
    limits: Limits,
    told: str,
    across: str,
) -> Timing:
    bound = 1 + limits.slowdown
    if interval[0] > bound:
        return Timing(
            ratio, interval, pairs, "regression", f"{told}, and {_times(bound)} is allowed."
        )
    if interval[1] <= bound:
        return Timing(ratio, interval, pairs, "pass", f"{told}; {_times(bound)} is allowed.")
    why = f"{told}: that reaches across the {_times(bound)} that is allowed. {across}".rstrip()
    return Timing(ratio, interval, pairs, "inconclusive", why)


def _pairs_needed(
    older: Sequence[LegResult], newer: Sequence[LegResult], counted: bool, limits: Limits
) -> str:
    """How many pairs would tell, from how these differ."""
    logs = [
        math.log(b / a)
        for x, y in zip(older, newer, strict=False)
        if (a := stats.leg_value(x, counted)) and (b := stats.leg_value(y, counted))
    ]
    middle = sorted(logs)[len(logs) // 2] if logs else 0.0
    room = abs(middle - math.log1p(limits.slowdown))
    needed = stats.pairs_needed(logs, max(room, 0.002))
    if needed is None or needed <= len(logs):
        return "Longer legs (--steps) or more time (--max-minutes) would tell."
    steps = max((len(leg.step_ns) for leg in (*older, *newer)), default=0)
    return f"About {needed} pairs of legs of {steps} steps would tell: --max-minutes allows more."


def _unpaired(before: Sequence[float], now: Sequence[float]) -> tuple[float, float] | None:
    """Interval of the ratio of two sides whose legs are no pairs (Welch 1947, on logarithms)."""
    if len(before) < 2 or len(now) < 2:
        return None
    a, b = [math.log(v) for v in before], [math.log(v) for v in now]
    parts = [_variance(side) / len(side) for side in (a, b)]
    error = math.sqrt(sum(parts))
    freedom = min(len(a), len(b)) - 1
    if error > 0:
        weights = sum(p**2 / (len(s) - 1) for p, s in zip(parts, (a, b), strict=True))
        freedom = max(1, int(sum(parts) ** 2 / weights))
    half = student_quantile(0.975, freedom) * error
    centre = sum(b) / len(b) - sum(a) / len(a)
    return math.exp(centre - half), math.exp(centre + half)


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / (len(values) - 1)


def _mean_log(values: Sequence[float]) -> float:
    return sum(math.log(v) for v in values) / len(values)


def _lists(readings: Mapping[str, tuple[float, ...]]) -> dict[str, list[float]]:
    return {kind: list(values) for kind, values in readings.items()}


def _peak(older: Side, newer: Side, limits: Limits) -> Gate | None:
    before, now = older.peak_allocated, newer.peak_allocated
    if before is None and now is None:
        return None
    allowed = None if before is None else before * (1 + limits.memory)
    ok = None if allowed is None or now is None else now <= allowed
    return Gate(PEAK, "peak memory", "bytes", before, now, allowed, ok)


def _gate(name: str, older: Side, newer: Side) -> Gate:
    """Every newer leg beyond every older one by more than is allowed is a regression."""
    label, unit, part, number = INVARIANTS[name]
    before, now = older.invariants.get(name, ()), newer.invariants.get(name, ())
    if not before or not now:
        middle = [_middle(values) if values else None for values in (before, now)]
        return Gate(name, label, unit, middle[0], middle[1], None, None)
    allowed = max(before) * (1 + part) + number
    ok = min(now) <= allowed
    return Gate(name, label, unit, _middle(before), _middle(now), allowed, ok)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _worse(gate: Gate) -> str:
    return f"More {gate.label} than allowed: {_change(gate)}, and {_value(gate, gate.allowed)} is."


def _fine(gate: Gate) -> str:
    return f"{gate.label[0].upper()}{gate.label[1:]}: {_change(gate)}."


def _change(gate: Gate) -> str:
    before, now = _value(gate, gate.before), _value(gate, gate.now)
    return f"{before} as before" if before == now else f"{before} before, {now} now"


def _value(gate: Gate, value: float | None) -> str:
    if value is None:
        return "not measured"
    return fmt.size(value) if gate.unit == "bytes" else fmt.number(float(value))


def _where(older: Side, newer: Side) -> str:
    """Where the difference in time came from, by phase."""
    if not older.phases_ms or not newer.phases_ms:
        return ""
    sides = [
        Times(side.steps, sum(side.phases_ms.values()), side.phases_ms, side.samples)
        for side in (older, newer)
    ]
    return explain(sides[0], sides[1])


def _ratio(ratio: float, interval: tuple[float, float]) -> str:
    return f"{_times(ratio)} ({_times(interval[0])} to {_times(interval[1])})"


def _times(value: float) -> str:
    return f"{value:.2f}x" if value < 9.95 else f"{value:.0f}x"
