"""``launch-bound``: the GPU drains its queue faster than the host fills it.

Looks for: E_launch / T >= 15% (catalogue 19, proposed): GPU idle time that no earlier gate
explains, with the queue found empty at >= 50% of the phase edges (HTA: an idle gap is the host's
when the next launch began after the last kernel ended), the training thread busy, no data wait, no
sync stall. A profiler burst, where there is one, measures it: the idle gaps whose next launch came
late, the number of kernels and how short they are. Then it is high confidence, else medium. Never
on a CPU-only run.
Differential: a wait for data or a blocking read also empties the queue: then this stays silent. A
training thread that sleeps is not launching. Small batch is one cause of it, not a synonym. What an
optimizer that launches tensor by tensor explains is ``optimizer-overhead``'s.
Fix: larger batch; torch.compile; fused optimizer; CUDA graphs. Probe: double the batch,
T(2b) / T(b) <= 1.3 means overhead-bound. Gain: at least T / (T - E_launch); fewer kernels add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.accounting import INTERRUPTIONS, Burst, account, lost_share
from gputop_train.diagnose.headroom import headroom
from gputop_train.diagnose.loading_model import role_cores
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    ceiling,
    cores,
    hook_missing,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.rules.host_sync_stall import sync_cost
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Where

ID = "launch-bound"
LAUNCH = 0.15
DRY = 0.5
#: Idle time behind launches that is so many times a wait's own share is not the wait's (proposed).
OUTWEIGHS = 2.0
#: A line that reads also launches what it reads (``p.grad.norm().item()``, 160 times a step on an
#: H200: 11% blocked, 27% idle behind launches): its share counts so many times.
READS = 2.0
#: Utilisation agrees with kernel intervals within 10 to 30% of its value (measured on an H200).
UTIL_MARGIN = 0.10
#: A thread that launches as fast as it can keeps about one core.
BUSY_TRAINER = 0.6
COMPUTE = ("forward", "backward", "optimizer")
#: The optimizer's phase is worth a word from this part of the step on (catalogue 50, proposed).
OPTIMIZER = 0.25
#: Optimizers of torch with a fused form on CUDA (2.1 on; Adagrad on the CPU only, so not here).
HAVE_FUSED = ("Adam", "AdamW", "SGD")
#: One line is named when it holds so much of what the sampler saw of the model's own code.
ONE_LINE = 0.5


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
    part = optimizer_part(window)
    rest = launch if part >= COVERAGE * launch else launch - part
    if rest < INFO:
        return RuledOut(ID, f"the optimizer explains {percent(part)} of the launch idle")
    return _finding(window, rest)


def unfused(window: Window) -> list[Mapping[str, Any]]:
    """Optimizers that launch more kernels than they could; those unknown are left out."""
    rows = window.probe.get("optimizers")
    known = [r for r in rows if isinstance(r, Mapping)] if isinstance(rows, list) else []
    return [row for row in known if row.get("cls") and row.get("fused") is not True]


def optimizer_part(window: Window) -> float:
    """Launch idle that an unfused optimizer explains, a wall share; 0 where it is no cause apart.

    Idle time behind launches is shared out by the host time of the phases that launch.
    """
    launch = launch_idle(window)
    acc = account(window)
    mine = acc.shares.get("optimizer", 0.0)
    if launch is None or launch < LAUNCH or mine < OPTIMIZER or not unfused(window):
        return 0.0
    part = launch * mine / sum(acc.shares.get(label, 0.0) for label in COMPUTE)
    return part if part >= WARN else 0.0


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
    if data >= WARN and not _outweighs(window, data):
        return RuledOut(ID, f"the queue is empty because data is waited for ({percent(data)})")
    copies = acc.shares.get("h2d", 0.0)
    if copies >= WARN and not _outweighs(window, copies):
        return RuledOut(ID, f"the queue is empty because of blocking copies ({percent(copies)})")
    cost = sync_cost(window)
    if (cost.lower or 0.0) >= INFO and not _outweighs(window, READS * cost.blocked):
        return RuledOut(ID, "the queue is empty because of blocking reads")
    trainer = role_cores(window, "trainer")
    if trainer is not None and trainer < BUSY_TRAINER:
        return RuledOut(
            ID, f"the trainer keeps only {trainer:.2f} cores busy: it waits, not launches"
        )
    return None


def _outweighs(window: Window, share: float) -> bool:
    """Whether launch idle is far more than a wait of this share can be behind."""
    return _launch_share(window) - _spare(window) >= max(LAUNCH, OUTWEIGHS * share)


def _spare(window: Window) -> float:
    """Host time in waits beyond the idle time that is already counted as theirs.

    Without its waits a host still takes ``T - D``: they explain no more idle time than this.
    """
    acc, cost = account(window), sync_cost(window)
    spare = max(0.0, cost.blocked - (cost.lower or 0.0))
    for label in ("data_wait", "h2d"):
        spare += max(0.0, acc.shares.get(label, 0.0) - (acc.exposed.get(label) or 0.0))
    return spare


def _launch_share(window: Window) -> float:
    """Idle share that only the launching host can explain; conservative."""
    acc = account(window)
    measured = acc.exposed.get("launch")
    if measured is not None:
        return max(0.0, measured - _spare(window))
    left = (acc.idle_share or 0.0) - UTIL_MARGIN * (acc.busy_most or 0.0)
    left -= sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    for label in ("data_wait", "h2d", "comm"):
        lost, _ = lost_share(window, label)
        left -= acc.shares.get(label, 0.0) if lost is None else lost
    left -= sync_cost(window).model or 0.0
    compute = sum(acc.shares.get(label, 0.0) for label in COMPUTE)
    other = acc.shares.get("other", 0.0)
    # Idle time while user code outside the model runs is that code's, in proportion. Were all of it
    # gone, a host that launches for C would still leave the GPU idle for C less what it computes.
    shared = max(0.0, left) * compute / (compute + other) if compute > 0 else 0.0
    alone = compute + acc.shares.get("gpu_wait", 0.0) - (acc.busy_most or 0.0)
    return min(shared, max(0.0, alone))


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
    places = _places(window)
    room = headroom(window)
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
                amount("memory allocated, peak", room.peak) if room is not None else None,
            )
            if row is not None and row.value is not None
        ),
        where=places,
        where_missing=None if places else "the cost is spread over every launch of the step",
        advice=_advice(window, places),
        gain=Gain(
            ceiling(launch),
            None,
            "T / (T - E_launch); fewer kernels bring more",
            at_least=True,
        ),
    )


def _places(window: Window) -> tuple[Where, ...]:
    """The line of the model's own code that launches most, where one stands out."""
    sampled = [
        s
        for s in window.sites
        if s.kind == "sample" and s.label == "forward" and s.rank == window.rank
    ]
    total = sum(s.count for s in sampled)
    return tuple(
        where(s) for s in top_sites(sampled, limit=1, by_count=True) if s.count >= ONE_LINE * total
    )


def _advice(window: Window, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    """Fewer launches first, then more work in each."""
    steps = [_compile(window, places), _batch(window), _fused(window)]
    return tuple(step for step in steps if step is not None)


def _batch(window: Window) -> Advice | None:
    room = headroom(window)
    if room is not None and room.factor(most=2) < 2:
        return None
    memory = (
        f"memory peaks at {percent(room.used)} of {room.total / 1e9:.0f} GB"
        if room is not None
        else "watch the memory"
    )
    pays = (
        f"{memory}, and the same launches then carry twice the work. Below 1.3 x "
        f"{ms(account(window).step_ms or 0.0)} a step it pays: double it again, then revisit the "
        "learning rate."
    )
    sized = [ld for ld in window.feeding_loaders if ld.batch_size]
    if not sized:
        return Advice(f"Double the batch where it is made: {pays}")
    size = sized[0].batch_size or 0
    line = name(Where(sized[0].file, sized[0].line, ""))
    return Advice(f"batch_size {size} -> {2 * size} ({line}): {pays}", {"batch_size": 2 * size})


def _compile(window: Window, places: tuple[Where, ...]) -> Advice:
    acc = account(window)
    many = (
        f"{plain(acc.burst.kernels)} kernels of {plain(acc.burst.kernel_us)} us a step"
        if acc.burst is not None
        else f"launches that keep the GPU busy {percent(acc.busy_most or 0.0)} of the time"
    )
    dynamo = window.probe.get("dynamo")
    graphs = dynamo.get("unique_graphs") if isinstance(dynamo, Mapping) else None
    at = name(places[0]) if places else ""
    loop = f" Where {at} loops over small operations, one fused module does more." if at else ""
    if graphs:
        return Advice(
            f"The model is compiled ({graphs} graphs) and still makes {many}: "
            'torch.compile(model, mode="reduce-overhead") replays them as one CUDA graph where '
            f"shapes stay the same.{loop}"
        )
    rows = window.probe.get("shapes") or ()
    shapes = [r[1] for r in rows if isinstance(r, list) and len(r) == 3]
    mode = "default" if max(shapes, default=1) > 1 else "reduce-overhead"
    named = "" if mode == "default" else f', mode="{mode}"'
    return Advice(
        f"torch.compile(model{named}) fuses the {many}; nothing is compiled now.{loop}",
        {"compile": mode},
    )


def _fused(window: Window) -> Advice | None:
    rows = [row for row in unfused(window) if row["cls"] in HAVE_FUSED]
    if not rows:
        return None
    acc = account(window)
    return Advice(
        f"fused=True in {rows[0]['cls']}, which is not fused now: its "
        f"{ms(acc.ms(acc.shares.get('optimizer', 0.0)))} of {ms(acc.step_ms or 0.0)} a step become "
        "one launch for each group of tensors."
    )


RULE = Rule(
    ID,
    60,
    judge,
    probe="double the batch: T(2b) / T(b) <= 1.3",
    page=Page(
        number=19,
        title="The host launches work more slowly than the GPU does it",
        meaning=(
            "Kernels are so short that the GPU is done before the host has launched the next. A "
            "person sees a flat, low utilisation, one core at 100%, and a step that hardly grows "
            "with the batch."
        ),
        looks_at=(
            "GPU idle time that no wait explains",
            "event edges that found the queue empty",
            "a profiler burst: idle gaps whose next launch came late, kernels and their length",
            "CPU time of the training process, SM activity where the card tells it",
        ),
        thresholds=(
            Threshold("GPU idle behind launches", f">= {percent(LAUNCH)} of wall", "proposed"),
            Threshold("the same, critical", f">= {percent(CRITICAL)} of wall", "TraceML's bands"),
            Threshold("queue empty", f">= {percent(DRY)} of edges", "proposed; HTA's criterion"),
            Threshold(
                "or, beside data wait, copies (over 10% each) or reads (over 5%)",
                f"launch idle >= {OUTWEIGHS:g} times their share, {OUTWEIGHS * READS:g} of reads",
                "proposed",
            ),
            Threshold("training process", f">= {BUSY_TRAINER} of a core", "proposed"),
        ),
        mistaken_for=(
            "`input-bound`, `host-sync-stall`: a wait or a read also empties the queue",
            "`host-compute`: idle time while code outside the model runs is that code's",
            "`optimizer-overhead`: what an unfused optimizer explains is its own",
            "`anomaly-mode`: a mode that makes every launch slow",
            "a training thread that sleeps",
        ),
        mend=(
            "`torch.compile`, `mode='reduce-overhead'` where shapes stay the same.",
            "A larger batch.",
            "A fused optimizer; one fused module in place of a Python loop.",
        ),
        test="Double the batch: `T(2b) / T(b) <= 1.3` (Horace He's doubling test)",
        gain="ceiling at least `T / (T - E_launch)`: fewer kernels bring more",
    ),
)
