"""``cpu-training``: torch could use a GPU, yet the parameters are on the CPU.

Looks for: parameters on the CPU, an NVIDIA device visible to this run, its utilisation flat 0
(catalogue 51). Abstains without a driver reading: configuration alone never fires a rule.
Differential: a machine without a GPU; a GPU that other phases of the run keep busy.
Fix: move model and batch to ``"cuda"``. Probe: one step on the GPU. Gain: not forecast.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    ms,
    name,
    number,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.told import part
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Where

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
    cuda = part(window.probe, "cuda")
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
    places = model_lines(window)
    at = f" (it is called at {name(places[0])})" if places else ""
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
        where=places,
        where_missing=None if places else "the line that places the model is not recorded",
        advice=(
            Advice(
                f'Move the model to the GPU before the optimizer is built{at}: model.to("cuda"), '
                f"and each batch in the loop: {ms(acc.ms(compute))} of {ms(acc.step_ms or 0.0)} a "
                "step are computed on the CPU."
            ),
            Advice(
                "If the script chooses the device itself, see why: torch.cuda.is_available() is "
                f"{window.cuda_available or 'not asked yet'} here now, and a --device option may "
                "say cpu."
            ),
        ),
    )


def model_lines(window: Window) -> tuple[Where, ...]:
    """Where the model is called, as the sampler saw it (used by ``cpu-only-build``)."""
    mine = [s for s in window.sites if s.kind == "sample" and s.rank == window.rank]
    forward = [s for s in mine if s.label == "forward"]
    return tuple(where(s) for s in top_sites(forward, limit=1, by_count=True))


RULE = Rule(
    ID,
    5,
    judge,
    probe="one step on the GPU",
    page=Page(
        number=51,
        title="The model trains on the CPU beside an idle GPU",
        meaning=(
            "Torch could use a GPU, and the parameters are on the CPU. A person sees a GPU at a "
            "flat 0% and all cores busy."
        ),
        looks_at=(
            "the device of the parameters",
            "utilisation of the GPU the run may use",
            "time in forward, backward and optimizer",
        ),
        thresholds=(
            Threshold(
                "GPU utilisation, mean", f"<= {FLAT_ZERO:.0f}%", "proposed: a display reads 1 to 2"
            ),
            Threshold("GPU utilisation, peak", f"<= {FLAT_ZERO_PEAK:.0f}%", "proposed"),
        ),
        mistaken_for=(
            "a machine without a GPU, or one hidden from the run",
            "`cpu-only-build`: this torch cannot use the GPU",
            "a GPU that other parts of the run keep busy",
        ),
        mend=("Move the model before the optimizer is built, and every batch.",),
        test="One step on the GPU",
        gain="not forecast: nothing measured says how fast the GPU would be",
    ),
)
