"""A run that changed: causes that are over, and causes that began late. Pure.

A run is judged as a whole, for that is what it cost, and its newest regime by itself, for that is
what can still be mended. A cause that ended by itself early (a cold cache, a slow first epoch) is
no warning; one that began late is told in the numbers it has now, and since when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gputop_train.diagnose.accounting import INTERRUPTIONS, account
from gputop_train.diagnose.causes import label_of
from gputop_train.diagnose.rules.base import INFO, Judgement, RuledOut
from gputop_train.diagnose.window import Stretch, Window
from gputop_train.model import LABELS, Advice, Evidence, Finding

#: The cause is over when this part of the steps ran without it (proposed here) ...
OVER_PART = 0.5
#: ... and a regime is without it when its label takes less than the info band there, and less than
#: this part of what it takes of the whole run.
GONE = 0.25
#: A cause began when its share is this much larger than before (proposed here).
GREW = 1.5
#: Of a regime that is more of the run than this, too little lies before it to compare with.
NEARLY_ALL = 0.9


def merged(window: Window, whole: Sequence[Finding], newest: Sequence[Judgement]) -> list[Finding]:
    """The whole run's findings in the light of its newest regime's.

    Args:
        window: Of the whole run.
        whole: What it shows.
        newest: What the rules say of ``window.newest``.
    """
    late = window.newest
    if late is None or late.totals.wall_ns <= 0:
        return list(whole)
    now = {j.id: j for j in newest}
    part = late.totals.wall_ns / max(1, window.totals.wall_ns)
    told = [_in_its_light(window, finding, now, part) for finding in whole]
    known = {f.id for f in whole}
    new = [j for j in newest if isinstance(j, Finding) and j.id not in known and _lasts(j)]
    return told + [_late(window, j, j.lost_share * part) for j in new]


def _in_its_light(
    window: Window,
    finding: Finding,
    now: Mapping[str, Judgement],
    part: float,
) -> Finding:
    if finding.lost_share <= 0 or label_of(finding) in INTERRUPTIONS:
        return finding  # an interruption need not have come again in so short a time
    today = now.get(finding.id)
    if isinstance(today, RuledOut) and finding.severity != "info":
        return _over(window, finding)
    if isinstance(today, Finding) and today.lost_share > 0 and part <= NEARLY_ALL:
        before = (finding.lost_share - today.lost_share * part) / max(1e-9, 1 - part)
        if today.lost_share >= GREW * max(before, 0.0) and _lasts(today):
            return _late(window, today, finding.lost_share)
    return finding


def _lasts(finding: Finding) -> bool:
    return (
        finding.severity != "info"
        and finding.lost_share > 0
        and label_of(finding) not in INTERRUPTIONS
    )


def _over(window: Window, finding: Finding) -> Finding:
    """A warning no more, where most steps ran without it."""
    ended = _since_when(window, finding)
    if ended is None:
        return finding
    after = sum(r.steps for r in window.regimes if r.t0_ns >= ended.t0_ns)
    steps = max(1, sum(r.steps for r in window.regimes))
    row = Evidence("over since", _moment(window, ended))
    told = replace(
        finding,
        summary=f"{finding.summary} It was over at {_moment(window, ended)}.",
        evidence=(*finding.evidence, row),
    )
    if after < OVER_PART * steps:
        return told
    # What would mend it is no advice for what mended itself, and its closer cause is past.
    return replace(
        told,
        severity="info",
        refined=None,
        summary=f"{_first_sentence(finding.summary)} It was over at {_moment(window, ended)}.",
        advice=(Advice(f"Nothing to change: {after:,} of {steps:,} steps ran without it."),),
        gain=None,
    )


def _first_sentence(text: str) -> str:
    head, dot, _ = text.partition(". ")
    return head + "." if dot else text


def _since_when(window: Window, finding: Finding) -> Stretch | None:
    """The earliest regime from which on the cause's label stayed low; ``None`` if it still costs.

    A rule may be silent of a short regime for want of occurrences while its label goes on.
    """
    label = label_of(finding)
    if label is None:
        return window.regimes[-1]
    if label not in LABELS:  # idle time of the GPU that is no label of the host's
        return window.regimes[-1] if _idle_went(window) else None
    share = window.totals.labels.get(label, 0) / max(1, window.totals.wall_ns)
    ended = None
    for regime in reversed(window.regimes):
        if regime.shares.get(label, 0.0) > min(INFO, GONE * share):
            break
        ended = regime
    return ended


def _idle_went(window: Window) -> bool:
    """Whether the GPU's idle time, as far as known, is less than half of the whole run's now."""
    before, now = (account(w).idle_share for w in (window, window.newest) if w is not None)
    return before is not None and now is not None and now <= before / 2


def _late(window: Window, finding: Finding, lost: float) -> Finding:
    """The newest regime's numbers; the loss is that of the whole run."""
    began = window.regimes[-1]
    row = Evidence("since", _moment(window, began))
    return replace(
        finding,
        lost_share=max(0.0, min(1.0, lost)),
        summary=f"{finding.summary} So it is since {_moment(window, began)}.",
        evidence=(*finding.evidence, row),
    )


def _moment(window: Window, regime: Stretch) -> str:
    seconds = max(0.0, (regime.t0_ns - window.t0_ns) / 1e9)
    if seconds >= 3600:
        return f"step {regime.first_step:,} ({seconds / 3600:.1f} h in)"
    if seconds >= 120:
        return f"step {regime.first_step:,} ({seconds / 60:.0f} min in)"
    return f"step {regime.first_step:,} ({seconds:.0f} s in)"
