"""Every driver sample arrives once, at its own time, whatever the clocks and the driver do."""

import itertools
import time

import pytest

from gputop_train.collect.clock import WallMap, measure_offset_ns
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.utilisation import UtilReader
from tests.nvml_replay import NOT_FOUND, NOT_SUPPORTED, RECORDING, WALL_US, FakeNvml, recorded_card

MONO_NS = 5_000_000_000_000
OFFSET_NS = WALL_US * 1000 - MONO_NS
HOUR_US = 3_600_000_000


class Replay:
    """Reads a card as the collector would, on clocks the test sets."""

    def __init__(self, card, since_ns=MONO_NS):
        self.nvml = FakeNvml(card)
        self.card = card
        self.api = NvmlApi(self.nvml)
        self.api.start()
        self.reader = UtilReader(since_ns)
        self.wall = WallMap()
        self.step_us = 0
        self.taken: list[tuple[int, float]] = []

    def at(self, seconds):
        now_ns = MONO_NS + round(seconds * 1e9)
        self.nvml.now_us = WALL_US + round(seconds * 1e6)
        self.wall = self.wall.observed(OFFSET_NS + self.step_us * 1000, now_ns)
        samples = self.reader.read(self.api, self.card, now_ns, self.wall)
        self.taken += samples
        return samples

    def every(self, period_s, until_s, from_s=0.0):
        for tick in range(int((until_s - from_s) / period_s) + 1):
            self.at(from_s + tick * period_s)


def expected(from_s=0.0, until_s=99.0):
    return [
        (MONO_NS + round(t * 1e6) * 1000, float(util))
        for t, util in RECORDING["samples"]
        if from_s < t <= until_s
    ]


def step_wall_clock(card, at_s, by_us):
    """The driver stamps what it takes after ``at_s`` with the new wall clock."""
    card.samples = [
        (taken, stamp + by_us if taken - WALL_US > at_s * 1e6 else stamp, util)
        for taken, stamp, util in card.samples
    ]


@pytest.mark.parametrize("period_s", [0.07, 0.25, 1.0, 5.0])
def test_every_sample_arrives_once_with_its_own_time(period_s):
    replay = Replay(recorded_card())
    replay.every(period_s, until_s=10)
    assert replay.taken == expected()


def test_samples_of_before_the_run_are_left_out():
    replay = Replay(recorded_card(), since_ns=MONO_NS + 3_000_000_000)
    replay.every(0.25, until_s=10, from_s=3.0)
    assert replay.taken == expected(from_s=3.0)


def test_a_supervisor_that_takes_over_fetches_what_it_missed():
    replay = Replay(recorded_card(), since_ns=MONO_NS)
    assert replay.at(8.9) == expected(until_s=8.9)


def replay_with_step(by_us):
    card = recorded_card()
    step_wall_clock(card, at_s=4.0, by_us=by_us)
    replay = Replay(card)
    replay.every(0.25, until_s=3.75)
    replay.step_us = by_us
    replay.every(0.25, until_s=10, from_s=4.0)
    return replay


@pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US, 300_000, -300_000])
def test_a_step_of_the_wall_clock_neither_loses_nor_doubles_nor_moves_a_sample(by_us):
    assert replay_with_step(by_us).taken == expected()


@pytest.mark.parametrize("by_us", [40_000, -40_000])
def test_a_small_step_moves_only_the_sample_it_falls_upon_and_by_no_more_than_itself(by_us):
    taken = replay_with_step(by_us).taken
    assert [util for _, util in taken] == [util for _, util in expected()]
    moved = [abs(t - e) for (t, _), (e, _) in zip(taken, expected(), strict=True) if t != e]
    assert moved == [40_000_000]


def test_two_steps_in_a_row_are_followed():
    card = recorded_card()
    step_wall_clock(card, at_s=3.0, by_us=HOUR_US)
    step_wall_clock(card, at_s=5.0, by_us=-HOUR_US)
    replay = Replay(card)
    replay.every(0.25, until_s=3.0)
    replay.step_us = HOUR_US
    replay.every(0.25, until_s=5.0, from_s=3.25)
    replay.step_us = 0
    replay.every(0.25, until_s=10, from_s=5.25)
    assert replay.taken == expected()


def test_a_stamp_of_another_clock_is_dropped_and_the_rate_polled_instead():
    card = recorded_card(start_us=77_000_000, rate=64)  # counts from its own start
    replay = Replay(card)
    replay.every(0.25, until_s=6)
    assert replay.taken
    assert {util for _, util in replay.taken} == {64.0}
    assert all(t_ns > MONO_NS + 3_000_000_000 for t_ns, _ in replay.taken)


def test_a_percentage_beyond_100_is_no_measurement():
    card = recorded_card()
    card.samples[3] = (*card.samples[3][:2], 4_000_000)
    replay = Replay(card)
    replay.every(0.25, until_s=10)
    assert replay.taken == [e for at, e in enumerate(expected()) if at != 3]


def test_without_samples_the_rate_is_polled_and_repeats_are_taken_out():
    card = recorded_card(failing={"nvmlDeviceGetSamples": NOT_SUPPORTED})
    replay = Replay(card)
    changes = 0
    for t, util, _ in RECORDING["poll"][1:]:
        changes += util != card.rate
        card.rate = util
        replay.at(t)
    polls = len(RECORDING["poll"]) - 1
    assert changes <= len(replay.taken) < polls * 0.6  # the driver moved on every second poll
    true_mean = sum(p[1] for p in RECORDING["poll"]) / len(RECORDING["poll"])
    mean = sum(util for _, util in replay.taken) / len(replay.taken)
    assert mean == pytest.approx(true_mean, abs=10)


def test_a_constant_polled_rate_still_makes_a_sample_a_second():
    replay = Replay(recorded_card(failing={"nvmlDeviceGetSamples": NOT_SUPPORTED}, rate=100))
    replay.every(0.25, until_s=10)
    times = [t_ns for t_ns, _ in replay.taken]
    assert len(times) == 10  # the run's first instant is not a sample of the run
    assert {b - a for a, b in itertools.pairwise(times)} == {1_000_000_000}


def test_a_driver_that_falls_silent_is_polled_until_its_samples_return():
    card = recorded_card(rate=7)
    replay = Replay(card)
    replay.every(0.25, until_s=1)
    card.failing["nvmlDeviceGetSamples"] = NOT_FOUND
    replay.every(0.25, until_s=6, from_s=1.25)
    del card.failing["nvmlDeviceGetSamples"]
    replay.every(0.25, until_s=10, from_s=6.25)
    polled = [s for s in replay.taken if s not in expected()]
    assert polled
    assert {util for _, util in polled} == {7.0}
    assert replay.taken == sorted(replay.taken)
    assert replay.taken[-5:] == expected()[-5:]


def test_a_card_without_utilisation_says_so_instead_of_zero():
    card = recorded_card(
        failing={
            "nvmlDeviceGetSamples": NOT_SUPPORTED,
            "nvmlDeviceGetUtilizationRates": NOT_SUPPORTED,
        }
    )
    with pytest.raises(NvmlFailure) as caught:
        Replay(card).at(0.25)
    assert caught.value.kind == "unsupported"


def test_a_stamp_no_offset_explains_has_no_time():
    wall = WallMap().observed(OFFSET_NS, MONO_NS).observed(OFFSET_NS + 10**12, MONO_NS + 10**9)
    assert wall.to_monotonic(OFFSET_NS + MONO_NS - 10**9, MONO_NS, MONO_NS + 10**9) is None
    assert wall.to_monotonic(OFFSET_NS + MONO_NS + 10**14, MONO_NS, MONO_NS + 10**9) is None
    assert wall.to_monotonic(OFFSET_NS + MONO_NS + 5, MONO_NS, MONO_NS + 10**9) == MONO_NS + 5


def test_slewing_and_scheduling_are_no_step():
    wall = WallMap()
    for tick in range(1000):
        wall = wall.observed(OFFSET_NS + tick * 1000, MONO_NS + tick * 250_000_000)
    assert len(wall.offsets) == 1


def test_old_offsets_are_forgotten():
    wall = WallMap().observed(OFFSET_NS, MONO_NS).observed(OFFSET_NS + 10**12, MONO_NS + 10**9)
    assert len(wall.offsets) == 2
    assert len(wall.observed(OFFSET_NS + 10**12, MONO_NS + 100 * 10**9).offsets) == 1


def test_the_measured_offset_maps_now_to_now():
    wall = WallMap().observed(measure_offset_ns(), time.monotonic_ns())
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    after_ns = time.monotonic_ns()
    slack_ns = 5_000_000
    t_ns = wall.to_monotonic(wall_ns, before_ns - slack_ns, after_ns + slack_ns)
    assert t_ns is not None
