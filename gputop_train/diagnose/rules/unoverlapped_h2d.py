"""``unoverlapped-h2d``: pinned copies that the GPU's computing waits for.

Looks for: E_h2d / T >= 5% with most bytes from pinned memory (catalogue 14): the device time of the
copies on the stream that computes, by GPU event pairs. Copies on a stream of their own carry no
events and are not counted.
Differential: from pageable memory it is ``pageable-h2d``. A loop whose host never waits and whose
queue is mostly empty is paced by the host: the copy hides in idle time, and ending it brings
nothing.
Fix: ``non_blocking=True``; the next batch on a side stream; smaller dtype. Probe: a batch that
stays on the device. Gain: T / (T - E).
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.copies import MOSTLY, CopyCost, best_link, copy_cost, copy_sites, costly
from gputop_train.diagnose.rules.base import (
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
    hook_missing,
    ms,
    name,
    number,
    percent,
    severity,
    where,
)
from gputop_train.diagnose.rules.device_roundtrip import returned_share
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain, Where

ID = "unoverlapped-h2d"
#: The host is held by the copy when its time in the call is at least this part of the copy's.
HELD = 0.5
#: The host sets the pace: queue empty at so many edges, and so little time blocked on the device.
DRY, BLOCKED = 0.5, 0.05


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: nothing is copied to a GPU")
    missing = hook_missing(window, "h2d")
    if missing:
        return Abstention(ID, missing)
    cost = copy_cost(window)
    if cost is None or (not cost.measured and cost.lost >= INFO):
        return Abstention(ID, window.missing.get("gpu_events", "GPU events around copies"))
    lost = cost.lost - returned_share(window)
    if lost < INFO:
        return RuledOut(ID, f"copies to the GPU cost {percent(max(0.0, lost))} of the time")
    if cost.pageable is None:
        return Abstention(ID, "no line was seen copying, so whether its memory is pinned")
    if cost.pageable >= MOSTLY:
        return RuledOut(ID, f"{percent(cost.pageable)} of the bytes come from pageable memory")
    if not _held(cost) and _host_sets_the_pace(window):
        return RuledOut(ID, "the host sets the pace, and the copies hide in the GPU's idle time")
    return _finding(window, cost, lost)


def _held(cost: CopyCost) -> bool:
    return cost.host >= HELD * cost.lost


def _host_sets_the_pace(window: Window) -> bool:
    """Whether the training thread never waits for the device, and leaves its queue empty."""
    acc = account(window)
    blocked = sum(acc.shares.get(label, 0.0) for label in ("sync", "gpu_wait", "h2d"))
    return acc.dry is not None and acc.dry >= DRY and blocked < BLOCKED


def _finding(window: Window, cost: CopyCost, lost: float) -> Finding:
    acc = account(window)
    places = tuple(where(s) for s in costly(copy_sites(window)))
    size = amount("", cost.bytes_per_step or 0.0)
    link = best_link(window)
    return Finding(
        id=ID,
        summary=(
            f"The GPU waits for copies in {percent(lost)} of every step: {size.value} {size.unit} "
            f"a step from pinned memory, {ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}, on the "
            "stream that computes."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="high",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number(f"GPU kept from computing by copies ({cost.basis})", lost, "of wall"),
                number("host blocked in copies (context)", cost.host, "of wall"),
                amount("copied", cost.bytes_per_step or 0.0, " a step"),
                number("from pageable memory", cost.pageable, "of bytes"),
                number("rate of a copy", cost.rate / 1e9 if cost.rate else None, "GB/s"),
                number("PCIe link, one direction", link / 1e9 if link else None, "GB/s"),
                number("queue found empty at a phase edge", acc.dry, "of edges"),
            )
            if row.value is not None
        ),
        where=places,
        where_missing=None if places else "the copies were made where the probe takes no line",
        advice=_advice(window, cost, lost, places),
        gain=Gain(ceiling(lost), None, f"T / (T - E), E from {cost.basis}"),
    )


def _advice(
    window: Window, cost: CopyCost, lost: float, places: tuple[Where, ...]
) -> tuple[Advice, ...]:
    acc = account(window)
    line = f" ({name(places[0])})" if places else ""
    steps = []
    if _held(cost):
        steps.append(
            Advice(
                f"Move with non_blocking=True{line}: the memory is pinned, yet the host is held "
                f"{ms(acc.ms(cost.host))} a step until the copy is done."
            )
        )
    steps.append(
        Advice(
            f"Copy the next batch while this one computes{line}: on a torch.cuda.Stream() of its "
            "own, then wait_stream() and record_stream() before use."
        )
    )
    size = amount("", (cost.bytes_per_step or 0.0) / 4)
    steps.append(
        Advice(
            "If the link itself is the limit, send less: bytes turned into floats on the GPU are "
            f"{size.value} {size.unit} a step in place of float32, about {ms(acc.ms(lost) / 4)}."
        )
    )
    return tuple(steps)


RULE = Rule(
    ID,
    40,
    judge,
    probe="feed one batch that stays on the device for 50 steps",
    page=Page(
        number=14,
        title="Pinned copies that nothing hides",
        meaning=(
            "Batches are copied from pinned memory, but on the stream that computes: the next "
            "kernel waits until the copy is done. Utilisation dips, because the driver does not "
            "count copies."
        ),
        looks_at=(
            "device time between the GPU events around each copy",
            "host time in the same calls",
            "is_pinned() of what a line copies",
            "share of phase edges that found the GPU's queue empty",
        ),
        thresholds=(
            Threshold(
                "exposed copy time",
                f">= {percent(INFO)} info, {percent(WARN)} warn, {percent(CRITICAL)} critical",
                "proposed for the 5%; bands of TraceML and TensorFlow's profiler",
            ),
            Threshold("bytes from pageable memory", f"< {percent(MOSTLY)}", "proposed"),
            Threshold(
                "the host sets the pace",
                f"queue empty at >= {percent(DRY)} of edges, blocked < {percent(BLOCKED)}",
                "proposed",
            ),
        ),
        mistaken_for=(
            "pageable-h2d: the memory is not pinned",
            "a loop paced by its host: the copy hides in time the GPU is idle anyway",
            "copies on a stream of their own: they carry no events and are not counted",
        ),
        mend=(
            "non_blocking=True",
            "prefetch the next batch on a side stream, with record_stream",
            "send a smaller dtype and convert on the GPU",
        ),
        test="feed one batch that stays on the device for 50 steps",
        gain="T / (T - E)",
    ),
)
