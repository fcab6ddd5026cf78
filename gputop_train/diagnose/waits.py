"""How data waits lie in time: in every step, or in a few, and which few. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Loader

#: The fewest steps that hold this part of the wait are its heavy steps (TraceML's coverage) ...
HEAVY_COVERAGE = 0.80
#: ... and it comes in bursts when they are at most this part of all steps (proposed here).
BURST_PART = 0.25
#: A distance between bursts is that of epochs when it differs by at most this (or by one step).
SAME = 0.10


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the data wait of a window sits.

    Attributes:
        heavy: The fewest steps that hold 80% of it.
        in_bursts: They are few, and no sign of workers that deliver in rounds.
        at_epoch_starts: The bursts lie an epoch apart.
    """

    steps: int = 0
    heavy: int = 0
    in_bursts: bool = False
    at_epoch_starts: bool = False


def pattern(window: Window, loader: Loader | None) -> Waits:
    """How the waits of this window's steps are spread.

    W workers that are equally slow deliver W batches at once and then none: the wait is in every
    W-th step, and still means that they are too few. Bursts an epoch apart mean the opposite.
    """
    waits = [s.labels.get("data_wait", 0) for s in window.steps]
    heavy = _heavy(waits)
    if not heavy or len(heavy) > BURST_PART * len(waits):
        return Waits(len(waits), len(heavy))
    apart = _apart(heavy)
    epoch = _steps_per_epoch(window, loader)
    if apart is not None and epoch is not None and _same(apart, epoch):
        return Waits(len(waits), len(heavy), in_bursts=True, at_epoch_starts=True)
    rounds = apart is not None and loader is not None and _same(apart, _round(window, loader))
    return Waits(len(waits), len(heavy), in_bursts=not rounds)


def _heavy(waits: Sequence[int]) -> list[int]:
    """Places of the fewest steps that hold most of the wait, in order of time."""
    total, held = sum(waits), 0
    chosen: list[int] = []
    for at in sorted(range(len(waits)), key=lambda i: -waits[i]):
        if held >= HEAVY_COVERAGE * total:
            break
        chosen.append(at)
        held += waits[at]
    return sorted(chosen)


def _apart(heavy: Sequence[int]) -> float | None:
    """Usual distance in steps from one burst to the next; ``None`` with a single burst."""
    # Neighbours are one burst: the first batches of an epoch, or a round that straggles.
    starts = [heavy[0]] + [b for a, b in pairwise(heavy) if b - a > 2]
    return median([float(b - a) for a, b in pairwise(starts)])


def _steps_per_epoch(window: Window, loader: Loader | None) -> float | None:
    if loader is None or loader.epochs < 2 or not loader.batches:
        return None
    batches = loader.length or loader.batches / loader.epochs
    return batches * window.steps_seen / loader.batches


def _round(window: Window, loader: Loader) -> float:
    """Steps that one round of all workers feeds."""
    return loader.num_workers * window.steps_seen / max(1, loader.batches)


def _same(distance: float, expected: float) -> bool:
    return expected > 1 and abs(distance - expected) <= max(1.0, SAME * expected)
