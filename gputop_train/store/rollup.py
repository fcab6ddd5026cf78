"""Per-second summaries, and the small records only the store knows. Pure: no files, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from gputop_train.model import LABELS, Step, UtilSample

#: Length of a rollup's bucket.
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StepRollup:
    """The steps of one rank that ended within one second; of old ones within a longer bucket.

    Attributes:
        sec: The second of ``CLOCK_MONOTONIC`` the last of the steps ended in.
        n: Steps.
        first_idx: Index of the first of them.
        t0_ns: Begin of the first step; lies before the second when a step is longer than that.
        t1_ns: End of the last step.
        min_ns: Shortest wall time of a step; ``max_ns`` and ``median_ns`` likewise. The median of
            a longer bucket is that of its seconds' medians, each weighed by its steps.
        labels: Host wall nanoseconds by label, summed; all labels of the model are present.
        exposed: ``label -> (GPU idle ns, wall ns of the steps that measured it)``; ``None`` when no
            step carried events. Divide the two for a share.
        micro: Backward calls.
        samples: Samples consumed; ``None`` unless every step knew its own.
        dry: Mean of the steps' ``dry`` over the ``dry_n`` steps that measured it.
        syncs: Blocking reads of CUDA tensors.
        measured_ns: Part of the wall time whose label was measured by an edge.
    """

    rank: int
    sec: int
    n: int
    first_idx: int
    t0_ns: int
    t1_ns: int
    min_ns: int
    max_ns: int
    median_ns: int
    labels: Mapping[str, int]
    exposed: Mapping[str, tuple[int, int]] | None = None
    micro: int = 0
    samples: int | None = None
    dry: float | None = None
    dry_n: int = 0
    syncs: int = 0
    measured_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Wall time of the steps, summed."""
        return sum(self.labels.values())


@dataclass(frozen=True, slots=True)
class UtilRollup:
    """The driver's utilisation samples of one device within one second, percent.

    Attributes:
        sec: The second; of several, the last.
        seconds: How many seconds are summed up: old ones come in longer buckets.
    """

    uuid: str
    sec: int
    n: int
    mean: float
    lo: float
    hi: float
    seconds: int = 1

    @property
    def t0_ns(self) -> int:
        """Begin of the time it tells of: buckets are aligned to the clock."""
        return self.sec // self.seconds * self.seconds * SECOND_NS

    @property
    def t1_ns(self) -> int:
        """End of the second, or of the last one."""
        return (self.sec + 1) * SECOND_NS


class LoaderDepth(NamedTuple):
    """Batches ready in a loader's queue at a time; ``None`` when the queue could not be read."""

    t_ns: int
    rank: int
    loader_id: int
    ready: int | None


class StoredFinding(NamedTuple):
    """A diagnosis as it stood from ``t_ns`` on; ``body`` is ``msgspec.to_builtins(Diagnosis)``."""

    t_ns: int
    body: dict[str, Any]


class StoredNote(NamedTuple):
    """A one-off fact about the watching itself."""

    t_ns: int
    kind: str
    body: dict[str, Any]


def second(t_ns: int) -> int:
    """The whole second of the monotonic clock that ``t_ns`` lies in."""
    return t_ns // SECOND_NS


def sum_labels(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sums by label of steps or seconds: all labels of the model there, in its order, is quick."""
    if tables and all(tuple(table) == LABELS for table in tables):
        columns = zip(*(table.values() for table in tables), strict=True)
        return dict(zip(LABELS, map(sum, columns), strict=True))
    sums: dict[str, int] = {}
    for table in tables:
        for label, ns in table.items():
            sums[label] = sums.get(label, 0) + ns
    return sums


def roll_up(steps: Sequence[Step]) -> StepRollup:
    """Sums steps of one rank that ended within one second.

    Args:
        steps: At least one step, in order of their end.

    Returns:
        The rollup. Its median is exact (the mean of the two middle values of an even count, in
        whole nanoseconds).

    Raises:
        ValueError: If there is no step.
    """
    if not steps:
        raise ValueError("a rollup needs at least one step")
    labels = dict.fromkeys(LABELS, 0) | sum_labels([step.labels for step in steps])
    exposed: dict[str, tuple[int, int]] = {}
    for step in steps:
        for label, ns in (step.exposed or {}).items():
            idle, wall = exposed.get(label, (0, 0))
            exposed[label] = (idle + ns, wall + step.wall_ns)
    walls = sorted(step.wall_ns for step in steps)
    samples = [step.samples for step in steps if step.samples is not None]
    dry = [step.dry for step in steps if step.dry is not None]
    return StepRollup(
        rank=steps[0].rank,
        sec=second(steps[0].t1_ns),
        n=len(steps),
        first_idx=steps[0].index,
        t0_ns=min(step.t0_ns for step in steps),
        t1_ns=max(step.t1_ns for step in steps),
        min_ns=walls[0],
        max_ns=walls[-1],
        median_ns=int(median(walls)),
        labels=labels,
        exposed=exposed if any(step.exposed is not None for step in steps) else None,
        micro=sum(step.micro for step in steps),
        samples=sum(samples) if len(samples) == len(steps) else None,
        dry=sum(dry) / len(dry) if dry else None,
        dry_n=len(dry),
        syncs=sum(step.syncs for step in steps),
        measured_ns=sum(step.measured_ns for step in steps),
    )


def roll_up_util(samples: Sequence[UtilSample]) -> UtilRollup:
    """Summarises utilisation samples of one device within one second.

    Raises:
        ValueError: If there is no sample.
    """
    if not samples:
        raise ValueError("a rollup needs at least one sample")
    values = [sample.util for sample in samples]
    return UtilRollup(
        uuid=samples[0].uuid,
        sec=second(samples[0].t_ns),
        n=len(values),
        mean=sum(values) / len(values),
        lo=min(values),
        hi=max(values),
    )


def merge(rollups: Sequence[StepRollup]) -> StepRollup:
    """One rollup of several of a rank, which follow each other.

    Raises:
        ValueError: If there is none.
    """
    if not rollups:
        raise ValueError("nothing can be made of no rollups")
    exposed: dict[str, tuple[int, int]] = {}
    for rollup in rollups:
        for label, (idle, wall) in (rollup.exposed or {}).items():
            have = exposed.get(label, (0, 0))
            exposed[label] = (have[0] + idle, have[1] + wall)
    samples = [rollup.samples for rollup in rollups if rollup.samples is not None]
    dry = [(rollup.dry, rollup.dry_n) for rollup in rollups if rollup.dry is not None]
    dry_n = sum(n for _, n in dry)
    return StepRollup(
        rank=rollups[0].rank,
        sec=rollups[-1].sec,
        n=sum(rollup.n for rollup in rollups),
        first_idx=rollups[0].first_idx,
        t0_ns=min(rollup.t0_ns for rollup in rollups),
        t1_ns=max(rollup.t1_ns for rollup in rollups),
        min_ns=min(rollup.min_ns for rollup in rollups),
        max_ns=max(rollup.max_ns for rollup in rollups),
        median_ns=_weighed_median([(rollup.median_ns, rollup.n) for rollup in rollups]),
        labels=sum_labels([rollup.labels for rollup in rollups]),
        exposed=exposed if any(rollup.exposed is not None for rollup in rollups) else None,
        micro=sum(rollup.micro for rollup in rollups),
        samples=sum(samples) if len(samples) == len(rollups) else None,
        dry=sum(value * n for value, n in dry) / dry_n if dry_n else None,
        dry_n=dry_n,
        syncs=sum(rollup.syncs for rollup in rollups),
        measured_ns=sum(rollup.measured_ns for rollup in rollups),
    )


def _weighed_median(values: Sequence[tuple[int, int]]) -> int:
    """The least value with half of the weight at or below it."""
    below, half = 0, sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        below += weight
        if below >= half:
            return value
    return max(values)[0]
