from __future__ import annotations

import pytest
from synthetic_windows import intervals_of, make_steps, probe, site, window

from gputop_train.diagnose.rules import gc_pause
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

FEW_FREED = [[0, 0, 0], [3, 6_000_000, 210], [20, 4_000_000_000, 900]]


def judge(every, pause, *, freed=FEW_FREED, frozen=0, **more):
    steps = make_steps(
        400, {"forward": 30}, extra=lambda i: {"gc": pause} if i % every == every - 1 else {}
    )
    state = {"generations": freed, "frozen": frozen, "threshold": [700, 10, 10]}
    more.setdefault("probe", probe(more.get("on_gpu", False), gc=state))
    return gc_pause.judge(window(steps, intervals=tuple(intervals_of(steps, "gc")), **more))


def test_a_collection_of_200_ms_every_20_steps_is_named_with_what_to_freeze():
    found = judge(20, 200)
    assert isinstance(found, Finding)
    assert (found.id, found.severity) == ("gc-pause", "critical")
    assert found.lost_share == pytest.approx(0.25)
    assert "gc.freeze()" in found.advice[0].text
    # 200 ms at most 1% of 30 ms steps: 667 steps, said as 700.
    assert "every 700 steps" in found.advice[1].text and "(700, 10, 10)" in found.advice[1].text
    assert found.where == () and "at no line" in found.where_missing
    assert found.gain.ceiling == pytest.approx(1 / 0.75)


def test_pauses_that_free_a_lot_are_not_told_to_be_switched_off_first():
    found = judge(20, 200, freed=[[0, 0, 0], [0, 0, 0], [20, 4_000_000_000, 900_000]])
    assert "cycles" in found.advice[0].text and "45,000 objects" in found.advice[0].text


def test_a_line_that_collects_is_named():
    line = site("sample", 77, label="host_compute", call="gc.collect()")
    found = judge(1, 10, sites=(line,))
    assert [w.line for w in found.where] == [77]
    assert "out of the loop (train.py:77)" in found.advice[0].text


@pytest.mark.parametrize("freed", [FEW_FREED, [[0, 0, 0], [0, 0, 0], [20, 4_000_000_000, 900_000]]])
def test_a_call_of_ones_own_is_not_told_to_be_switched_off_with_the_collector(freed):
    line = site("sample", 77, label="host_compute", call="gc.collect()")
    text = " ".join(step.text for step in judge(1, 10, sites=(line,), freed=freed).advice)
    assert "gc.disable()" not in text and "set_threshold" not in text


def test_a_planned_collection_is_a_full_one_as_measured():
    assert "gc.collect() every 700 steps" in judge(20, 200).advice[1].text


def test_frozen_objects_are_not_frozen_again():
    assert "gc.freeze()" not in " ".join(a.text for a in judge(20, 200, frozen=90_000).advice)


def test_short_or_rare_pauses_are_silent():
    assert isinstance(judge(200, 100), RuledOut)
    assert isinstance(judge(1, 1.4), RuledOut)  # 4.5% of each step


def test_a_pause_while_the_gpu_works_costs_nothing():
    # Steps with a pause are no longer than the others: the queue was full.
    steps = make_steps(
        400,
        {"gpu_wait": 5, "forward": 25},
        extra=lambda i: {"gc": 5, "gpu_wait": -5} if i % 2 else {},
    )
    assert isinstance(gc_pause.judge(window(steps, on_gpu=True)), RuledOut)


def test_without_its_hook_it_is_not_judged():
    assert isinstance(judge(20, 200, probe=probe(False, without=("gc",))), Abstention)
