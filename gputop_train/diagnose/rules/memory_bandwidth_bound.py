"""``memory-bandwidth-bound``: a busy GPU moves bytes rather than multiplies. Refines ``gpu-bound``.

Looks for: GPM's DRAM activity >= 70% with tensor activity < 50% (XProf: HBM > 70, compute < 50), or
>= 50% with SM activity < 50% (KempnerPulse). A practical peak is about 80%. NVML's own memory
utilisation is the time memory was touched, no bandwidth, and is not used.
Differential: a GPU that is not the bottleneck (the parent); readings that are missing (NaN).
Fix: fusion (torch.compile), fused norms and optimizer, SDPA. Probe: compile for 50 steps.
Gain: none forecast: nothing here says which bytes are saved.
"""

from __future__ import annotations

from gputop_train.diagnose.cards import gpm_tells, mean
from gputop_train.diagnose.rules.base import (
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    number,
)
from gputop_train.diagnose.told import rows
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain

ID = "memory-bandwidth-bound"
DRAM_HIGH, TENSOR_LOW = 70.0, 50.0
DRAM_SOME, SM_LOW = 50.0, 50.0


def refine(window: Window, parent: Finding) -> Refinement | Abstention | RuledOut:
    """Whether what the GPU is busy with is its memory."""
    readings = [g for g in window.gpm if g.dram is not None]
    dram = mean(g.dram for g in readings)
    if dram is None or not gpm_tells(window, "dram"):
        return Abstention(ID, "DRAM activity (GPM: Hopper or newer)")
    tensor = mean(g.tensor for g in window.gpm)
    sm = mean(g.sm for g in window.gpm)
    by_tensor = dram >= DRAM_HIGH and tensor is not None and tensor < TENSOR_LOW
    by_sm = dram >= DRAM_SOME and sm is not None and sm < SM_LOW
    if not (by_tensor or by_sm):
        return RuledOut(ID, f"its memory is active {dram:.0f}% of the time")
    unfused = [o for o in rows(window.probe, "optimizers") if o.get("fused") is False]
    which = f"{unfused[0].get('cls', 'the optimizer')}(fused=False -> True)" if unfused else ""
    return Refinement(
        ID,
        covers=1.0,
        why=f"It moves bytes rather than multiplies: DRAM is active {dram:.0f}% of the time.",
        confidence="high" if len(readings) >= 0.8 * len(window.gpm) else "medium",
        evidence=(
            number("DRAM activity (GPM)", dram, "% of time"),
            *((number("tensor cores active (GPM)", tensor, "% of time"),) if tensor else ()),
            *((number("SM activity, mean", sm, "%"),) if sm is not None else ()),
        ),
        advice=(
            Advice(
                f"Touch memory less often: torch.compile(model) fuses element-wise chains, which "
                f"is what {dram:.0f}% DRAM beside {tensor or 0.0:.0f}% tensor activity points to."
            ),
            Advice(
                f"{which}: one pass over the parameters in place of several."
                if which
                else "bf16 activations and parameters halve every byte that is moved."
            ),
            Advice(
                f"If DRAM stays at {dram:.0f}%, look at attention and norms written by hand: "
                "scaled_dot_product_attention and fused norms keep intermediates on the chip."
            ),
        ),
        gain=Gain(None, None, "bytes saved are not known before they are"),
    )


RULE = Rule(
    ID,
    71,
    parent="gpu-bound",
    refine=refine,
    probe="torch.compile for 50 steps",
    page=Page(
        number=38,
        title="Bound by GPU memory bandwidth",
        meaning=(
            "The GPU is busy, with loads and stores: its memory is the limit, and its arithmetic "
            "units wait for it."
        ),
        looks_at=("DRAM, tensor and SM activity by GPM (Hopper and newer)",),
        thresholds=(
            Threshold(
                "DRAM and tensor activity",
                f"DRAM >= {DRAM_HIGH:g}% and tensor < {TENSOR_LOW:g}%",
                "XProf's suggestion rules (HBM > 70, compute < 50)",
            ),
            Threshold(
                "or DRAM and SM activity",
                f"DRAM >= {DRAM_SOME:g}% and SM < {SM_LOW:g}%",
                "KempnerPulse",
            ),
        ),
        mistaken_for=(
            "NVML's memory utilisation, which is the time memory was touched and no bandwidth",
            "a GPU that waits for something else: the parent is not found there",
        ),
        mend=(
            "torch.compile: fused element-wise chains",
            "fused optimizer, fused norms, scaled_dot_product_attention",
            "bf16: half the bytes",
        ),
        test="torch.compile for 50 steps",
        gain="none forecast",
    ),
)
