"""``input-bound``: the device waits for data.

Looks for: E_data / T >= 5% info, >= 10% warn, >= 20% critical (TensorFlow 5/20, kineto 5, XProf 10,
TraceML 10/20) and, with workers, an empty queue at >= 50% of the polls (proposed here).
On a GPU ``E_data`` is the exposed idle time, or bounded from the driver's utilisation without
event pairs; on a CPU-only run it is the whole wait, since nothing else runs meanwhile.
Refined to ``main-process-loading`` (``num_workers=0``) and ``prep-stall`` (every worker >= 85%
busy); else the parent stands.
Differential: a wait while the GPU still works through its queue costs nothing. Configuration alone
never fires: ``num_workers=0`` without a wait is fine.
Fix: advice.py. Probe: replay cached batches for 50 steps. Gain: ceiling ``T / (T - E_data)``,
expected from the rate model of advice.py.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account, largest_ns, lost_share, without_largest
from gputop_train.diagnose.loading_advice import loading_advice
from gputop_train.diagnose.loading_model import (
    WorkerPlan,
    foreign_cores,
    load_model,
    plan_workers,
    role_cores,
    shorter_loader,
)
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    INFO,
    Confidence,
    Judgement,
    Rule,
    RuledOut,
    ceiling,
    cores,
    gain,
    hook_missing,
    ms,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.supply import BUSY_WORKER, QUEUE_EMPTY, Supply, ready, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Evidence, Finding, Gain, Where

ID = "input-bound"
LOWER_BOUND = "at least, by driver utilisation"
#: Half a core of other programs is worth a line of evidence.
BUSY_NEIGHBOUR = 0.5


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "data")
    if missing:
        return Abstention(ID, missing)
    acc = account(window)
    host = acc.shares.get("data_wait", 0.0)
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
    return _finding(window, lost, basis, confidence, supply_of(window))


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


def _refine(window: Window, supply: Supply) -> str | None:
    if supply.waits.at_epoch_starts:
        return None  # preparing a batch is quick; what begins an epoch is slow
    loaders = window.feeding_loaders
    wait = sum(ld.wait_ns for ld in loaders)
    alone = [ld for ld in loaders if ld.num_workers == 0]
    if loaders and (wait == 0 or sum(ld.wait_ns for ld in alone) >= COVERAGE * wait) and alone:
        return "main-process-loading"
    loader = supply.loader
    if loader is None or loader.num_workers == 0 or supply.waits.in_bursts:
        return None
    all_busy = len(supply.workers_busy) >= loader.num_workers and (
        min(supply.workers_busy) >= BUSY_WORKER
    )
    empty = supply.empty_share is not None and supply.empty_share >= QUEUE_EMPTY
    return "prep-stall" if all_busy and empty else None


def _finding(
    window: Window, lost: float, basis: str, confidence: Confidence, supply: Supply
) -> Finding:
    acc = account(window)
    refined = _refine(window, supply)
    if supply.empty_share is not None and supply.empty_share < QUEUE_EMPTY:
        confidence = "medium" if confidence == "high" else "low"  # batches were ready: not supply
    level = severity(lost, window.totals.steps)
    if ready(supply):
        level = "info"
    plan = _plan(window, lost) if refined == "main-process-loading" else None
    places, why_none = _places(window, supply)
    waiting = "The GPU" if window.on_gpu else "Training"
    return Finding(
        id=ID,
        refined=refined,
        summary=(
            f"{waiting} waits for data in {percent(lost)} of every step: "
            f"{ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}."
        ),
        severity=level,
        confidence=confidence,
        lost_share=lost,
        evidence=_evidence(window, lost, basis, supply),
        where=places,
        where_missing=why_none,
        advice=loading_advice(window, refined, supply, plan, places),
        gain=_gain(lost, basis, plan, confidence),
    )


def _evidence(window: Window, lost: float, basis: str, supply: Supply) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = [
        Evidence(f"lost to data wait ({basis})", round(lost, 4), "of wall"),
        number("wait in next(), mean", acc.ms(acc.shares.get("data_wait", 0.0)), "ms a step"),
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


def _places(window: Window, supply: Supply) -> tuple[tuple[Where, ...], str | None]:
    if supply.loader is not None:
        wait = sum(ld.wait_ns for ld in window.feeding_loaders)
        chosen, covered = [], 0
        for ld in window.feeding_loaders[:3]:
            chosen.append(Where(ld.file, ld.line, shorter_loader(ld)))
            covered += ld.wait_ns
            if covered >= COVERAGE * wait:
                break
        return tuple(chosen), None
    sampled = [
        s
        for s in window.sites
        if s.rank == window.rank and (s.kind == "data" or s.label == "data_wait")
    ]
    if sampled:
        return tuple(where(s) for s in top_sites(sampled, by_count=True)), None
    return (), "no DataLoader fed this loop and the sampler named no function"


def _plan(window: Window, lost: float) -> WorkerPlan | None:
    loader = window.feeding_loaders[0]
    model = load_model(window, lost)
    # Workers would each read a whole IterableDataset: the data would come several times.
    return None if model is None or loader.iterable else plan_workers(model)


def _gain(lost: float, basis: str, plan: WorkerPlan | None, confidence: Confidence) -> Gain:
    if plan is None:
        return gain(lost, f"T / (T - E), E {basis}", at_least=confidence == "medium")
    top = ceiling(lost)
    high = plan.high if top is None else min(plan.high, top)
    text = f"slowest of trainer, {plan.workers} worker{'s' * (plan.workers > 1)}, cores as measured"
    return Gain(top, (min(plan.low, high), high), text, at_least=basis == LOWER_BOUND)


RULE = Rule(ID, 30, judge, probe="replay cached batches for 50 steps")
