"""``small-batch``: many micro-batches a step leave the GPU and its memory half empty.

Looks for: mean utilisation <= 50% and peak memory <= 50% (ICSE'24's rule), data, copies, reads and
communication < 5% each, and gradients accumulated over >= 4 micro-batches (proposed here): there a
larger one does the same work in fewer launches and changes no result. Without accumulation a larger
batch is only a guess until it was tried, and stays advice of ``launch-bound``.
Differential: memory is nearly full (memory-capped); a data-bound loop, which a larger batch makes
worse (VLDB'21, figure 9); two backward calls of a GAN are no accumulation.
Fix: micro-batch x k, accumulation / k. Probe: double the batch.
Gain: k T(b) / T(kb); at least the launch idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share
from gputop_train.diagnose.headroom import FILL, Headroom, headroom
from gputop_train.diagnose.rules import launch_bound
from gputop_train.diagnose.rules.base import (
    INFO,
    WARN,
    Judgement,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    amount,
    gain,
    ms,
    name,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Where

ID = "small-batch"
UTIL, MEMORY = 50.0, 0.50
#: Backward calls of one optimizer in one step (proposed here).
MICRO = 4
OTHERS = ("data_wait", "h2d", "sync", "comm")


@dataclass(frozen=True, slots=True)
class _Batch:
    """How a step is made.

    Attributes:
        micro: Micro-batches a step.
        factor: How many times as large a micro-batch may be: a power of two that divides ``micro``.
        samples: Samples of one micro-batch; ``None`` when not known.
    """

    micro: int
    factor: int
    room: Headroom
    samples: int | None


def judge(window: Window) -> Judgement:
    """Judge one window where ``launch-bound`` says nothing."""
    batch = _batch(window)
    if not isinstance(batch, _Batch):
        return batch
    if isinstance(launch_bound.judge(window), Finding):
        return RuledOut(ID, "told as the closer cause of launch-bound")
    acc = account(window)
    explained = 0.0
    for label in OTHERS:
        lost, _ = lost_share(window, label)
        explained += acc.shares.get(label, 0.0) if lost is None else lost
    explained += sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    idle = (acc.idle_share or 0.0) - explained
    if idle < WARN:
        return RuledOut(ID, f"the GPU is idle {percent(max(0.0, idle))} of the time")
    places = _places(window)
    return Finding(
        id=ID,
        summary=_summary(window, batch),
        severity=severity(idle, window.totals.steps),
        confidence="medium",
        lost_share=idle,
        evidence=_evidence(window, batch),
        where=places,
        where_missing=None if places else "the line of backward() was not sampled",
        advice=_advice(window, batch, places),
        gain=gain(idle, "T / (T - E), E = idle with no wait behind it", at_least=True),
    )


def refine(window: Window, parent: Finding) -> Refinement | Abstention | RuledOut:
    """Judge it as the closer cause of ``launch-bound``."""
    batch = _batch(window)
    if not isinstance(batch, _Batch):
        return batch
    # All of a step's launches but the optimizer's are made once a micro-batch.
    acc = account(window)
    compute = sum(acc.shares.get(label, 0.0) for label in launch_bound.COMPUTE)
    repeated = 1 - acc.shares.get("optimizer", 0.0) / compute if compute > 0 else 0.0
    places = _places(window)
    return Refinement(
        ID,
        covers=repeated,
        why=_summary(window, batch),
        confidence="medium",
        evidence=_evidence(window, batch),
        where=places or None,
        advice=_advice(window, batch, places),
    )


def _batch(window: Window) -> _Batch | Abstention | RuledOut:
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes")
    acc = account(window)
    if acc.util_mean is None:
        return Abstention(ID, acc.busy_basis)
    if acc.util_mean > UTIL:
        return RuledOut(ID, f"the GPU is in use {acc.util_mean:.0f}% of the time")
    for label in OTHERS:
        lost, _ = lost_share(window, label)
        if lost is not None and lost >= INFO:
            return RuledOut(ID, f"the GPU waits {percent(lost)} of the time ({label})")
    optimizers = window.probe.get("optimizers")
    several = max(1, len(optimizers)) if isinstance(optimizers, list) else 1
    micro = int((median([float(s.micro) for s in window.steps]) or 1) / several)
    if micro < MICRO:
        return RuledOut(ID, "no gradients are accumulated: whether more fits is for a trial to say")
    room = headroom(window)
    if room is None:
        return Abstention(ID, "peak memory, or the memory of the device")
    if room.used > MEMORY:
        return RuledOut(ID, f"memory peaks at {percent(room.used)} of the device")
    factor = room.factor(most=micro)
    while factor > 1 and micro % factor:
        factor //= 2
    if factor < 2:
        return RuledOut(ID, f"two of the {micro} micro-batches at once may not fit the memory")
    return _Batch(micro, factor, room, _samples(window, micro))


def _samples(window: Window, micro: int) -> int | None:
    totals = window.totals
    if totals.samples and totals.steps:
        return round(totals.samples / totals.steps / micro) or None
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    return sizes[0] if len(sizes) == 1 else None


def _summary(window: Window, batch: _Batch) -> str:
    of = f" of {batch.samples}" if batch.samples else ""
    return (
        f"A step is made of {batch.micro} micro-batches{of}, with {percent(batch.room.used)} of "
        f"the memory in use and the GPU at {account(window).util_mean or 0.0:.0f}%."
    )


def _evidence(window: Window, batch: _Batch) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = (
        number("micro-batches", batch.micro, "a step"),
        number("samples of a micro-batch", batch.samples),
        amount("memory allocated, peak", batch.room.peak),
        amount("of it parameters, gradients and optimizer", batch.room.fixed),
        amount("memory of the device", batch.room.total),
        number("GPU utilisation, mean", acc.util_mean, "%"),
    )
    return tuple(row for row in rows if row.value)


def _places(window: Window) -> tuple[Where, ...]:
    mine = [s for s in window.sites if s.rank == window.rank]
    known = [s for s in mine if s.kind == "backward"]
    sampled = [s for s in mine if s.kind == "sample" and s.label == "backward"]
    return tuple(where(s) for s in top_sites(known or sampled, limit=1, by_count=True))


def _advice(window: Window, batch: _Batch, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    at = f" ({name(places[0])})" if places else ""
    k, m = batch.factor, batch.micro
    now = f"{batch.samples} -> {batch.samples * k}" if batch.samples else f"x {k}"
    after = batch.room.at(k) / 1e9
    total = batch.room.total / 1e9
    step = ms(account(window).step_ms or 0.0)
    steps = [
        Advice(
            f"Micro-batch {now} and accumulation {m} -> {m // k}{at}: the global batch and the "
            f"learning rate stay. Memory would peak at about {after:.3g} of {total:.0f} GB, from "
            f"{batch.room.peak / 1e9:.3g} GB (activations x {k})."
        )
    ]
    if k > 2:
        steps.append(
            Advice(
                f"If that does not fit, half of it: micro-batch x {k // 2}, accumulation "
                f"{m} -> {m // (k // 2)}; about {batch.room.at(k / 2) / 1e9:.3g} GB. The loss is "
                "divided by the new accumulation."
            )
        )
    steps.append(
        Advice(
            f"If a step still takes about {step}, the micro-batches were not the cost: "
            'torch.compile(model, mode="reduce-overhead") is next.'
        )
    )
    return tuple(steps)


RULE = Rule(
    ID,
    65,
    judge,
    parent="launch-bound",
    refine=refine,
    probe="double the batch",
    page=Page(
        number=24,
        title="Many small micro-batches, most of the memory free",
        meaning=(
            "Gradients are accumulated over many small micro-batches although larger ones would "
            "fit. A person sees a low utilisation and most of the memory free."
        ),
        looks_at=(
            "backward calls a step, by optimizer",
            "peak of allocated memory, and what of it does not grow with the batch",
            "utilisation, and that no wait explains it",
        ),
        thresholds=(
            Threshold("GPU utilisation, mean", f"<= {UTIL:.0f}%", "ICSE'24"),
            Threshold("memory, peak", f"<= {percent(MEMORY)} of the device", "ICSE'24"),
            Threshold("data, copies, reads, communication", f"< {percent(INFO)} each", "proposed"),
            Threshold("micro-batches a step", f">= {MICRO}", "proposed"),
            Threshold("memory to fill", f"<= {percent(FILL)} of the device", "guides: 15-20% free"),
        ),
        mistaken_for=(
            "`memory-capped`: a larger micro-batch would not fit",
            "`input-bound`: a larger batch makes it worse (VLDB'21)",
            "a GAN: two optimizers and two backward calls are no accumulation",
            "a small batch without accumulation: not judged, a larger one changes the training; "
            "it is advice of `launch-bound`",
        ),
        mend=(
            "Micro-batch times k, accumulation divided by k; the global batch stays.",
            "Pack short sequences.",
        ),
        test="Double the micro-batch, halve the accumulation",
        gain="`k T(b) / T(kb)`; ceiling at least `T / (T - E_launch)`. ICSE'24: 3.4 to 4.9x",
    ),
)
