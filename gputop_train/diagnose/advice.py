"""Advice in numbers from live values: what to change, from what to what, and what it will bring."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from gputop_train.diagnose.recurring import usual_distance
from gputop_train.diagnose.rules.base import ms, name, number, occurrences, percent, span
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Evidence, Gain, Interval, Loader, Where

#: An interruption rare enough not to matter (below the 3% floor with room to spare).
TARGET_SHARE = 0.01
#: How much rarer, or on how small a part of the data, evaluation is first offered to be (proposed):
#: the step to ``TARGET_SHARE`` is often one that nobody would take.
PART, _ORDINAL = 5, "fifth"


@dataclass(frozen=True, slots=True)
class Periodic:
    """A recurring interruption: ``cost_ms`` every ``every`` steps of ``step_ms``.

    Attributes:
        every: Steps from one to the next; ``None`` when it was seen fewer than twice.
        share: Wall share it takes.
    """

    count: int
    cost_ms: float
    every: float | None
    step_ms: float
    share: float

    def share_at(self, every: float) -> float:
        """Wall share if it came every ``every`` steps."""
        return self.cost_ms / (every * self.step_ms + self.cost_ms)

    def summary(self, what: str) -> str:
        """One sentence: ``Evaluation takes 30% of the time: 1.2 s each, every 5 steps.``."""
        text = f"{what} takes {percent(self.share)} of the time: {ms(self.cost_ms)} each"
        if self.every is not None:
            return f"{text}, every {self.every:.0f} steps."
        return f"{text}, seen {'once' if self.count == 1 else f'{self.count} times'}."

    def evidence(self, what: str, one: str, many: str) -> tuple[Evidence, ...]:
        """Its numbers, in the words of the rule that claims it."""
        return (
            number(what, self.share, "of wall"),
            number(many, self.count),
            span(f"one {one}, mean", self.cost_ms),
            number(f"steps between {many}", self.every),
            span("step without it, mean", self.step_ms),
        )


def periodic(window: Window, label: str, share: float) -> Periodic:
    """Summarise the occurrences of one interruption inside the window.

    Occurrences without a finished step between them (model and optimizer saved by two calls) are
    one interruption.
    """
    groups = _groups(occurrences(window, label), window)
    totals = window.totals
    lost_ns = share * totals.wall_ns
    steps = max(1, totals.steps)
    every = None
    if len(groups) >= 2:
        first, last = groups[0][0].t0_ns, groups[-1][0].t0_ns
        between = sum(1 for s in window.steps if first < s.t1_ns <= last)
        if len(window.steps) < totals.steps:  # older steps live on as sums only
            between = round(totals.steps * (last - first) / max(1, totals.wall_ns))
        every = max(1.0, between / (len(groups) - 1))
    count = max(1, len(groups))
    usual = _sampled_distance(window, label, groups)
    if every is not None and usual is not None:
        # The sampler misses some, sees one twice: the usual distance tells how many there were.
        count, every = round((count - 1) * every / usual) + 1, usual
    return Periodic(
        count=count,
        cost_ms=lost_ns / count / 1e6,
        every=every,
        step_ms=(totals.wall_ns - lost_ns) / steps / 1e6,
        share=share,
    )


def _sampled_distance(window: Window, label: str, groups: list[list[Interval]]) -> float | None:
    """Regular distance of what no interval tells, or tells so little that samples stand for it."""
    told = {(i.t0_ns, i.t1_ns) for i in window.intervals if i.label == label}
    if any((i.t0_ns, i.t1_ns) in told for group in groups for i in group):
        return None
    ends = [step.t1_ns for step in window.steps]
    return usual_distance([bisect_right(ends, group[0].t0_ns) for group in groups])


def _groups(intervals: list[Interval], window: Window) -> list[list[Interval]]:
    # Where steps live on as sums only, a short time between two stands for "no step".
    gap_ns = 0.5e6 * (window.median_ms or 0.0)
    ends = [step.t1_ns for step in window.steps]
    groups: list[list[Interval]] = []
    for interval in intervals:
        before = groups[-1][-1] if groups else None
        if before is None:
            groups.append([interval])
            continue
        if ends and before.t0_ns >= window.steps[0].t0_ns:
            apart = bisect_right(ends, interval.t0_ns) > bisect_right(ends, before.t0_ns)
        else:
            apart = interval.t0_ns - before.t1_ns >= gap_ns
        if apart:
            groups.append([interval])
        else:
            groups[-1].append(interval)
    return groups


def rarer(pattern: Periodic) -> int | None:
    """A round number of steps at which the interruption takes about 1% of the time."""
    if pattern.every is None or pattern.step_ms <= 0:
        return None
    for factor in (2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000):
        every = round(pattern.every * factor)
        if pattern.share_at(every) <= TARGET_SHARE:
            return every
    return round(pattern.every * 1000)


#: A forecast begins with work that comes so many times more rarely (on an H200: saves ten times
#: rarer brought 4.7 where 4.0 to 5.9 are forecast, previews 36 times rarer 12.7 of 6.9 to 20).
RARER = 10


def periodic_gain(pattern: Periodic, what: str, *, at_least: bool = False) -> Gain:
    """``(nT + c) / (nT + c')``: the ceiling without it, below it a tenth as often as now.

    People make it ten times rarer more often than the hundreds of times at which it costs 1%.

    The ceiling is the larger of ``T / (T - E)`` and ``(nT + c) / (nT)``; measured where previews
    took 454 ms every 5 steps of 17.5 ms: 6.3 to 6.7 times as fast without, of 5.9 and 6.2.

    Args:
        pattern: Its cost.
        what: What it is.
        at_least: Whether more time goes with it than the pattern holds.
    """
    whole = 1 / (1 - pattern.share) if pattern.share < 0.995 else None
    every = rarer(pattern)
    if whole is None or every is None:
        return Gain(whole, None, f"time without {what}: T / (T - E)", at_least)
    reached = whole * (1 - pattern.share_at(min(every, RARER * (pattern.every or every))))
    # By the usual step: those right after a pause are slower (cold caches), and go with it too.
    usual = (pattern.every or 0.0) * pattern.step_ms
    if usual > 0:
        whole = max(whole, 1 + pattern.cost_ms / usual)
    basis = (
        f"(nT + c) / (nT + c'): n = {pattern.every:,.0f}, T = {ms(pattern.step_ms)}, "
        f"c = {ms(pattern.cost_ms)}"
    )
    return Gain(whole, (reached, whole), basis, at_least)


def checkpoint_advice(
    pattern: Periodic, places: tuple[Where, ...], size: float | None = None
) -> tuple[Advice, ...]:
    """Rarer first, then asynchronous, then smaller.

    Args:
        pattern: How often it saves, and what one save costs.
        places: Its lines, the most costly first.
        size: Bytes of one save, mean; ``None`` = not measured.
    """
    line = f" ({name(places[0])})" if places else ""
    cost = ms(pattern.cost_ms)
    copied = f"the copy of {_bytes(size)} to host memory" if size else "the copy to host memory"
    less = f"write less than {_bytes(size)} each time" if size else f"make the {cost} shorter"
    steps: list[Advice] = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        steps.append(
            Advice(
                f"Save every {every:,} steps instead of {_each(pattern.every)}{line}: at "
                f"{cost} each that is {percent(pattern.share_at(every))} of the time instead of "
                f"{percent(pattern.share)}; a crash then costs up to "
                f"{_span(every * pattern.step_ms / 1e3)}."
            )
        )
    steps.append(
        Advice(
            f"Or write in the background{'' if steps else line}: "
            "torch.distributed.checkpoint.async_save, or a thread that saves a copy of the "
            f"state_dict. Training then waits for {copied} alone, not for {cost}."
        )
    )
    steps.append(
        Advice(
            f"If that is not enough, {less}: no optimizer state in copies you will not resume "
            "from (best, export)."
        )
    )
    return tuple(steps)


def evaluation_advice(
    pattern: Periodic, places: tuple[Where, ...], loader: Loader | None = None
) -> tuple[Advice, ...]:
    """Rarer first, then on a part of the data, then one that takes less time.

    Args:
        pattern: How often it evaluates, and what one evaluation costs.
        places: Its lines.
        loader: The loader it reads, where it has one of its own.
    """
    line = f" ({name(places[0])})" if places else ""
    cost = ms(pattern.cost_ms)
    steps: list[Advice] = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        some = round(pattern.every * PART)
        then, rare = percent(pattern.share_at(some)), percent(pattern.share_at(every))
        steps.append(
            Advice(
                f"Evaluate every {some:,} steps instead of {_each(pattern.every)}{line}: at "
                f"{cost} each that is {then} of the time, every {every:,} steps {rare}, instead "
                f"of {percent(pattern.share)}."
            )
        )
        steps.append(
            Advice(
                f"Or between full evaluations on a fixed part of the data: a {_ORDINAL} of it "
                f"takes {ms(pattern.cost_ms / PART)} each, {then} of the time."
            )
        )
    told = "a larger batch under torch.inference_mode(), and loader workers of its own"
    if loader is not None:
        batch = f", batch_size={loader.batch_size}" if loader.batch_size is not None else ""
        told = (
            f"its loader ({Path(loader.file).name}:{loader.line}) has num_workers="
            f"{loader.num_workers}{batch}, and without gradients (torch.inference_mode()) a larger "
            "batch fits"
        )
    first = "If neither is wanted, make" if steps else "Make"
    steps.append(Advice(f"{first} the {cost} shorter: {told}."))
    return tuple(steps)


def _each(every: float) -> str:
    return "every step" if round(every) == 1 else f"every {every:,.0f}"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _span(seconds: float) -> str:
    """Time that a person would lose: ``20 s``, ``25 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
