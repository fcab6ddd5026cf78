"""``fragmentation``: reserved memory lies in pieces too small to use.

Looks for: free pieces of split blocks >= 25% of what is reserved (catalogue 32, proposed), a peak
in use at least 20% below the peak reserved (proposed), **and** retries or out-of-memory errors in
the window, or > 90% of the card reserved.
Differential: a large cache without a retry is healthy; after a step most blocks are free pieces, so
those alone say little: memory that was really full has its peak in use near the reserved one;
counters that are always 0 (cudaMallocAsync) say nothing.
Fix: expandable segments; fewer shapes; no ``empty_cache()``. Probe: the variable on, compare peak
reserved. Gain: none forecast: what retries cost is ``allocator-retry-stall``.
"""

from __future__ import annotations

from gputop_train.diagnose.pool import pool
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    number,
    percent,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "fragmentation"
SPLIT, RESERVED = 0.25, 0.90
#: So far below the peak reserved the peak in use must stay.
NEVER_USED = 0.20


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "this run computes on the CPU")
    found = pool(window)
    if found is None or found.split is None:
        return Abstention(ID, window.missing.get("memory", "free pieces of split blocks"))
    if found.split < SPLIT:
        return RuledOut(ID, f"{percent(found.split)} of the reserved memory is in pieces")
    if found.allocated > (1 - NEVER_USED) * found.reserved:
        return RuledOut(
            ID, f"{percent(found.allocated / found.reserved)} of the reserved memory was in use"
        )
    reserved = found.reserved / found.limit
    failed = (found.retries or 0) + (found.ooms or 0)
    if not failed and reserved <= RESERVED:
        return RuledOut(ID, "the allocator's cache is large, and nothing failed for it: healthy")
    pieces, whole = amount("", found.split * found.reserved), amount("", found.reserved)
    told = window.probe.get("shapes")
    shapes = [
        row
        for row in (told if isinstance(told, list) else [])
        if isinstance(row, (list, tuple)) and len(row) == 3 and isinstance(row[1], int)
    ]
    kinds = max((row[1] for row in shapes), default=None)
    happened = (
        f"the allocator emptied its cache {found.retries} times to find room"
        if found.retries
        else f"{percent(reserved)} of the card is reserved"
    )
    advice = [
        Advice(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment (from torch 2.9 "
            f"also PYTORCH_ALLOC_CONF): blocks then grow in place, and the {pieces.value} "
            f"{pieces.unit} in pieces can serve again."
        )
    ]
    if kinds is not None and kinds > 1:
        advice.append(
            Advice(
                f"{kinds} different batch shapes were seen: pad or bucket lengths to a few, the "
                "largest first, so that blocks fit again."
            )
        )
    if window.probe.get("empty_cache"):
        advice.append(Advice("Remove empty_cache() from the loop: it does not undo splits."))
    return Finding(
        id=ID,
        summary=(
            f"{pieces.value} {pieces.unit} of {whole.value} {whole.unit} reserved GPU memory lie "
            f"in pieces of split blocks, and {happened}."
        ),
        severity="warn" if failed else "info",
        confidence="high" if failed else "medium",
        lost_share=0.0,
        evidence=tuple(
            row
            for row in (
                number("free in pieces of split blocks", found.split, "of reserved"),
                number("peak reserved", reserved, "of the card"),
                number("peak in use", found.allocated / found.limit, "of the card"),
                number("times the cache was emptied to find room", found.retries),
                number("out-of-memory errors", found.ooms),
                number("different batch shapes", kinds),
            )
            if row.value is not None
        ),
        where_missing="pieces are left by every line that allocates",
        advice=tuple(advice),
    )


RULE = Rule(
    ID,
    102,
    judge,
    probe="expandable_segments:True, compare peak reserved",
    page=Page(
        number=32,
        title="GPU memory in pieces",
        meaning=(
            "The allocator holds much more than is in use, in pieces that fit no request, and "
            "has to give memory back and ask anew, or fails though there seems to be room."
        ),
        looks_at=(
            "free pieces of split blocks against reserved memory",
            "retries and out-of-memory errors in the window",
            "batch shapes",
        ),
        thresholds=(
            Threshold("in pieces", f">= {percent(SPLIT)} of reserved", "proposed"),
            Threshold("reserved that was never in use", f">= {percent(NEVER_USED)}", "proposed"),
            Threshold(
                "and",
                f"a retry or an out-of-memory error, or reserved > {percent(RESERVED)}",
                "proposed; TraceML: reserved/allocated >= 2",
            ),
        ),
        mistaken_for=(
            "a healthy cache: high reserved, no retries",
            "memory really full: little of it in pieces (oom-risk)",
            "cudaMallocAsync, whose counters are always 0",
        ),
        mend=(
            "expandable_segments:True",
            "few shapes, the largest first",
            "no empty_cache() in the loop",
        ),
        test="expandable_segments:True, compare peak reserved",
        gain="none forecast",
    ),
)
