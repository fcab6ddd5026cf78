"""``worker-respawn``: worker processes are started anew for every epoch, and training waits.

Looks for: workers without ``persistent_workers`` that were started at least twice, and the waits
for the first batch after each start (with the starting itself) >= 80% of the data wait. Of a first
wait, what any batch takes is not counted: kept workers take that too. On stores without those
counters: the few steps that hold the wait lie an epoch apart. The 3% of an epoch of the catalogue
is met wherever ``input-bound`` speaks, from 5%.
Differential: kept workers or none (what begins an epoch is slow itself); batches that are slow all
along; a save or an evaluation at the epoch's end, which has a label of its own.
A DataLoader constructed anew for each epoch starts its workers anew as well, kept or not.
Fix: ``persistent_workers=True``, constructed once; never more workers: each start gets longer.
Gain: epoch / (epoch - pause), the pause measured.
"""

from __future__ import annotations

from gputop_train.diagnose.loading_advice import at, bounded, loader_at, places, sampled
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
    severity,
    span,
)
from gputop_train.diagnose.supply import Pace, Supply, pace_of, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Loader

ID = "worker-respawn"
MIN_STARTS = 2
#: Starts a step from which on each batch has workers of its own: ``next(iter(loader))`` (proposed).
EACH_STEP = 0.5
#: Batches counted for so many of the steps: (nearly) every step was recorded.
RECORDED = 0.75
KEEP = {"persistent_workers": True}
#: Start methods whose workers share nothing with the training process.
ANEW = ("spawn", "forkserver")
#: Of a pause, what may stay with kept workers: they refill an empty queue (proposed).
STAYS = 0.2


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the wait is that of workers being started."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "no worker processes are started")
    if loader.persistent_workers and supply.built == 1:
        return RuledOut(ID, "the workers are kept between epochs")
    if max(loader.epochs, loader.starts) < MIN_STARTS:
        return RuledOut(ID, "the workers were started once")
    part = _part(window, loader, supply)
    if part is None and not supply.waits.at_epoch_starts:
        return RuledOut(ID, "the waits do not lie at epoch starts")
    by_pattern = supply.waits.held * _beyond_usual(loader, supply)
    if not supply.waits.at_epoch_starts:
        by_pattern = 0.0
    covers = supply.part * max(part or 0.0, by_pattern)
    return _named(window, found, supply, loader, covers, counted=part is not None)


def _part(window: Window, loader: Loader, supply: Supply) -> float | None:
    """Part of this loader's wait that starting its workers costs; ``None`` = not counted."""
    if loader.first_waits < MIN_STARTS or loader.starts < MIN_STARTS:
        return None
    whole: float = loader.wait_ns + loader.start_ns
    if loader.batches < RECORDED * window.steps_seen:
        # Waits in steps of which only the end was recorded are not in it, first waits are.
        a_step = window.totals.labels.get("data_wait", 0) / max(1, window.totals.steps)
        whole = max(whole, a_step * window.steps_seen * supply.part)
    started = loader.first_wait_ns * _beyond_usual(loader, supply) + loader.start_ns
    return min(1.0, started / whole) if whole > 0 else None


def _beyond_usual(loader: Loader, supply: Supply) -> float:
    """Part of the first waits beyond what any batch takes, which kept workers would take too."""
    usual_ms = supply.fetch.usual_ms if supply.fetch is not None else None
    if not usual_ms or loader.first_waits < MIN_STARTS or loader.first_wait_ns <= 0:
        return 1.0
    return max(0.0, 1.0 - loader.first_waits * usual_ms * 1e6 / loader.first_wait_ns)


def _named(
    window: Window, found: Finding, supply: Supply, loader: Loader, covers: float, *, counted: bool
) -> Refinement:
    pace: Pace = pace_of(window, found, supply)
    starts = max(loader.starts, loader.epochs) if counted else loader.epochs
    pause_ms = (
        (loader.first_wait_ns + loader.start_ns) / loader.first_waits / 1e6
        if counted
        else supply.waits.heavy_ms
    )
    cost = found.lost_share * min(1.0, covers)
    # The other workers' first batches are late as well: all of the wait, where starts explain it
    # (measured: 2.4 times as fast, of 2.3 by first batches alone and 2.6 by all of the wait).
    most = found.lost_share * (1.0 if covers >= COVERAGE else max(covers, _at_starts(supply)))
    best, least = pace.step_ms * (1 - most), pace.step_ms * (1 - cost * (1 - STAYS))
    line = loader_at(loader)
    workers = "1 worker was" if loader.num_workers == 1 else f"{loader.num_workers} workers were"
    times = f"{workers} started {starts} times, each time for {ms(pause_ms)}"
    stays = f"num_workers stays {loader.num_workers}: more would make each start longer."
    keep = Advice(f"persistent_workers=True{line}: {times}; keep them. {stays}", KEEP)
    if supply.built > 1:
        keep = Advice(
            f"Construct the DataLoader once, before the loop over epochs{line}, with "
            f"persistent_workers=True: it was built {supply.built} times, and {times}. {stays}"
        )
    each_step = starts >= EACH_STEP * max(1, window.steps_seen)
    if each_step:
        keep = Advice(
            f"Make the iterator once: {times} in {window.steps_seen} steps, as "
            f"next(iter(loader)) does. Loop over the loader{line}, or call iter(loader) before the "
            "loop and next() on that."
        )
    code = at(loader.source)
    seen = sampled(window, limit=1) if each_step else ()
    return Refinement(
        ID,
        covers,
        f"{_processes(loader)} started for every "
        f"{'batch' if each_step else 'epoch'}: {ms(pause_ms)} each.",
        confidence="high" if counted else "medium",
        evidence=(
            number("times the workers were started", starts),
            span("first batch after a start, mean", pause_ms),
            number("of the data wait, at starts", min(1.0, covers), "of wait"),
        ),
        where=(*(p for p in seen if p != loader.source), *places(window, supply)),
        advice=(
            keep,
            _lighter(loader, code, pause_ms),
        ),
        gain=bounded(
            found,
            pace.speedup(least),
            pace.speedup(best),
            f"epoch / (epoch - pause): {percent(cost)} of the time is at worker starts",
        ),
        severity=severity(found.lost_share, window.totals.steps),
    )


def _at_starts(supply: Supply) -> float:
    return supply.waits.held if supply.waits.at_epoch_starts else 0.0


def _processes(loader: Loader) -> str:
    n = loader.num_workers
    return "1 worker process is" if n == 1 else f"{n} worker processes are"


def _lighter(loader: Loader, code: str, pause_ms: float) -> Advice:
    """How a start gets cheaper, by what a start does."""
    if loader.context in ANEW:
        return Advice(
            f"If they must start anew ({ms(pause_ms)} each time): with {loader.context} a worker "
            f"imports torch and the script and unpickles the dataset{code}. Keep imports few, give "
            "the dataset paths and not arrays, or fork where the libraries allow it."
        )
    before = "its worker is" if loader.num_workers == 1 else f"{loader.num_workers} workers are"
    return Advice(
        f"If the first batch still takes {ms(pause_ms)}: move what a worker does on its first item"
        f"{code} into the dataset's __init__, which runs once before {before} forked, not after."
    )


PAGE = Page(
    number=9,
    title="Workers started anew for every epoch",
    meaning=(
        "At the start of each epoch the loader starts its worker processes again, each loads what "
        "it needs, and the first batch is late; the steps between hardly wait. Short epochs make "
        "it a large part of the time, and more workers make it worse."
    ),
    looks_at=(
        "num_workers and persistent_workers of the loader",
        "times its workers were started, and the training thread's time in it",
        "wait for the first batch after each start, less a usual batch's time",
        "distance in steps between the few long waits, beside the epoch's length",
    ),
    thresholds=(
        Threshold("starts", f">= {MIN_STARTS}", "proposed"),
        Threshold(
            "data wait at starts",
            f">= {percent(COVERAGE)} of it",
            "TraceML, issue 238 (cause coverage); the wait itself from 5%: 3% "
            "of an epoch is below that",
        ),
    ),
    mistaken_for=(
        "kept workers, or none: what begins an epoch (index, shuffle, files) is slow itself",
        "slow batches all along: the waits are not at epoch starts",
        "a save or an evaluation at the end of an epoch: it has its own label",
    ),
    mend=(
        "persistent_workers=True",
        "the DataLoader constructed once, before the loop over epochs",
        "what each worker loads when it starts: once, before the fork",
        "longer epochs",
    ),
    test="compare epochs from the second on with persistent workers",
    gain="epoch / (epoch - pause)",
)
RULE = Rule(
    ID,
    301,
    probe="the same run with persistent_workers=True",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
