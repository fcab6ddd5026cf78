"""``pin-memory-thread``: one thread pins every batch, and cannot keep up.

Looks for: ``pin_memory=True`` with workers that make a step's batches in <= 60% of a step without a
wait and use <= 40% of a core each, while the queue behind the pinning thread is empty at >= 50% of
the polls, in most steps: what is late passes through that thread. Where the training process uses
at least 1.3 cores (the thread beside the loop; proposed) confidence is high.
Differential: workers that are slow themselves; batches ready (``loader-ipc-overhead``).
Fix: fewer and larger tensors (pytorch #3281, #77139: the thread holds the GIL), or no pinning.
Probe: pin_memory=False. Gain: T / (T - E).
"""

from __future__ import annotations

from gputop_train.diagnose.fetching import NOT_TIMED
from gputop_train.diagnose.loading_advice import at, loader_at, places
from gputop_train.diagnose.loading_model import role_cores
from gputop_train.diagnose.rules.base import (
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    cores,
    gain,
    ms,
    number,
    percent,
    severity,
    span,
)
from gputop_train.diagnose.rules.loader_ipc_overhead import FAR_AHEAD
from gputop_train.diagnose.supply import IDLE_WORKER, QUEUE_EMPTY, mean, pace_of, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "pin-memory-thread"
#: The training thread and a busy pinning thread (proposed).
TWO_THREADS = 1.3


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the pinning thread is what is waited for."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or not loader.pin_memory or loader.num_workers == 0 or not window.on_gpu:
        return RuledOut(ID, "no thread pins batches")
    if supply.waits.few:
        return RuledOut(ID, "the wait is in a few steps")
    if supply.fetch is None:
        return Abstention(ID, NOT_TIMED)
    pace = pace_of(window, found, supply)
    if pace.supply_ms is None or pace.supply_ms > FAR_AHEAD * pace.floor_ms:
        return RuledOut(ID, "the workers are not far ahead of training")
    if supply.empty_share is None or not supply.workers:
        return Abstention(ID, "polls of the loader's queue, and CPU use of the workers")
    cpu = mean(supply.workers_busy) or 0.0
    if supply.empty_share < QUEUE_EMPTY or cpu > IDLE_WORKER:
        return RuledOut(ID, "batches were ready, or the workers are busy")
    trainer = role_cores(window, "trainer")
    at_least = found.gain is not None and found.gain.at_least
    wait = ms(pace.step_ms - pace.floor_ms)
    code = at(loader.collate or loader.source) or loader_at(loader)
    return Refinement(
        ID,
        supply.part,
        "The workers are far ahead; the thread that pins batches is late.",
        confidence="high" if trainer is not None and trainer >= TWO_THREADS else "medium",
        evidence=(
            span("workers' time for a step", pace.supply_ms),
            cores("a worker, mean", cpu),
            number("queue behind the pinning thread empty", supply.empty_share, "of polls"),
        ),
        where=places(window, supply, costly=loader.collate or loader.source, costly_first=True),
        advice=(
            Advice(
                f"Return a few large tensors a batch{code}: one thread pins each tensor by itself "
                f"and holds the interpreter, {wait} a step late. num_workers stays "
                f"{loader.num_workers}: the workers use {percent(cpu)} of a core each."
            ),
            Advice(
                f"If that cannot be: pin_memory=False{loader_at(loader)} saves the thread; the "
                "copy to the GPU then blocks for as long as it takes, so compare both.",
                {"pin_memory": False},
            ),
        ),
        gain=gain(found.lost_share, "T / (T - E), E behind the pinning thread", at_least=at_least),
        severity=severity(found.lost_share, window.totals.steps),
    )


PAGE = Page(
    number=54,
    title="The pinning thread is late",
    meaning=(
        "With pin_memory=True one thread of the training process receives every batch and copies "
        "each of its tensors into pinned memory. With many small tensors or objects it needs a "
        "core and holds the interpreter lock; workers idle behind it and the loop waits."
    ),
    looks_at=(
        "pin_memory of the loader; batches pinned and ready at each poll",
        "time of a batch in a worker, and CPU use of the workers",
        "CPU use of the training process",
    ),
    thresholds=(
        Threshold("batch time over the workers", f"<= {percent(FAR_AHEAD)} of T - E", "proposed"),
        Threshold("CPU of a worker", f"<= {percent(IDLE_WORKER)} of a core", "proposed"),
        Threshold("queue found empty", f">= {percent(QUEUE_EMPTY)} of polls", "proposed"),
        Threshold(
            "CPU of the training process", f">= {TWO_THREADS} cores for high confidence", "proposed"
        ),
    ),
    mistaken_for=(
        "prep-stall, fetch-stall: the workers' own batch time fills the step",
        "loader-ipc-overhead: batches are ready, or nothing is pinned",
        "pageable-h2d: the copy to the GPU, after next()",
    ),
    mend=("fewer, larger tensors in a batch", "pin_memory=False where it saves more than it costs"),
    test="the same run with pin_memory=False",
    gain="T / (T - E)",
)
RULE = Rule(
    ID,
    312,
    probe="the same run with pin_memory=False",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
