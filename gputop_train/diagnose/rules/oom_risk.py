"""``oom-risk``: the run is close to the end of the card's memory, or died of it.

Looks for: peak reserved > 90% of the card (kineto 90, TraceML 92/97, gpuprof 90/97), together with
peak allocated > 85% or a cache that had to be emptied to find room (proposed). Critical: allocated
> 97%, or an out-of-memory error that ended the run.
Differential: reserved alone is the allocator's cache: it fills whatever there is and is given back
on demand. A handful of cuDNN attempts that did not fit are no end of the run.
Fix: bf16, activation checkpointing, smaller optimizer state, accumulation. Probe: one step at the
longest input. Gain: none in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.pool import Pool, ended_by_oom, pool
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    name,
    number,
    percent,
    plain,
)
from gputop_train.diagnose.told import part, whole
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Where

ID = "oom-risk"
RESERVED, ALLOCATED, CRITICAL = 0.90, 0.85, 0.97


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    found = pool(window)
    if found is None:
        return Abstention(ID, window.missing.get("memory", "the allocator's counters"))
    picture = ended_by_oom(window)
    reserved, allocated = found.reserved / found.limit, found.allocated / found.limit
    if picture is not None:
        return _finding(window, found, picture)
    if reserved <= RESERVED:
        return RuledOut(ID, f"the allocator reserved {percent(reserved)} of the card at most")
    if allocated <= ALLOCATED and not found.retries:
        return RuledOut(
            ID,
            f"reserved is {percent(reserved)}, of which only {percent(allocated)} was ever in use: "
            "the rest is cache",
        )
    return _finding(window, found, None)


def _finding(window: Window, found: Pool, picture: Mapping[str, Any] | None) -> Finding:
    reserved, allocated = found.reserved / found.limit, found.allocated / found.limit
    died = picture is not None
    place = _place(picture)
    left = amount("", max(0.0, found.limit - found.allocated))
    return Finding(
        id=ID,
        summary=(
            "The run ended for want of GPU memory: "
            f"{percent(allocated)} of the card was in use at its peak."
            if died
            else f"GPU memory is nearly used up: {percent(allocated)} of the card in use at the "
            f"peak, {percent(reserved)} reserved. {left.value} {left.unit} are left."
        ),
        severity="critical" if died or allocated > CRITICAL else "warn",
        confidence="high" if died or allocated > ALLOCATED else "medium",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("peak in use", allocated, "of the card"),
                number("peak reserved", reserved, "of the card"),
                amount("GPU memory", found.limit),
                number("times the cache was emptied to find room", found.retries),
                _asked(picture),
            )
            if row is not None and row.value is not None
        ),
        where=(place,) if place is not None else (),
        where_missing=None if place is not None else "memory is used all over the step",
        advice=_advice(window, found),
    )


def _asked(picture: Mapping[str, Any] | None) -> Any:
    asked = picture.get("requested") if picture else None
    return amount("asked for at the end", float(asked)) if isinstance(asked, int) else None


def _place(picture: Mapping[str, Any] | None) -> Where | None:
    stack = picture.get("stack") if picture else None
    top = stack[0] if isinstance(stack, list) and stack and isinstance(stack[0], dict) else None
    if top is None or whole(top, "line") is None:
        return None
    return Where(str(top.get("file")), top["line"], str(top.get("call") or top.get("func") or ""))


def _advice(window: Window, found: Pool) -> tuple[Advice, ...]:
    held = part(window.probe, "held")
    state, rest = whole(held, "optimizer_state"), whole(held, "other")
    sizes = [ld.batch_size for ld in window.feeding_loaders if ld.batch_size]
    steps = []
    if sizes and sizes[0] > 1:
        line = name(Where(window.feeding_loaders[0].file, window.feeding_loaders[0].line, ""))
        half = max(1, sizes[0] // 2)
        steps.append(
            Advice(
                f"batch_size {sizes[0]} -> {half} ({line}) with {plain(sizes[0] / half)} times the "
                "accumulation: the same global batch, about half of the activations."
            )
        )
    if rest is not None and rest > 0.3 * found.allocated:
        size = amount("", rest)
        steps.append(
            Advice(
                f"Activations and the like hold {size.value} {size.unit}: bf16 autocast halves "
                "them, torch.utils.checkpoint keeps only a part, for about 30% more time."
            )
        )
    if state is not None and state > 0.2 * found.allocated:
        size = amount("", state)
        steps.append(
            Advice(
                f"The optimizer's state holds {size.value} {size.unit}: an 8-bit optimizer keeps a "
                "quarter of it, FSDP or ZeRO one part for each rank."
            )
        )
    if not steps:
        steps.append(
            Advice(
                f"Peak {percent(found.allocated / found.limit)} of the card: bf16 autocast first, "
                "then torch.utils.checkpoint on the largest blocks; report --memory says what "
                "holds it."
            )
        )
    return tuple(steps[:3])


RULE = Rule(
    ID,
    104,
    judge,
    probe="one step at the longest input",
    page=Page(
        number=35,
        title="Close to the end of GPU memory",
        meaning=(
            "A slightly longer input, or another program, and the run ends with an out-of-memory "
            "error; or it has."
        ),
        looks_at=(
            "peaks of allocated and of reserved memory against the card's",
            "times the allocator emptied its cache to find room",
            "the picture of the error that ended the run",
        ),
        thresholds=(
            Threshold(
                "peak reserved", f"> {percent(RESERVED)}", "kineto 90; TraceML 92; gpuprof 90"
            ),
            Threshold(
                "and peak allocated",
                f"> {percent(ALLOCATED)}, or the cache was emptied to find room",
                "proposed: reserved alone is cache",
            ),
            Threshold(
                "critical",
                f"allocated > {percent(CRITICAL)}, or the run ended by it",
                "TraceML 97; gpuprof 97",
            ),
        ),
        mistaken_for=(
            "a full cache: reserved is high, allocated is not, and nothing was retried",
            "cuDNN attempts that did not fit",
            "memory-leak: a peak that keeps rising",
        ),
        mend=(
            "smaller micro-batches with accumulation",
            "bf16, activation checkpointing",
            "8-bit or sharded optimizer state",
        ),
        test="one step at the longest input",
        gain="none in time",
    ),
)
