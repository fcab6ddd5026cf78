"""``memory-capped``: the GPU has time to spare and no memory for a larger batch.

Looks for: utilisation <= 50% and peak allocated > 80% of the card (ICSE'24: 3.12% of issues). It is
information: it says why "a larger batch", the usual answer to a GPU half idle, is not to be had.
Differential: a GPU that waits for data, copies or reads is half idle for that reason, and memory is
no matter. Reserved memory that was never in use is cache.
Fix: bf16, activation checkpointing, smaller optimizer state; then the batch. Probe: bf16 and twice
the batch. Gain: k T(b) / T(k b), not known beforehand.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import INTERRUPTIONS, account
from gputop_train.diagnose.cards import waits
from gputop_train.diagnose.pool import pool
from gputop_train.diagnose.rules.base import (
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    number,
    percent,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain

ID = "memory-capped"
UTIL, PEAK = 50.0, 0.80


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    acc = account(window)
    if acc.util_mean is None:
        return Abstention(ID, window.missing.get("gpu_util", "driver utilisation"))
    if acc.util_mean > UTIL:
        return RuledOut(ID, f"the GPU is busy {acc.util_mean:.0f}% of the time")
    found = pool(window)
    if found is None:
        return Abstention(ID, window.missing.get("memory", "the allocator's counters"))
    peak = found.allocated / found.limit
    if peak <= PEAK:
        return RuledOut(ID, f"{percent(1 - peak)} of the card's memory is free for a larger batch")
    largest = waits(window)
    if largest is not None and largest[1] != "launch" and largest[0] >= WARN:
        return RuledOut(ID, f"the GPU is idle because it waits ({largest[1]})")
    paused = sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    if paused >= WARN:
        return RuledOut(ID, f"the GPU is idle because of interruptions ({percent(paused)})")
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    batch = f"batch_size {sizes[0]}" if sizes else "the batch"
    free = amount("", found.limit - found.allocated)
    return Finding(
        id=ID,
        summary=(
            f"The GPU is busy only {acc.util_mean:.0f}% of the time, yet {percent(peak)} of its "
            f"memory is in use: a larger batch does not fit."
        ),
        severity="info",
        confidence="medium",
        lost_share=0.0,
        evidence=(
            number("GPU utilisation, mean", acc.util_mean, "%"),
            number("peak in use", peak, "of the card"),
            amount("GPU memory", found.limit),
        ),
        where_missing="memory is used all over the step",
        advice=(
            Advice(
                f"{batch} cannot grow into {free.value} {free.unit}: first bf16 autocast (half of "
                "the activations, rounded more), or torch.utils.checkpoint on the largest blocks."
            ),
            Advice(
                f"Accumulation does not lift the {acc.util_mean or 0.0:.0f}% utilisation: it only "
                "makes the global batch larger. Judge by samples/s."
            ),
        ),
        gain=Gain(None, None, "k T(b) / T(k b): how a larger batch scales is not known beforehand"),
    )


RULE = Rule(
    ID,
    105,
    judge,
    probe="bf16 and twice the batch for 50 steps",
    page=Page(
        number=35,
        title="No memory for a larger batch",
        meaning=(
            "The GPU is half idle, for nothing it waits for, and its memory is nearly full: what "
            "would fill it does not fit."
        ),
        looks_at=("driver utilisation", "peak of allocated memory against the card's"),
        thresholds=(
            Threshold("utilisation", f"<= {UTIL:g}%", "ICSE'24 (Microsoft study)"),
            Threshold("peak allocated", f"> {percent(PEAK)}", "ICSE'24 (Microsoft study)"),
            Threshold("any other wait", f"< {percent(WARN)}", "TraceML's band for a warning"),
        ),
        mistaken_for=(
            "input-bound and other waits: the GPU is idle for those",
            "small-batch: there memory is free",
            "reserved memory that is only cache",
        ),
        mend=("bf16, activation checkpointing, smaller optimizer state; then a larger batch",),
        test="bf16 and twice the batch for 50 steps",
        gain="k T(b) / T(k b), not known beforehand",
    ),
)
