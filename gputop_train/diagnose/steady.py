"""What of a run is steady: its warm-up left out, and sums over what is left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Totals
from gputop_train.model import Step
from gputop_train.store.rollup import StepRollup, sum_labels

#: Warm-up (catalogue 29, proposed there): at least 10 steps, until the median of 10 steps changes
#: by less than 10% against the 10 before ...
BLOCK, SETTLED = 10, 0.10
#: ... but never more than a third of what was seen, and 20 steps are left where there are 21.
MAX_PART, KEEP = 3, 20


@dataclass(frozen=True, slots=True)
class Cut:
    """The steady part: its kept steps, its thinned steps, and what was left out before it."""

    steps: tuple[Step, ...]
    older: tuple[StepRollup, ...]
    excluded: int
    why: str

    @property
    def parts(self) -> list[Step | StepRollup]:
        """All of it in order of time."""
        return [*self.older, *self.steps]

    def since(self, t0_ns: int) -> Cut:
        """What of it began at a time or later."""
        steps = tuple(s for s in self.steps if s.t0_ns >= t0_ns)
        older = tuple(r for r in self.older if r.t0_ns >= t0_ns)
        return Cut(steps, older, 0, "began before this window")


def older_than(rollups: Sequence[StepRollup], steps: Sequence[Step]) -> list[StepRollup]:
    """Rollups of steps that are no longer kept one by one."""
    if not steps:
        return list(rollups)
    return [r for r in rollups if r.t1_ns <= steps[0].t0_ns]


def warm_up(walls: Sequence[float]) -> tuple[int, str]:
    """How many first steps are warm-up, and why that many.

    Args:
        walls: Step times from the first step on, any unit.
    """
    n = len(walls)
    if n <= 1:
        return n, "the first step"
    most = n // MAX_PART
    if n - most < KEEP:
        most = max(1, min(most, n - KEEP))
    if most < BLOCK:
        return most, "short run: as much as leaves enough to judge"
    blocks = [median(walls[i : i + BLOCK]) or 0.0 for i in range(0, n - BLOCK + 1, BLOCK)]
    for k in range(1, len(blocks)):
        if BLOCK * k >= most:
            break
        if blocks[k] > 0 and abs(blocks[k] - blocks[k - 1]) < SETTLED * blocks[k]:
            return BLOCK * k, "until the median of 10 steps changed by less than 10%"
    return most, "a third of the steps: step times had not settled before"


def cut(steps: Sequence[Step], older: Sequence[StepRollup], *, starts_run: bool) -> Cut:
    """Leave the warm-up out, if the run begins here.

    Args:
        steps: Steps kept one by one.
        older: Seconds before them.
        starts_run: Whether the first of them is the run's first.
    """
    if not starts_run:
        return Cut(tuple(steps), tuple(older), 0, "began before this window")
    if not older:
        excluded, why = warm_up([s.wall_ns for s in steps])
        return Cut(tuple(steps[excluded:]), (), excluded, why)
    # Thinned: whole seconds are left out, weighed by the steps they hold.
    total = sum(r.n for r in older) + len(steps)
    excluded, previous = 0, None
    for at, rollup in enumerate(older):
        settled = previous is not None and abs(rollup.median_ns - previous) < SETTLED * previous
        if excluded >= BLOCK and (settled or (excluded + rollup.n) * MAX_PART > total):
            why = "until the median of a second changed by less than 10%"
            return Cut(tuple(steps), tuple(older[at:]), excluded, why)
        excluded, previous = excluded + rollup.n, rollup.median_ns
    return Cut(tuple(steps), (), excluded, "everything older than the newest minutes")


def totals_of(steps: Sequence[Step], older: Sequence[StepRollup] = ()) -> Totals:
    """Sums over kept steps and over seconds that live on as rollups."""
    exposed: dict[str, tuple[int, int]] = {}
    dry, dry_n = 0.0, 0
    parts: list[Step | StepRollup] = [*older, *steps]
    labels = sum_labels([part.labels for part in parts])
    for rollup in older:
        for label, (ns, wall) in (rollup.exposed or {}).items():
            have = exposed.get(label, (0, 0))
            exposed[label] = (have[0] + ns, have[1] + wall)
        if rollup.dry is not None:
            dry, dry_n = dry + rollup.dry * rollup.dry_n, dry_n + rollup.dry_n
    for step in steps:
        for label, ns in (step.exposed or {}).items():
            have = exposed.get(label, (0, 0))
            exposed[label] = (have[0] + ns, have[1] + step.wall_ns)
        if step.dry is not None:
            dry, dry_n = dry + step.dry, dry_n + 1
    samples = [p.samples for p in parts]
    return Totals(
        steps=len(steps) + sum(r.n for r in older),
        wall_ns=sum(s.wall_ns for s in steps) + sum(r.wall_ns for r in older),
        labels=labels,
        measured_ns=sum(p.measured_ns for p in parts),
        samples=sum(s for s in samples if s is not None) if None not in samples else None,
        syncs=sum(p.syncs for p in parts),
        exposed=exposed,
        dry=dry / dry_n if dry_n else None,
    )
