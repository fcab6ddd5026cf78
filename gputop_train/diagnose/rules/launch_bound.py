"""``launch-bound``: the GPU drains its queue faster than the host fills it.

Looks for: E_launch / T >= 15% (catalogue 19, proposed): GPU idle time that no earlier gate
explains, with the queue found empty at >= 50% of the phase edges (HTA: an idle gap is the host's
when the next launch began after the last kernel ended), the training thread busy, no data wait, no
sync stall. A profiler burst, where there is one, measures it: the idle gaps whose next launch came
late, the number of kernels and how short they are. Then it is high confidence, else medium. Never
on a CPU-only run.
Differential: a wait for data or a blocking read also empties the queue: then this stays silent. A
training thread that sleeps is not launching. Small batch is one cause of it, not a synonym.
Fix: larger batch; torch.compile; fused optimizer; CUDA graphs. Probe: double the batch,
T(2b) / T(b) <= 1.3 means overhead-bound. Gain: at least T / (T - E_launch); fewer kernels add.
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import INTERRUPTIONS, Burst, account, lost_share
from gputop_train.diagnose.loading_model import role_cores
from gputop_train.diagnose.rules.base import (
    INFO,
    WARN,
    Judgement,
    Rule,
    RuledOut,
    ceiling,
    cores,
    hook_missing,
    ms,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.rules.host_sync_stall import sync_cost
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain

ID = "launch-bound"
LAUNCH = 0.15
DRY = 0.5
#: Utilisation agrees with kernel intervals within 10 to 30% of its value (measured on an H200).
UTIL_MARGIN = 0.10
#: A thread that launches as fast as it can keeps about one core.
BUSY_TRAINER = 0.6
COMPUTE = ("forward", "backward", "optimizer")


def launch_idle(window: Window) -> float | None:
    """The idle share this rule judged; ``None`` where it abstained or an earlier gate spoke."""
    return _launch_share(window) if _refusal(window) is None else None


def judge(window: Window) -> Judgement:
    """Judge one window."""
    refusal = _refusal(window)
    if refusal is not None:
        return refusal
    launch = _launch_share(window)
    if launch < LAUNCH:
        return RuledOut(ID, f"at most {percent(launch)} of the time is launch idle")
    return _finding(window, launch)


def _refusal(window: Window) -> Abstention | RuledOut | None:
    """Why launches are not what is looked at here, if so."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: it has no launch queue")
    acc = account(window)
    missing = hook_missing(window, "data", "sync")
    if missing:
        return Abstention(ID, missing)
    if acc.dry is None and acc.burst is None:
        return Abstention(ID, window.missing.get("gpu_events", "GPU events at phase edges"))
    if acc.idle_share is None and acc.exposed.get("launch") is None:
        return Abstention(ID, acc.busy_basis)
    if acc.dry is not None and acc.dry < DRY and acc.burst is None:
        return RuledOut(ID, f"the queue was empty at only {percent(acc.dry)} of the phase edges")
    data = acc.shares.get("data_wait", 0.0)
    if data >= WARN:
        return RuledOut(ID, f"the queue is empty because data is waited for ({percent(data)})")
    cost = sync_cost(window)
    if (cost.lower or 0.0) >= INFO:
        return RuledOut(ID, "the queue is empty because of blocking reads")
    trainer = role_cores(window, "trainer")
    if trainer is not None and trainer < BUSY_TRAINER:
        return RuledOut(
            ID, f"the trainer keeps only {trainer:.2f} cores busy: it waits, not launches"
        )
    return None


def _launch_share(window: Window) -> float:
    """Idle share that only the launching host can explain; conservative."""
    acc = account(window)
    measured = acc.exposed.get("launch")
    if measured is not None:
        return measured
    left = (acc.idle_share or 0.0) - UTIL_MARGIN * (acc.busy_most or 0.0)
    left -= sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    for label in ("data_wait", "h2d", "comm"):
        lost, _ = lost_share(window, label)
        left -= acc.shares.get(label, 0.0) if lost is None else lost
    left -= sync_cost(window).model or 0.0
    compute = sum(acc.shares.get(label, 0.0) for label in COMPUTE)
    other = acc.shares.get("other", 0.0)
    # Idle time while user code outside the model runs is that code's, in proportion.
    return max(0.0, left) * compute / (compute + other) if compute > 0 else 0.0


def _kernels(burst: Burst | None) -> tuple[Evidence, ...]:
    """What a profiler burst says of the work that is launched."""
    if burst is None:
        return ()
    return (
        number("kernels", burst.kernels, "a step"),
        number("a kernel takes, mean", burst.kernel_us, "us"),
        number("GPU busy, union of kernels", burst.busy, "of wall"),
    )


def _finding(window: Window, launch: float) -> Finding:
    acc = account(window)
    sm = [g.sm for g in window.gpm if g.sm is not None]
    optimizers = window.probe.get("optimizers") or []
    unfused = any(isinstance(o, dict) and o.get("fused") is False for o in optimizers)
    steps = [
        Advice("A larger batch: the same launches then carry more work (watch samples/s, memory)."),
        Advice('torch.compile(model), with mode="reduce-overhead" where the shapes stay the same.'),
        Advice(
            "fused=True in the optimizer, which is not fused now: one launch instead of hundreds."
            if unfused
            else "Fused modules in place of Python loops over small operations."
        ),
    ]
    return Finding(
        id=ID,
        summary=(
            f"The GPU waits for the host to launch work in {percent(launch)} of every step: "
            f"{ms(acc.ms(launch))} of {ms(acc.step_ms or 0.0)}."
        ),
        severity=severity(launch, window.totals.steps, warn=LAUNCH),
        confidence="medium" if acc.burst is None else "high",
        lost_share=launch,
        evidence=tuple(
            row
            for row in (
                number("GPU idle behind launches", launch, "of wall"),
                *_kernels(acc.burst),
                number("queue found empty at a phase edge", acc.dry, "of edges"),
                number("GPU utilisation, mean", acc.util_mean, "%"),
                number("SM activity, mean", sum(sm) / len(sm) if sm else None, "%"),
                cores("trainer process", role_cores(window, "trainer")),
                number("data wait", acc.shares.get("data_wait"), "of wall"),
            )
            if row.value is not None
        ),
        where_missing="the cost is spread over every launch of the step",
        advice=tuple(steps),
        gain=Gain(
            ceiling(launch),
            None,
            "T / (T - E_launch); fewer kernels bring more",
            at_least=True,
        ),
    )


RULE = Rule(ID, 60, judge, probe="double the batch: T(2b) / T(b) <= 1.3")
