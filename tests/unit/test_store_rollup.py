"""A second's rollup says exactly what its steps said."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings

from gputop_train.model import LABELS, UtilSample
from gputop_train.store.rollup import roll_up, roll_up_util
from tests.store_support import SECOND, any_steps, step


@settings(max_examples=40)
@given(any_steps())
def test_sums_extremes_and_median_are_those_of_the_steps(found):
    rollup = roll_up(found)
    walls = [s.wall_ns for s in found]
    assert rollup.n == len(found)
    assert rollup.wall_ns == sum(walls)
    assert (rollup.min_ns, rollup.max_ns) == (min(walls), max(walls))
    assert rollup.median_ns == int(median(walls))
    assert {label: rollup.labels[label] for label in LABELS} == {
        label: sum(s.labels[label] for s in found) for label in LABELS
    }


@settings(max_examples=40)
@given(any_steps())
def test_exposed_idle_is_summed_beside_the_wall_time_of_the_steps_that_measured_it(found):
    exposed = roll_up(found).exposed
    measured = [s for s in found if s.exposed is not None]
    if not measured:
        assert exposed is None
        return
    for label in {label for s in measured for label in s.exposed}:
        having = [s for s in measured if label in s.exposed]
        assert exposed[label] == (
            sum(s.exposed[label] for s in having),
            sum(s.wall_ns for s in having),
        )


def test_samples_are_unknown_as_soon_as_one_step_does_not_know_its_own():
    known, unknown = step(0, SECOND, samples=32), step(1, 2 * SECOND)
    assert roll_up([known, known]).samples == 64
    assert roll_up([known, unknown]).samples is None


def test_dry_is_the_mean_over_the_steps_that_measured_it():
    found = [step(0, SECOND, dry=0.2), step(1, SECOND, dry=0.6), step(2, SECOND)]
    assert roll_up(found).dry == pytest.approx(0.4)
    assert roll_up(found).dry_n == 2
    assert roll_up(found[2:]).dry is None


def test_nothing_cannot_be_rolled_up():
    with pytest.raises(ValueError, match="at least one step"):
        roll_up([])
    with pytest.raises(ValueError, match="at least one sample"):
        roll_up_util([])


def test_utilisation_keeps_mean_and_extremes():
    rollup = roll_up_util(
        [UtilSample(5 * SECOND + i, "GPU-1", u) for i, u in enumerate((0, 90, 30))]
    )
    assert (rollup.sec, rollup.n, rollup.mean, rollup.lo, rollup.hi) == (5, 3, 40.0, 0, 90)
