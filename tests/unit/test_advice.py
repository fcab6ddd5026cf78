from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_windows import MS, make_steps, window

from gputop_train.diagnose.advice import (
    Periodic,
    checkpoint_advice,
    periodic,
    periodic_gain,
    rarer,
)
from gputop_train.diagnose.loading_model import LoadModel, plan_workers
from gputop_train.model import Interval


def model(**changes) -> LoadModel:
    values = {
        "prepare_ms": 60.0,
        "step_ms": 70.0,
        "floor_ms": 10.0,
        "cores": 16.0,
        "trainer_cores": 1.0,
        "shared": False,
    }
    return LoadModel(**(values | changes))


def test_a_save_in_each_step_is_one_a_step_and_two_calls_in_a_step_are_one():
    steps = make_steps(200, {"forward": 10, "checkpoint": 60})
    saves = [
        Interval(0, "checkpoint", s.t0_ns + at * MS, s.t0_ns + (at + 30) * MS, 1)
        for s in steps
        for at in (0, 30)
    ]
    made = periodic(window(steps, intervals=tuple(saves)), "checkpoint", 6 / 7)
    assert (made.count, made.every) == (200, 1.0)
    assert made.cost_ms == pytest.approx(60)
    assert "every step" in checkpoint_advice(made, ())[0].text


def test_saves_that_only_the_sampler_saw_keep_their_distance_where_it_missed_some():
    # Every 6 steps; the sampler did not look into two of twenty.
    missed = {30, 72}

    def extra(i):
        return {"checkpoint": 40} if i % 6 == 0 and i not in missed else {}

    steps = make_steps(120, {"forward": 10, "backward": 12}, extra=extra)
    made = periodic(window(steps), "checkpoint", 0.2)
    assert made.every == 6
    assert made.count == 20


def test_enough_workers_to_keep_up_and_no_more():
    plan = plan_workers(model())
    # 60 ms of preparation against 10 ms of compute: 6 at best, 9 at 70% efficiency.
    assert 6 <= plan.workers <= 9
    assert plan.high == pytest.approx(7.0)


def test_one_core_is_left_to_the_trainer_of_a_gpu():
    assert plan_workers(model(cores=4, prepare_ms=600, step_ms=610)).workers == 3
    assert plan_workers(model(cores=1, prepare_ms=600, step_ms=610)).workers == 1


def test_slow_preparation_on_few_cores_is_forecast_by_the_cores_not_by_the_ceiling():
    plan = plan_workers(model(cores=4, prepare_ms=600, step_ms=610))
    assert plan.high <= 610 / (600 / 3) + 1e-9
    assert plan.high < 610 / 10


def test_where_the_cpu_trains_both_share_its_cores():
    plan = plan_workers(
        model(shared=True, cores=2, prepare_ms=80, step_ms=100, floor_ms=20, trainer_cores=1.0)
    )
    assert plan.workers == 2
    assert plan.high <= 2.0
    assert plan.low > 1.2


def test_training_fills_no_more_than_every_core_whatever_preparation_used():
    # Two cores busy all the time, by threads that spin between the parallel parts of loading too.
    plan = plan_workers(
        model(
            shared=True,
            cores=2,
            prepare_ms=32.2,
            step_ms=45.7,
            floor_ms=13.5,
            trainer_cores=1.98,
            threads=2,
        )
    )
    assert plan.high == pytest.approx(45.7 / ((32.2 + 2 * 13.5) / 2))


def test_a_trainer_that_uses_every_core_leaves_little_to_gain():
    busy = model(shared=True, cores=2, prepare_ms=20, step_ms=100, floor_ms=80, trainer_cores=1.8)
    idle = model(shared=True, cores=8, prepare_ms=20, step_ms=100, floor_ms=80, trainer_cores=1.8)
    assert plan_workers(busy).high < plan_workers(idle).high
    assert plan_workers(busy).high == pytest.approx(100 / 90)


@given(
    prepare=st.floats(0.1, 1000),
    rest=st.floats(0.1, 1000),
    cores=st.integers(1, 128),
    trainer=st.one_of(st.none(), st.floats(0.1, 8)),
    shared=st.booleans(),
    threads=st.one_of(st.none(), st.integers(1, 64)),
)
@settings(max_examples=300, deadline=None)
def test_a_forecast_is_a_range_below_the_ceiling_for_a_number_of_workers_that_fits(
    prepare, rest, cores, trainer, shared, threads
):
    made = model(
        prepare_ms=prepare,
        step_ms=prepare + rest,
        floor_ms=rest,
        cores=float(cores),
        trainer_cores=trainer,
        shared=shared,
        threads=threads,
    )
    plan = plan_workers(made)
    assert 1 <= plan.workers <= max(1, cores)
    assert 0 < plan.low <= plan.high <= (prepare + rest) / rest * (1 + 1e-9)


def test_rarer_is_the_first_round_number_below_one_percent():
    pattern = Periodic(count=5, cost_ms=100, every=10, step_ms=10, share=0.5)
    every = rarer(pattern)
    assert every == 1000
    assert pattern.share_at(every) <= 0.01 < pattern.share_at(500)


def test_a_pattern_seen_once_has_no_period_to_stretch():
    pattern = Periodic(count=1, cost_ms=100, every=None, step_ms=10, share=0.2)
    assert rarer(pattern) is None
    gain = periodic_gain(pattern, "saving")
    assert gain.ceiling == pytest.approx(1.25)
    assert gain.expected is None


@given(st.floats(1, 10_000), st.floats(1, 500), st.floats(0.1, 1000))
@settings(max_examples=200, deadline=None)
def test_the_gain_of_rarer_saves_lies_between_nothing_and_the_ceiling(cost, every, step):
    share = cost / (every * step + cost)
    gain = periodic_gain(Periodic(3, cost, every, step, share), "saving")
    if gain.expected is not None:
        assert 1 - 1e-9 <= gain.expected[0] <= gain.expected[1] <= gain.ceiling * (1 + 1e-9)
        assert gain.ceiling == pytest.approx(1 + cost / (every * step), rel=1e-6)


def test_a_busy_neighbour_lowers_what_is_promised_not_what_is_possible():
    quiet = model(shared=True, cores=2, prepare_ms=80, step_ms=100, floor_ms=20)
    beside = model(shared=True, cores=2, prepare_ms=80, step_ms=100, floor_ms=20, foreign_cores=2.0)
    assert plan_workers(beside).low < plan_workers(quiet).low
    assert plan_workers(beside).high == plan_workers(quiet).high
