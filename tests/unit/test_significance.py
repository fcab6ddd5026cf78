"""Causes against chance: what coincides, what swings together by accident, what was once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic_windows import MS, loader, make_steps, window

from gputop_train.diagnose import significance
from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.significance import circular_shift, idle_follows
from gputop_train.model import Finding, UtilSample

UUID = "GPU-aaaa"


def stalls(seed, n=300, length=4, spells=15):
    """Which of ``n`` samples of 200 ms a cause covers: spells at random."""
    rng = np.random.default_rng(seed)
    covered = np.zeros(n)
    for start in rng.integers(0, n - length, spells):
        covered[start : start + length] = 1.0
    return covered


@pytest.mark.parametrize("seed", range(10))
def test_idle_time_where_the_cause_is_beats_all_shifts_of_it(seed):
    covered = stalls(seed)
    idle = np.clip(covered + np.random.default_rng(seed + 100).normal(0, 0.2, 300), 0, 1)
    found = circular_shift(covered, idle)
    assert found is not None
    assert found.holds
    assert found.shifts == 200


@pytest.mark.parametrize("seed", range(10))
def test_idle_time_that_has_another_cause_does_not(seed):
    found = circular_shift(stalls(seed), stalls(seed + 1000))
    assert found is not None
    assert not found.holds


def test_a_cycle_is_not_compared_with_shifts_onto_itself():
    covered = np.tile([1.0, 1.0, 0.0, 0.0, 0.0], 60)
    assert circular_shift(covered, covered).holds
    assert not circular_shift(covered, np.roll(covered, 3)).holds


def test_a_flat_series_neither_shows_nor_refutes():
    assert circular_shift(np.full(300, 0.5), np.full(300, 0.5)) is None
    assert circular_shift(stalls(0), np.full(300, 0.5)) is None
    assert circular_shift(stalls(0)[:20], stalls(0)[:20]) is None


def test_a_wait_that_nearly_fills_every_sample_is_as_good_anywhere():
    rng = np.random.default_rng(3)
    covered, idle = np.clip(rng.normal(0.87, 0.07, (2, 90)), 0, 1)
    assert circular_shift(covered, idle) is None


def test_the_same_series_gives_the_same_answer():
    assert circular_shift(stalls(1), stalls(2)) == circular_shift(stalls(1), stalls(2))


def starving(seed, *, follows=True):
    """A GPU run without events: spells of waiting for data; utilisation low there or elsewhere."""
    spells = stalls(seed, spells=45)
    other = stalls(seed + 1000, spells=45)
    steps = make_steps(
        300,
        {},
        extra=lambda i: {"data_wait": 180, "forward": 20} if spells[i] else {"forward": 200},
    )
    idle = spells if follows else other
    # Enough idle time in all for the wait to be exposed by the bound W - busy.
    series = [0.0 if idle[i] else 20.0 for i in range(300)]
    times = [s.t1_ns for s in steps]
    return window(
        steps,
        on_gpu=True,
        loaders=(loader(),),
        missing={"gpu_events": "GPU events are off"},
    ), [UtilSample(t, UUID, u) for t, u in zip(times, series, strict=True)]


def with_util(made):
    base, series = made
    mean = sum(s.util for s in series) / len(series)
    return replace(base, util=tuple(series), util_mean=mean)


def test_idle_follows_the_wait_where_it_caused_it():
    assert idle_follows(with_util(starving(3)), "data_wait").holds
    assert not idle_follows(with_util(starving(3, follows=False)), "data_wait").holds


def test_fast_steps_read_flat_and_are_not_told_apart():
    steps = make_steps(3000, {"data_wait": 10, "forward": 10})
    flat = window(steps, on_gpu=True, util=[50.0] * 300)
    assert idle_follows(flat, "data_wait") is None


def test_a_cause_bounded_by_utilisation_says_that_it_was_tested():
    made = with_util(starving(3))
    found = diagnose(made)
    assert found.verdict is not None and found.verdict.id == "input-bound"
    assert any("random shifts" in e.what for e in found.verdict.evidence)
    assert found.verdict.confidence != "high"


def test_a_cause_whose_idle_time_lies_elsewhere_is_not_named():
    found = diagnose(with_util(starving(3, follows=False)))
    assert found.verdict is None or found.verdict.id != "input-bound"
    (said,) = [a for a in found.abstained if a.id == "input-bound"]
    assert "random shifts" in said.missing
    assert found.healthy is not True


def test_steps_that_wait_are_compared_with_those_that_do_not():
    steps = make_steps(
        400, {"forward": 40}, extra=lambda i: {"data_wait": 60} if i % 4 == 0 else {}
    )
    found = diagnose(window(steps, loaders=(loader(num_workers=4),)))
    (row,) = [e for e in found.verdict.evidence if "steps with such a wait" in e.what]
    assert row.value == pytest.approx(60, abs=1)
    assert row.what.startswith("100 steps")


def test_waiting_steps_that_are_no_longer_than_others_weaken_the_claim():
    rng = np.random.default_rng(0)
    waits = rng.random(400) < 0.5
    steps = make_steps(
        400, {}, extra=lambda i: {"data_wait": 50, "forward": 50} if waits[i] else {"forward": 100}
    )
    firm = make_steps(400, {"data_wait": 25, "forward": 75})
    weak = diagnose(window(steps, loaders=(loader(),))).verdict
    strong = diagnose(window(firm, loaders=(loader(),))).verdict
    order = ["low", "medium", "high"]
    assert order.index(weak.confidence) < order.index(strong.confidence)


def test_a_single_wait_is_no_pattern():
    steps = make_steps(
        400, {"forward": 20}, extra=lambda i: {"data_wait": 3000} if i == 200 else {}
    )
    found = diagnose(window(steps, loaders=(loader(),)))
    assert found.status == "healthy"
    assert "a single wait" in {a.id: a.missing for a in found.ruled_out}["input-bound"]


def test_what_only_one_half_of_the_window_shows_is_less_certain():
    steps = make_steps(400, {"forward": 20}, extra=lambda i: {"data_wait": 20} if i < 120 else {})
    made = window(
        steps,
        loaders=(loader(),),
        halves=(totals_of(steps[:200]), totals_of(steps[200:])),
    )
    found = diagnose(made).verdict
    assert found.confidence != "high"
    (row,) = [e for e in found.evidence if "second half" in e.what]
    assert row.value == "38%, 0%"
    assert steps[0].wall_ns == 40 * MS


def test_a_claim_that_rests_on_other_time_than_its_labels_is_not_measured_by_that():
    steps = make_steps(400, {"forward": 20})
    made = window(steps, halves=(totals_of(steps[:200]), totals_of(steps[200:])))
    claim = Finding("logging-stall", "Previews.", "warn", "high", 0.2)
    assert significance.tested(made, claim) == claim
