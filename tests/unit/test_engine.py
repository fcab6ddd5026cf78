from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_windows import (
    HOOKS,
    intervals_of,
    loader,
    make_steps,
    probe,
    site,
    window,
)

from gputop_train.diagnose import engine
from gputop_train.diagnose.causes import CLAIMS
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.gaps import HEALTHY_HOOKS
from gputop_train.diagnose.ranking import NOISE
from gputop_train.diagnose.rules import all_rules
from gputop_train.diagnose.rules.base import Rule
from gputop_train.model import LABELS

HEALTHY = {"data_wait": 0.2, "forward": 4, "backward": 5, "optimizer": 0.8}
STARVED = {"data_wait": 6.4, "forward": 1.6, "backward": 2.0}


def test_every_rule_has_an_id_of_its_own_and_a_parent_that_is_there():
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids))
    assert {rule.parent for rule in all_rules() if rule.parent} <= {*ids}
    assert all(rule.judge or (rule.refine and rule.parent) for rule in all_rules())


def test_a_run_with_nothing_wrong_is_healthy():
    found = diagnose(window(make_steps(100, HEALTHY), memory=[3e8] * 100))
    assert (found.status, found.healthy, found.verdict, found.also) == ("healthy", True, None, ())


def test_a_starved_run_has_a_verdict():
    found = diagnose(window(make_steps(100, STARVED), loaders=(loader(),)))
    assert (found.status, found.healthy) == ("verdict", False)
    assert found.verdict.id == "input-bound"


def test_no_steps_is_neither_healthy_nor_a_verdict():
    found = diagnose(window([]))
    assert (found.status, found.healthy, found.verdict) == ("no-steps", None, None)


@pytest.mark.parametrize("final", [True, False])
def test_fewer_than_20_steps_are_too_early_and_say_how_many_were_seen(final):
    found = diagnose(window(make_steps(12, STARVED), loaders=(loader(),), final=final))
    assert (found.status, found.healthy) == ("too-early", None)
    assert found.note == "12 of 20 steps seen"


def test_19_steps_at_the_end_of_a_run_are_too_early():
    steps = make_steps(19, {label: 10 * ms for label, ms in STARVED.items()})
    assert diagnose(window(steps, loaders=(loader(),))).status == "too-early"


def test_20_steps_at_the_end_of_a_run_are_enough():
    steps = make_steps(20, {label: 10 * ms for label, ms in STARVED.items()})
    assert diagnose(window(steps, loaders=(loader(),))).status == "verdict"


def test_a_run_cut_short_within_15_s_is_too_early_however_many_steps_it_made():
    steps = make_steps(500, {label: 2 * ms for label, ms in STARVED.items()})
    assert 1 < (steps[-1].t1_ns - steps[0].t0_ns) / 1e9 < 15
    cut = diagnose(window(steps, loaders=(loader(),), cut_short=True))
    assert (cut.status, cut.healthy, cut.verdict) == ("too-early", None, None)
    assert "cut short" in cut.note
    assert diagnose(window(steps, loaders=(loader(),))).status == "verdict"


def test_a_run_cut_short_later_is_judged():
    steps = make_steps(300, {label: 10 * ms for label, ms in STARVED.items()})
    assert (steps[-1].t1_ns - steps[0].t0_ns) / 1e9 > 16
    assert diagnose(window(steps, loaders=(loader(),), cut_short=True)).status == "verdict"


def test_a_live_verdict_on_fast_steps_waits_a_few_seconds():
    young = window(make_steps(100, STARVED), loaders=(loader(),), final=False)
    assert diagnose(young).status == "too-early"
    older = window(make_steps(600, STARVED), loaders=(loader(),), final=False)
    assert diagnose(older).status == "verdict"


def test_two_causes_are_both_named_the_larger_first():
    steps = make_steps(
        300,
        {"forward": 10},
        extra=lambda i: {
            **({"checkpoint": 150.0} if i % 30 == 9 else {}),
            **({"eval": 400.0} if i % 60 == 59 else {}),
        },
    )
    found = diagnose(
        window(
            steps,
            intervals=(
                *intervals_of(steps, "checkpoint", site_id=88),
                *intervals_of(steps, "eval", site_id=61),
            ),
            sites=(site("save", 88), site("eval", 61, func="evaluate", count=0, total_ns=0)),
        )
    )
    assert found.verdict.id == "eval-stall"
    assert [f.id for f in found.also] == ["checkpoint-stall"]
    assert [w.line for w in found.verdict.where] == [61]
    assert [w.line for w in found.also[0].where] == [88]


def test_half_the_cost_each_is_named_for_both():
    steps = make_steps(
        200,
        {"data_wait": 3, "forward": 7},
        extra=lambda i: {"checkpoint": 60} if i % 20 == 9 else {},
    )
    found = diagnose(
        window(
            steps,
            loaders=(loader(),),
            intervals=tuple(intervals_of(steps, "checkpoint", site_id=88)),
            sites=(site("save", 88),),
        )
    )
    assert {found.verdict.id, *(f.id for f in found.also)} == {"input-bound", "checkpoint-stall"}


def test_information_alone_is_no_verdict():
    found = diagnose(
        window(make_steps(600, {"data_wait": 0.7, "forward": 9.3}), loaders=(loader(),))
    )
    assert found.status == "healthy"
    assert [(f.id, f.severity) for f in found.also] == [("input-bound", "info")]


def test_a_fifth_of_a_second_in_all_is_not_worth_a_line():
    steps = make_steps(200, {"data_wait": 0.9, "forward": 0.1})
    assert diagnose(window(steps, loaders=(loader(),))).verdict is None
    steps = make_steps(300, {"data_wait": 0.9, "forward": 0.1})
    assert diagnose(window(steps, loaders=(loader(),))).verdict is not None


def test_a_busy_gpu_is_healthy_and_told_beside_it():
    steps = make_steps(
        100, {"gpu_wait": 8, "forward": 2}, exposed={"data_wait": 0, "sync": 0.01}, dry=0.05
    )
    found = diagnose(window(steps, on_gpu=True, util=97))
    assert found.status == "healthy"
    assert [(f.id, f.severity) for f in found.also] == [("gpu-bound", "info")]


def test_an_idle_gpu_without_a_cause_is_not_healthy():
    steps = make_steps(100, {"forward": 5, "backward": 5}, dry=0.2)
    found = diagnose(window(steps, on_gpu=True, util=40))
    assert (found.status, found.healthy) == ("abstained", None)
    assert any(a.id == "unattributed" and "60%" in a.missing for a in found.abstained)


def test_a_gpu_run_without_any_gpu_reading_is_not_healthy():
    found = diagnose(
        window(
            make_steps(100, {"forward": 10}), on_gpu=True, missing={"gpu_util": "no NVIDIA driver"}
        )
    )
    assert found.status == "abstained"
    assert any("no NVIDIA driver" in a.missing for a in found.abstained)


@pytest.mark.parametrize("hook", HEALTHY_HOOKS)
def test_without_any_one_of_its_signals_a_run_is_never_healthy(hook):
    steps = make_steps(
        100, {"gpu_wait": 8, "forward": 2}, exposed={"data_wait": 0, "sync": 0.01}, dry=0.05
    )
    found = diagnose(window(steps, on_gpu=True, util=97, probe=probe(True, without=(hook,))))
    assert (found.status, found.healthy) == ("abstained", None)
    assert any(hook in a.missing for a in found.abstained)


@pytest.mark.parametrize("hook", HEALTHY_HOOKS)
def test_a_cpu_only_run_needs_every_signal_but_reads_of_a_device_it_has_not(hook):
    found = diagnose(window(make_steps(100, HEALTHY), probe=probe(False, without=(hook,))))
    assert found.status == ("healthy" if hook == "sync" else "abstained")


@pytest.mark.parametrize(
    "reason", ["the probe gave up inside the script", "40,000 records of the probe were lost"]
)
def test_a_broken_probe_abstains_whatever_else_was_seen(reason):
    for usual in (HEALTHY, STARVED):
        found = diagnose(
            window(make_steps(100, usual), loaders=(loader(),), missing={"probe": reason})
        )
        assert (found.status, found.healthy, found.verdict) == ("abstained", None, None)
        assert reason in found.note


def test_a_run_whose_probe_never_reported_is_abstained_not_without_steps():
    found = diagnose(window([], probe={}, missing={"probe": "PYTHONPATH was cleared"}))
    assert found.status == "abstained"
    assert "PYTHONPATH was cleared" in found.note


def test_steps_without_a_probe_state_are_not_believed():
    found = diagnose(window(make_steps(100, HEALTHY), probe={}))
    assert found.status == "abstained"


@pytest.mark.parametrize("label", ["logging", "gc", "compile", "comm", "h2d", "restart"])
def test_a_large_cost_is_named_or_abstained_from_and_never_called_healthy(label):
    found = diagnose(window(make_steps(300, {"forward": 6, "backward": 2, label: 2})))
    if found.status == "abstained":
        assert any(a.id == label and "20%" in a.missing for a in found.abstained)
    else:
        assert CLAIMS[found.verdict.id] == label
        assert found.verdict.lost_share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("state", "gap"),
    [
        ({"flags": {"anomaly": True}}, "anomaly-mode"),
        ({"dynamo": {"recompiles": 8}}, "recompilation"),
    ],
)
def test_a_mode_known_to_cost_time_is_not_called_healthy(state, gap):
    found = diagnose(window(make_steps(100, HEALTHY), probe=probe(False, **state)))
    named = [found.verdict] if found.verdict is not None else found.abstained
    assert found.healthy is not True
    assert gap in [one.id for one in named]


def test_recompiling_that_ended_with_warm_up_is_not_called_healthy():
    steady = make_steps(100, HEALTHY)
    slow_start = totals_of(make_steps(10, {"forward": 100, "compile": 300}) + steady)
    state = probe(False, dynamo={"unique_graphs": 8, "recompiles": None})
    found = diagnose(window(steady, whole=slow_start, probe=state))
    assert found.status == "abstained"
    assert found.abstained[0].id == "recompilation"
    # One graph that took long to compile is how compiling is.
    once = probe(False, dynamo={"unique_graphs": 1, "recompiles": None})
    assert diagnose(window(steady, whole=slow_start, probe=once)).status == "healthy"


def test_user_code_outside_the_model_is_named_by_function_on_a_cpu():
    found = diagnose(
        window(
            make_steps(100, {"forward": 5, "other": 5}),
            sites=(site("sample", 77, label="host_compute", func="pair_loss", count=90),),
        )
    )
    assert found.status == "abstained"
    assert "pair_loss" in found.note and "77" in found.note


LEAKING = list(np.linspace(3e8, 5e8, 240))


def test_a_leak_is_a_verdict_though_it_loses_no_time_yet():
    found = diagnose(window(make_steps(400, HEALTHY | {"forward": 60}), memory=LEAKING))
    assert found.verdict.id == "memory-leak"
    assert found.healthy is False


def test_a_leak_that_ends_the_run_within_the_hour_comes_before_lost_time():
    found = diagnose(
        window(
            make_steps(400, STARVED),
            loaders=(loader(epochs=3),),
            memory=list(np.linspace(3e8, 2e9, 240)),
        )
    )
    assert found.verdict.id == "memory-leak"
    assert [f.id for f in found.also] == ["input-bound"]


def test_a_slow_leak_yields_to_lost_time():
    steps = make_steps(400, {label: 1000 * ms for label, ms in STARVED.items()})
    found = diagnose(window(steps, loaders=(loader(epochs=3),), memory=LEAKING))
    assert found.verdict.id == "input-bound"
    assert [f.id for f in found.also] == ["memory-leak"]


@given(
    st.dictionaries(st.sampled_from(LABELS), st.floats(0.01, 50), min_size=1, max_size=6),
    st.integers(1, 120),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 100)),
    st.one_of(st.none(), st.floats(0, 1)),
    st.sets(st.sampled_from(HOOKS)),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_any_window_at_all_gets_one_consistent_answer(
    usual, count, on_gpu, util, dry, absent, with_loader
):
    def made():
        steps = make_steps(count, usual, dry=dry if on_gpu else None)
        return window(
            steps,
            on_gpu=on_gpu,
            util=util if on_gpu else None,
            probe=probe(on_gpu, without=sorted(absent)),
            loaders=(loader(),) if with_loader else (),
            sites=(site("eval", 61, count=0),) if with_loader else (),
            intervals=tuple(
                i for label in ("checkpoint", "eval") for i in intervals_of(steps, label)
            ),
        )

    found = diagnose(made())
    assert found == diagnose(made())
    assert (found.verdict is not None) == (found.status == "verdict")
    assert found.healthy == {"verdict": False, "healthy": True}.get(found.status)
    assert len(found.also) <= 2
    if found.verdict is not None:
        assert count >= 20
        assert found.verdict.severity in ("warn", "critical")
        causes = [f for f in found.also if f.severity != "info"]
        assert all(f.lost_share * (1 - NOISE) <= found.verdict.lost_share for f in causes)
        assert found.verdict.severity == "warn" or count >= 50
    for finding in (*filter(None, [found.verdict]), *found.also):
        assert 0 <= finding.lost_share <= 1
        assert finding.where or finding.where_missing
        assert finding.evidence and finding.advice and len(finding.advice) <= 3
        if finding.gain and finding.gain.expected:
            low, high = finding.gain.expected
            assert low <= high
            assert finding.gain.ceiling is None or high <= finding.gain.ceiling + 1e-9
    if found.healthy:
        assert not absent & (set(HEALTHY_HOOKS) - ({"sync"} if not on_gpu else set()))
        assert count >= 20
        assert not on_gpu or util is not None
        assert all(f.severity == "info" for f in found.also)
    if found.status == "abstained":
        assert found.abstained


def test_a_rule_that_fails_takes_no_other_rule_with_it_and_no_run_is_healthy_then(monkeypatch):
    def broken(made):
        raise ZeroDivisionError("division by zero")

    rules = (*all_rules(), Rule("broken", 45, broken))
    monkeypatch.setattr(engine, "all_rules", lambda: rules)
    found = diagnose(window(make_steps(100, STARVED), loaders=(loader(),)))
    assert found.verdict.id == "input-bound"
    (said,) = [a for a in found.abstained if a.id == "broken"]
    assert "ZeroDivisionError" in said.missing
    assert diagnose(window(make_steps(100, HEALTHY))).status == "abstained"


def test_live_a_loader_is_not_called_fast_while_its_first_queue_lasts():
    feeding = loader(num_workers=16, prefetch_factor=4, batches=70)
    usual = {"data_wait": 1, "forward": 100}
    made = {"loaders": (feeding,), "workers": [0.5] * 16}
    young = diagnose(window(make_steps(60, usual), final=False, **made))
    assert (young.status, young.healthy) == ("too-early", None)
    assert young.note.startswith("70 of 84 steps seen")
    assert diagnose(window(make_steps(90, usual), final=False, **made)).status == "healthy"
    assert diagnose(window(make_steps(60, usual), **made)).status == "healthy"
    slow = {"data_wait": 60, "forward": 100}
    assert diagnose(window(make_steps(60, slow), final=False, **made)).status == "verdict"
