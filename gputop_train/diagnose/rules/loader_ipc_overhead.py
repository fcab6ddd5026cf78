"""``loader-ipc-overhead``: batches are there, but handing them over is slow.

Looks for, either: batches ready at >= 75% of the polls and yet a wait in next() in most steps; or
the workers make a step's batches in <= 60% of a step without a wait (T - E) while the queue is
empty, and the workers are busy outside the fetch (pickling) or nothing is pinned. Both need
the trainer to have had its core: run_delay < 0.1 (proposed); unmeasured, it is information only.
Differential: preparation in the loop once a batch was received; an empty queue behind slow workers
(``prep-stall``, ``fetch-stall``); a busy pinning thread (``pin-memory-thread``); other programs on
the trainer's core.
Fix: fewer and larger tensors, no Python objects (pytorch #24984, #77139, #25010). Never more
workers. Probe: replay a list of CPU batches, then of pinned ones. Gain: T / (T - E).
"""

from __future__ import annotations

from gputop_train.diagnose.loading_advice import at, loader_at, places
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Severity,
    Threshold,
    gain,
    ms,
    number,
    percent,
    severity,
    span,
)
from gputop_train.diagnose.rules.input_bound import TRAINER_DENIED
from gputop_train.diagnose.supply import (
    IN_LOOP,
    MOSTLY_READY,
    Pace,
    Supply,
    mean,
    pace_of,
    ready,
    supply_of,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Loader

ID = "loader-ipc-overhead"
#: A supply this much faster than training is not what is waited for: batch time over workers as a
#: part of T - E (proposed).
FAR_AHEAD = 0.6


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether handing a batch over is what takes the time."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "no batch crosses processes")
    if supply.in_loop:
        return RuledOut(ID, IN_LOOP)
    if supply.waits.few:
        return RuledOut(ID, "the wait is in a few steps: what is handed over is alike in all")
    pace = pace_of(window, found, supply)
    far_ahead = pace.supply_ms is not None and pace.supply_ms <= FAR_AHEAD * pace.floor_ms
    if not ready(supply) and not far_ahead:
        return RuledOut(ID, "the queue is empty behind the workers")
    if not ready(supply) and loader.pin_memory and not _pickling(supply, pace):
        return RuledOut(ID, "the workers are idle behind a pinning thread")
    denied = mean(p.run_delay for p in window.procs if p.role == "trainer")
    if denied is not None and denied >= TRAINER_DENIED:
        return RuledOut(ID, "the training process was ready to run but had no core")
    return _named(window, found, supply, loader, pace, denied)


def _pickling(supply: Supply, pace: Pace) -> bool:
    """Whether the workers are busy although the fetch itself takes little of their time."""
    if pace.supply_ms is None or not supply.workers:
        return False
    fetching = pace.supply_ms / pace.step_ms if pace.step_ms > 0 else 1.0
    cpu = mean(worker.cpu for worker in supply.workers) or 0.0
    return cpu >= 2 * fetching and cpu >= FAR_AHEAD


def _named(
    window: Window,
    found: Finding,
    supply: Supply,
    loader: Loader,
    pace: Pace,
    denied: float | None,
) -> Refinement:
    wait_ms = pace.step_ms - pace.floor_ms
    code = at(loader.collate or loader.source) or loader_at(loader)
    unpinned = (
        ""
        if loader.pin_memory or not window.on_gpu
        else f" With pin_memory=True{loader_at(loader)} a thread takes it out of the loop."
    )
    first = (
        f"Return one tensor a field from a batch{code}, not lists or dicts of small objects: "
        f"next() takes {ms(wait_ms)} of every step to receive one although batches are there. "
        f"num_workers stays {loader.num_workers}.{unpinned}"
    )
    size = f"{loader.batch_size} items" if loader.batch_size else "items"
    second = (
        f"If next() still takes {ms(wait_ms)}: make the batch of {size} smaller (uint8 or float16, "
        f"converted on the device), or whole at once in __getitems__{code}."
    )
    sure = denied is not None
    level: Severity = severity(found.lost_share, window.totals.steps) if sure else "info"
    at_least = found.gain is not None and found.gain.at_least
    share = None if supply.empty_share is None else 1 - supply.empty_share
    return Refinement(
        ID,
        supply.part,
        f"Batches are ready, receiving one takes {ms(wait_ms)}.",
        confidence="high" if sure and ready(supply) and supply.fetch is not None else "medium",
        evidence=tuple(
            row
            for row in (
                number("batches ready when polled", share, "of polls"),
                span("receiving a batch", wait_ms),
                span("workers' time for a step", pace.supply_ms),
                number("the trainer ready to run without a core", denied, "cores"),
            )
            if row.value is not None
        ),
        where=places(window, supply, costly=loader.collate or loader.source, costly_first=True),
        advice=(Advice(first), Advice(second)),
        gain=gain(
            found.lost_share, "T / (T - E), E in next() with batches ready", at_least=at_least
        ),
        severity=level,
    )


PAGE = Page(
    number=11,
    title="Handing batches over is slow",
    meaning=(
        "Workers have batches ready, yet next() takes long in every step: the training thread "
        "unpickles many small objects, copies out of shared memory, or opens a file descriptor for "
        "each tensor."
    ),
    looks_at=(
        "batches ready in the queue at each poll",
        "time of a batch in a worker beside the step",
        "whether the trainer had a core when it was ready (schedstat)",
        "pin_memory of the loader, CPU use of the workers",
    ),
    thresholds=(
        Threshold("batches ready", f">= {percent(MOSTLY_READY)} of polls", "proposed"),
        Threshold(
            "or batch time over the workers",
            f"<= {percent(FAR_AHEAD)} of T - E",
            "proposed",
        ),
        Threshold(
            "the trainer's wait for a core",
            f"< {TRAINER_DENIED} cores; information where it is not measured",
            "proposed",
        ),
        Threshold(
            "part of the wait in this loader", f">= {percent(COVERAGE)}", "TraceML, issue 238"
        ),
    ),
    mistaken_for=(
        "prep-stall, fetch-stall: the queue is empty because the workers are slow",
        "pin-memory-thread: the queue is empty, the workers idle, memory is pinned",
        "other programs on the trainer's core",
        "augmentation in the loop, after next(): input-bound names its line",
    ),
    mend=(
        "fewer, larger tensors and no Python objects in a batch",
        "pin_memory=True, one stack in collate_fn, __getitems__",
        "not more workers",
    ),
    test="replay a list of CPU batches, then a list of pinned ones",
    gain="T / (T - E)",
)
RULE = Rule(
    ID,
    313,
    probe="replay CPU batches against pinned ones",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
