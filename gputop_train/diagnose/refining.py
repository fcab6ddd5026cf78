"""From a cost to its closer cause: the refinements of a finding, asked in order. Pure."""

from __future__ import annotations

from dataclasses import replace

from gputop_train.diagnose.drawing import DRAWS, drawing
from gputop_train.diagnose.rules import input_bound, refinements
from gputop_train.diagnose.rules.base import COVERAGE, Confidence, Refinement, RuledOut
from gputop_train.diagnose.supply import supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Finding

#: How the abstention of a rule begins that raised; no run is healthy that it could not judge.
FAILED = "its rule failed"
Unnamed = Abstention | RuledOut
_ORDER: tuple[Confidence, ...] = ("low", "medium", "high")


def refine(window: Window, finding: Finding) -> tuple[Finding, tuple[Unnamed, ...]]:
    """Name the closer cause of a finding, where one covers its cost.

    Returns:
        The finding, refined or as it was, and what the refinements that were asked and do not
        hold said.
    """
    if finding.refined is not None:
        return finding, ()  # the rule knew its closer cause itself
    said: list[Unnamed] = []
    drawn = finding.id == input_bound.ID and drawing(window, supply_of(window)) is not None
    for rule in refinements(finding.id):
        if rule.refine is None:
            continue
        if drawn:  # whatever batches cost whoever makes them
            said.append(RuledOut(rule.id, DRAWS))
            continue
        try:
            answer = rule.refine(window, finding)
        except Exception as error:
            answer = failed(rule.id, error)
        if not isinstance(answer, Refinement):
            said.append(answer)
        elif answer.covers < COVERAGE:
            said.append(RuledOut(rule.id, f"it explains only {answer.covers:.0%} of the cost"))
        else:
            return _merged(finding, answer), tuple(said)
    return finding, tuple(said)


def failed(id_: str, error: Exception) -> Abstention:
    """What a rule that raised has to say."""
    return Abstention(id_, f"{FAILED} ({type(error).__name__}: {error})")


def _merged(finding: Finding, closer: Refinement) -> Finding:
    confidence = min(finding.confidence, closer.confidence, key=_ORDER.index)
    return replace(
        finding,
        refined=closer.id,
        summary=f"{finding.summary} {closer.why}".strip(),
        severity=closer.severity or finding.severity,
        confidence=confidence,
        evidence=(*closer.evidence, *finding.evidence),
        where=finding.where if closer.where is None else closer.where,
        where_missing=(finding.where_missing if closer.where is None else closer.where_missing),
        advice=finding.advice if closer.advice is None else closer.advice,
        gain=finding.gain if closer.gain is None else closer.gain,
    )
