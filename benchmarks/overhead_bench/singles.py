"""One process, step by step: for steps of a few ms on hosts that change speed ten times a second.

Where neighbouring tenths of a second differ by 10 to 30% (a rented host beside an H200), blocks of
steps cannot show 1%. Single steps can: each has or has not its hooks, in the order ABBA or BAAB at
random, and is compared with those around it (``switch.py``). The helper thread cannot be brought to
rest in a step, so it runs on in both arms, and what it costs is read from the steps it woke up in
against their neighbours. The hooks' cost is read apart for steps that were not recorded, that were,
and that carried GPU events, and put together in the proportions in which an undisturbed loop has
them.
"""

from __future__ import annotations

import bisect
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .stats import RESAMPLES, interval
from .switch import Switch
from .toggle import NothingToToggle

KINDS = ("unrecorded", "recorded", "events")
#: Steps that are compared with one another lie within so many seconds: one quad, as it is called
#: here whatever its length.
GROUP_S = 0.05
LEAST_STEPS = 4
LEAST_QUADS = 4
#: A step longer than this many plain ones was interrupted by something else; in either arm it
#: counts as so many.
LONGEST = 4.0
#: The same for steps in which nothing of the probe is ever long: what is written in them is a tick.
#: With 4 most of the interval is other people's work on the host.
LONGEST_UNRECORDED = 1.5
#: So long the loop is left alone to see how often it records, before and after.
ALONE_S = 6.0
#: Neighbours on either side that a step with a wake-up is compared with.
BESIDE = 4


@dataclass(frozen=True, slots=True)
class Quad:
    """Seconds of single steps of one quad: plain ones, and others by kind."""

    plain: tuple[float, ...]
    other: dict[str, tuple[float, ...]]

    @property
    def base(self) -> float:
        """What a plain step takes here and now, interruptions aside."""
        return statistics.median(self.plain)


@dataclass(frozen=True, slots=True)
class Wakes:
    """Steps in which the helper woke up, each over the mean of its neighbours; wakes a step."""

    ratios: tuple[float, ...]
    a_step: float


def excess(quads: Sequence[Quad], kind: str) -> float | None:
    """Mean excess of steps of this kind over plain ones, as a part of a plain step."""
    over = under = 0.0
    longest = LONGEST_UNRECORDED if kind == "unrecorded" else LONGEST
    for quad in quads:
        steps = quad.other.get(kind, ())
        if steps:
            base = quad.base
            plain = statistics.fmean(min(s / base, longest) for s in quad.plain)
            over += sum(min(s / base, longest) - plain for s in steps)
            under += len(steps) * plain
    return over / under if under else None


def overhead(
    real: Sequence[Quad], null: Sequence[Quad], wakes: Wakes, natural: dict[str, float]
) -> dict[str, Any]:
    """The loop's overhead with its 95% interval, and its parts.

    Args:
        natural: Part of the steps of each kind in the undisturbed loop; sums to 1.

    Returns:
        ``difference``: of the probe and the null control; ``null``; ``helper``; and by kind.

    Raises:
        NothingToToggle: Too little was seen to say anything.
    """
    if len(real) < LEAST_QUADS or len(null) < LEAST_QUADS or not wakes.ratios:
        raise NothingToToggle("too few quads in the time given")
    rng = random.Random(0)
    totals, nulls, helpers = [], [], []
    kinds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(RESAMPLES // 4):
        drawn = rng.choices(real, k=len(real))
        parts = {kind: excess(drawn, kind) for kind in KINDS}
        for kind, value in parts.items():
            if value is not None:
                kinds[kind].append(value)
        nothing = excess(rng.choices(null, k=len(null)), "unrecorded") or 0.0
        woken = _helper(rng.choices(wakes.ratios, k=len(wakes.ratios)), wakes.a_step)
        nulls.append(nothing)
        helpers.append(woken)
        totals.append(_total(parts, natural) + woken - nothing)
    found = {kind: excess(real, kind) for kind in KINDS}
    bias = excess(null, "unrecorded") or 0.0
    helper = _helper(wakes.ratios, wakes.a_step)
    return {
        "difference": interval(_total(found, natural) + helper - bias, totals),
        "null": interval(bias, nulls),
        "helper": interval(helper, helpers),
        **{k: interval(v, kinds[k]) for k, v in found.items() if v is not None},
    }


def _total(parts: dict[str, float | None], natural: dict[str, float]) -> float:
    return sum(natural.get(kind, 0.0) * (value or 0.0) for kind, value in parts.items())


def _helper(ratios: Sequence[float], a_step: float) -> float:
    return a_step * (statistics.fmean(ratios) - 1.0)


def beside(times: Sequence[float], ends: Sequence[float], wakes: Sequence[float]) -> list[float]:
    """Each step with a wake-up over the mean of its neighbours without one.

    Args:
        times: Step times in seconds.
        ends: When each ended, increasing, on the clock of ``wakes``.
        wakes: When the helper woke up.
    """
    woken = {bisect.bisect_left(ends, at) for at in wakes}
    ratios = []
    for index in sorted(woken):
        if not BESIDE <= index < len(times) - BESIDE:
            continue
        around = range(index - BESIDE, index + BESIDE + 1)
        quiet = [times[i] for i in around if i not in woken]
        if len(quiet) >= BESIDE:
            base = statistics.median(quiet)
            mean = statistics.fmean(min(t / base, LONGEST) for t in quiet)
            ratios.append(min(times[index] / base, LONGEST) / mean)
    return ratios


class WakeLog:
    """When the helper thread came back from its sleep."""

    def __init__(self, helper: Any) -> None:
        self.times: list[float] = []
        sleep = getattr(helper, "_running", None)
        if sleep is None:
            raise NothingToToggle("the helper thread sleeps on no lock of its own")
        self._helper, self._own = helper, sleep
        helper._running = _Sleep(sleep, self.times)

    def close(self) -> None:
        """The helper sleeps on its own lock again."""
        self._helper._running = self._own


class _Sleep:
    def __init__(self, sleep: Any, times: list[float]) -> None:
        self._sleep, self._times = sleep, times

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got = bool(self._sleep.acquire(blocking, timeout))
        self._times.append(time.perf_counter())
        return got

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sleep, name)


def kind_now(state: Any) -> str:
    """What the probe does with the step that is about to begin, by its state: one of ``KINDS``."""
    if not state.whole:
        return "unrecorded"
    return "events" if state.gpu is not None and state.gpu.on else "recorded"


def one_quad(step: Callable[[bool], tuple[str, float]], rng: random.Random) -> Quad:
    """Single steps of both arms in turn, for as long as a quad takes.

    Args:
        step: Does one step, of the other arm or plain; its kind and the seconds it took.
        rng: Chooses between ABBA and BAAB.
    """
    plain: list[float] = []
    other: dict[str, list[float]] = {}
    began = time.perf_counter()
    while len(plain) < LEAST_STEPS or time.perf_counter() - began < GROUP_S:
        for arm in (False, True, True, False) if rng.random() < 0.5 else (True, False, False, True):
            what, took = step(arm)
            (other.setdefault(what, []) if arm else plain).append(took)
    return Quad(tuple(plain), {k: tuple(v) for k, v in other.items()})


def measure(
    switch: Switch, synchronise: Callable[[], None], seconds: float, seed: int
) -> dict[str, Any]:
    """Quads of single steps for ``seconds``, with the loop left alone before and after.

    Returns:
        ``difference`` and its parts as (value, low, high), and the counts behind them.
    """
    state = sys.modules["_gputop_probe.state"].S
    pc = time.perf_counter

    alone_counts = dict.fromkeys(KINDS, 0)
    ratios: list[float] = []
    woken = looked = 0

    def alone() -> None:
        nonlocal woken, looked
        log = WakeLog(state.helper)
        times, ends = [], []
        until = pc() + min(ALONE_S, seconds)
        while pc() < until:
            alone_counts[kind_now(state)] += 1
            times.append(switch.natural(pc))
            ends.append(pc())
        log.close()
        synchronise()
        wakes = [t for t in log.times if ends[0] <= t <= ends[-1]]
        ratios.extend(beside(times, ends, wakes))
        woken, looked = woken + len(wakes), looked + len(times)

    rng = random.Random(seed)
    real: list[Quad] = []
    null: list[Quad] = []
    alone()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        watched = len(real) <= 1.5 * len(null)

        def step(arm: bool, watched: bool = watched) -> tuple[str, float]:
            what = kind_now(state) if watched else "unrecorded"
            return what, switch.step(arm and watched, pc)

        (real if watched else null).append(one_quad(step, rng))
    alone()
    total = sum(alone_counts.values())
    natural = {k: n / total for k, n in alone_counts.items()}
    found = overhead(real, null, Wakes(tuple(ratios), woken / looked), natural)
    return {
        **{k: [v.value, v.low, v.high] for k, v in found.items()},
        "natural": natural,
        "wakes_a_step": woken / looked,
        "wakes": len(ratios),
        "quads": [len(real), len(null)],
        "steps": {k: sum(len(q.other.get(k, ())) for q in real) for k in KINDS},
        "step_ms": statistics.median(s for q in null for s in q.plain) * 1e3,
    }
