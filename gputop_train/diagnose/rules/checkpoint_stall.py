"""``checkpoint-stall``: training stops while a checkpoint is written.

Looks for: save intervals with sum / wall >= 3% (warn) and >= 10% (critical) (catalogue 25,
proposed; ICSE'24 reports checkpointing in 16.43% of low-utilisation issues and 1.02 to 1.52x from
writing in the background), seen at least twice so that a single final save is not a pattern.
Differential: an evaluation at the same boundary has its own label; a save in another thread leaves
no interval on the training thread.
Fix: rarer; asynchronous; no optimizer state in "best" copies. Probe: skip the next save.
Gain: (nT + c) / (nT + c').
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.advice import checkpoint_advice, periodic, periodic_gain
from gputop_train.diagnose.rules.base import (
    Judgement,
    Rule,
    RuledOut,
    amount,
    hook_missing,
    occurrences,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Evidence, Finding, Where

ID = "checkpoint-stall"
WARN, CRITICAL = 0.03, 0.10


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "save")
    if missing:
        return Abstention(ID, missing)
    share = account(window).shares.get("checkpoint", 0.0)
    if share < WARN:
        return RuledOut(ID, f"saving takes {percent(share)} of the time")
    pattern = periodic(window, "checkpoint", share)
    once = pattern.count < 2
    places = _places(window)
    return Finding(
        id=ID,
        summary=pattern.summary("Saving checkpoints"),
        severity=(
            "info" if once else severity(share, window.totals.steps, warn=WARN, critical=CRITICAL)
        ),
        confidence="medium" if once else "high",
        lost_share=share,
        evidence=(*pattern.evidence("saving", "save", "saves"), *_size(window)),
        where=places,
        where_missing=None if places else "no line was recorded for the save",
        advice=checkpoint_advice(pattern, places),
        gain=periodic_gain(pattern, "saving"),
    )


def _places(window: Window) -> tuple[Where, ...]:
    ids = {i.site_id for i in occurrences(window, "checkpoint") if i.site_id}
    saves = [s for s in window.sites if s.kind == "save" and s.rank == window.rank]
    named = [s for s in saves if s.id in ids] or saves
    return tuple(where(s) for s in top_sites(named))


def _size(window: Window) -> tuple[Evidence, ...]:
    sizes = [i.bytes for i in occurrences(window, "checkpoint") if i.bytes]
    if not sizes:
        return ()
    return (amount("one save, size", sum(sizes) / len(sizes)),)


RULE = Rule(ID, 20, judge, probe="skip the next save")
