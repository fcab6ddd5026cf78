"""``bursty-prefetch``: the supply is fast enough in the mean, but its queue too shallow for jitter.

Looks for: a few long waits that hold 80% of it (at most a quarter of the steps), not at epoch
starts, a longest batch >= 3 times the mean one, and that 80% of the wait would be gone if all
batches cost the mean (batch time over workers, at least T - E), or a longest batch of 10 times the
mean, which no queue bridges. Without fetch times: half of the
steps wait < 5% of a step, long waits (95th percentile >= 20% of the step; gpuprof asks for 30 ms at
20% of steps), no worker at 85% of a core, and batches ready at half of the polls.
Differential: a mean too slow (``prep-stall``, ``fetch-stall``), where a deeper queue only delays
the wait; pauses at epoch starts; one slow worker.
Fix: ``prefetch_factor`` by the length of the waits; even out items; ``in_order=False``. Never more
workers. Probe: raise prefetch_factor alone. Gain: T / (T - E).
"""

from __future__ import annotations

import math

from gputop_train.diagnose.drawing import BEYOND_ANY_BATCH
from gputop_train.diagnose.loading_advice import ASLEEP, at, bounded, loader_at, places
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    ms,
    number,
    percent,
    span,
)
from gputop_train.diagnose.supply import (
    BUSY_WORKER,
    QUEUE_EMPTY,
    RESTART_PART,
    Pace,
    Supply,
    mean,
    pace_of,
    supply_of,
)
from gputop_train.diagnose.waits import BURST_PART
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader

ID = "bursty-prefetch"
#: The longest batch beside the mean one (proposed): below it, batches cost alike.
UNEVEN = 3.0
#: From here on single batches hold the loop up, whether or not the workers keep up in the mean.
VERY_UNEVEN = 10.0
#: Most steps do not wait: the median wait is below this part of the step (proposed).
NO_WAIT = 0.05
#: Supply faster than demand by this margin: batch time over workers / (T - E) (proposed).
KEEPS_UP = 0.9
#: Without fetch times: the 95th percentile of the waits as a part of the step (proposed).
LONG_WAIT = 0.20
DEFAULT_PREFETCH, MOST_PREFETCH = 2, 16
#: Of the wait, what deeper queues may leave (proposed).
STAYS = 0.5


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether a deeper queue would bridge the waits."""
    supply = supply_of(window)
    loader, waits = supply.loader, supply.waits
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there is no queue")
    if not waits.few or waits.at_epoch_starts:
        return RuledOut(ID, "the wait is in most steps, or at epoch starts")
    if loader.first_wait_ns >= RESTART_PART * loader.wait_ns > 0:
        return RuledOut(ID, "the long waits are those for a first batch")
    pace = pace_of(window, found, supply)
    if supply.fetch is not None and pace.supply_ms is not None:
        if waits.heavy_ms > BEYOND_ANY_BATCH * supply.fetch.longest_ms:
            return RuledOut(ID, "no batch takes as long to make as the long waits are")
        if supply.fetch.longest_ms < UNEVEN * supply.fetch.batch_ms:
            return RuledOut(ID, "batches cost alike: the workers are too slow in the mean")
        held = max(COVERAGE, waits.held)
        single = supply.fetch.longest_ms >= VERY_UNEVEN * supply.fetch.batch_ms
        covers = held if single else min(pace.covers(pace.supply_ms), held)
        return _named(window, found, supply, loader, pace, covers)
    if waits.median_ms >= NO_WAIT * pace.step_ms:
        return RuledOut(ID, f"half of the steps wait {ms(waits.median_ms)} or more")
    if waits.p95_ms < LONG_WAIT * pace.step_ms or not waits.in_bursts:
        return RuledOut(ID, "single slow items, or workers that deliver in rounds")
    if not supply.workers or supply.empty_share is None:
        return Abstention(ID, "batch times, or the workers' CPU use and the queue's depth")
    if min(supply.workers_busy) >= BUSY_WORKER or supply.empty_share >= QUEUE_EMPTY:
        return RuledOut(ID, "the workers are too slow in the mean")
    return _named(window, found, supply, loader, pace, max(COVERAGE, waits.held))


def _named(
    window: Window, found: Finding, supply: Supply, loader: Loader, pace: Pace, covers: float
) -> Refinement:
    waits = supply.waits
    line = loader_at(loader)
    keeps_up = pace.supply_ms is None or pace.supply_ms <= KEEPS_UP * pace.floor_ms
    longest = ""
    if supply.fetch is not None:
        longest = (
            f": the longest took {ms(supply.fetch.longest_ms)}, the mean "
            f"{ms(supply.fetch.batch_ms)}"
        )
    cpu = mean(worker.cpu for worker in supply.workers)
    even = (
        f"find what single fetches wait for{at(loader.source)}{longest}, and a worker uses "
        f"{percent(cpu)} of a core: slow answers of storage, or a lock. Ask again when one is late"
        if cpu is not None and cpu <= ASLEEP
        else f"even out the cost of batches{at(loader.source)}{longest}. Bucket by length, or "
        "split the heavy items"
    )
    if keeps_up:
        steps = [
            _deeper(loader, pace, waits.heavy_ms),
            Advice(f"If waits of {ms(waits.heavy_ms)} remain: {even}."),
        ]
    else:
        steps = [
            Advice(
                f"{even[0].upper()}{even[1:]}: a deeper queue alone does not bridge them, the "
                f"workers need {_supply(pace)} for a step of {ms(pace.floor_ms)} in the mean."
            )
        ]
    if loader.in_order is not False and loader.num_workers > 1:
        steps.append(
            Advice(
                f"Where the order does not matter: in_order=False{line} (right from torch 2.7 on), "
                "so that a slow batch does not hold up those of the other workers."
            )
        )
    best = max(pace.floor_ms, pace.supply_ms or 0.0)
    low = best + STAYS * max(0.0, pace.step_ms - best)
    how = "The workers keep up in the mean" if keeps_up else "Single batches take very long"
    return Refinement(
        ID,
        supply.part * covers,
        f"{how}; {waits.heavy} of {waits.steps} steps hold most of the wait.",
        confidence="high" if supply.fetch is not None else "medium",
        evidence=tuple(
            row
            for row in (
                Evidence("steps that hold 80% of the wait", waits.heavy, f"of {waits.steps}"),
                span("wait of these, up to", waits.heavy_ms),
                span("wait of a step, median", waits.median_ms),
                span("workers' time for a step", pace.supply_ms),
                number("steps between long waits", waits.apart),
            )
            if row.value is not None
        ),
        where=places(window, supply),
        advice=tuple(steps),
        gain=bounded(
            found,
            pace.speedup(low),
            pace.speedup(best),
            f"T / (T - E): supply takes {_supply(pace)} a step in the mean, training "
            f"{ms(pace.floor_ms)}",
        ),
    )


def _deeper(loader: Loader, pace: Pace, heavy_ms: float) -> Advice:
    """A queue as deep as the waits are long."""
    now = loader.prefetch_factor or DEFAULT_PREFETCH
    steps = heavy_ms / max(pace.floor_ms, 1e-3)
    deeper = min(MOST_PREFETCH, max(now + 1, now + math.ceil(steps / loader.num_workers)))
    return Advice(
        f"prefetch_factor {now} -> {deeper}{loader_at(loader)}: waits last up to {ms(heavy_ms)}, a "
        f"step without one {ms(pace.floor_ms)}, so {steps:.0f} more batches must lie ready beyond "
        f"the {now * loader.num_workers} queued now; {deeper} x {loader.num_workers} workers = "
        f"{deeper * loader.num_workers}.",
        {"prefetch_factor": deeper},
    )


def _supply(pace: Pace) -> str:
    return ms(pace.supply_ms) if pace.supply_ms is not None else "less"


PAGE = Page(
    number=7,
    title="The queue is too shallow for jitter",
    meaning=(
        "The workers are fast enough on average, but now and then a batch takes long, the few "
        "batches that lie ready are used up, and training waits. Most steps do not wait at all."
    ),
    looks_at=(
        "the wait in each step: median, 95th percentile, the few that hold most of it",
        "time of a batch in a worker, mean and longest",
        "batches ready in the queue; CPU use of the workers",
    ),
    thresholds=(
        Threshold("steps that hold 80% of the wait", f"<= {percent(BURST_PART)}", "proposed"),
        Threshold("longest batch", f">= {UNEVEN:.0f} x the mean one", "proposed"),
        Threshold("the long waits", f"<= {BEYOND_ANY_BATCH:.0f} x the longest batch", "proposed"),
        Threshold(
            "the wait that would be gone if batches cost alike",
            f">= {percent(COVERAGE)} of it, or a longest batch of {VERY_UNEVEN:.0f} x the mean",
            "TraceML, issue 238 (cause coverage); proposed",
        ),
        Threshold(
            "a deeper queue is advised: batch time over the workers",
            f"<= {KEEPS_UP} x (T - E)",
            "proposed",
        ),
        Threshold(
            "without fetch times: median wait", f"< {percent(NO_WAIT)} of the step", "proposed"
        ),
        Threshold(
            "without fetch times: 95th percentile of the wait",
            f">= {percent(LONG_WAIT)} of the step",
            "proposed; gpuprof: waits of 30 ms in >= 20% of steps, whatever the step",
        ),
    ),
    mistaken_for=(
        "prep-stall, fetch-stall: the mean is too slow, a deeper queue only delays the wait",
        "worker-respawn: the waits lie an epoch apart",
        "slow-worker: the same worker is late every time",
    ),
    mend=(
        "prefetch_factor by the length of the waits",
        "even out the cost of batches",
        "in_order=False where the order does not matter",
    ),
    test="raise prefetch_factor alone",
    gain="T / (T - E)",
)
RULE = Rule(
    ID,
    311,
    probe="the same run with a larger prefetch_factor",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
