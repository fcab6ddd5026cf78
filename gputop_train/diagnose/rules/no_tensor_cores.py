"""``no-tensor-cores``: a busy GPU multiplies in fp32, and its tensor cores rest.

Looks for: fp32 parameters, no autocast, TF32 off for matrix products, on a card that has TF32
(capability 8.0), and a GPU busy >= 70% of the time with nothing else costing 10% (proposed).
GPM's tensor activity decides where there is one: below 2% of the time (proposed; kineto's plugin:
eligible kernels and none used, XProf: 16-bit share < 10%).
Differential: a starved or launch-bound GPU gains nothing from faster arithmetic, and is left alone.
Convolutions use TF32 by default: without GPM, where that is on, this is only a hint. Code that
needs fp32 is right as it is.
Fix: ``set_float32_matmul_precision("high")``, then bf16 autocast. Probe: either for 50 steps.
Gain: 1 / (1 - m + m / r) with the share m of matrix products, which nothing here measured.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.cards import TF32_FROM, capability, gpm_tells, mean, waits
from gputop_train.diagnose.rules.base import (
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
    percent,
)
from gputop_train.diagnose.rules.gpu_bound import MAX_DRY
from gputop_train.diagnose.told import autocast, part, rows
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain

ID = "no-tensor-cores"
BUSY = 0.70
#: Tensor activity in percent of time: 0.0 in the fp32 and idle stretches recorded on an H200, 14
#: where bf16 products ran.
TENSOR_AT_REST = 2.0


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    active = mean(g.tensor for g in window.gpm) if gpm_tells(window, "tensor") else None
    if active is not None and active >= TENSOR_AT_REST:
        return RuledOut(ID, f"the tensor cores are active {active:.0f}% of the time")
    refusal = _precision(window) or _load(window)
    if refusal is not None:
        return refusal
    return _finding(window, active)


def _precision(window: Window) -> Abstention | RuledOut | None:
    """Why precision is no question here, if so."""
    able = capability(window)
    if able is not None and able < TF32_FROM:
        return RuledOut(ID, f"a card of capability {able[0]}.{able[1]} has no TF32")
    tf32 = part(window.probe, "flags").get("tf32")
    told = [row.get("dtypes") for row in rows(window.probe, "optimizers")]
    dtypes = {str(d) for names in told if isinstance(names, list) for d in names}
    if not isinstance(tf32, bool) or not dtypes:
        return Abstention(ID, "the precision of the parameters and of matrix products")
    if able is None:
        return Abstention(ID, "the compute capability of the card")
    if tf32:
        return RuledOut(ID, "TF32 is on for matrix products")
    if dtypes != {"float32"}:
        return RuledOut(ID, f"the parameters are {', '.join(sorted(dtypes))}")
    types = autocast(window)
    if types is None:
        return Abstention(ID, "whether autocast is used")
    return RuledOut(ID, f"autocast runs in {types[0]}") if types else None


def _load(window: Window) -> Abstention | RuledOut | None:
    """Why arithmetic is not what limits this run, if so."""
    acc = account(window)
    if acc.busy_share is None:
        return Abstention(ID, acc.busy_basis)
    if acc.busy_share < BUSY:
        return RuledOut(ID, f"the GPU is busy only {percent(acc.busy_share)} of the time")
    if acc.dry is not None and acc.dry > MAX_DRY:
        return RuledOut(ID, f"the GPU's queue was empty at {percent(acc.dry)} of the phase edges")
    largest = waits(window)
    if largest is not None and largest[0] >= WARN:
        return RuledOut(ID, f"{percent(largest[0])} of the time the GPU waits ({largest[1]})")
    return None


def _finding(window: Window, active: float | None) -> Finding:
    acc = account(window)
    conv = part(window.probe, "flags").get("cudnn_tf32")
    sure = active is not None or conv is False
    measured = f", active {active:.1f}% of the time" if active is not None else ""
    return Finding(
        id=ID,
        summary=(
            f"The GPU is busy {percent(acc.busy_share or 0.0)} of the time with fp32 arithmetic: "
            f"neither TF32 nor autocast is on, so its tensor cores rest{measured}."
        ),
        severity="warn" if sure else "info",
        confidence="high" if active is not None else "medium" if sure else "low",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("tensor cores active (GPM)", active, "% of time"),
                number("SM activity, mean", mean(g.sm for g in window.gpm), "%"),
                number("GPU busy", acc.busy_share, "of wall"),
                Evidence("TF32 for matrix products", "off"),
                Evidence("TF32 for convolutions", _switch(conv)),
                Evidence("parameters", "float32"),
                Evidence("autocast", "not used"),
            )
            if row.value is not None
        ),
        where_missing="it is a setting of the whole run",
        advice=(
            Advice(
                'torch.set_float32_matmul_precision("highest" -> "high") before the model is '
                "built: one line, products in TF32 with 10 bits of mantissa in place of 23."
            ),
            Advice(
                'Then with torch.autocast("cuda", torch.bfloat16) around forward and loss: half '
                "the bytes as well. Compare the loss of 200 steps with the one of now."
            ),
            Advice(
                "If neither is faster, the time is not in matrix products, or their sizes are no "
                "multiples of 8: look at a burst (gputop-train attach --burst)."
            ),
        ),
        gain=Gain(None, None, "1 / (1 - m + m / r), m = share of matrix products: not measured"),
    )


def _switch(value: object) -> str | None:
    return ("on" if value else "off") if isinstance(value, bool) else None


RULE = Rule(
    ID,
    72,
    judge,
    probe="TF32 or bf16 autocast for 50 steps",
    page=Page(
        number=37,
        title="Tensor cores at rest",
        meaning=(
            "The GPU is busy, but with fp32 arithmetic that its tensor cores take no part in. The "
            "same products in TF32 or bf16 take a fraction of the time."
        ),
        looks_at=(
            "types of the parameters, autocast blocks, TF32 flags",
            "compute capability of the card",
            "tensor activity by GPM (Hopper and newer)",
            "GPU busy share, and what else costs time",
        ),
        thresholds=(
            Threshold("GPU busy", f">= {percent(BUSY)}", "proposed"),
            Threshold(
                "tensor activity",
                f"< {TENSOR_AT_REST:g}% of the time",
                "proposed; kineto: none used, XProf: 16-bit share < 10%",
            ),
            Threshold("any other cost", f"< {percent(WARN)}", "TraceML's band for a warning"),
            Threshold(
                "compute capability", f">= {TF32_FROM[0]}.{TF32_FROM[1]}", "TF32 begins there"
            ),
        ),
        mistaken_for=(
            "a starved or launch-bound GPU: faster arithmetic brings nothing",
            "convolutions, which use TF32 by default: without GPM only information",
            "code that needs fp32, or sizes that are no multiples of 8",
        ),
        mend=(
            'torch.set_float32_matmul_precision("high")',
            "bf16 autocast around forward and loss",
        ),
        test="TF32 or bf16 autocast for 50 steps",
        gain="1 / (1 - m + m / r): m = share of matrix products, r = how much faster; not measured",
    ),
)
