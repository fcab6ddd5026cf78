"""``cpu-training``: torch could use a GPU, yet the parameters are on the CPU.

Looks for: parameters on the CPU, an NVIDIA device visible to this run, its utilisation flat 0
(catalogue 51). Abstains without a driver reading: configuration alone never fires a rule.
Differential: a machine without a GPU; a GPU that other phases of the run keep busy.
Fix: move model and batch to ``"cuda"``. Probe: one step on the GPU. Gain: not forecast.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import Judgement, Rule, RuledOut, number, percent, severity
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "cpu-training"
#: A device that only drives a display reads a percent or two.
FLAT_ZERO = 2.0
FLAT_ZERO_PEAK = 10.0


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if window.on_gpu:
        return RuledOut(ID, "the parameters are on the GPU")
    device = window.probe.get("param_device")
    if not isinstance(device, str):
        return Abstention(ID, "the device of the parameters")
    cuda = window.probe.get("cuda") or {}
    built = cuda.get("built")
    if built is False:
        return RuledOut(ID, "this torch was built without CUDA")
    if not window.cuda_available and not window.gpu:
        return RuledOut(ID, "there is no GPU this run could use")
    if not window.util:
        return Abstention(ID, window.missing.get("gpu_util", "driver utilisation of the GPU"))
    mean = sum(s.util for s in window.util) / len(window.util)
    peak = max(s.util for s in window.util)
    if mean > FLAT_ZERO or peak > FLAT_ZERO_PEAK:
        return RuledOut(ID, f"the GPU is in use ({mean:.0f}% on average)")
    acc = account(window)
    compute = sum(acc.shares.get(label, 0.0) for label in ("forward", "backward", "optimizer"))
    return Finding(
        id=ID,
        summary=(
            f"The model trains on the CPU while the GPU stands idle: {percent(compute)} of the "
            "time is computation the GPU could do."
        ),
        severity=severity(max(compute, 0.1), window.totals.steps),
        confidence="high",
        lost_share=compute,
        evidence=(
            number("GPU utilisation, mean", mean, "%"),
            number("forward, backward and optimizer on the CPU", compute, "of wall"),
        ),
        where_missing="the line that places the model is not recorded",
        advice=(
            Advice(
                'Move the model and every batch to the GPU: model.to("cuda") before the optimizer '
                'is built, and x = x.to("cuda", non_blocking=True) in the loop.'
            ),
        ),
    )


RULE = Rule(ID, 5, judge, probe="one step on the GPU")
