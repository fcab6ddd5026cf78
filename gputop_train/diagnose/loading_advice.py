"""Lines and words that the diagnoses of a loop that waits for its data share. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gputop_train.diagnose.loading_model import (
    MAX_WORKERS,
    WORST_EFFICIENCY,
    WORTH,
    crowded_out,
    foreign_cores,
    rank_cores,
    role_cores,
    shorter_loader,
)
from gputop_train.diagnose.rules.base import ceiling, ms, name, top_sites, where
from gputop_train.diagnose.supply import RESTART_PART, Pace, Supply, mean, pace_at, ready
from gputop_train.diagnose.waits import ASKS as ASKS
from gputop_train.diagnose.waits import loop_sites
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Finding, Gain, Loader, Where

#: Lines of the sampler that a report names beside the loader's own.
MAX_LINES = 2
#: Rate models were within 4% (VLDB'21), 6% beside an H200 (8.5 times as fast of 8.0).
FORECAST_ERROR = 0.10
#: A twentieth of a worker is no reason for a whole one.
ROUNDING = 0.05
#: Workers that use no more than this sleep; so many of them need no core of their own that they
#: use the second number together, however busy the cores are (proposed).
ASLEEP, SLEEPERS = 0.1, 0.5
#: A batch of so many times the mean is a single slow one (proposed).
SINGLE = 5.0
#: The supply is the limit when its batches are due no faster than this part of the step (proposed).
SETS_THE_PACE = 0.7


def loader_line(loader: Loader) -> Where:
    """Where the loader is constructed."""
    return Where(loader.file, loader.line, shorter_loader(loader))


def places(
    window: Window, supply: Supply, *, costly: Where | None = None, costly_first: bool = False
) -> tuple[Where, ...]:
    """The loader's line and the line of the code that costs, once each.

    Args:
        window: For the sampler's lines.
        supply: The loader.
        costly: That line; ``None`` = the dataset's own code, or where the sampler met the training
            thread while it waited.
        costly_first: Whether the mend is there rather than in the loader's arguments.
    """
    loader = supply.loader
    if loader is None:
        return sampled(window, limit=3)
    lines = [costly] if costly is not None else []
    if costly is None and loader.num_workers == 0:
        lines += sampled(window, limit=MAX_LINES)
    if costly is None and loader.source is not None:
        lines.append(loader.source)
    found = [*lines, loader_line(loader)] if costly_first else [loader_line(loader), *lines]
    return distinct(found)


def distinct(places: Iterable[Where]) -> tuple[Where, ...]:
    """Each line once, where it comes first."""
    first: dict[tuple[str, int], Where] = {}
    for place in places:
        first.setdefault((place.file, place.line), place)
    return tuple(first.values())


def sampled(window: Window, *, limit: int) -> tuple[Where, ...]:
    """The person's lines at which the training thread was met while it waited for data."""
    seen = [
        s
        for s in window.sites
        if s.rank == window.rank and (s.kind == "data" or s.label == "data_wait")
    ]
    return tuple(where(s) for s in top_sites(seen, limit=limit, by_count=True))


def loop_places(window: Window, loader: Loader) -> tuple[Where, ...]:
    """The loop's own lines that prepare what the loader handed over, then the loader's."""
    own = top_sites(loop_sites(window, loader), limit=MAX_LINES, by_count=True)
    return (*(where(s) for s in own), loader_line(loader))


def at(place: Where | None) -> str:
    """`` (train.py:41)``, or nothing."""
    return f" ({name(place)})" if place is not None else ""


def loader_at(loader: Loader) -> str:
    """`` (train.py:41)`` of the loader's construction."""
    return at(loader_line(loader))


@dataclass(frozen=True, slots=True)
class MoreWorkers:
    """A number of workers that lets the supply keep up, or the most this machine has room for.

    Attributes:
        needed: Workers at which the supply is as fast as training: fetch time over target step.
        spare: Cores that neither the trainer, the workers nor others use; ``None`` = unknown.
        low, high: The speed-up to expect.
    """

    workers: int
    needed: float
    spare: float | None
    low: float
    high: float

    def advice(self, window: Window, supply: Supply, pace: Pace, why: str = "") -> Advice:
        """In words, with the arithmetic and the setting."""
        loader = supply.loader
        now = loader.num_workers if loader is not None else 0
        line = loader_at(loader) if loader is not None else ""
        cores = rank_cores(window)
        room = ""
        if cores is not None and self.spare is not None:
            room = f"{cores:.0f} cores, {min(cores, cores - self.spare):.0f} busy, "
        fetch_ms = pace.fetch_ms if pace.fetch_ms is not None else pace.step_ms * max(1, now)
        if self.workers + 1 <= self.needed:
            why = f"; there is room for {self.workers}{why}"
        each = f"{ms(fetch_ms)} a batch over {ms(pace.floor_ms)} of training"
        return Advice(
            f"num_workers {now} -> {self.workers}{line}: {room}the loader needs "
            f"{self.needed:.1f} workers to keep up ({each}){why}. If the step stays as long, the "
            "limit is not the number of workers: set it back.",
            {"num_workers": self.workers},
        )


def more_workers(
    window: Window, supply: Supply, pace: Pace, *, each_cores: float = 1.0
) -> MoreWorkers | None:
    """How many workers to advise; ``None`` where there is no room or the cores are unknown.

    Needed is ``fetch time of a step's batches / (T - E)``. Without fetch times ``W`` workers that
    never rest are taken to deliver a step's batches every ``T``.

    Args:
        window: For the usable cores.
        supply: The loader and its workers.
        pace: Of the loop.
        each_cores: Cores one worker keeps busy.
    """
    loader, cores = supply.loader, rank_cores(window)
    if loader is None or loader.num_workers < 1 or cores is None or loader.iterable:
        return None
    now = loader.num_workers
    fetch_ms = pace.fetch_ms if pace.fetch_ms is not None else pace.step_ms * now
    needed = fetch_ms / max(pace.floor_ms, 0.02 * pace.step_ms)
    trainer = max(1.0, role_cores(window, "trainer") or 1.0)
    others = foreign_cores(window) or 0.0 if cores == window.cores else 0.0
    spare = cores - now * each_cores - trainer - others
    room = now + int(spare / max(each_cores, 0.05)) if spare > 0 else now
    if each_cores <= ASLEEP:
        room = max(room, now + int(SLEEPERS / max(each_cores, 0.02)))
    workers = min(room, MAX_WORKERS, math.ceil(needed - ROUNDING))
    if workers <= now:
        return None
    reached = pace.step_ms * now / workers
    slower = pace.step_ms * now / (now + (workers - now) * WORST_EFFICIENCY)
    if pace.speedup(slower) <= 1 + WORTH:
        return None
    return MoreWorkers(workers, needed, spare, pace.speedup(slower), pace.speedup(reached))


def bounded(found: Finding, low: float, high: float, basis: str) -> Gain:
    """A gain with the ceiling of the wait it is part of, and a forecast that never exceeds it.

    The forecast is widened by what a rate model may be wrong. Where a model ends at what training
    allows, which it takes from the wait's lower bound, the forecast ends at the ceiling.
    """
    top = ceiling_of(found)
    low, high = widened(low, high, ceiling(found.lost_share), top)
    at_least = found.gain is not None and found.gain.at_least
    return Gain(top, (max(1.0, low), max(1.0, high)), basis, at_least)


def widened(
    low: float, high: float, allowed: float | None, top: float | None
) -> tuple[float, float]:
    """A rate model's forecast with what such a model may be wrong on either side.

    Args:
        low: Speed-up, lower end.
        high: Upper end.
        allowed: What training allows by the wait's lower bound, where the model ends.
        top: The ceiling, by its upper bound.
    """
    low, high = low / (1 + FORECAST_ERROR), high * (1 + FORECAST_ERROR)
    if top is not None:
        high = top if allowed is not None and high >= allowed else min(high, top)
    return min(low, high), high


def ceiling_of(found: Finding) -> float | None:
    """The ceiling of a wait, for the closer causes of it."""
    if found.gain is not None and found.gain.ceiling is not None:
        return found.gain.ceiling
    return ceiling(found.lost_share)


def parent_advice(
    window: Window, lost: float, supply: Supply, places: tuple[Where, ...]
) -> tuple[Advice, ...]:
    """What to change where no closer cause covers the wait."""
    loader = supply.loader
    if loader is None:
        return _own_loop(window, places)
    if supply.in_loop:
        return _after_the_loader(window, supply, loader, places[0] if places else None)
    line, waits = loader_at(loader), supply.waits
    if loader.num_workers and ready(supply):
        return (
            Advice(
                f"Batches were ready at {1 - (supply.empty_share or 0):.0%} of the polls{line}, so "
                "more workers will not help: what is left is handing them over. Larger or fewer "
                "tensors a batch, or cores that other programs leave."
            ),
        )
    first = loader.first_waits >= 2 and loader.first_wait_ns >= RESTART_PART * loader.wait_ns
    fetch = supply.fetch
    if first and fetch is not None and fetch.usual_ms and loader.iterable and loader.num_workers:
        return (
            Advice(
                f"The first batch of a pass takes up to {ms(fetch.longest_ms)} in a worker, others "
                f"{ms(fetch.usual_ms)}: shorten what comes before the first item"
                f"{at(loader.source)} (a shuffle buffer to fill, an index, files to open), or do "
                "it once and go on to the next pass inside."
            ),
        )
    if waits.at_epoch_starts or first:
        return (
            Advice(
                f"The waits come at epoch starts{line} ({loader.epochs} epochs seen), the steps "
                "between hardly wait: do what begins an epoch once (index, shuffle, open files), "
                "or make epochs longer."
            ),
        )
    if loader.num_workers == 0:
        part = f"{supply.part:.0%} of the wait"
        return (
            Advice(f"Two loaders share the wait{line}, {part}: look at each with its own workers."),
        )
    single = fetch is None or fetch.longest_ms >= SINGLE * fetch.batch_ms
    if waits.in_bursts and single:
        return (
            Advice(
                f"{waits.heavy} of {waits.steps} steps hold most of the wait{line}, the others "
                "hardly wait: more workers will not help. Look for single slow items."
            ),
        )
    code = at(loader.source) if loader.source is not None else line
    if fetch is None:
        return (
            Advice(
                f"Find out what the {loader.num_workers} workers do{code}: time one dataset[i] and "
                "one collate_fn call by hand before changing num_workers."
            ),
        )
    pace = pace_at(window, lost, supply)
    steps = []
    cpu = mean(supply.workers_busy)
    if cpu is not None and (pace.supply_ms or 0.0) >= SETS_THE_PACE * pace.step_ms:
        more = more_workers(window, supply, pace, each_cores=max(0.05, cpu))
        steps += [more.advice(window, supply, pace)] if more is not None else []
    pids = [worker.pid for worker in supply.workers] or list(loader.worker_pids)
    # Of a run that has ended there is no process to look into.
    live = bool(pids) and not window.final
    look = f" py-spy dump --pid {pids[0]} shows where a worker is." if live else ""
    n = loader.num_workers
    deliver = f"{n} workers deliver" if n > 1 else "it delivers"
    steps.append(
        Advice(
            f"Make a batch cheaper{code}: a worker takes {ms(fetch.batch_ms)} for one "
            f"({fetch.collate:.0%} of it in collate_fn), {deliver} one every "
            f"{ms(pace.supply_ms or 0.0)}, training takes {ms(pace.floor_ms)}.{look}"
        )
    )
    return tuple(steps)


def _own_loop(window: Window, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    function = places[0] if places else None
    what = _code(function)
    waited = ms(window.totals.labels.get("data_wait", 0) / 1e6 / max(1, window.totals.steps))
    return (
        Advice(
            f"Make the work of {what}{at(function)} once, before training: tokenise, decode or "
            f"resize, store the result, and only slice it in the loop. It takes {waited} a step."
        ),
        Advice(
            f"Or prepare the next batches while this one trains{at(function)}: a Dataset with a "
            "DataLoader and worker processes. A thread that prepares them in Python takes turns "
            f"with training: if there is one, it is {waited} a step late."
        ),
    )


def _after_the_loader(
    window: Window, supply: Supply, loader: Loader, function: Where | None
) -> tuple[Advice, ...]:
    """Where the loop itself works on what the loader handed over."""
    what, line = _code(function), loader_at(loader)
    whole = window.totals.labels.get("data_wait", 0) / 1e6 / max(1, window.totals.steps)
    own, rest = ms(whole * (1 - supply.in_next)), ms(whole * supply.in_next)
    cost = f"it takes {own} of every step in the training process, next() of the loader {rest}"
    n = loader.num_workers
    run = f"and give the loader{line} workers"
    if n:
        run = f"so that its worker{line} runs it" if n == 1 else f"so that workers{line} run it"
    batches = "on the GPU, after the copy" if window.on_gpu else "with torch's operations"
    steps = (
        Advice(
            f"Move {what}{at(function)} into the Dataset, or a collate_fn, "
            f"{run}: {cost}. Workers alone do not take it along."
        ),
        Advice(
            f"Make {what} cheaper{at(function)}: a whole batch at once {batches} instead of item "
            "by item, and what does not change once, before training."
        ),
    )
    # A worker on a core that is taken computes no faster than the loop does.
    return steps[::-1] if crowded_out(window) else steps


def _code(function: Where | None) -> str:
    """A function as a sentence names it."""
    named = function is not None and re.fullmatch(r"[\w.]+(?:\(.*\))?", function.what)
    return function.what if function is not None and named else "the code that makes a batch"
