"""``gpu-bound``: the GPU is the bottleneck, and nothing else costs anything. Information only.

Looks for: GPU busy >= 90% with no exposed cause >= 5% (TraceML: compute >= 90); driver utilisation
reads 85 or more for it, "smooth above 85%" in practitioners' guides.
Differential: a high utilisation with the queue running dry at most edges is launch-bound work of
tiny kernels (NVML over-states those), not a busy GPU.
Fix: only now precision, compile, fused attention, better kernels, more GPUs.
Probe: bf16 or TF32 for 50 steps. Gain: none forecast here.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share
from gputop_train.diagnose.rules.base import (
    INFO,
    Judgement,
    Rule,
    RuledOut,
    number,
    percent,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "gpu-bound"
UTIL_MEAN = 85.0
#: Above this share of dry edges the queue, not the GPU, is what runs out (proposed here).
MAX_DRY = 0.3


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    acc = account(window)
    if acc.util_mean is None or acc.busy_most is None:
        return Abstention(ID, acc.busy_basis)
    if acc.util_mean < UTIL_MEAN:
        return RuledOut(ID, f"the GPU is busy {percent(acc.util_mean / 100)} of the time")
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
            f"The GPU computes {percent(acc.util_mean / 100)} of the time: it is what limits the "
            "speed, and nothing keeps it waiting."
        ),
        severity="info",
        confidence="high" if acc.dry is not None else "medium",
        lost_share=0.0,
        evidence=(
            number("GPU utilisation, mean", acc.util_mean, "%"),
            number("queue found empty at a phase edge", acc.dry, "of edges"),
        ),
        where_missing="the whole step is GPU work",
        advice=(
            Advice(
                "Only now lower precision (bf16 autocast, TF32), torch.compile, fused attention, "
                "or more GPUs can make a step shorter."
            ),
        ),
    )


RULE = Rule(ID, 90, judge, probe="bf16 or TF32 for 50 steps")
