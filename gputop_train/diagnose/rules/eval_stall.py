"""``eval-stall``: evaluation takes a large part of the run.

Looks for: evaluation intervals (``Module.eval()`` to ``train()``, long gradient-free blocks)
with V / wall >= 10% (catalogue 26, proposed), at least twice. Critical from 20%.
Differential: a slow loader *inside* the evaluation shows in the evaluation's own phases; a save at
the same boundary is labelled checkpoint and not counted here.
Fix: rarer, a subset, a larger evaluation batch, a job of its own. Probe: skip the next one.
Gain: wall / (wall - V + V').
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.advice import Periodic, evaluation_advice, periodic, periodic_gain
from gputop_train.diagnose.rules.base import (
    Judgement,
    Rule,
    RuledOut,
    hook_missing,
    ms,
    number,
    occurrences,
    percent,
    severity,
    top_sites,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Finding, Where

ID = "eval-stall"
WARN = 0.10


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "eval")
    if missing:
        return Abstention(ID, missing)
    share = account(window).shares.get("eval", 0.0)
    if share < WARN:
        return RuledOut(ID, f"evaluation takes {percent(share)} of the time")
    pattern = periodic(window, "eval", share)
    once = pattern.count < 2
    places, why_none = _places(window)
    return Finding(
        id=ID,
        summary=_summary(share, pattern),
        severity="info" if once else severity(share, window.totals.steps, warn=WARN),
        confidence="medium" if once else "high",
        lost_share=share,
        evidence=(
            number("evaluation", share, "of wall"),
            number("evaluations", pattern.count),
            number("one evaluation, mean", pattern.cost_ms, "ms"),
            number("steps between evaluations", pattern.every),
            number("step without it, mean", pattern.step_ms, "ms"),
        ),
        where=places,
        where_missing=why_none,
        advice=evaluation_advice(pattern, places),
        gain=periodic_gain(pattern, "evaluation"),
    )


def _summary(share: float, pattern: Periodic) -> str:
    text = f"Evaluation takes {percent(share)} of the time: {ms(pattern.cost_ms)} each"
    if pattern.every is not None:
        return f"{text}, every {pattern.every:.0f} steps."
    return f"{text}, seen {'once' if pattern.count == 1 else f'{pattern.count} times'}."


def _places(window: Window) -> tuple[tuple[Where, ...], str | None]:
    ids = {i.site_id for i in occurrences(window, "eval") if i.site_id}
    named = [s for s in window.sites if s.id in ids and s.rank == window.rank]
    if named:
        # Counts, not times: a site of Module.eval() lasts microseconds, its phase does not.
        chosen = top_sites(named, by_count=True) or named[:1]
        return tuple(where(s) for s in chosen), None
    for kind in ("eval", "nograd"):
        chosen = [s for s in window.sites if s.kind == kind and s.rank == window.rank]
        if chosen:
            best = max(chosen, key=lambda s: (s.total_ns, s.count))
            return (where(best),), None
    idle = [
        ld
        for ld in window.loaders
        if ld.rank == window.rank and ld.batches and not ld.feeds_training
    ]
    if idle:
        best_loader = max(idle, key=lambda ld: ld.wait_ns)
        return (Where(best_loader.file, best_loader.line, best_loader.call),), None
    return (), "no line was recorded for the evaluation"


RULE = Rule(ID, 20, judge, probe="skip the next evaluation")
