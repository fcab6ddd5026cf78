"""A live verdict stays until another one has held, and never outlives the probe that backs it."""

from __future__ import annotations

from gputop_train.diagnose.standing import Standing
from gputop_train.model import Abstention, Diagnosis, Finding


def verdict(id_="input-bound", refined=None, share=0.5):
    found = Finding(id_, f"{id_} costs {share:.0%}.", "critical", "high", share, refined=refined)
    return Diagnosis("verdict", False, verdict=found)


HEALTHY = Diagnosis("healthy", True)
EARLY = Diagnosis("too-early", None)
UNSURE = Diagnosis("abstained", None, abstained=(Abstention("unattributed", "idle"),))
BROKEN = Diagnosis("abstained", None, abstained=(Abstention("probe", "it fell silent"),))


def told(*judgements):
    standing = Standing()
    return [standing.settle(found) for found in judgements]


def test_the_first_claim_is_told_at_once():
    assert told(EARLY, verdict())[-1].verdict.id == "input-bound"
    assert told(UNSURE, verdict())[-1].verdict.id == "input-bound"


def test_a_new_cause_replaces_a_standing_one_when_it_is_seen_twice():
    found = told(verdict(), verdict("eval-stall"), verdict("eval-stall"))
    assert [d.verdict.id for d in found] == ["input-bound", "input-bound", "eval-stall"]


def test_causes_that_take_turns_do_not_flap():
    found = told(*[verdict(), verdict("eval-stall")] * 10)
    assert {d.verdict.id for d in found} == {"input-bound"}


def test_three_causes_in_turn_leave_the_first_until_one_holds():
    found = told(verdict(), verdict("a"), verdict("b"), verdict("a"), verdict("a"))
    assert [d.verdict.id for d in found] == [*["input-bound"] * 4, "a"]


def test_health_and_a_cause_near_its_threshold_do_not_flap():
    assert [d.status for d in told(*[HEALTHY, verdict()] * 5)] == ["healthy"] * 10
    assert [d.status for d in told(*[verdict(), HEALTHY] * 5)] == ["verdict"] * 10
    assert [d.status for d in told(HEALTHY, verdict(), verdict())][-1] == "verdict"


def test_the_numbers_of_a_standing_cause_are_always_the_newest():
    assert told(verdict(share=0.5), verdict(share=0.6))[-1].verdict.lost_share == 0.6


def test_another_refinement_is_another_claim():
    found = told(verdict(refined="main-process-loading"), verdict())
    assert found[-1].verdict.refined == "main-process-loading"


def test_a_probe_that_failed_ends_every_claim_at_once():
    assert told(HEALTHY, BROKEN)[-1] is BROKEN
    assert told(verdict(), BROKEN)[-1] is BROKEN


def test_doubt_must_hold_as_well():
    assert [d.status for d in told(HEALTHY, UNSURE, HEALTHY)] == ["healthy"] * 3
    assert [d.status for d in told(HEALTHY, UNSURE, UNSURE)][-1] == "abstained"


def test_a_run_that_starts_over_is_too_early_at_once():
    assert told(verdict(), EARLY)[-1] is EARLY
