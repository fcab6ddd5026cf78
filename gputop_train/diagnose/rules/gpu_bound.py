"""``gpu-bound``: the GPU is the bottleneck, and nothing else costs anything. Information only.

Looks for: GPU busy >= 90% with no exposed cause >= 5% (TraceML: compute >= 90); driver utilisation
reads 85 or more for it, "smooth above 85%" in practitioners' guides, and may read 80 where kernel
intervals say 95 (measured on an H200): a burst or a queue that was never empty says so too.
Differential: a high utilisation with the queue running dry at most edges is launch-bound work of
tiny kernels (NVML over-states those), not a busy GPU; nor is one that another program keeps busy.
Fix: only now precision, compile, fused attention, better kernels, more GPUs.
Probe: bf16 or TF32 for 50 steps. Gain: 1 / (1 - m + m / r), m the share of matrix products, which
is not measured: none forecast.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share
from gputop_train.diagnose.rules.base import (
    INFO,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
    percent,
)
from gputop_train.diagnose.told import autocast, part
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "gpu-bound"
UTIL_MEAN = 85.0
BUSY = 0.90
#: Above this share of dry edges the queue, not the GPU, is what runs out (proposed here).
MAX_DRY = 0.3


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    acc = account(window)
    if acc.util_mean is None or acc.busy_most is None:
        return Abstention(ID, acc.busy_basis)
    busy = max(acc.util_mean / 100, acc.busy_share or 0.0)
    if acc.util_mean < UTIL_MEAN and (acc.busy_share or 0.0) < BUSY:
        return RuledOut(ID, f"the GPU is busy {percent(busy)} of the time")
    if acc.dry is not None and acc.dry > MAX_DRY:
        return RuledOut(ID, f"the GPU's queue was empty at {percent(acc.dry)} of the phase edges")
    for label in ("data_wait", "h2d", "sync", "comm"):
        lost, _ = lost_share(window, label)
        if lost is not None and lost >= INFO:
            return RuledOut(ID, f"{percent(lost)} of the time the GPU waits ({label})")
    paused = sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    if paused >= INFO:
        return RuledOut(ID, f"interruptions take {percent(paused)} of the time")
    return Finding(
        id=ID,
        summary=(
            f"The GPU computes {percent(busy)} of the time: it is what limits the speed, and "
            "nothing keeps it waiting."
        ),
        severity="info",
        confidence="high" if acc.dry is not None else "medium",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("GPU utilisation, mean", acc.util_mean, "%"),
                number(f"GPU busy ({acc.busy_basis})", acc.busy_share, "of wall"),
                number("queue found empty at a phase edge", acc.dry, "of edges"),
            )
            if row.value is not None
        ),
        where_missing="the whole step is GPU work",
        advice=_advice(window),
    )


def _advice(window: Window) -> tuple[Advice, ...]:
    """What is left to shorten, less what this run already does."""
    lower = bool(autocast(window))
    frames = part(window.probe, "dynamo").get("unique_graphs")
    steps: list[str] = []
    if part(window.probe, "flags").get("tf32") is False and not lower:
        steps.append(
            "TF32 is off now and autocast not used: "
            'torch.set_float32_matmul_precision("high"), then bf16 autocast; both round more, so '
            "compare the loss."
        )
    elif not lower:
        steps.append(
            "autocast is not used now: bf16 around forward and loss halves what is moved; it "
            "rounds more, so compare the loss."
        )
    if not frames:
        steps.append(
            "torch.compile is not used now: it fuses element-wise chains of the busy step."
        )
    steps.append(
        "What is left is the kernels themselves (scaled_dot_product_attention, channels_last) or "
        "more GPUs: nothing outside the GPU is worth changing now."
    )
    return tuple(Advice(text) for text in steps)


RULE = Rule(
    ID,
    90,
    judge,
    probe="bf16 or TF32 for 50 steps",
    page=Page(
        number=36,
        title="The GPU is the limit",
        meaning=(
            "The GPU computes nearly all of the time and nothing keeps it waiting: this is what a "
            "well-fed run looks like. Information, never a warning."
        ),
        looks_at=(
            "driver utilisation, a profiler burst, GPU event pairs",
            "exposed idle time of every cause",
            "share of phase edges that found the GPU's queue empty",
        ),
        thresholds=(
            Threshold(
                "GPU busy",
                f"utilisation >= {UTIL_MEAN:g}%, or busy >= {percent(BUSY)}",
                "TraceML: compute >= 90; practitioners' guides: smooth above 85%",
            ),
            Threshold("every other cost", f"< {percent(INFO)}", "TraceML's and TensorFlow's band"),
            Threshold("queue found empty", f"<= {percent(MAX_DRY)} of edges", "proposed"),
        ),
        mistaken_for=(
            "launch-bound: tiny kernels over an empty queue, which the driver over-states",
            "gpu-contention: another program keeps the card busy",
            "no-tensor-cores and misleading-utilization: busy, but not with much",
        ),
        mend=(
            "bf16 or TF32, torch.compile, fused attention",
            "better kernels, more GPUs",
        ),
        test="bf16 or TF32 for 50 steps",
        gain="1 / (1 - m + m / r), m = share of matrix products: not measured, none forecast",
    ),
)
