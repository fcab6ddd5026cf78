"""Where a loop changes its way of running, and where it only swings."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_windows import make_steps

from gputop_train.diagnose.regimes import MAX_REGIMES, ends, regimes, stretch
from gputop_train.model import ProcSample
from gputop_train.store.rollup import roll_up, second

STARVED = {"data_wait": 64, "forward": 16, "backward": 20}
FED = {"data_wait": 1, "forward": 16, "backward": 20}


def changing(*ways, noise=0.0, seed=0):
    """Steps of several ways of running, one after another: ``(count, usual)`` each."""
    rng = np.random.default_rng(seed)
    bounds = np.cumsum([count for count, _ in ways])

    def extra(i):
        way = ways[int(np.searchsorted(bounds, i, side="right"))][1]
        return {k: v * max(0.1, 1 + noise * rng.normal()) for k, v in way.items()}

    return make_steps(int(bounds[-1]), {}, extra=extra)


def by_second(steps):
    seconds = {}
    for step in steps:
        seconds.setdefault(second(step.t1_ns), []).append(step)
    return [roll_up(group) for group in seconds.values()]


def test_a_loop_that_never_changes_is_one_regime():
    assert regimes(make_steps(500, FED)) == [0]
    assert regimes([]) == []
    assert regimes(make_steps(3, FED)) == [0]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_a_slow_first_epoch_is_a_regime_of_its_own(noise):
    steps = changing((200, STARVED), (600, FED), noise=noise)
    first, change = regimes(steps)
    assert first == 0
    assert change == pytest.approx(200, abs=10)


def test_a_loader_that_dries_up_half_way_makes_a_second_regime():
    assert regimes(changing((400, FED), (400, STARVED), noise=0.1))[1] == pytest.approx(400, abs=10)


def test_seconds_of_steps_are_segmented_as_steps_are():
    steps = changing((200, STARVED), (600, FED), noise=0.1)
    parts = by_second(steps)
    change = parts[regimes(parts)[1]]
    assert change.first_idx == pytest.approx(200, abs=40)


@pytest.mark.parametrize("seed", range(10))
def test_steps_of_very_different_length_are_no_change(seed):
    rng = np.random.default_rng(seed)
    factors = rng.lognormal(0, 0.6, 600)
    steps = make_steps(600, {}, extra=lambda i: {k: v * factors[i] for k, v in FED.items()})
    assert regimes(steps) == [0]


@pytest.mark.parametrize("every", [7, 60])
def test_interruptions_are_events_in_a_regime(every):
    steps = make_steps(
        600, FED, extra=lambda i: {"checkpoint": 900} if i % every == every - 1 else {}
    )
    assert regimes(steps) == [0]


def test_a_bursty_loader_is_one_regime():
    steps = make_steps(600, FED, extra=lambda i: {"data_wait": 900} if i % 15 == 0 else {})
    assert regimes(steps) == [0]


def test_a_slow_start_of_every_epoch_is_a_cycle_and_no_change():
    epoch = [(80, STARVED), (120, FED)]
    assert regimes(changing(*epoch * 4, noise=0.1)) == [0]


def test_there_are_few_regimes_however_much_a_loop_changes():
    ways = [(200, {"forward": 10.0 * 2**k}) for k in range(8)]
    found = regimes(changing(*ways))
    assert 2 <= len(found) <= MAX_REGIMES
    assert found == sorted(found)


def test_one_long_wait_is_no_regime():
    steps = make_steps(600, FED, extra=lambda i: {"data_wait": 20_000} if i == 300 else {})
    assert regimes(steps) == [0]


def test_a_stretch_sums_its_steps_and_what_its_processes_read():
    steps = make_steps(100, FED, extra=lambda i: {"eval": 100} if i == 50 else {})
    middle = steps[50].t0_ns
    procs = [
        ProcSample(middle, pid, "worker", read_bytes_per_s=1e6, rchar_per_s=None)
        for pid in (20, 21)
    ]
    late = ProcSample(steps[-1].t1_ns + 1, 20, "worker", read_bytes_per_s=9e9)
    found = stretch(steps, [*procs, late])
    assert found.steps == 100
    assert found.first_step == 0
    assert found.step_ms == pytest.approx(37)
    assert found.shares["eval"] == pytest.approx(100 / 3800)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.read_bytes_per_s == pytest.approx(2e6)
    assert found.rchar_per_s is None
    assert stretch([]) is None


def test_the_ends_of_a_run_never_touch():
    steps = make_steps(300, FED)
    first, last = ends(steps, 60_000_000_000)
    third = (steps[-1].t1_ns - steps[0].t0_ns) // 3
    assert first[-1].t1_ns - first[0].t0_ns <= third
    assert last[0].t0_ns > first[-1].t1_ns
    assert ends([], 1) == ((), ())


def test_a_host_that_grows_slower_is_a_change_only_where_time_is_asked_for():
    slower = {label: 1.5 * ms for label, ms in FED.items()}
    steps = changing((300, FED), (300, slower), noise=0.1)
    assert len(regimes(steps)) == 2
    assert regimes(steps, by_time=False) == [0]
    assert len(regimes(changing((300, FED), (300, STARVED)), by_time=False)) == 2
