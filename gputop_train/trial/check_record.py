"""What a check knows, as frozen records: both sides, what is allowed, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from gputop_train.trial.record import LegResult

Result = Literal["pass", "regression", "inconclusive", "failed"]
EXIT_CODES: Mapping[Result, int] = {"pass": 0, "failed": 1, "inconclusive": 3, "regression": 4}

#: Time: the floor below which the diagnosis says nothing of lost time (catalogue, section 3), and
#: what a few minutes of legs resolve on a quiet host (benchmarks/results/trial_interval.md).
MAX_SLOWDOWN = 0.05
#: Peak memory: the allocator gives the same to the same requests; workspaces that libraries choose
#: by what is free move it by a percent or so (proposed here).
MAX_MEMORY = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What may get worse before a check fails.

    Attributes:
        slowdown: Of time per sample, as a part.
        memory: Of peak memory, as a part.
        time: Whether time is judged at all.
    """

    slowdown: float = MAX_SLOWDOWN
    memory: float = MAX_MEMORY
    time: bool = True


@dataclass(frozen=True, slots=True)
class Side:
    """The legs of one side that count, summed up. ``None`` = not measured.

    Attributes:
        title: Such as ``main (1a2b3c4)``, the name of a file, or ``now``.
        per_sample_us: Mean wall time a sample, by leg; empty where nobody counted samples.
        step_ms: Mean wall time a step, by leg.
        steps: Measured steps in all.
        samples: Samples a step.
        peak_allocated: Bytes, the largest of the legs.
        invariants: What does not drift, by leg.
        phases_ms: Mean milliseconds a step by label.
        yardstick: How fast the host was beside the legs, by kind of work.
        loss_finite: ``False`` where a loss was NaN or infinite.
    """

    title: str
    per_sample_us: tuple[float, ...] = ()
    step_ms: tuple[float, ...] = ()
    steps: int = 0
    samples: float | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    invariants: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    yardstick: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    loss_finite: bool | None = None

    @classmethod
    def of(
        cls,
        title: str,
        legs: Sequence[LegResult],
        yardstick: Mapping[str, tuple[float, ...]] | None = None,
    ) -> Side:
        """Sum up the measured ones of some legs."""
        legs = [leg for leg in legs if leg.status == "measured"]
        per_sample = [t for leg in legs if (t := leg.time_per_sample_us) is not None]
        samples = [leg.samples_per_step for leg in legs if leg.samples_per_step]
        told = [leg.invariants or {} for leg in legs]
        names = {name for known in told for name in known}
        phases = [leg.phases_ms for leg in legs if leg.phases_ms is not None]
        finite = [leg.loss_finite for leg in legs if leg.loss_finite is not None]
        return cls(
            title=title,
            per_sample_us=tuple(per_sample) if len(per_sample) == len(legs) else (),
            step_ms=tuple(t / 1e6 for leg in legs if (t := leg.step_mean_ns) is not None),
            steps=sum(len(leg.step_ns) for leg in legs),
            samples=fmean(samples) if samples and len(samples) == len(legs) else None,
            peak_allocated=_most(leg.peak_allocated for leg in legs),
            peak_reserved=_most(leg.peak_reserved for leg in legs),
            invariants={
                name: tuple(known[name] for known in told if name in known)
                for name in sorted(names - {"peak_allocated"})
            },
            phases_ms=_mean_phases(phases),
            yardstick=yardstick or {},
            loss_finite=all(finite) if finite else None,
        )

    @property
    def step_mean_ms(self) -> float | None:
        """Of the middle leg."""
        return median(self.step_ms) if self.step_ms else None

    @property
    def time_per_sample_us(self) -> float | None:
        """Of the middle leg."""
        return median(self.per_sample_us) if self.per_sample_us else None


def _most(values: Any) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _mean_phases(phases: Sequence[Mapping[str, float]]) -> dict[str, float]:
    labels = {label for phase in phases for label in phase}
    return {x: fmean(phase.get(x, 0.0) for phase in phases) for x in sorted(labels)}


@dataclass(frozen=True, slots=True)
class Timing:
    """What the legs say of time.

    Attributes:
        ratio: Time of the newer side over that of the older one; above 1 is slower.
        interval: Of ``ratio``.
        pairs: Pairs of legs it rests on; 0 for a stored baseline.
        verdict: ``None`` = time is not judged.
        reason: One sentence.
    """

    ratio: float | None
    interval: tuple[float, float] | None
    pairs: int
    verdict: Literal["pass", "regression", "inconclusive"] | None
    reason: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One number that does not drift.

    Attributes:
        label: In words.
        unit: As in ``report.compare.Row``.
        allowed: The most that passes.
        ok: ``None`` = not measured on both sides.
    """

    name: str
    label: str
    unit: str
    before: float | None
    now: float | None
    allowed: float | None
    ok: bool | None

    @property
    def ratio(self) -> float | None:
        """``now / before``."""
        if self.before is None or self.now is None or self.before <= 0:
            return None
        return self.now / self.before


@dataclass(frozen=True, slots=True)
class Check:
    """What came of a check.

    Attributes:
        baseline: What it was held against, in words.
        reasons: Sentences, what decided first.
        gates: Peak memory first.
        where: Where the difference in time came from, in words; empty where nothing tells.
        notes: Sentences on the comparison itself.
        trial: Directory with the legs; ``None`` where there are none.
    """

    result: Result
    baseline: str
    reasons: tuple[str, ...]
    timing: Timing | None = None
    gates: tuple[Gate, ...] = ()
    older: Side | None = None
    newer: Side | None = None
    limits: Limits = Limits()
    where: str = ""
    notes: tuple[str, ...] = ()
    trial: str | None = None

    @property
    def exit_code(self) -> int:
        """As documented for ``check``."""
        return EXIT_CODES[self.result]
