from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import intervals_of, make_steps, probe, site, window

from gputop_train.diagnose import engine
from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.rules import recompilation
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

GUARD = "tensor 'ids' size mismatch at index 1. expected 216, actual 136"
USUAL = {"forward": 6, "backward": 10, "optimizer": 3}


def dynamo(recompiles, *, graphs=None, reasons=None, failures=36, guard=GUARD):
    rows = [["forward", "/home/ann/train.py", 28, guard, failures]] if recompiles else []
    return probe(
        False,
        dynamo={
            "recompiles": recompiles,
            "unique_graphs": graphs if graphs is not None else (recompiles or 0) + 1,
            "graph_breaks": 0,
            "reasons": rows if reasons is None else reasons,
        },
    )


def settled(state, compiled_ms=400):
    """Eight slow steps at the start, left out as warm-up, then nothing: as torch 2.13 does it."""
    steady = make_steps(100, USUAL)
    slow = make_steps(10, USUAL, extra=lambda i: {"compile": compiled_ms} if i < 9 else {})
    return window(steady, whole=totals_of(slow + steady), probe=state)


def test_a_function_at_the_limit_is_named_though_its_stalls_ended_with_warm_up():
    found = recompilation.judge(settled(dynamo(8)))
    assert isinstance(found, Finding)
    assert (found.id, found.severity, found.confidence) == ("recompilation", "critical", "high")
    assert [(w.line, w.what) for w in found.where] == [(28, "forward(...)")]
    assert "runs eagerly" in found.summary
    assert GUARD in found.advice[0].text and "dynamic=True" in found.advice[0].text
    assert found.gain.at_least


def test_a_cheap_backend_at_the_limit_is_still_a_warning():
    assert recompilation.judge(settled(dynamo(8), compiled_ms=1)).severity == "warn"


def test_recompiling_all_the_way_costs_its_share():
    steps = make_steps(200, USUAL, extra=lambda i: {"compile": 40} if i % 10 == 0 else {})
    made = window(
        steps, intervals=tuple(intervals_of(steps, "compile")), probe=dynamo(4, failures=10)
    )
    found = recompilation.judge(made)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(40 / 230)
    assert {e.what: e.value for e in found.evidence}["one compilation, mean"] == 40


def test_a_number_that_is_compiled_in_is_answered_with_a_tensor():
    guard = "L['self'].temperature == 0.93"
    found = recompilation.judge(settled(dynamo(8, guard=guard)))
    text = " ".join(a.text for a in found.advice)
    assert guard in text and "torch.tensor" in text and "dynamic=True" not in text


def test_the_first_compilation_is_how_compiling_is():
    assert isinstance(recompilation.judge(settled(dynamo(0), compiled_ms=4000)), RuledOut)


def compiled_at(places, state, **more):
    steps = make_steps(200, USUAL, extra=lambda i: {"compile": 1300} if i in places else {})
    return window(steps, intervals=tuple(intervals_of(steps, "compile")), probe=state, **more)


def test_two_recompilations_of_a_last_short_batch_are_how_a_size_becomes_dynamic():
    # A Sequential under torch.compile with a short batch now and then, as measured.
    said = recompilation.judge(compiled_at({9, 10}, dynamo(2, failures=3)))
    assert isinstance(said, RuledOut)


def test_recompilations_that_have_ended_are_information():
    assert recompilation.judge(compiled_at({9, 30, 50}, dynamo(4, failures=10))).severity == "info"
    assert recompilation.judge(compiled_at({9, 90, 170}, dynamo(4, failures=10))).severity != "info"


def test_a_frame_of_torchs_own_is_not_shown_as_the_persons_line():
    rows = [["inner", "/usr/lib/site-packages/torch/_dynamo/external_utils.py", 67, GUARD, 36]]
    call = site("sample", 45, label="forward", call="compiled(x)", count=50)
    made = settled(dynamo(8, reasons=rows))
    found = recompilation.judge(replace(made, sites=(call,)))
    assert [(w.line, w.what) for w in found.where] == [(45, "compiled(x)")]
    assert recompilation.judge(made).where == ()


def test_one_recompilation_that_makes_a_size_dynamic_is_fine():
    assert isinstance(recompilation.judge(settled(dynamo(1, failures=1))), RuledOut)


def test_many_functions_compiled_twice_are_not_at_the_limit_of_one():
    rows = [[f"f{n}", "/home/ann/train.py", n, GUARD, 1] for n in range(10)]
    assert isinstance(recompilation.judge(settled(dynamo(10, reasons=rows))), RuledOut)


def test_without_torch_compile_it_is_silent_and_without_counters_it_abstains():
    assert isinstance(recompilation.judge(window(make_steps(100, USUAL))), RuledOut)
    steps = make_steps(100, USUAL | {"compile": 5})
    assert isinstance(recompilation.judge(window(steps)), Abstention)


def test_graphs_without_a_count_of_recompilations_are_not_judged():
    state = dynamo(None, graphs=8, reasons=[])
    assert isinstance(recompilation.judge(settled(state)), Abstention)


def test_stalls_that_ended_with_the_warm_up_of_a_short_run_are_not_below_the_floor():
    # Sixty steps of 10 ms: the steady second alone would make the loss too small for a line.
    steady = make_steps(50, {"forward": 3, "backward": 6, "optimizer": 1})
    slow = make_steps(10, USUAL, extra=lambda i: {"compile": 400} if i < 9 else {})
    found = engine.diagnose(window(steady, whole=totals_of(slow + steady), probe=dynamo(8)))
    assert found.verdict is not None
    assert found.verdict.id == "recompilation"
