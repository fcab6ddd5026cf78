"""What a trial says in words: how long it will take, what each candidate came to. Pure."""

from __future__ import annotations

import math
from statistics import median

from gputop_train.report.format import milliseconds
from gputop_train.trial.record import LegResult, status_word
from gputop_train.trial.standing import Candidate, Prediction, marks

#: Below this speed-up without a loader there is nothing to blame it for: the diagnosis is silent
#: below 5% of the time as well (docs/diagnoses.md).
GUILTY = 1.05
_WORDS = {"failed": "failed", "stopped": "not proven", "inconclusive": "inconclusive"}


def factor(value: float) -> str:
    """A speed-up with as many digits as a trial can tell: ``2.60x``, ``12.4x``."""
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x"


def between(interval: tuple[float, float]) -> str:
    """``2.41 to 2.83``."""
    low, high = (factor(end)[:-1] for end in interval)
    return f"{low} to {high}"


def per_sample(microseconds: float) -> str:
    """Time per sample: ``2.8 ms``, ``812 us``."""
    return milliseconds(microseconds / 1e3) if microseconds >= 1000 else f"{microseconds:.3g} us"


def span(seconds: float) -> str:
    """How long something will take, no more precisely than that is known."""
    if seconds <= 20:
        return f"{max(1, math.ceil(seconds))} s"
    if seconds < 90:
        return f"{max(5, 5 * math.ceil(seconds / 5)):.0f} s"
    return f"{math.ceil(seconds / 60):.0f} min"


def estimate(leg_s: float, candidates: int, rounds: tuple[int, int], max_minutes: float) -> str:
    """One sentence on how long the trial will take, from its first leg.

    Args:
        leg_s: What that leg took.
        candidates: How many there are; 0 = a search finds them.
        rounds: Least and most pairs of legs of a candidate.
        max_minutes: The bound.
    """
    if not candidates:
        return f"Each leg takes about {span(leg_s)}; at most {max_minutes:g} min in all."
    legs = [round(n * candidates * 1.5) if candidates > 1 else 2 * n for n in rounds]
    low, high = (min(n * leg_s, max_minutes * 60) for n in legs)
    told = span(low) if span(low) == span(high) else f"{span(low)} to {span(high)}"
    return (
        f"About {told}: {candidates} candidate{'s' if candidates > 1 else ''}, legs of "
        f"{span(leg_s)}; at most {max_minutes:g} min."
    )


def leg_line(n: int, leg: LegResult, candidate: Candidate | None) -> str:
    """One line when a leg has ended."""
    mean = leg.step_mean_ns
    if leg.status != "measured" or mean is None:
        return f"[{n}] {leg.arm}: {status_word(leg.status, leg.why)}. {leg.why}"
    text = f"[{n}] {leg.arm}: {milliseconds(mean / 1e6)} a step"
    compared = candidate.compared if candidate else None
    if compared is not None and compared.speedup is not None:
        text += f", {factor(compared.speedup)} so far"
        if compared.interval is not None:
            text += f" ({between(compared.interval)})"
    told_before = candidate is not None and len(candidate.measured) > 1
    return f"{text}. {leg.note}" if leg.note and not told_before else text


def predicted(prediction: Prediction) -> str:
    """``2.1 to 2.9x``; ``up to 2.9x`` for a ceiling, ``or more`` where it is a lower bound."""
    if prediction.interval is None:
        return f"up to {factor(prediction.value)}{' or more' if prediction.at_least else ''}"
    low, high = prediction.interval
    if factor(low) == factor(high):
        return factor(low)
    return f"{between((low, high))}x"


def outcome(one: Candidate, baseline: dict[str, object] | None) -> str:
    """One sentence on what a candidate came to."""
    name = one.arm.name
    found = marks(one.arm)
    shown = f"{name} ({', '.join(found)})" if found else name
    if one.status in ("refused", "failed", "stopped", "inconclusive") and one.why:
        # A refusal names the setting itself.
        return one.why if one.status == "refused" else f"{shown}: {_WORDS[one.status]}. {one.why}"
    compared = one.compared
    if compared is None or compared.speedup is None:
        return f"{shown} was not measured." if not one.why else f"{shown}: {one.why}"
    interval = f" ({between(compared.interval)})" if compared.interval else ""
    if compared.verdict == "faster":
        text = f"{shown}: {factor(compared.speedup)} as fast{interval}"
    elif compared.verdict == "slower":
        text = f"{shown}: slower, {factor(compared.speedup)} the speed{interval}"
    elif compared.verdict == "no difference":
        text = f"{shown}: no difference{interval}"
    else:
        text = f"{shown}: inconclusive, {factor(compared.speedup)}{interval}"
    if one.prediction is not None:
        text += f"; predicted {predicted(one.prediction)}, achieved {factor(compared.speedup)}"
    text += "."
    if compared.verdict == "inconclusive" and compared.why:
        text += f" {compared.why}"
    remark = next((leg.note for leg in one.measured if leg.note), "")
    text += f" {remark}" if remark else ""
    guilt = _guilt(one, baseline)
    text += f" {guilt}" if guilt else ""
    return f"{text} {one.losses}" if one.losses else text


def not_proven(one: Candidate) -> str | None:
    """What has to be said where a search found a candidate best that is not known to be faster."""
    compared = one.compared
    if compared is not None and compared.verdict == "faster":
        return None
    return f"That is not proven: {one.arm.name} is {compared.verdict if compared else one.status}."


def _guilt(one: Candidate, baseline: dict[str, object] | None) -> str | None:
    """What ``replay_batch`` says of loading: the practitioners' first test."""
    keys = {w.key for w in one.arm.what_if}
    compared = one.compared
    if keys != {"replay_batch"} or one.arm.settings or compared is None:
        return None
    before = (baseline or {}).get("step_mean_ms")
    means = [leg.step_mean_ns for leg in one.measured if leg.step_mean_ns is not None]
    if not means or not isinstance(before, float) or compared.interval is None:
        return None
    after = milliseconds(median(means) / 1e6)
    took = f"with its batches replayed a step takes {after} instead of {milliseconds(before)}"
    low, high = compared.interval
    if low >= GUILTY:
        return f"Loading's guilt is confirmed: {took}."
    if high < GUILTY:
        return f"Loading is acquitted: {took}."
    return None
