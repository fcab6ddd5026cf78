"""Which findings a person is told, and in what order. Pure.

Time is claimed once: of two findings on one label the earlier gate's is served first. Then the
larger loss comes first; within noise the earlier gate does, so that the order holds still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.causes import CAUSED_BY, label_of
from gputop_train.diagnose.rules import all_rules, cpu_contention
from gputop_train.diagnose.rules import memory_leak as leak
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    CRITICAL,
    INFO,
    Judgement,
    RuledOut,
    number,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Evidence, Finding

#: Losses closer than this part of the larger are one size (proposed: a shared host's own speed
#: drifts by more, catalogue 0b).
NOISE = 0.10
#: What a finding without lost time of its own weighs: a risk yields to any loss of time, unless it
#: is critical.
RISK = 0.03
#: Anomaly detection costs 1.5 to 3 times the step in public reports: at least this share.
ANOMALY = 1 - 1 / 1.5
#: Where the model trains is asked before how.
WRONG_DEVICE = ("cpu-training", "cpu-only-build")
#: Two losses within this factor are told apart by a trial (catalogue, section 7).
CLOSE = 1.5


def exclusive(window: Window, findings: Sequence[Finding]) -> tuple[list[Finding], list[RuledOut]]:
    """Findings in gate order, none of which claims time that an earlier one claimed.

    Returns:
        Those that are left something, with what is left to them; those that are not.
    """
    acc = account(window)
    kept: list[Finding] = []
    gone: list[RuledOut] = []
    claimed: dict[str, tuple[float, str]] = {}
    for finding in sorted(findings, key=_gate):
        label = label_of(finding)
        if label is None or finding.lost_share <= 0:
            kept.append(finding)
            continue
        measured = max(acc.shares.get(label, 0.0), acc.exposed.get(label) or 0.0)
        taken, by = claimed.get(label, (0.0, finding.id))
        left = finding.lost_share
        if taken > 0:
            left = min(left, max(0.0, max(measured, taken) - taken))
        if left < min(INFO, finding.lost_share):
            gone.append(RuledOut(finding.id, f"{by} explains the time it would claim"))
            continue
        claimed[label] = (taken + left, by)
        kept.append(replace(finding, lost_share=left))
    return kept, gone


def ranked(window: Window, findings: Sequence[Finding]) -> list[Finding]:
    """Largest first; of those within noise of the largest, the earliest gate."""
    weights = _weights(window, findings)
    waiting = sorted(findings, key=lambda f: (-weights[f.id], _gate(f)))
    order: list[Finding] = []
    while waiting:
        near = weights[waiting[0].id] * (1 - NOISE)
        first = min((f for f in waiting if weights[f.id] >= near), key=_gate)
        order.append(first)
        waiting.remove(first)
    return _within_the_whole(order)


def _weights(window: Window, findings: Sequence[Finding]) -> Mapping[str, float]:
    weights = {f.id: _weight(window, f) for f in findings}
    for mode, caused in CAUSED_BY.items():
        if mode in weights:
            over = max((weights[c] for c in caused if c in weights), default=0.0)
            weights[mode] = max(weights[mode], over / (1 - 2 * NOISE))
    return weights


def _weight(window: Window, finding: Finding) -> float:
    if finding.id in WRONG_DEVICE and finding.severity != "info":
        return 2.0
    if finding.id == cpu_contention.ID:  # the script's own causes are what its author can mend
        return 0.0 if finding.severity == "info" else RISK
    if finding.id == leak.ID:
        return leak.urgency(window)
    if finding.lost_share > 0:
        return finding.lost_share
    if finding.severity == "info":
        return 0.0
    if finding.id in CAUSED_BY:
        return ANOMALY
    return CRITICAL if finding.severity == "critical" else RISK


def _within_the_whole(order: Sequence[Finding]) -> list[Finding]:
    """No more time is told as lost than there was: what was ranked first is served first."""
    room = 1.0
    served = []
    for finding in order:
        share = min(finding.lost_share, room)
        if finding.lost_share > 0 and share < min(INFO, finding.lost_share) / 2:
            continue
        served.append(
            finding if share == finding.lost_share else replace(finding, lost_share=share)
        )
        room = max(0.0, room - share)
    return served


def _gate(finding: Finding) -> tuple[int, str]:
    gates = {rule.id: rule.gate for rule in all_rules()}
    return gates.get(finding.id, 1000), finding.id


def with_trial(window: Window, order: Sequence[Finding]) -> list[Finding]:
    """Adds to the first finding which trial would decide, where its number alone does not.

    That is where the next cause costs nearly as much, or where the causes named leave much of the
    GPU's idle time without one (catalogue, section 7).
    """
    if not order:
        return []
    first, rest = order[0], list(order[1:])
    probes = {rule.id: rule.probe for rule in all_rules()}
    trial = probes.get(first.refined or "") or probes.get(first.id)
    if not trial or first.severity == "info":
        return list(order)
    rows: list[Evidence] = []
    lost = first.lost_share
    rivals = [f.id for f in rest if f.severity != "info" and 0 < lost <= CLOSE * f.lost_share]
    idle = account(window).idle_share if window.on_gpu else None
    named = sum(f.lost_share for f in order)
    if rivals:
        rows.append(Evidence(f"a trial that tells it from {rivals[0]}", trial))
    elif lost > 0 and idle is not None and named < COVERAGE * idle and idle - named >= INFO:
        rows.append(number("GPU idle time with a cause named", named / idle, "of it"))
        rows.append(Evidence("a trial that shows how much of the rest it causes", trial))
    return [replace(first, evidence=(*first.evidence, *rows)), *rest]


def judged_ids(judged: Sequence[Judgement]) -> set[str]:
    """Diagnoses that could be judged, whatever came of it."""
    return {j.id for j in judged if isinstance(j, (Finding, RuledOut))}
