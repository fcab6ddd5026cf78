"""``prep-stall``: all workers are busy computing, and still too slow.

Looks for: workers at >= 85% of a core while they make batches, in the mean, none below 40%
(proposed; SageMaker: CPU > 90% with the GPU < 10%), time ready to run without a core counted; and
batches that are not there when due: made more slowly than training takes, or, where they are not
timed, the queue empty at >= 50% of polls.
Differential: one busy worker of many; sleeping workers (``fetch-stall``); few long waits; more
threads than cores (``cpu-oversubscription``); a slow ``collate_fn``; all asked before this.
Fix: as many workers as keep up where cores are free, else cheaper preparation. Probe: the data set
in /dev/shm changes nothing. Gain: T / max(T - E, T x workers now / workers then).
"""

from __future__ import annotations

from statistics import fmean

from gputop_train.diagnose.loading_advice import (
    SETS_THE_PACE,
    at,
    bounded,
    loader_at,
    more_workers,
    places,
)
from gputop_train.diagnose.loading_model import (
    BUSY_NEIGHBOUR,
    MAX_WORKERS,
    foreign_cores,
    rank_cores,
    role_cores,
)
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
    IDLE_WORKER,
    IN_LOOP,
    QUEUE_EMPTY,
    Pace,
    Supply,
    lacking,
    pace_of,
    supply_of,
    total,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader

ID = "prep-stall"


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the workers' computing is what is waited for."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there are no workers")
    if supply.in_loop:
        return RuledOut(ID, IN_LOOP)
    if supply.waits.in_bursts:
        return RuledOut(ID, "the wait is in a few steps, not in the mean")
    if len(supply.workers) < loader.num_workers:
        return Abstention(ID, "CPU use of the workers")
    pace = pace_of(window, found, supply)
    # Between two batches a worker waits for its turn: it is to be busy while it makes one.
    making = 1.0
    if pace.supply_ms is not None and pace.step_ms > 0:
        making = max(SETS_THE_PACE, min(1.0, pace.supply_ms / pace.step_ms))
    wants = [worker.wants for worker in supply.workers]
    if fmean(wants) < BUSY_WORKER * making or min(wants) < IDLE_WORKER:
        return RuledOut(ID, f"the workers are not at {percent(BUSY_WORKER)} of a core each")
    if not lacking(supply, pace):
        return RuledOut(ID, "batches were ready")
    if supply.empty_share is None and pace.supply_ms is None:
        return Abstention(ID, "polls of the loader's queue, or batch times in the workers")
    if pace.supply_ms is not None and pace.supply_ms < SETS_THE_PACE * pace.step_ms:
        return RuledOut(ID, "the workers make batches faster than they are used")
    return _named(window, found, supply, loader, pace)


def _named(
    window: Window, found: Finding, supply: Supply, loader: Loader, pace: Pace
) -> Refinement:
    more = more_workers(window, supply, pace)
    busy = total(supply.workers, lambda w: w.cpu) or 0.0
    denied = total(supply.workers, lambda w: w.delay)
    rows: list[Evidence] = [
        number("CPU of all workers", busy, "cores"),
        number("ready to run without a core", denied, "cores"),
    ]
    if supply.fetch is not None:
        rows.append(span("a batch, made in a worker", supply.fetch.batch_ms))
        rows.append(number("collate_fn", supply.fetch.collate, "of a batch's time"))
    steps = [more.advice(window, supply, pace)] if more is not None else []
    code = at(loader.source) or loader_at(loader)
    full = "" if more is not None else _full(window, loader)
    target = ms(pace.floor_ms * loader.num_workers)
    each = f"each of {loader.num_workers} workers" if loader.num_workers > 1 else "the one worker"
    one = f"a batch may take {target} in {each}"
    steps.append(
        Advice(f"Make preparation cheaper{code}: {full}{one} to keep up.{_look(window, supply)}")
    )
    steps.append(
        Advice(
            f"If that is not enough: do its fixed part once, offline{code}, and load the result."
        )
    )
    gain = None
    if more is not None:
        gain = bounded(
            found,
            more.low,
            more.high,
            f"T x {loader.num_workers} / {more.workers} workers, at most what training allows",
        )
    return Refinement(
        ID,
        supply.part,
        f"All {loader.num_workers} workers are busy preparing."
        if loader.num_workers > 1
        else "Its one worker is busy preparing.",
        # Without these it may as well be too few cores (cpu-affinity, cpu-oversubscription).
        confidence="medium" if denied is None or window.cores is None else "high",
        evidence=tuple(row for row in rows if row.value is not None),
        where=places(window, supply, costly_first=more is None),
        advice=tuple(steps),
        gain=gain,
    )


def _look(window: Window, supply: Supply) -> str:
    """How to see what a worker does, while there is one."""
    pid = supply.workers[0].pid
    return "" if window.final else f" py-spy dump --pid {pid} shows which line a worker is on."


def _full(window: Window, loader: Loader) -> str:
    if loader.iterable:
        return (
            f"an IterableDataset takes more than its {loader.num_workers} workers only where it "
            "has as many shards; "
        )
    cores = rank_cores(window)
    if cores is None or loader.num_workers >= MAX_WORKERS:
        return ""
    others = foreign_cores(window) or 0.0
    if others >= BUSY_NEIGHBOUR:
        return (
            f"other programs keep {others:.1f} of the {cores:.0f} cores busy that this run may "
            "use, so more workers would only share what is left; "
        )
    trainer = role_cores(window, "trainer") or 1.0
    return (
        f"{loader.num_workers} worker{'s' * (loader.num_workers > 1)} and {trainer:.2g} "
        f"core{'s' * (trainer > 1)} of training fill the {cores:.0f} "
        "this run may use, so more would only share them; "
    )


PAGE = Page(
    number=3,
    title="Preparation keeps all workers busy",
    meaning=(
        "Every worker computes all the time (decoding, augmentation, tokenising), the queue is "
        "empty, and the device waits. Storage has little to do."
    ),
    looks_at=(
        "CPU use of each worker, and time it was ready to run without a core (schedstat)",
        "batches ready in the queue",
        "time of a batch in a worker, items apart from collate_fn",
        "how the waits lie: in all steps, or in every round of the workers",
    ),
    thresholds=(
        Threshold(
            f"CPU of the workers, mean (each >= {percent(IDLE_WORKER)})",
            f">= {percent(BUSY_WORKER)} of a core while it makes batches, used or waited for",
            "proposed; SageMaker CPU > 90% with GPU < 10%, gpuprof host CPU >= 80%",
        ),
        Threshold("queue found empty", f">= {percent(QUEUE_EMPTY)} of polls", "proposed"),
        Threshold(
            "a batch's time over the workers",
            f">= {percent(SETS_THE_PACE)} of the step",
            "proposed",
        ),
    ),
    mistaken_for=(
        "fetch-stall: the workers wait for storage, or mostly call read()",
        "cpu-oversubscription: more threads than cores (spinning OpenMP threads)",
        "slow-collate, slow-worker, idle-workers: asked before",
        "bursty-prefetch: the mean is fast enough",
    ),
    mend=(
        "as many workers as keep up, where cores are free",
        "cheaper decoding and transforms, or augmentation on the device",
        "the fixed part once, offline",
    ),
    test="the data set in /dev/shm: nothing changes",
    gain="T / max(T - E, T x workers now / workers then)",
)
RULE = Rule(
    ID,
    314,
    probe="the data set in /dev/shm: nothing changes",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
