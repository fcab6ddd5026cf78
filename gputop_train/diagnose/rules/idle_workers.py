"""``idle-workers``: a few workers make all batches, the others have nothing to do.

Looks for: batches that each worker made (counted in it): workers with less than a tenth of the
busiest one's. Named where the wait would be gone, for 80% of it, if all workers made batches as
fast as those do (``T x makers / workers``), or where half of the workers or more make next to none.
Without counts, by CPU use, for an IterableDataset or a
loader with fewer batches than workers: busy workers (>= 85% of a core) beside idle ones (< 40%).
Differential: a map-style dataset deals batches out in turn, so a worker that idles there waits for
a slow one (``slow-worker``); workers that all sleep wait for storage.
Fix: more shards, a split by worker; never more workers. Probe: the same data in as many shards as
workers. Gain: T / max(T - E, T x makers / min(workers, cores)).
"""

from __future__ import annotations

from gputop_train.diagnose.fetching import MAKES_NONE
from gputop_train.diagnose.loading_advice import at, bounded, loader_at, places
from gputop_train.diagnose.loading_model import WORST_EFFICIENCY
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    number,
    percent,
)
from gputop_train.diagnose.supply import (
    BUSY_WORKER,
    IDLE_WORKER,
    Supply,
    jobless,
    pace_of,
    supply_of,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader

ID = "idle-workers"
#: From this part on idle workers are the first thing to mend, even where all would be too few.
MOSTLY_IDLE = 0.5


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether most of the workers have nothing to do."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers < 2:
        return RuledOut(ID, "there are no workers to share the work")
    counted = supply.fetch is not None
    if not counted and not supply.workers:
        return Abstention(ID, "batches by worker, and the workers' CPU use")
    idle = _idle_by_count(supply) if counted else _idle_by_cpu(supply, loader)
    if not idle:
        return RuledOut(ID, "the workers share the work")
    return _named(window, found, supply, loader, idle)


def _idle_by_count(supply: Supply) -> int:
    fetch = supply.fetch
    return len(fetch.workers) - fetch.makers if fetch is not None else 0


def _idle_by_cpu(supply: Supply, loader: Loader) -> int:
    dealt_in_turn = not loader.iterable and not (
        loader.length is not None and loader.length < loader.num_workers
    )
    if dealt_in_turn or len(supply.workers) < loader.num_workers:
        return 0
    return jobless(supply.workers_busy)


def _named(window: Window, found: Finding, supply: Supply, loader: Loader, idle: int) -> Refinement:
    pace = pace_of(window, found, supply)
    workers, makers = loader.num_workers, max(1, loader.num_workers - idle)
    all_share = pace.step_ms * makers / workers
    cores = (window.cores or workers) - (1 if window.on_gpu else 0)
    each = min(1.0, max(0.05, max(supply.workers_busy, default=1.0)))
    usable = min(float(workers), max(1.0, cores / each))
    slower = min(1.0, makers / (usable * WORST_EFFICIENCY))
    covers = pace.covers(all_share)
    if idle >= MOSTLY_IDLE * workers:
        covers = max(covers, COVERAGE)
    counted = supply.fetch is not None
    few = loader.length is not None and loader.length < workers
    code = at(loader.source)
    line = loader_at(loader)
    what = (
        f"An epoch has {loader.length} batches for {workers} workers{line}: make epochs longer "
        f"than {workers} batches (repeat the index in the sampler, or smaller batches)."
        if few
        else f"Give each of the {workers} workers a part of the data{code or line}: write at least "
        f"{workers} shards, or split items by get_worker_info().id, so that not {makers} alone "
        "makes them all. num_workers stays: more of them would idle too."
    )
    rows: list[Evidence] = [
        Evidence("workers that make batches", makers, f"of {workers}"),
    ]
    if supply.fetch is not None:
        most = max(share.batches for share in supply.fetch.workers)
        rows.append(number("of the batches, by the busiest", most / supply.fetch.batches, "of all"))
    return Refinement(
        ID,
        supply.part * covers,
        f"{idle} of {workers} workers have nothing to do, {makers} {_make(makers)} all batches.",
        confidence="high" if counted else "medium",
        evidence=tuple(rows),
        where=places(window, supply, costly_first=False),
        advice=(
            Advice(what),
            Advice(
                f"If it cannot be split: num_workers {workers} -> {makers}{line} costs nothing "
                f"and frees {idle} processes; then make one item cheaper{code}.",
                {"num_workers": makers},
            ),
        ),
        gain=bounded(
            found,
            pace.speedup(pace.step_ms * slower),
            pace.speedup(max(all_share, pace.step_ms * makers / usable)),
            f"T x {makers} / {workers} workers, at most what training allows",
        ),
    )


def _make(count: int) -> str:
    return "makes" if count == 1 else "make"


PAGE = Page(
    number=48,
    title="Most workers have nothing to do",
    meaning=(
        "The loader has many worker processes, but the data is split so that one or a few of them "
        "make all batches: an IterableDataset with fewer shards than workers, or an epoch with "
        "fewer batches than workers. More workers change nothing."
    ),
    looks_at=(
        "batches made by each worker, counted in the worker",
        "without that: CPU use of each worker of an IterableDataset's loader",
        "batches in an epoch beside the number of workers",
    ),
    thresholds=(
        Threshold(
            "a worker makes next to nothing",
            f"< {percent(MAKES_NONE)} of the busiest one's batches",
            "proposed",
        ),
        Threshold(
            "by CPU use",
            f">= {percent(BUSY_WORKER)} of a core beside < {percent(IDLE_WORKER)}",
            "proposed",
        ),
        Threshold(
            "the wait that sharing would end",
            f">= {percent(COVERAGE)} of it, or >= {percent(MOSTLY_IDLE)} of the workers idle",
            "TraceML, issue 238 (cause coverage); proposed",
        ),
    ),
    mistaken_for=(
        "slow-worker: a map-style dataset deals out in turn, so all make the same number",
        "fetch-stall: every worker sleeps",
    ),
    mend=(
        "at least as many shards as workers",
        "a split of the items by worker id",
        "longer epochs where they have fewer batches than workers",
    ),
    test="the same data in as many shards as there are workers",
    gain="T / max(T - E, T x makers / min(workers, cores))",
)
RULE = Rule(
    ID,
    302,
    probe="as many shards as workers",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
