"""``slow-worker``: one worker is slow, and batches are delivered in order, so all wait for it.

Looks for: a worker whose batches take >= 2.5 times the median of the other workers' (gpuprof's
factor, on peak CPU there), over at least 5 batches of its own: the same worker again and again.
Named where the wait would be gone, for 80% of it, if it were as fast as the others. Without
counters, by CPU use: one busy worker (>= 85% of a core) of a map-style dataset beside idle ones.
Differential: random noise hits every worker alike; a worker that has all the work
(``idle-workers``); slow items that fall to any worker (``bursty-prefetch``).
Fix: even out what that worker loads, ``in_order=False`` where order does not matter. Never more
workers: they would wait in the same order. Probe: other worker seeds or another order of shards.
Gain: T / max(T - E, batch time of the others / workers).
"""

from __future__ import annotations

from gputop_train.diagnose.fetching import MIN_BATCHES, Share
from gputop_train.diagnose.loading_advice import at, bounded, loader_at, places
from gputop_train.diagnose.loading_model import WORST_EFFICIENCY
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    cores,
    ms,
    percent,
    span,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.supply import BUSY_WORKER, IDLE_WORKER, Supply, pace_of, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader

ID = "slow-worker"
#: gpuprof: 2.5 times the fair share.
FACTOR = 2.5


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether one worker holds up the others."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers < 2:
        return RuledOut(ID, "there are no workers to compare")
    if loader.in_order is False:
        return RuledOut(ID, "batches are delivered as they come: none waits for a slower one")
    if supply.waits.in_bursts:
        return RuledOut(ID, "the wait is in a few steps far apart, not in every round")
    if supply.fetch is not None:
        return _by_time(window, found, supply, loader, supply.fetch.workers)
    if len(supply.workers) < loader.num_workers:
        return Abstention(ID, "batch times by worker, and the workers' CPU use")
    return _by_cpu(window, found, supply, loader)


def _by_time(
    window: Window, found: Finding, supply: Supply, loader: Loader, shares: tuple[Share, ...]
) -> Refinement | Abstention | RuledOut:
    timed = sorted((s for s in shares if s.batches >= MIN_BATCHES), key=lambda s: s.batch_ms)
    if len(timed) < 2:
        return Abstention(ID, f"{MIN_BATCHES} batches of two workers or more")
    slow = timed[-1]
    usual = median([s.batch_ms for s in timed[:-1]]) or 0.0
    if usual <= 0 or slow.batch_ms < FACTOR * usual:
        return RuledOut(ID, "the workers take about as long as each other for a batch")
    pace = pace_of(window, found, supply)
    # A round of all workers lasts as long as the slow one's batch.
    even = supply.batches_per_step * usual / loader.num_workers
    code, line = at(loader.source), loader_at(loader)
    return Refinement(
        ID,
        supply.part * pace.covers(even),
        f"Worker {slow.worker} takes {ms(slow.batch_ms)} for a batch, the others {ms(usual)}: all "
        "wait for it in turn.",
        evidence=(
            span(f"a batch of worker {slow.worker}, mean of {slow.batches}", slow.batch_ms),
            span(f"a batch of the other {len(timed) - 1} workers, median", usual),
        ),
        where=places(window, supply, costly_first=True),
        advice=_advice(loader, f"worker {slow.worker}", code, line),
        gain=bounded(
            found,
            pace.speedup(even / WORST_EFFICIENCY),
            pace.speedup(even),
            f"{ms(usual)} a batch over {loader.num_workers} workers, at most what training allows",
        ),
    )


def _by_cpu(
    window: Window, found: Finding, supply: Supply, loader: Loader
) -> Refinement | Abstention | RuledOut:
    busy = [w for w in supply.workers if w.cpu >= BUSY_WORKER]
    idle = [w for w in supply.workers if w.cpu < IDLE_WORKER]
    if len(busy) != 1 or len(idle) != len(supply.workers) - 1 or loader.iterable:
        return RuledOut(ID, "the workers use the CPU alike")
    rest = max(w.cpu for w in idle)
    if busy[0].cpu < FACTOR * rest:
        return RuledOut(ID, "the workers use the CPU alike")
    rows: tuple[Evidence, ...] = (
        cores("the busiest worker", busy[0].cpu),
        cores("the next one", rest),
    )
    pace = pace_of(window, found, supply)
    even = pace.step_ms * max(rest / busy[0].cpu, 1 / loader.num_workers)
    return Refinement(
        ID,
        supply.part * pace.covers(even),
        f"One worker (PID {busy[0].pid}) is busy, the other {len(idle)} wait for their turn.",
        confidence="medium",
        evidence=rows,
        where=places(window, supply, costly_first=True),
        advice=_advice(loader, f"PID {busy[0].pid}", at(loader.source), loader_at(loader)),
    )


def _advice(loader: Loader, who: str, code: str, line: str) -> tuple[Advice, ...]:
    return (
        Advice(
            f"Even out what {who} loads{code or line}: a shard, file or index range of its own "
            f"that is larger or slower than those of the other {loader.num_workers - 1}. "
            f"num_workers stays {loader.num_workers}: batches come in order, all wait for it."
        ),
        Advice(
            f"Where the order of batches does not matter: in_order=False{line} (right from torch "
            f"2.7 on): what the other {loader.num_workers - 1} have ready is delivered past it."
        ),
    )


PAGE = Page(
    number=10,
    title="One slow worker holds up all",
    meaning=(
        "Batches are delivered in order, one worker after another. One of them is slower every "
        "time (a heavier shard, a slower disk, a busy core), and each round lasts as long as it."
    ),
    looks_at=(
        "batches and their time, by worker, counted in the worker",
        "without that: CPU use of each worker of a map-style dataset",
    ),
    thresholds=(
        Threshold("a batch of the slowest worker", f">= {FACTOR} x the others' median", "gpuprof"),
        Threshold("batches of it", f">= {MIN_BATCHES}", "proposed"),
        Threshold(
            "by CPU use",
            f">= {percent(BUSY_WORKER)} of a core beside < {percent(IDLE_WORKER)}",
            "proposed",
        ),
        Threshold(
            "the wait that would be gone",
            f">= {percent(COVERAGE)} of it",
            "TraceML, issue 238 (cause coverage)",
        ),
    ),
    mistaken_for=(
        "noise: it hits every worker alike over many batches",
        "idle-workers: the others make no batches at all",
        "bursty-prefetch: slow items fall to any worker",
    ),
    mend=(
        "even out what the slow worker loads",
        "in_order=False where the order does not matter",
        "not more workers",
    ),
    test="other worker seeds or another order of shards: the slowness moves along",
    gain="T / max(T - E, batch time of the others / workers)",
)
RULE = Rule(
    ID,
    305,
    probe="another order of shards",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
