"""Work that comes every so many steps: which steps carry it, how far apart, what it costs. Pure.

For labels that only the stack sampler tells (a preview written with numpy, a metric in Python)
there are no intervals: the steps that hold most of the label's time stand for its occurrences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputop_train.diagnose.stats import MIN_ARM, median
from gputop_train.diagnose.window import Window
from gputop_train.model import Interval, Step

#: Two labels are one piece of work when so many occurrences are in the same steps (proposed).
CARRIED = 0.80
#: The largest that hold this part of a label's time say how much one occurrence is ...
HALF = 0.5
#: ... a step with this part of that carries it: less is the sampler's blur, which it spreads over
#: all steps, or a small constant part beside the occurrences ...
SIMILAR = 0.5
#: ... and it recurs, rather than being part of every step, when they are at most this part of them
#: (proposed; ``waits.BURST_PART``).
FEW = 0.25
#: It comes regularly when so many of the distances are within 10% or one step of the usual one.
REGULAR, SAME = 0.6, 0.10
#: The sampler looks every 25 ms and may put the end of a long call into the step behind it.
NEIGHBOURS = 1
#: Two labels in the same steps are one piece of work unless so many would meet by chance.
BY_CHANCE = 0.5
#: So much of the wall time beside what it is charged for makes its ceiling a lower one (proposed).
CLEARLY = 0.02
#: Below so many occurrences there is no period.
MIN_TIMES = 3


@dataclass(frozen=True, slots=True)
class Recurring:
    """Work in a few steps.

    Attributes:
        count: Times it was seen.
        every: Steps from one to the next, the median; ``None`` when it does not come regularly.
        cost_ms: What a step with it takes longer, mean.
        step_ms: A step without it, median.
        share: All of that as a share (0..1) of the kept steps' wall time.
        beside: What the same steps take longer in other labels, as such a share: parts of the same
            work that are told as something else, and that go when it comes less often.
    """

    count: int
    every: float | None
    cost_ms: float
    step_ms: float
    share: float
    beside: float = 0.0

    @property
    def more_goes(self) -> bool:
        """Whether clearly more time goes with it than what it is charged for."""
        return self.beside >= CLEARLY


def carrying(steps: Sequence[Step], labels: Sequence[str]) -> list[list[int]]:
    """Places of the steps that carry these labels, neighbours in one group."""
    held = [sum(step.labels.get(label, 0) for label in labels) for step in steps]
    least = SIMILAR * _typical(held)
    return _neighbours(at for at, ns in enumerate(held) if ns >= least > 0)


def _neighbours(places: Iterable[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for at in sorted(places):
        if groups and at - groups[-1][-1] <= NEIGHBOURS:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def _typical(held: Sequence[int]) -> int:
    """What the largest hold that together make up half of the time: the small ones do not count."""
    left = HALF * sum(held)
    for ns in sorted(held, reverse=True):
        left -= ns
        if left <= 0:
            return ns
    return 0


def recurring(window: Window, labels: Sequence[str], within: Sequence[str]) -> Recurring | None:
    """What these labels cost where only a few steps carry them.

    Args:
        window: Its kept steps are looked at.
        labels: Whose steps to look at.
        within: Labels that the work may show as; the cost is never more than their time there.

    Returns:
        ``None`` where many steps carry them, where it was seen fewer than three times, or with
        fewer than 20 steps to compare with.
    """
    groups = carrying(window.steps, labels)
    places = {at for group in groups for at in group}
    rest = [s.wall_ns / 1e6 for i, s in enumerate(window.steps) if i not in places]
    usual = median(rest)
    few = len(places) <= FEW * len(window.steps)
    if len(groups) < MIN_TIMES or len(rest) < MIN_ARM or not usual or not few:
        return None
    every = usual_distance([group[0] for group in groups])
    places |= _as_long(window.steps, places, labels, usual, within, every)
    groups = _neighbours(places)
    excess = sum(_excess(window.steps[at], usual, within) for at in places)
    longer = sum(max(0.0, window.steps[at].wall_ns / 1e6 - usual) for at in places)
    whole = sum(s.wall_ns for s in window.steps) / 1e6
    return Recurring(
        count=len(groups),
        every=every,
        cost_ms=excess / len(groups),
        step_ms=usual,
        share=excess / whole if whole > 0 else 0.0,
        beside=(longer - excess) / whole if whole > 0 else 0.0,
    )


def _as_long(
    steps: Sequence[Step],
    places: set[int],
    labels: Sequence[str],
    usual_ms: float,
    within: Sequence[str],
    every: float | None,
) -> set[int]:
    """Steps as long as those, which the sampler told mostly or wholly under another label.

    They carry some of the label, or lie where the next occurrence is due.
    """
    usually = median([_excess(steps[at], usual_ms, within) for at in places]) or 0.0
    first, apart = min(places), round(every) if every is not None else 0
    found = set()
    for at, step in enumerate(steps):
        carries = any(step.labels.get(label, 0) for label in labels)
        due = apart > 1 and (at - first) % apart == 0
        long = _excess(step, usual_ms, within) >= max(SIMILAR * usually, usual_ms)
        if long and (carries or due):
            found.add(at)
    return found


def accompanies(window: Window, label: str, main: str) -> bool:
    """Whether the few steps that carry ``label`` are those that carry ``main``: one piece of work.

    Saving with a framework takes Python code of its own around the writing, for one.
    """
    groups = carrying(window.steps, (label,))
    by_main = {i for i, s in enumerate(window.steps) if s.labels.get(main, 0) > 0}
    for blur in (0, NEIGHBOURS):
        together = sum(
            1 for g in groups if by_main.intersection(range(g[0] - blur, g[-1] + blur + 1))
        )
        chance = len(by_main) * (1 + 2 * blur) / max(1, len(window.steps))
        if groups and together >= CARRIED * len(groups) and chance <= BY_CHANCE:
            return True
    return False


def _excess(step: Step, usual_ms: float, within: Sequence[str]) -> float:
    most = sum(step.labels.get(label, 0) for label in within) / 1e6
    return max(0.0, min(step.wall_ns / 1e6 - usual_ms, most))


def usual_distance(starts: Sequence[int]) -> float | None:
    """Steps from one to the next, the median; ``None`` when most are not near it."""
    apart = [float(b - a) for a, b in pairwise(starts)]
    usual = median(apart)
    if usual is None:
        return None
    near = sum(1 for d in apart if abs(d - usual) <= max(1.0, SAME * usual))
    return usual if near >= REGULAR * len(apart) else None


def as_intervals(window: Window, label: str) -> list[Interval]:
    """Occurrences of a label that no interval tells, one for each group of steps with it."""
    found = []
    for group in carrying(window.steps, (label,)):
        begin = window.steps[group[0]].t0_ns
        length = sum(window.steps[at].labels.get(label, 0) for at in group)
        found.append(Interval(window.rank, label, begin, begin + length))
    return found
