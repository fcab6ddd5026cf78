"""``bursty-prefetch``: the supply is fast enough in the mean, but its queue too shallow for jitter.

Looks for: most steps without a wait (median wait < 5% of the step) and a few long ones that hold
80% of it (at most a quarter of the steps), not at epoch starts, while the workers' batches come
faster than training uses them: batch time over workers <= 0.9 x (T - E). Without fetch times: no
worker is at 85% of a core and batches were ready at half of the polls, and long waits come in at
least 5% of the steps (95th percentile >= 20% of the step; gpuprof asks for 30 ms at 20% of steps).
Differential: a mean too slow (``prep-stall``, ``fetch-stall``), where a deeper queue only delays
the wait; pauses at epoch starts; one slow worker.
Fix: ``prefetch_factor`` by the length of the waits; even out items; ``in_order=False``. Never more
workers. Probe: raise prefetch_factor alone. Gain: T / (T - E).
"""

from __future__ import annotations

import math

from gputop_train.diagnose.loading_advice import at, bounded, loader_at, places
from gputop_train.diagnose.rules.base import (
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
    Pace,
    Supply,
    pace_of,
    supply_of,
)
from gputop_train.diagnose.waits import BURST_PART
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader

ID = "bursty-prefetch"
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
    pace = pace_of(window, found, supply)
    if waits.median_ms >= NO_WAIT * pace.step_ms:
        return RuledOut(ID, f"half of the steps wait {ms(waits.median_ms)} or more")
    if pace.supply_ms is not None:
        if pace.supply_ms > KEEPS_UP * pace.floor_ms:
            return RuledOut(ID, "the workers are too slow in the mean")
    elif waits.p95_ms < LONG_WAIT * pace.step_ms or not waits.in_bursts:
        return RuledOut(ID, "single slow items, or workers that deliver in rounds")
    elif not supply.workers or supply.empty_share is None:
        return Abstention(ID, "batch times, or the workers' CPU use and the queue's depth")
    elif min(supply.workers_busy) >= BUSY_WORKER or supply.empty_share >= QUEUE_EMPTY:
        return RuledOut(ID, "the workers are too slow in the mean")
    return _named(window, found, supply, loader, pace)


def _named(
    window: Window, found: Finding, supply: Supply, loader: Loader, pace: Pace
) -> Refinement:
    waits = supply.waits
    now = loader.prefetch_factor or DEFAULT_PREFETCH
    more = math.ceil(waits.heavy_ms / (max(pace.floor_ms, 1e-3) * loader.num_workers))
    deeper = min(MOST_PREFETCH, max(now + 1, now + more))
    line = loader_at(loader)
    queued = now * loader.num_workers
    first = (
        f"prefetch_factor {now} -> {deeper}{line}: waits last up to {ms(waits.heavy_ms)}, a step "
        f"without one {ms(pace.floor_ms)}, so {waits.heavy_ms / max(pace.floor_ms, 1e-3):.0f} more "
        f"batches must lie ready beyond the {queued} queued now; {deeper} x {loader.num_workers} "
        f"workers = {deeper * loader.num_workers}."
    )
    steps = [Advice(first, {"prefetch_factor": deeper})]
    longest = ""
    if supply.fetch is not None:
        longest = f" (the longest took {ms(supply.fetch.longest_ms)}, the mean {_mean(supply)})"
    steps.append(
        Advice(
            f"If waits remain: even out the cost of batches{at(loader.source)}{longest}: bucket by "
            "length, or split the heavy items."
        )
    )
    if loader.in_order is not False:
        steps.append(
            Advice(
                f"Where the order does not matter: in_order=False{line} (right from torch 2.7 on), "
                f"so that a slow batch holds up none of the other {loader.num_workers} workers'."
            )
        )
    low = pace.floor_ms + STAYS * (pace.step_ms - pace.floor_ms)
    return Refinement(
        ID,
        supply.part * max(0.8, waits.held),
        f"The workers keep up in the mean; {waits.heavy} of {waits.steps} steps hold most of the "
        "wait.",
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
            pace.speedup(pace.floor_ms),
            f"T / (T - E): supply takes {_supply(pace)} a step in the mean, training "
            f"{ms(pace.floor_ms)}",
        ),
    )


def _mean(supply: Supply) -> str:
    return ms(supply.fetch.batch_ms) if supply.fetch is not None else "not timed"


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
        Threshold("median wait", f"< {percent(NO_WAIT)} of the step", "proposed"),
        Threshold(
            "batch time over the workers",
            f"<= {KEEPS_UP} x (T - E)",
            "proposed",
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
