"""``input-bound``: the device waits for data.

Looks for: E_data / T >= 5% info, >= 10% warn, >= 20% critical (TensorFlow 5/20, kineto 5, XProf 10,
TraceML 10/20) and, with workers, an empty queue at >= 50% of the polls (proposed here).
On a GPU ``E_data`` is the exposed idle time, or bounded from the driver's utilisation without
event pairs; on a CPU-only run it is the whole wait, since nothing else runs meanwhile.
Refined by the rules whose parent it is, in the order of their gates; else it stands alone.
Where most of it is not in next() but in what the loop itself does to a batch that it was handed,
its line is named and no cause in the loader. A thread that makes batches in Python also costs where
its queue is never empty: training waits for the interpreter lock (``lock.py``).
Differential: a wait while the GPU still works through its queue costs nothing. Configuration alone
never fires: ``num_workers=0`` without a wait is fine.
Fix: the closer cause's. Probe: replay cached batches for 50 steps. Gain: ceiling
``T / (T - E_data)``; a forecast is the closer cause's.
"""

from __future__ import annotations

from gputop_train.diagnose import crowding
from gputop_train.diagnose.accounting import (
    account,
    largest_ns,
    lost_share,
    most_lost,
    without_largest,
)
from gputop_train.diagnose.drawing import BEYOND_ANY_BATCH, MOST, drawing, drawing_advice
from gputop_train.diagnose.loading_advice import loader_line, loop_places, parent_advice
from gputop_train.diagnose.loading_advice import places as loading_places
from gputop_train.diagnose.loading_model import BUSY_NEIGHBOUR, foreign_cores, role_cores
from gputop_train.diagnose.lock import LEAST, OTHERS, held, lock_finding
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    CRITICAL,
    INFO,
    WARN,
    Confidence,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    cores,
    gain,
    hook_missing,
    ms,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.supply import (
    BUSY_WORKER,
    MOSTLY_READY,
    QUEUE_EMPTY,
    WELL_AHEAD,
    Supply,
    ahead,
    feeding,
    mean,
    pace_at,
    ready,
    restarts,
    supply_of,
)
from gputop_train.diagnose.waits import MOSTLY_OWN
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Evidence, Finding, Where

ID = "input-bound"
LOWER_BOUND = "at least, by driver utilisation"
#: Cores the trainer was ready for and did not get: above this its wait may be for one (proposed).
TRAINER_DENIED = 0.1


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "data")
    if missing:
        return Abstention(ID, missing)
    acc = account(window)
    host = acc.shares.get("data_wait", 0.0)
    crowded = _crowded(window, host)
    if crowded is not None:
        return crowded
    lock = held(window)
    if lock is not None and lock.feeds and lock.share > host:
        return lock_finding(window, lock, ID)
    if host < INFO:
        return RuledOut(ID, f"data is waited for {percent(host)} of the time")
    lost, basis, confidence = _lost(window, host)
    if lost is None:
        return Abstention(ID, basis)
    if lost < INFO:
        return RuledOut(
            ID, f"next() blocks {percent(host)} of the time, but the GPU works meanwhile ({basis})"
        )
    if without_largest(window, "data_wait", largest_ns(window, "data_wait")) < INFO:
        return RuledOut(ID, "a single wait, not a pattern")
    supply = supply_of(window)
    denied = mean(p.run_delay for p in window.procs if p.role == "trainer")
    short = denied is not None and denied >= TRAINER_DENIED
    if short and _in_time(window, lost, supply) and not _own_crowd(window, supply):
        if lost < WARN:  # whatever it is for, it is too little to keep a verdict back
            return RuledOut(
                ID, f"next() takes {percent(lost)} of the time, and batches are there in time"
            )
        return Abstention(
            ID,
            f"a core for the training process: next() takes {percent(lost)} of the time although "
            f"batches are there in time; it was ready for {denied or 0:.2g} cores it did not get",
        )
    return _finding(window, lost, basis, confidence, supply)


def _crowded(window: Window, waited: float) -> Finding | None:
    """On a CPU-only run: workers that take the cores which training wants, and are not late."""
    supply = supply_of(window)
    crowd = crowding.crowd_of(window, supply)
    if crowd is None or crowd.lost < max(crowding.INFO, waited):
        return None
    cause = crowding.closer_cause(window, supply)
    costly = supply.loader.collate if cause == "slow-collate" and supply.loader else None
    where = loading_places(window, supply, costly=costly, costly_first=True)
    level = severity(
        crowd.lost, window.totals.steps, warn=crowding.WARN, critical=crowding.CRITICAL
    )
    return Finding(
        id=ID,
        refined=cause,
        summary=crowding.crowd_summary(window, crowd),
        severity=level,
        confidence="medium",
        lost_share=crowd.lost,
        evidence=crowding.crowd_evidence(window, crowd, supply),
        where=where,
        advice=crowding.crowd_advice(window, crowd, supply, cause),
        gain=crowding.crowd_gain(crowd),
    )


def _own_crowd(window: Window, supply: Supply) -> bool:
    """Whether this run's own processes are what keeps a core from its trainer."""
    others = foreign_cores(window)
    if others is not None:
        return others < TRAINER_DENIED
    workers = supply.loader.num_workers if supply.loader is not None else 0
    return window.cores is not None and workers + 1 > window.cores


def _in_time(window: Window, lost: float, supply: Supply) -> bool:
    """Whether batches are there when they are due, so that a wait for them means something else."""
    if supply.in_loop:
        return False  # no batch is waited for: the loop prepares it itself, with or without a core
    if restarts(supply.loader) or drawing(window, supply) is not None:
        return False  # what was ready went away with the workers
    return ready(supply) or ahead(supply, pace_at(window, lost, supply))


def _lost(window: Window, host: float) -> tuple[float | None, str, Confidence]:
    """Lost share with its basis; bounded from utilisation when there are no event pairs."""
    lost, basis = lost_share(window, "data_wait")
    if lost is not None:
        return lost, basis, "high"
    acc = account(window)
    if acc.idle_share is None:
        return None, f"GPU events and driver utilisation ({acc.busy_basis})", "low"
    # The GPU's idle time holds the exposed wait; other host work may hide part of it. Between
    # max(0, W - busy) and min(W, idle): judged on the lower bound, so it may be silent, not wrong.
    lower = max(0.0, host - (1.0 - acc.idle_share))
    return lower, LOWER_BOUND, "medium"


def _finding(
    window: Window, lost: float, basis: str, confidence: Confidence, supply: Supply
) -> Finding:
    acc = account(window)
    ready_anyway = supply.empty_share is not None and supply.empty_share < QUEUE_EMPTY
    if ready_anyway and not supply.in_loop:
        confidence = "medium" if confidence == "high" else "low"  # batches were ready: not supply
    workers = supply.loader is not None and supply.loader.num_workers > 0
    if workers and supply.empty_share is None and supply.fetch is None and not supply.in_loop:
        confidence = "medium" if confidence == "high" else "low"  # nobody saw the supply
    level = severity(lost, window.totals.steps)
    if _in_time(window, lost, supply):
        level = "info"
    places, why_none = _places(window, supply)
    advice = parent_advice(window, lost, supply, places)
    by_whom = ""
    drawn = drawing(window, supply)
    if supply.in_loop:
        own = acc.ms(acc.shares.get("data_wait", 0.0)) * (1 - supply.in_next)
        by_whom = f" The loop itself spends {ms(own)} a step on what the loader handed it."
    if drawn is not None:
        places, why_none = drawn.lines, None
        advice = drawing_advice(drawn, supply, acc.ms(lost))
        by_whom = f" {percent(drawn.part)} of the wait is the sampler's own work."
    waiting = "The GPU" if window.on_gpu else "Training"
    return Finding(
        id=ID,
        summary=(
            f"{waiting} waits for data in {percent(lost)} of every step: "
            f"{ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}.{by_whom}"
        ),
        severity=level,
        confidence=confidence,
        lost_share=lost,
        evidence=_evidence(window, lost, basis, supply),
        where=places,
        where_missing=why_none,
        advice=advice,
        gain=gain(
            most_lost(window, "data_wait", lost),
            "T / (T - E), E the host's wait"
            + (", at most what the GPU is idle" if window.on_gpu else ""),
            # A thread that makes batches holds the interpreter lock beside training as well.
            at_least=basis == LOWER_BOUND or supply.loader is None,
        ),
    )


def _evidence(window: Window, lost: float, basis: str, supply: Supply) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = [
        Evidence(f"lost to data wait ({basis})", round(lost, 4), "of wall"),
        *_waited(acc.ms(acc.shares.get("data_wait", 0.0)), supply),
        number("GPU utilisation, mean", acc.util_mean, "%"),
        number("cores the run may use", window.cores, "cores"),
        cores("trainer process", role_cores(window, "trainer")),
    ]
    if supply.waits.in_bursts:
        text = f"{supply.waits.heavy} of {supply.waits.steps} steps"
        rows.insert(2, Evidence(f"{percent(COVERAGE)} of the wait is in", text))
    foreign = foreign_cores(window)
    if foreign is not None and foreign >= BUSY_NEIGHBOUR:
        rows.append(cores("kept busy by other programs", foreign))
    if supply.loader is not None:
        rows.append(Evidence("num_workers", supply.loader.num_workers))
    if supply.empty_share is not None:
        rows.append(number("queue empty when polled", supply.empty_share, "of polls"))
    if supply.workers_busy:
        busy = sum(1 for v in supply.workers_busy if v >= BUSY_WORKER)
        rows.append(Evidence("workers at 85% CPU or more", busy, f"of {len(supply.workers_busy)}"))
    return tuple(row for row in rows if row.value is not None)


def _waited(wait_ms: float, supply: Supply) -> tuple[Evidence, ...]:
    """The wait in next(), beside what the loop itself does to a batch where that is most of it."""
    rows = [number("wait in next(), mean", wait_ms * supply.in_next, "ms a step")]
    if supply.in_loop:
        own = wait_ms * (1 - supply.in_next)
        rows.insert(0, number("preparation in the loop itself, mean", own, "ms a step"))
    return tuple(rows)


def _places(window: Window, supply: Supply) -> tuple[tuple[Where, ...], str | None]:
    if supply.loader is None:
        found = loading_places(window, supply)
        missing = "no DataLoader fed this loop and the sampler named no function"
        return found, None if found else missing
    if supply.in_loop:
        return loop_places(window, supply.loader), None
    loaders = feeding(window)
    wait = sum(ld.wait_ns for ld in loaders)
    chosen, covered = [], 0
    for ld in loaders[:3]:
        chosen.append(loader_line(ld))
        covered += ld.wait_ns
        if covered >= COVERAGE * wait:
            break
    if len(chosen) == 1:
        return loading_places(window, supply), None
    return tuple(chosen), None


PAGE = Page(
    number=1,
    title="The device waits for data",
    meaning=(
        "The training thread stands in the loader's next() while the GPU (on a CPU-only run: the "
        "training itself) has nothing to do. Utilisation dips in every step or reads flat and low; "
        "the closer causes below say why the batch was not there."
    ),
    looks_at=(
        "time blocked in next(), of every loader that feeds a backward",
        "GPU idle time in it, from event pairs; else host wait less the driver's busy share",
        "batches ready in the loader's queue, polled",
        "CPU use of the trainer and of each worker, cores the run may use",
        "time that each loader measured in next(), beside what was seen as data wait in all",
        "where the loader has a sampler or batch_sampler of its own: its lines in next(), and "
        "waits at epoch starts beside the longest batch",
        "CPU of the training thread and of the process's other threads, and the lines they run",
    ),
    thresholds=(
        Threshold(
            "lost to data wait",
            f"info from {percent(INFO)}, warn from {percent(WARN)}, critical from "
            f"{percent(CRITICAL)} of wall",
            "TensorFlow's profiler 5/20, kineto 5, XProf 10, TraceML 10/20",
        ),
        Threshold(
            "the wait is the sampler's own work: its part of the samples in next(), or of the time "
            "there that no batch took",
            f">= {percent(MOST)}; at epoch starts, waits of {BEYOND_ANY_BATCH:.0f} x the longest "
            "batch",
            "proposed",
        ),
        Threshold(
            "the loop itself prepares what the loader handed it: its part of the data wait, by the "
            "loader's clock and by samples of the stack both",
            f">= {percent(MOSTLY_OWN)}",
            "proposed",
        ),
        Threshold(
            "queue found empty",
            f">= {percent(QUEUE_EMPTY)} of polls, else confidence is lowered",
            "proposed",
        ),
        Threshold(
            "batches ready",
            f">= {percent(MOSTLY_READY)} of polls: information, the wait is not for supply",
            "proposed",
        ),
        Threshold(
            "a thread that fills a queue computes, and training waits for the interpreter lock",
            f">= {percent(LEAST)} of wall, the thread >= {OTHERS:g} of a core",
            "proposed",
        ),
        Threshold(
            "or batch time over the workers",
            f"<= {percent(WELL_AHEAD)} of T - E: information as well",
            "proposed",
        ),
        Threshold(
            "on a CPU, no wait: CPU of the workers over that of the run, which fills its cores",
            f"info from {percent(crowding.INFO)}, warn from {percent(crowding.WARN)}, critical "
            f"from {percent(crowding.CRITICAL)}",
            "proposed; 57% where every item was 96 small files, 20% once they were packed",
        ),
        Threshold(
            "batches in time, but the trainer ready to run without a core (schedstat)",
            f">= {TRAINER_DENIED} cores, which other programs keep busy: not judged",
            "proposed",
        ),
    ),
    mistaken_for=(
        "a wait in next() while the GPU works through its queue: exposed idle is about 0",
        "num_workers=0 without a wait: configuration alone never fires",
        "a single long wait: it must be there without its largest occurrence",
        "another rank's loader: its wait shows as communication here",
        "augmentation in the loop after a loader that is in time: the loop's line is named then, "
        "and no cause in the loader",
    ),
    mend=(
        "that of the closer cause",
        "without a DataLoader: do the work once before training, or in a thread beside it",
        "preparation in the loop: move it into the Dataset or a collate_fn, where workers run it",
    ),
    test="replay cached batches for 50 steps",
    gain=(
        "ceiling T / (T - E) with the largest E there can be: the host's wait, at most what the "
        "GPU is idle; a forecast only where a closer cause has a rate model"
    ),
)
RULE = Rule(ID, 30, judge, probe="replay cached batches for 50 steps", page=PAGE)
