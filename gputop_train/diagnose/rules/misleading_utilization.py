"""``misleading-utilization``: the driver says busy, and most of the chip does nothing.

Looks for: driver utilisation >= 80% with SM activity < 50% by GPM (DCGM's guide: 80% is necessary
for effective use, below 50% it likely is not). Below 25% with a queue that is never empty it is a
warning (proposed), else information. Without GPM, power below half of the limit is a hint.
Differential: SM activity counts warps that wait for memory, so a memory-bound kernel is not low.
A queue that runs empty is launch-bound work: then this explains the reading, no more.
Fix: more work for each kernel: batch, fusion, graphs. Probe: double the batch.
Gain: none forecast.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.cards import gpm_tells, mean
from gputop_train.diagnose.rules.base import (
    Confidence,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    number,
    percent,
)
from gputop_train.diagnose.rules.gpu_bound import MAX_DRY
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain

ID = "misleading-utilization"
UTIL = 80.0
SM_LOW, SM_HARDLY = 50.0, 25.0
POWER_PART = 0.50
MIN_POWER = 5


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    if window.util_mean is None:
        return Abstention(ID, window.missing.get("gpu_util", "driver utilisation"))
    if window.util_mean < UTIL:
        return RuledOut(ID, f"the driver reads {window.util_mean:.0f}%, which misleads nobody")
    if any((g.foreign_processes or 0) > 0 for g in window.gpu):
        return Abstention(ID, "utilisation of this run alone: others use the same GPU")
    active = mean(g.sm for g in window.gpm) if gpm_tells(window, "sm") else None
    power = _power(window)
    if active is None:
        if power is None:
            return Abstention(ID, "SM activity (GPM: Hopper or newer) or power")
        if power >= POWER_PART:
            return RuledOut(ID, f"the card draws {percent(power)} of its power limit")
        return _finding(window, None, power)
    if active >= SM_LOW:
        return RuledOut(ID, f"SM activity is {active:.0f}%")
    return _finding(window, active, power)


def _power(window: Window) -> float | None:
    """Mean power as a part of the limit."""
    parts = [
        g.power_w / g.power_limit_w for g in window.gpu if g.power_w is not None and g.power_limit_w
    ]
    return mean(parts) if len(parts) >= MIN_POWER else None


def _finding(window: Window, active: float | None, power: float | None) -> Finding:
    acc = account(window)
    util = window.util_mean or 0.0
    full = acc.dry is not None and acc.dry <= MAX_DRY
    hardly = active is not None and active < SM_HARDLY and full
    measured = (
        f"its SMs are active only {active:.0f}%"
        if active is not None
        else f"it draws only {percent(power or 0.0)} of its power limit"
    )
    alone = any(g.foreign_processes is not None for g in window.gpu)
    confidence: Confidence = "low" if active is None else "high" if full and alone else "medium"
    return Finding(
        id=ID,
        summary=(
            f"The driver calls the GPU busy {util:.0f}% of the time, but {measured}: kernels run, "
            "and fill little of the chip."
        ),
        severity="warn" if hardly else "info",
        confidence=confidence,
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("GPU utilisation, mean", util, "%"),
                number("SM activity, mean", active, "%"),
                number("SM occupancy, mean", mean(g.sm_occupancy for g in window.gpm), "%"),
                number("power", power, "of its limit"),
                number("queue found empty at a phase edge", acc.dry, "of edges"),
            )
            if row.value is not None
        ),
        where_missing="the cost is spread over the kernels of the step",
        advice=_advice(window, active),
        gain=Gain(None, None, "how much of the chip a larger batch fills is not known beforehand"),
    )


def _advice(window: Window, active: float | None) -> tuple[Advice, ...]:
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    batch = f"batch_size {sizes[0]} -> {2 * sizes[0]}" if sizes else "A batch twice as large"
    judged = "samples/s and SM activity" if active is not None else "samples/s and power"
    return (
        Advice(
            f"{batch}: a step that takes less than 1.3 times as long had room. Judge by {judged}, "
            f"not by the {window.util_mean or 0.0:.0f}% of the driver; revisit the learning rate."
        ),
        Advice(
            "If it takes 2 times as long, the kernels are the matter: a profiler burst "
            "(gputop-train attach --burst) counts them; torch.compile makes fewer and larger ones."
        ),
    )


RULE = Rule(
    ID,
    73,
    judge,
    probe="double the batch: T(2b) / T(b) <= 1.3",
    page=Page(
        number=39,
        title="Utilisation that misleads",
        meaning=(
            "The driver counts time in which any kernel ran; one that uses a single SM counts as "
            "much as one that fills the chip. The headline reads high, throughput is low."
        ),
        looks_at=(
            "driver utilisation",
            "SM activity and occupancy by GPM (Hopper and newer)",
            "power against its limit, where there is no GPM",
            "share of phase edges that found the GPU's queue empty",
        ),
        thresholds=(
            Threshold("driver utilisation", f">= {UTIL:g}%", "proposed"),
            Threshold(
                "SM activity",
                f"< {SM_LOW:g}% information, < {SM_HARDLY:g}% with a full queue a warning",
                "DCGM's guide (0.8 necessary, < 0.5 likely ineffective); 25% proposed",
            ),
            Threshold(
                "power, without GPM", f"< {percent(POWER_PART)} of the limit", "proposed; a hint"
            ),
        ),
        mistaken_for=(
            "a memory-bound kernel: warps that wait for memory count as active",
            "launch-bound work: the queue runs empty, and this only explains the reading",
            "another program on the card: then it abstains",
        ),
        mend=("a larger batch", "fewer and larger kernels: torch.compile, CUDA graphs"),
        test="double the batch: T(2b) / T(b) <= 1.3",
        gain="none forecast",
    ),
)
