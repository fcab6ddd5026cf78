"""``cpu-oversubscription``: more runnable threads than cores.

Looks for: the workers of all ranks, or their threads where they use more than a core each, exceed
the cores the run may use, *and* the kernel says that they fight for them: for >= 25% (proposed) of
the time a worker was ready to run it had no core (schedstat), while the run itself fills 70% of the
cores: else other programs took them. Configuration alone never fires
(PyTorch's and Lightning's warnings do; Lightning #15572, #18723).
Differential: few cores allowed of many (``cpu-affinity``); one core a worker and cores left
(``prep-stall``).
Fix: workers <= cores / ranks - 1, one thread in each. Probe: half the workers. Gain: a ceiling
only: fewer threads make no cores.
"""

from __future__ import annotations

from gputop_train.diagnose.loading_advice import at, loader_at, places
from gputop_train.diagnose.loading_model import role_cores
from gputop_train.diagnose.rules.base import (
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    gain,
    number,
    percent,
)
from gputop_train.diagnose.supply import Supply, lacking, mean, pace_of, supply_of, total
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Loader

ID = "cpu-oversubscription"
#: Part of the time it is ready to run that a worker has no core (proposed).
DENIED_PART = 0.25
#: A worker that wants more than this runs threads of its own (proposed).
MULTI_THREADED = 1.2
#: Part of the cores that the run itself must fill; else other programs made the wait (proposed).
OURS = 0.7


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the workers fight for cores."""
    supply = supply_of(window)
    loader, cores = supply.loader, window.cores
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there are no workers")
    if cores is None or len(supply.workers) < loader.num_workers:
        return Abstention(ID, "cores the run may use, and CPU use of the workers")
    workers = _all_workers(window)
    each = mean(worker.cpu for worker in supply.workers) or 0.0
    threads = _threads(supply) if each > MULTI_THREADED else workers
    if max(workers, threads) <= cores:
        return RuledOut(ID, f"{max(workers, threads)} threads for {cores:.3g} cores")
    delay = total(supply.workers, lambda w: w.delay)
    if delay is None:
        return Abstention(ID, "time the workers waited for a core (run_delay of schedstat)")
    used = total(supply.workers, lambda w: w.cpu) or 0.0
    denied = delay / (used + delay) if used + delay > 0 else 0.0
    if denied < DENIED_PART:
        return RuledOut(ID, f"the workers waited for a core {percent(denied)} of their time")
    ours = used + (role_cores(window, "trainer") or 0.0)
    if ours < OURS * cores:
        return RuledOut(ID, f"this run uses {ours:.2g} of {cores:.3g} cores, others use the rest")
    if supply.waits.in_bursts or not lacking(supply, pace_of(window, found, supply)):
        return RuledOut(ID, "batches were ready, or the wait is in a few steps")
    return _named(window, found, supply, loader, cores, denied, max(workers, threads), each)


def _all_workers(window: Window) -> int:
    return sum(ld.num_workers for ld in window.loaders if ld.feeds_training)


def _threads(supply: Supply) -> int:
    return sum(worker.threads or 1 for worker in supply.workers)


def _named(
    window: Window,
    found: Finding,
    supply: Supply,
    loader: Loader,
    cores: float,
    denied: float,
    threads: int,
    each: float,
) -> Refinement:
    ranks = max(1, len({ld.rank for ld in window.loaders if ld.feeds_training}))
    fit = max(1, int(cores / ranks) - 1)
    now, line = loader.num_workers, loader_at(loader)
    own_threads = each > MULTI_THREADED
    share = f"cores / ranks - 1 = {cores:.0f} / {ranks} - 1" if ranks > 1 else f"{cores:.0f} - 1"
    fewer = Advice(
        f"num_workers {now} -> {min(now, fit)}{line}: {share} leaves one core to the trainer; "
        f"{now} workers were ready to run without one for {percent(denied)} of their time.",
        {"num_workers": fit},
    )
    one = Advice(
        f"One thread in each worker: OMP_NUM_THREADS=1, or torch.set_num_threads(1) and "
        f"cv2.setNumThreads(0) in worker_init_fn{line}; {now} workers run {threads} threads on "
        f"{cores:.0f} cores.",
    )
    cheaper = Advice(
        f"If the wait stays, {cores:.0f} cores are the limit: make one item cheaper"
        f"{at(loader.source)}, or ask for more cores."
    )
    steps = [one] if own_threads else []
    steps += [fewer] if fit < now else []
    at_least = found.gain is not None and found.gain.at_least
    return Refinement(
        ID,
        supply.part,
        f"{threads} worker threads want {cores:.3g} cores.",
        confidence="high" if own_threads else "medium",
        evidence=tuple(
            row
            for row in (
                number("workers, or their threads", threads),
                number("ready to run without a core", denied, "of the workers' time"),
                number("CPU of all workers", total(supply.workers, lambda w: w.cpu), "cores"),
                number("CPU of the trainer", role_cores(window, "trainer"), "cores"),
            )
            if row.value is not None
        ),
        where=places(window, supply),
        advice=(*steps, cheaper),
        gain=gain(
            found.lost_share,
            f"T / (T - E); fewer threads make no more than {cores:.3g} cores, so less is likely",
            at_least=at_least,
        ),
    )


PAGE = Page(
    number=8,
    title="More threads than cores",
    meaning=(
        "The loader's workers (of all ranks on this machine), or the threads that libraries start "
        "in each of them, want more cores than the run may use. They take turns, spin and evict "
        "each other's caches; more workers make it slower."
    ),
    looks_at=(
        "workers of all ranks, and threads of each worker",
        "cores the run may use: affinity and cgroup quota",
        "time the workers were ready to run and had no core (schedstat)",
    ),
    thresholds=(
        Threshold(
            "workers, or their threads",
            "> cores the run may use",
            "PyTorch's warning; SageMaker Debugger 70-200% of cores",
        ),
        Threshold(
            "threads count where a worker uses",
            f"> {MULTI_THREADED} cores",
            "proposed",
        ),
        Threshold(
            "ready to run without a core", f">= {percent(DENIED_PART)} of the time", "proposed"
        ),
        Threshold("cores the run itself fills", f">= {percent(OURS)} of those allowed", "proposed"),
    ),
    mistaken_for=(
        "a large num_workers alone: without waiting for cores it is no fault (Lightning #18723)",
        "cpu-affinity: the machine has the cores, the run may not use them",
        "other programs: this run fills little of the cores it waits for",
        "prep-stall: every worker has its core",
    ),
    mend=(
        "one thread in each worker",
        "workers <= cores / ranks - 1",
        "cheaper items, or more cores",
    ),
    test="the same run with half the workers",
    gain="ceiling T / (T - E)",
)
RULE = Rule(
    ID,
    310,
    probe="the same run with half the workers",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
