"""Who is named first, who is named at all, and what no one is told twice."""

from __future__ import annotations

import itertools

import pytest
from synthetic_windows import intervals_of, loader, make_steps, probe, site, window

from gputop_train.diagnose.causes import CAUSED_BY, CLAIMS
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.not_judged import NOT_JUDGED
from gputop_train.diagnose.ranking import exclusive, ranked, with_trial
from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import EXPOSED_LABELS, LABELS, Evidence, Finding

CPU = window(make_steps(400, {"data_wait": 10, "forward": 70, "other": 20}))


def finding(id_, lost, severity="warn", **more):
    return Finding(id_, f"{id_}.", severity, "high", lost, **more)


def ids(findings):
    return [f.id for f in findings]


def test_every_claim_is_of_a_rule_and_of_a_label_there_is():
    known = {rule.id for rule in all_rules()} | {page.id for page in NOT_JUDGED}
    labels = {*LABELS, *EXPOSED_LABELS}
    assert set(CLAIMS.values()) <= labels
    judging = {rule.id for rule in all_rules() if rule.judge}
    assert {id_ for id_ in CLAIMS if id_ in known} <= judging


def test_the_larger_loss_comes_first():
    found = [finding("eval-stall", 0.3), finding("checkpoint-stall", 0.5), finding("x", 0.1)]
    assert ids(ranked(CPU, found)) == ["checkpoint-stall", "eval-stall", "x"]


def test_losses_within_noise_keep_the_order_of_the_gates():
    for data, save in ((0.30, 0.29), (0.29, 0.30), (0.30, 0.30)):
        found = [finding("input-bound", data), finding("checkpoint-stall", save)]
        assert ids(ranked(CPU, found)) == ["checkpoint-stall", "input-bound"]
    found = [finding("input-bound", 0.40), finding("checkpoint-stall", 0.30)]
    assert ids(ranked(CPU, found)) == ["input-bound", "checkpoint-stall"]


def test_the_order_does_not_depend_on_who_was_asked_first():
    found = [
        finding("input-bound", 0.21),
        finding("eval-stall", 0.20),
        finding("checkpoint-stall", 0.19),
        finding("host-sync-stall", 0.17),
        finding("memory-leak", 0.0),
    ]
    orders = {tuple(ids(ranked(CPU, list(order)))) for order in itertools.permutations(found)}
    assert len(orders) == 1


def test_no_more_time_is_lost_than_there_was():
    found = ranked(CPU, [finding("a", 0.7), finding("b", 0.6), finding("c", 0.5)])
    assert sum(f.lost_share for f in found) <= 1
    assert found[0].lost_share == 0.7


def test_a_mode_comes_before_what_it_slows_and_after_what_it_does_not():
    mode = finding("anomaly-mode", 0.0)
    assert ids(ranked(CPU, [finding("launch-bound", 0.8), mode])) == [
        "anomaly-mode",
        "launch-bound",
    ]
    assert ids(ranked(CPU, [finding("input-bound", 0.8), mode])) == ["input-bound", "anomaly-mode"]
    assert ids(ranked(CPU, [finding("input-bound", 0.12), mode])) == ["anomaly-mode", "input-bound"]
    assert set(CAUSED_BY["anomaly-mode"]) <= set(CLAIMS)


def test_a_risk_yields_to_lost_time_unless_it_is_critical():
    risk = finding("oom-risk", 0.0)
    assert ids(ranked(CPU, [risk, finding("input-bound", 0.1)]))[0] == "input-bound"
    risk = finding("oom-risk", 0.0, "critical")
    assert ids(ranked(CPU, [risk, finding("input-bound", 0.1)]))[0] == "oom-risk"


def test_a_model_on_the_wrong_device_comes_before_how_it_is_fed():
    found = [finding("input-bound", 0.6), finding("cpu-only-build", 0.0)]
    assert ids(ranked(CPU, found))[0] == "cpu-only-build"


def test_information_without_a_loss_comes_last():
    found = [finding("gpu-bound", 0.0, "info"), finding("input-bound", 0.06, "info")]
    assert ids(ranked(CPU, found)) == ["input-bound", "gpu-bound"]


def test_two_diagnoses_of_one_label_share_what_there_is():
    steps = make_steps(400, {"h2d": 40, "forward": 60}, exposed={"h2d": 40}, dry=0.5)
    copies = window(steps, on_gpu=True, util=50)
    kept, gone = exclusive(copies, [finding("pageable-h2d", 0.3), finding("unoverlapped-h2d", 0.3)])
    assert [(f.id, round(f.lost_share, 3)) for f in kept] == [
        ("pageable-h2d", 0.3),
        ("unoverlapped-h2d", 0.1),
    ]
    assert gone == []
    kept, gone = exclusive(
        copies, [finding("pageable-h2d", 0.39), finding("unoverlapped-h2d", 0.39)]
    )
    assert ids(kept) == ["pageable-h2d"]
    assert gone == [RuledOut("unoverlapped-h2d", "pageable-h2d explains the time it would claim")]


def test_findings_of_different_labels_leave_each_other_alone():
    found = [finding("input-bound", 0.1), finding("host-compute", 0.2), finding("oom-risk", 0.0)]
    assert set(ids(exclusive(CPU, found)[0])) == set(ids(found))


def asked(found):
    return [e for e in found.evidence if "trial" in e.what]


def test_a_trial_is_asked_for_where_two_causes_cost_about_the_same():
    close = with_trial(CPU, [finding("input-bound", 0.3), finding("eval-stall", 0.25)])
    (row,) = asked(close[0])
    assert "eval-stall" in row.what
    assert row.value == {r.id: r.probe for r in all_rules()}["input-bound"]
    clear = with_trial(CPU, [finding("input-bound", 0.3), finding("eval-stall", 0.15)])
    assert asked(clear[0]) == []
    info = with_trial(CPU, [finding("input-bound", 0.3), finding("eval-stall", 0.25, "info")])
    assert asked(info[0]) == []


def test_a_trial_is_asked_for_where_most_idle_time_has_no_name():
    steps = make_steps(400, {"data_wait": 20, "forward": 80}, exposed={"data_wait": 20}, dry=0.3)
    idle = window(steps, on_gpu=True, util=20)
    (first,) = with_trial(idle, [finding("input-bound", 0.2)])
    assert len(asked(first)) == 1
    assert Evidence("GPU idle time with a cause named", 0.25, "of it") in first.evidence
    (first,) = with_trial(idle, [finding("input-bound", 0.7)])
    assert asked(first) == []


def test_half_the_cost_each_the_earlier_gate_is_the_verdict_whichever_is_a_little_larger():
    for save in (55, 60, 65):
        steps = make_steps(
            200,
            {"data_wait": 3, "forward": 7},
            extra=lambda i, save=save: {"checkpoint": save} if i % 20 == 9 else {},
        )
        found = diagnose(
            window(
                steps,
                loaders=(loader(),),
                intervals=tuple(intervals_of(steps, "checkpoint", site_id=88)),
                sites=(site("save", 88),),
            )
        )
        assert found.verdict.id == "checkpoint-stall"
        assert ids(found.also)[0] == "input-bound"
        assert len(asked(found.verdict)) == 1


@pytest.mark.parametrize("util", [15.0, 35.0, 55.0])
def test_a_flat_curve_alone_is_never_healthy(util):
    steps = make_steps(400, {"forward": 50, "backward": 50}, dry=0.2)
    found = diagnose(window(steps, on_gpu=True, util=[util] * 200))
    assert found.healthy is not True


def test_a_tiny_run_whose_idle_time_is_under_the_floor_is_left_alone():
    steps = make_steps(150, {"forward": 1.0, "backward": 1.0}, exposed={"data_wait": 0}, dry=0.2)
    small = window(steps, on_gpu=True, util=40, probe=probe(True))
    assert (steps[-1].t1_ns - steps[0].t0_ns) * 0.6 / 1e9 < 0.25
    assert diagnose(small).verdict is None
    assert not any(a.id == "unattributed" for a in diagnose(small).abstained)
