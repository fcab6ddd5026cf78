"""What a trial was asked for, how long its legs are, and who runs beside whom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_train.launch.options import Setting, Target, UsageProblem, WhatIf
from gputop_train.trial.plan import (
    MEASURE_S,
    STEPS,
    Extent,
    Plan,
    extent,
    first_extent,
    named,
    parse_arms,
    warmup_of,
)
from gputop_train.trial.record import Arm
from gputop_train.trial.rounds import blocks
from gputop_train.trial.standing import Candidate

MS = 1_000_000
SCRIPT = Target("script", ("train.py",))


def asked(**more: object) -> Plan:
    return Plan(SCRIPT, **more)  # type: ignore[arg-type]


def test_each_option_is_a_candidate_and_commas_make_one_of_several() -> None:
    one, two, three = parse_arms(
        ["num_workers=4,pin_memory=true", "num_workers@a,b.py:41=2"], ["replay_batch=9"]
    )
    assert one.settings == (Setting("num_workers", 4), Setting("pin_memory", True))
    assert one.name == "num_workers=4, pin_memory=true"
    assert two.settings == (Setting("num_workers", 2, "a,b.py:41"),)
    assert three.what_if == (WhatIf("replay_batch", 9),)
    assert three.name == "replay_batch=9"


@pytest.mark.parametrize(
    "given_twice",
    [["num_workers=2", "num_workers=2"], ["num_workers=2,num_workers=3"]],
)
def test_what_is_given_twice_is_refused(given_twice: list[str]) -> None:
    with pytest.raises(UsageProblem, match="twice"):
        parse_arms(given_twice, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("replay_batch=2", "from 8 on"),
        ("sync_every=x", "whole number"),
        ("skip_checkpoint=3", "takes no number"),
        ("num_workers=4", "--set num_workers=4"),
        ("nothing", "It can do"),
    ],
)
def test_a_what_if_that_makes_no_sense_says_what_does(text: str, told: str) -> None:
    with pytest.raises(UsageProblem, match=told):
        parse_arms([], [text])


def test_a_what_if_without_a_number_has_its_usual_one() -> None:
    replay, skip = parse_arms([], ["replay_batch", "skip_checkpoint"])
    assert (replay.name, replay.what_if[0].value) == ("replay_batch=8", 8)
    assert (skip.name, skip.what_if[0].value) == ("skip_checkpoint", True)


def test_names_stay_apart() -> None:
    arms = named([Arm("a"), Arm("a"), Arm("baseline")], ["baseline"])
    assert len({arm.name for arm in arms} | {"baseline"}) == 4


def test_usual_steps_leave_the_legs_as_asked() -> None:
    found = extent(asked(), (), step_ns=[100 * MS] * 75, ended_by_itself=False, loaders=())
    assert (found.warmup, found.steps, found.remeasure) == (10, STEPS, False)


def test_warm_up_covers_what_workers_made_ahead() -> None:
    arms = parse_arms(["num_workers=8", "num_workers=2,prefetch_factor=3"], [])
    script = {"num_workers": 0, "prefetch_factor": None}
    found = extent(asked(), arms, step_ns=[100 * MS] * 75, ended_by_itself=False, loaders=[script])
    assert found.warmup == 8 * 2 + 1
    assert any("16 batches ahead" in why for why in found.why)
    # Two batches a step: the queue is drained in half as many.
    halved = extent(
        asked(),
        arms,
        step_ns=[100 * MS] * 75,
        ended_by_itself=False,
        loaders=[script],
        batches_per_step=2.0,
    )
    assert halved.warmup == 10


def test_batches_to_be_replayed_are_drawn_within_the_warm_up() -> None:
    arms = parse_arms([], ["replay_batch=30"])
    assert first_extent(asked(arms=arms)).warmup == 34
    loaders = [{"num_workers": 2, "prefetch_factor": 2}]
    found = extent(
        asked(arms=arms), arms, step_ns=[100 * MS] * 95, ended_by_itself=False, loaders=loaders
    )
    assert found.warmup == 4 + 34 + 1


def test_short_steps_make_long_legs_and_the_first_does_not_count() -> None:
    found = extent(asked(), (), step_ns=[MS] * 300, ended_by_itself=False, loaders=())
    assert found.steps == pytest.approx(MEASURE_S * 1000, rel=0.01)
    assert found.warmup == 500 and found.remeasure
    assert any("Legs measure" in why for why in found.why)


def test_steps_that_were_asked_for_are_kept() -> None:
    found = extent(
        asked(steps=20, warmup=5), (), step_ns=[MS] * 300, ended_by_itself=False, loaders=()
    )
    assert (found.warmup, found.steps, found.remeasure) == (5, 20, False)


def test_a_script_that_ends_early_is_measured_on_what_it_has() -> None:
    found = extent(asked(), (), step_ns=[100 * MS] * 40, ended_by_itself=True, loaders=())
    assert found.warmup + found.steps <= 40 and found.steps >= 30
    assert found.bounded and not found.remeasure
    assert "40 steps" in found.why[0]


@given(
    total=st.integers(0, 200),
    step_ms=st.floats(0.01, 5000),
    workers=st.integers(0, 64),
    ended=st.booleans(),
)
def test_legs_always_fit_a_script_that_ends(
    total: int, step_ms: float, workers: int, ended: bool
) -> None:
    found = extent(
        asked(),
        (),
        step_ns=[int(step_ms * MS)] * total,
        ended_by_itself=ended,
        loaders=[{"num_workers": workers, "prefetch_factor": 2}],
    )
    assert found.warmup >= 1 and found.steps >= 0
    if ended and total > 1:
        assert found.warmup + found.steps <= max(total, found.warmup)


def test_an_arm_found_by_a_search_gets_the_warm_up_it_needs() -> None:
    wide = Arm("num_workers=32", (Setting("num_workers", 32),))
    loaders = [{"num_workers": 0, "prefetch_factor": None}]
    assert warmup_of(asked(), wide, Extent(10, 60), loaders) == 65
    assert warmup_of(asked(warmup=3), wide, Extent(3, 60), loaders) == 3
    assert warmup_of(asked(), wide, Extent(10, 20, bounded=True), loaders) == 10


def run_order(names: Sequence[str], rounds: int, *, opens: bool) -> list[list[str]]:
    """The legs of all rounds, ``-`` the baseline; the one that opened it among them."""
    candidates = [Candidate(Arm(name)) for name in names]
    return [
        [one.arm.name if one else "-" for one in block]
        for at in range(1, rounds + 1)
        for block in blocks(candidates, at, opens=opens and at == 1)
    ]


def test_one_candidate_and_the_baseline_take_turns() -> None:
    assert run_order("a", 4, opens=True) == [["-", "a"], ["a", "-"], ["-", "a"], ["a", "-"]]


@given(count=st.integers(1, 7), rounds=st.integers(1, 6), opens=st.booleans())
def test_every_candidate_runs_beside_the_baseline_once_a_round(
    count: int, rounds: int, opens: bool
) -> None:
    names = "abcdefg"[:count]
    order = run_order(names, rounds, opens=opens)
    for block in order:
        assert block.count("-") == 1 and 2 <= len(block) <= 3
        if len(block) == 3:
            assert block[1] == "-"
    told = [name for block in order for name in block if name != "-"]
    assert all(told.count(name) == rounds for name in names)
