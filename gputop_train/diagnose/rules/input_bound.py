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

from dataclasses import dataclass

from gputop_train.diagnose.accounting import account, largest_ns, lost_share, without_largest
from gputop_train.diagnose.advice import (
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
    gain,
    hook_missing,
    ms,
    name,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.waits import Waits, pattern
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Loader, Where

ID = "input-bound"
QUEUE_EMPTY, MIN_POLLS = 0.5, 8
LOWER_BOUND = "at least, by driver utilisation"
BUSY_WORKER = 0.85
IDLE_WORKER = 0.4
#: A worker that uses less than this has nothing to do; half of them: the split is at fault.
JOBLESS_WORKER = 0.1
#: Half a core of other programs is worth a line of evidence.
BUSY_NEIGHBOUR = 0.5


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known about how batches come to be."""

    loader: Loader | None
    empty_share: float | None  # polls that found no batch ready
    workers_busy: tuple[float, ...]  # mean cores of each of its worker processes
    waits: Waits


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
    return _finding(window, lost, basis, confidence, _supply(window))


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


def _supply(window: Window) -> Supply:
    feeding = window.feeding_loaders
    loader = feeding[0] if feeding else None
    polls = [d.ready for d in window.depths if loader is not None and d.loader_id == loader.id]
    empty = sum(1 for r in polls if r == 0) / len(polls) if len(polls) >= MIN_POLLS else None
    return Supply(loader, empty, _workers_busy(window, loader), pattern(window, loader))


def _workers_busy(window: Window, loader: Loader | None) -> tuple[float, ...]:
    """Mean cores of this loader's workers; those of an evaluation's loader idle by design."""
    usage: dict[int, list[float]] = {}
    for p in window.procs:
        if p.role == "worker" and p.cpu is not None:
            usage.setdefault(p.pid, []).append(p.cpu)
    mine = set(loader.worker_pids) if loader is not None else set()
    others = {pid for ld in window.loaders if ld is not loader for pid in ld.worker_pids}
    kept = [pid for pid in sorted(usage) if pid not in others - mine and len(usage[pid]) >= 2]
    if mine & set(kept):
        kept = [pid for pid in kept if pid in mine]
    return tuple(sum(usage[pid]) / len(usage[pid]) for pid in kept)


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
        severity=severity(lost, window.totals.steps),
        confidence=confidence,
        lost_share=lost,
        evidence=_evidence(window, lost, basis, supply),
        where=places,
        where_missing=why_none,
        advice=_advice(window, refined, supply, plan, places),
        gain=_gain(lost, basis, plan, confidence),
    )


def _evidence(window: Window, lost: float, basis: str, supply: Supply) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = [
        Evidence(f"lost to data wait ({basis})", round(lost, 4), "of wall"),
        number("wait in next(), mean", acc.ms(acc.shares.get("data_wait", 0.0)), "ms a step"),
        number("GPU utilisation, mean", acc.util_mean, "%"),
        number("cores the run may use", window.cores, "cores"),
        number("trainer process", role_cores(window, "trainer"), "cores"),
    ]
    if supply.waits.in_bursts:
        text = f"{supply.waits.heavy} of {supply.waits.steps} steps"
        rows.insert(2, Evidence(f"{percent(COVERAGE)} of the wait is in", text))
    foreign = foreign_cores(window)
    if foreign is not None and foreign >= BUSY_NEIGHBOUR:
        rows.append(number("kept busy by other programs", foreign, "cores"))
    if supply.loader is not None:
        rows.append(Evidence("num_workers", supply.loader.num_workers, "processes"))
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


def _advice(
    window: Window,
    refined: str | None,
    supply: Supply,
    plan: WorkerPlan | None,
    places: tuple[Where, ...],
) -> tuple[Advice, ...]:
    line = f" ({name(places[0])})" if places else ""
    loader = supply.loader
    if loader is None:
        return (
            Advice(
                f"Prepare the next batch while this one trains{line}: move it into a Dataset with "
                "a DataLoader and workers, or a background thread with a queue of two batches."
            ),
            Advice("Or do the work once, before training: tokenise, decode or resize and store."),
        )
    if refined == "main-process-loading":
        return _main_process_advice(window, loader, plan, line)
    if refined == "prep-stall":
        return _busy_worker_advice(window, loader, line)
    return _unknown_advice(supply, loader, line)


def _main_process_advice(
    window: Window, loader: Loader, plan: WorkerPlan | None, line: str
) -> tuple[Advice, ...]:
    if loader.iterable:
        return (
            Advice(
                f"The loader prepares every batch in the training process{line}. Its dataset is an "
                "IterableDataset: split it by torch.utils.data.get_worker_info() first, or every "
                "worker repeats all of the data; then set num_workers."
            ),
        )
    acc = account(window)
    wait = ms(acc.ms(acc.shares.get("data_wait", 0.0)))
    rest = ms((acc.step_ms or 0.0) * (1 - acc.shares.get("data_wait", 0.0)))
    if plan is None:
        return (
            Advice(
                f"Load in worker processes{line}: num_workers 0 -> 2, then double it while the "
                "time per sample falls by 3% or more."
            ),
        )
    cores = window.cores or 0.0
    steps = [
        Advice(
            f"num_workers 0 -> {plan.workers}{line}: a batch takes {wait} to prepare and {rest} to "
            f"train on; {plan.workers} of {cores:.0f} usable cores keep up as well as this "
            "machine can.",
            {"num_workers": plan.workers},
        )
    ]
    if loader.epochs > 1:
        steps.append(
            Advice(
                f"Keep the workers between epochs ({loader.epochs} seen): persistent_workers=True.",
                {"persistent_workers": True},
            )
        )
    steps.append(
        Advice("Then make preparation cheaper: vectorise it, or do the fixed part once, offline.")
    )
    return tuple(steps)


def _busy_worker_advice(window: Window, loader: Loader, line: str) -> tuple[Advice, ...]:
    steps: list[Advice] = []
    cores = window.cores
    trainer = role_cores(window, "trainer") or 1.0
    spare = 0 if cores is None else int(cores - loader.num_workers - max(1.0, trainer))
    if spare >= 1:
        acc = account(window)
        share = acc.shares.get("data_wait", 0.0)
        # W workers deliver a batch every T; without the wait one is needed every T - W.
        wanted = max(loader.num_workers + 1, round(loader.num_workers / max(0.05, 1 - share)))
        workers = min(loader.num_workers + spare, wanted)
        steps.append(
            Advice(
                f"num_workers {loader.num_workers} -> {workers}{line}: every worker is busy and "
                f"about {spare} of {cores:.0f} usable cores are idle.",
                {"num_workers": workers},
            )
        )
    steps.append(
        Advice(
            "Make preparation cheaper: faster decoding, vectorised transforms, or augmentation on "
            "the device instead of the workers."
        )
    )
    steps.append(Advice("Or do the fixed part of it once, offline, and load the result."))
    return tuple(steps)


def _unknown_advice(supply: Supply, loader: Loader, line: str) -> tuple[Advice, ...]:
    waits = supply.waits
    if waits.at_epoch_starts:
        return _epoch_advice(loader, line)
    if loader.num_workers == 0:
        return (Advice(f"Two loaders share the wait{line}: look at each with its own workers."),)
    if waits.in_bursts:
        return (
            Advice(
                f"{waits.heavy} of {waits.steps} steps hold most of the wait{line}, the others "
                "hardly wait: more workers will not help. Look for single slow items."
            ),
        )
    idle = _jobless(supply.workers_busy)
    if idle:
        return (
            Advice(
                f"{idle} of {len(supply.workers_busy)} workers have nothing to do{line}: more "
                "workers will not help; give each one a part of the data (shards, worker split)."
            ),
        )
    starved = supply.empty_share is None or supply.empty_share >= QUEUE_EMPTY
    if supply.workers_busy and starved and max(supply.workers_busy) < IDLE_WORKER:
        return (
            Advice(
                f"The workers mostly wait{line}: look at storage. Fewer and larger files, a local "
                "copy, or data kept in memory; more workers only if storage has room."
            ),
        )
    return (
        Advice(
            f"Find out what the workers do{line}: time one dataset[i] and one collate_fn call by "
            "hand before changing num_workers."
        ),
    )


def _jobless(workers: tuple[float, ...]) -> int:
    """How many workers idle beside busy ones; 0 where the work is shared."""
    idle = sum(1 for v in workers if v < IDLE_WORKER)
    if any(v >= BUSY_WORKER for v in workers):
        return idle
    jobless = sum(1 for v in workers if v < JOBLESS_WORKER)
    return jobless if 2 * jobless >= len(workers) and max(workers, default=0) >= IDLE_WORKER else 0


def _epoch_advice(loader: Loader, line: str) -> tuple[Advice, ...]:
    if loader.num_workers and not loader.persistent_workers:
        return (
            Advice(
                f"The waits come at epoch starts{line}, where workers are started anew "
                f"({loader.epochs} epochs seen): persistent_workers=True keeps them. More workers "
                "would make each start longer.",
                {"persistent_workers": True},
            ),
            Advice("Or make epochs longer, and what each worker loads when it starts smaller."),
        )
    return (
        Advice(
            f"The waits come at epoch starts{line}, the steps between hardly wait: do what begins "
            "an epoch once (index, shuffle, open files), or make epochs longer."
        ),
    )


RULE = Rule(ID, 30, judge, probe="replay cached batches for 50 steps")
