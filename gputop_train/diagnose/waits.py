"""How data waits lie: in every step or in a few, and in next() or in the loop's own code. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gputop_train.diagnose.stats import median, quantile
from gputop_train.diagnose.window import Window
from gputop_train.model import Loader, Site

#: The fewest steps that hold this part of the wait are its heavy steps (TraceML's coverage) ...
HEAVY_COVERAGE = 0.80
#: ... and it comes in bursts when they are at most this part of all steps (proposed here).
BURST_PART = 0.25
#: A distance between bursts is that of epochs when it differs by at most this (or by one step).
SAME = 0.10
#: From so many passes on their mere number tells how long an epoch is (proposed).
ENOUGH_PASSES = 4
#: Lines that ask a loader for its next batch, where waiting for workers is met.
ASKS = re.compile(r"\bnext\s*\(|\byield\s+from\b|^\s*(?:async\s+)?for\b|\bfor\b.+\bin\b.*:\s*$")
#: From this part of the data wait on it is the loop's own code that prepares the batch, by the
#: loader's clock and by the sampler both (proposed) ...
MOSTLY_OWN = 0.5
#: ... of so many samples and batches at least.
MIN_SAMPLES = MIN_BATCHES = 5
#: Functions that belong to training have samples of these.
_TRAINS = frozenset({"forward", "backward", "optimizer"})


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the data wait of a window sits.

    Attributes:
        heavy: The fewest steps that hold 80% of it.
        few: They are at most a quarter of the steps.
        in_bursts: They are few, and no sign of workers that deliver in rounds.
        at_epoch_starts: The bursts lie an epoch apart.
        median_ms, p95_ms: Of the wait in each step.
        heavy_ms: Of the heavy steps, the wait that nine in ten do not exceed.
        held: Part (0..1) of the wait in steps that wait half as long as the median heavy one.
        apart: Usual distance in steps between bursts; ``None`` where there are not two.
    """

    steps: int = 0
    heavy: int = 0
    few: bool = False
    in_bursts: bool = False
    at_epoch_starts: bool = False
    median_ms: float = 0.0
    p95_ms: float = 0.0
    heavy_ms: float = 0.0
    held: float = 0.0
    apart: float | None = None


def pattern(window: Window, loader: Loader | None) -> Waits:
    """How the waits of this window's steps are spread.

    W workers that are equally slow deliver W batches at once and then none: the wait is in every
    W-th step, and still means that they are too few. Bursts an epoch apart mean the opposite.
    """
    waits = [s.labels.get("data_wait", 0) for s in window.steps]
    heavy = _heavy(waits)
    apart = _apart(heavy) if heavy else None
    found = Waits(
        len(waits),
        len(heavy),
        median_ms=(median(waits) or 0.0) / 1e6,
        p95_ms=(quantile(waits, 0.95) or 0.0) / 1e6,
        heavy_ms=(quantile([waits[at] for at in heavy], 0.9) or 0.0) / 1e6,
        held=_held(waits, heavy),
        apart=apart,
    )
    if not heavy or len(heavy) > BURST_PART * len(waits):
        return found
    if apart is not None and _epochs_apart(window, loader, apart):
        return replace(found, few=True, in_bursts=True, at_epoch_starts=True)
    rounds = apart is not None and loader is not None and _in_rounds(window, loader, apart)
    return replace(found, few=True, in_bursts=not rounds)


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


def _held(waits: Sequence[int], heavy: Sequence[int]) -> float:
    usual = median([waits[at] for at in heavy]) or 0.0
    total = sum(waits)
    return sum(w for w in waits if w >= usual / 2) / total if total > 0 else 0.0


def _apart(heavy: Sequence[int]) -> float | None:
    """Usual distance in steps from one burst to the next; ``None`` with a single burst."""
    # Neighbours are one burst: the first batches of an epoch, or a round that straggles.
    starts = [heavy[0]] + [b for a, b in pairwise(heavy) if b - a > 2]
    return median([float(b - a) for a, b in pairwise(starts)])


def _epochs_apart(window: Window, loader: Loader | None, apart: float) -> bool:
    if loader is None or loader.epochs < 2 or not loader.batches:
        return False
    batches = loader.length or loader.batches / loader.epochs
    if _same(apart, batches * window.steps_seen / loader.batches):
        return True
    if loader.epochs < ENOUGH_PASSES:
        return False
    if loader.length and _same(apart, loader.length):  # a batch a step; passes beyond a limit
        return True
    # By passes alone: a loop may leave an epoch early, and batches of steps of which only the end
    # was recorded are not counted. The last pass may have hardly begun.
    least, most = window.steps_seen / loader.epochs, window.steps_seen / (loader.epochs - 1)
    return apart > 1 and (1 - SAME) * least <= apart <= (1 + SAME) * most


def _in_rounds(window: Window, loader: Loader, apart: float) -> bool:
    """Whether bursts lie as many steps apart as one round of all workers feeds."""
    batches = loader.batches / max(1, window.steps_seen)
    # Fewer batches than steps: several steps a batch, or steps of which only the end was recorded.
    return any(_same(apart, loader.num_workers / n) for n in {batches, max(1.0, batches)} if n > 0)


def _same(distance: float, expected: float) -> bool:
    return expected > 1 and abs(distance - expected) <= max(1.0, SAME * expected)


def in_next(window: Window, loaders: Sequence[Loader]) -> float:
    """Part (0..1) of the data wait in next() of these loaders; 1 unless most of it is elsewhere.

    The label covers what the loop itself does to a batch that it has been handed, too: a call that
    is named like preparation. The loaders time their own next(), over the whole run; two witnesses
    are asked, since a live window may be slower than the run was.
    """
    timed = [ld for ld in loaders if ld.batches >= MIN_BATCHES]
    labelled = window.totals.labels.get("data_wait", 0) / max(1, window.totals.steps)
    if not timed or len(timed) < len(loaders) or labelled <= 0:
        return 1.0
    # Starting workers is labelled as well. Several steps a batch make this too much, never too
    # little: below one a step are steps of which only the end was recorded, too.
    measured = sum(
        (ld.wait_ns + ld.start_ns) / ld.batches * max(1.0, ld.batches / max(1, window.steps_seen))
        for ld in timed
    )
    part = measured / labelled
    if part > 1 - MOSTLY_OWN:
        return 1.0
    met = [s for s in window.sites if _waits(window, s)]
    own = sum(s.count for s in loop_sites(window, loaders[0]))
    samples = sum(s.count for s in met)
    return part if samples >= MIN_SAMPLES and own >= MOSTLY_OWN * samples else 1.0


def loop_sites(window: Window, loader: Loader) -> list[Site]:
    """Lines at which the sampler met the loop's own preparation, beside next() of its loader.

    Without workers next() runs the dataset's code in the same thread: there only lines of
    functions that train as well are the loop's.
    """
    loops = {(s.file, s.func) for s in window.sites if s.kind == "sample" and s.label in _TRAINS}
    return [
        s
        for s in window.sites
        if _waits(window, s)
        and not ASKS.search(s.call)
        and (loader.num_workers > 0 or (s.file, s.func) in loops)
    ]


def _waits(window: Window, site: Site) -> bool:
    return site.rank == window.rank and site.kind == "sample" and site.label == "data_wait"
