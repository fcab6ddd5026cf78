"""How a trial stands: its legs, what they prove so far, and all of it as ``trial.json``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from gputop_train.launch.options import changed_results
from gputop_train.trial.record import Arm, Compared, LegResult, status_word

CandidateStatus = Literal[
    "waiting", "running", "measured", "refused", "failed", "inconclusive", "stopped"
]
State = Literal["running", "done", "stopped", "failed"]
WHAT_IF, CHANGES_RESULTS = "what-if", "changes results"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a change was expected to bring, as a factor, before it was tried.

    Attributes:
        value: One number; the middle of the interval, or a ceiling.
        interval: Low and high end of a rate model; ``None`` for a ceiling.
        basis: What it rests on, in words.
        at_least: Whether the ceiling is itself a lower bound, as that of a finding may be.
    """

    value: float
    interval: tuple[float, float] | None = None
    basis: str = ""
    at_least: bool = False

    @classmethod
    def between(cls, low: float, high: float, basis: str) -> Prediction:
        """An interval with its geometric middle, as factors have it."""
        return cls(math.sqrt(low * high), (low, high), basis)


@dataclass(slots=True)
class Candidate:
    """One arm and all that is known of it.

    Attributes:
        pairs: Measured legs, each with the baseline's that ran next to it.
        compared: ``None`` before the first pair.
        why: One sentence for a status other than ``measured``.
        losses: A sentence where its losses are not those of the baseline.
        sentence: What came of it, in words.
    """

    arm: Arm
    legs: list[LegResult] = field(default_factory=list)
    pairs: list[tuple[LegResult, LegResult]] = field(default_factory=list)
    status: CandidateStatus = "waiting"
    compared: Compared | None = None
    prediction: Prediction | None = None
    why: str = ""
    refused: str | None = None
    losses: str | None = None
    sentence: str = ""

    @property
    def measured(self) -> list[LegResult]:
        """Its legs that count."""
        return [leg for leg in self.legs if leg.status == "measured"]

    @property
    def is_open(self) -> bool:
        """Whether another leg of it could still run."""
        return self.status in ("waiting", "running", "measured")


@dataclass(slots=True)
class Standing:
    """A trial at one moment. ``legs`` are all that ran, in order, with the round of each."""

    head: dict[str, Any]
    baseline_arm: Arm
    candidates: list[Candidate] = field(default_factory=list)
    legs: list[tuple[int, LegResult]] = field(default_factory=list)
    state: State = "running"
    now: str = ""
    problem: str | None = None
    progress: dict[str, Any] | None = None
    stop_hint: str | None = None
    best: str | None = None
    sentences: list[str] = field(default_factory=list)
    price_per_hour: float | None = None
    ended_wall_ns: int | None = None

    @property
    def baseline_legs(self) -> list[LegResult]:
        """The baseline's legs that count."""
        name = self.baseline_arm.name
        return [leg for _, leg in self.legs if leg.arm == name and leg.status == "measured"]

    def body(self) -> dict[str, Any]:
        """``trial.json``; docs/contracts.md says what each key means."""
        baseline = summed_up(self.baseline_legs)
        return {
            **self.head,
            "ended_wall_ns": self.ended_wall_ns,
            "state": self.state,
            "now": self.now,
            "problem": self.problem,
            "progress": self.progress,
            "baseline": baseline,
            "candidates": [_candidate(c) for c in self.candidates],
            "stop_hint": self.stop_hint,
            "best": self.best,
            "sentences": list(self.sentences),
            "legs": [_leg(n, at, leg) for n, (at, leg) in enumerate(self.legs, 1)],
            "table": [
                _row(self.baseline_arm, None, baseline, self.price_per_hour),
                *(
                    _row(c.arm, c, summed_up(c.measured), self.price_per_hour)
                    for c in self.candidates
                ),
            ],
        }


def marks(arm: Arm) -> list[str]:
    """What has to be said wherever an arm appears: it falsifies, or it changes results."""
    found = [WHAT_IF] if arm.what_if else []
    return found + ([CHANGES_RESULTS] if changes(arm) else [])


def changes(arm: Arm) -> list[str]:
    """The settings and what-ifs of an arm after which a seeded run computes something else."""
    return [*changed_results(arm.settings), *(w.label for w in arm.what_if)]


def summed_up(legs: Sequence[LegResult]) -> dict[str, Any] | None:
    """One arm's legs as one: medians over them, the largest peak; ``None`` before the first."""
    if not legs:
        return None
    per_sample = _median(leg.time_per_sample_us for leg in legs)
    phases = [leg.phases_ms for leg in legs if leg.phases_ms is not None]
    labels = sorted({label for phase in phases for label in phase})
    means = [leg.step_mean_ns / 1e6 for leg in legs if leg.step_mean_ns is not None]
    return {
        "time_per_sample_us": per_sample,
        "step_median_ms": _median(median(leg.step_ns) / 1e6 for leg in legs if leg.step_ns),
        "step_mean_ms": _median(means),
        "samples_per_s": 1e6 / per_sample if per_sample else None,
        "peak_allocated": _largest(leg.peak_allocated for leg in legs),
        "peak_reserved": _largest(leg.peak_reserved for leg in legs),
        "gpu_busy": _mean(leg.gpu_busy for leg in legs),
        "steps": sum(len(leg.step_ns) for leg in legs),
        "legs_run": len(legs),
        "phases": {label: fmean(p.get(label, 0.0) for p in phases) for label in labels},
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    compared, prediction = one.compared, one.prediction
    tried = bool(one.legs)
    return {
        "name": one.arm.name,
        "settings": {setting.label: setting.value for setting in one.arm.settings},
        "what_if": [w.label for w in one.arm.what_if],
        "changes_results": changes(one.arm),
        "status": one.status,
        "applied": one.legs[-1].applied if tried and one.status != "failed" else None,
        "refused": one.refused,
        "speedup": compared.speedup if compared else None,
        "interval": list(compared.interval) if compared and compared.interval else None,
        "pairs": compared.pairs if compared else 0,
        **_predicted(prediction),
        "predicted_basis": prediction.basis if prediction else "",
        "verdict": compared.verdict if compared else None,
        "why": one.why or (compared.why if compared else ""),
        "losses": one.losses,
        "sentence": one.sentence,
        "leg": summed_up(one.measured),
    }


def _predicted(prediction: Prediction | None) -> dict[str, Any]:
    """What was said before it was tried, as a candidate and its row of the table have it."""
    return {
        "predicted": prediction.value if prediction else None,
        "predicted_interval": (
            list(prediction.interval) if prediction and prediction.interval else None
        ),
        "predicted_at_least": bool(prediction and prediction.at_least),
    }


def _leg(n: int, at: int, leg: LegResult) -> dict[str, Any]:
    mean = leg.step_mean_ns
    return {
        "n": n,
        "arm": leg.arm,
        "round": at,
        "run": leg.run,
        "status": leg.status,
        "why": leg.why,
        "note": leg.note,
        "step_median_ms": median(leg.step_ns) / 1e6 if leg.step_ns else None,
        "step_mean_ms": mean / 1e6 if mean is not None else None,
        "time_per_sample_us": leg.time_per_sample_us,
        "steps": len(leg.step_ns),
        "warmup": leg.warmup,
        "duration_s": leg.duration_s,
    }


def _row(
    arm: Arm, one: Candidate | None, leg: dict[str, Any] | None, price_per_hour: float | None
) -> dict[str, Any]:
    found = leg or {}
    compared = one.compared if one else None
    prediction = one.prediction if one else None
    per_sample = found.get("time_per_sample_us")
    cost = None
    if price_per_hour is not None and per_sample:
        cost = per_sample * price_per_hour / 3600.0  # microseconds a sample, a million samples
    verdict: str | None = compared.verdict if compared else None
    if one is not None and one.status in ("refused", "failed", "stopped"):
        verdict = status_word(one.status, one.why)
    return {
        "change": arm.name,
        "marks": marks(arm),
        "step_ms": found.get("step_mean_ms"),
        "time_per_sample_us": per_sample,
        "samples_per_s": found.get("samples_per_s"),
        "peak_memory": found.get("peak_reserved") or found.get("peak_allocated"),
        "gpu_busy": found.get("gpu_busy"),
        "speedup": compared.speedup if compared else None,
        "interval": list(compared.interval) if compared and compared.interval else None,
        **_predicted(prediction),
        "verdict": verdict,
        "cost_per_million": cost,
        "phases": found.get("phases") or {},
    }


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Any) -> float | None:
    known = _known(values)
    return median(known) if known else None


def _mean(values: Any) -> float | None:
    known = _known(values)
    return fmean(known) if known else None


def _largest(values: Any) -> float | None:
    return max(_known(values), default=None)
