from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_windows import loader, make_steps, window

from gputop_train.diagnose.shape import classify, clocks_of, shape_of
from gputop_train.model import Interval

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "h200_util_shapes.json").read_text(encoding="utf-8")
)["shapes"]


def recorded(name: str) -> tuple[list[float], list[float]]:
    samples = RECORDED[name]["samples"]
    return [t for t, _ in samples], [u for _, u in samples]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("steady", "saturated"),
        ("saw_500_500", "periodic"),
        ("saw_100_200", "periodic"),
        ("saw_5_5", "flat-low"),
        ("saw_20_80", "flat-low"),
        ("launch", "flat-low"),
        ("erratic", "erratic"),
        ("idle", "idle"),
    ],
)
def test_every_recorded_h200_load_has_its_shape(name, shape):
    assert classify(*recorded(name)).label == shape


def test_a_cycle_of_one_second_is_found_and_matched_with_the_step():
    found = classify(*recorded("saw_500_500"), {"step": 1.05, "save": 7.0})
    assert found.period_s == pytest.approx(1.05, rel=0.1)
    assert found.clock == "step"
    assert not found.aliased


def test_a_300_ms_step_folded_by_200_ms_samples_is_recognised_by_its_clock():
    found = classify(*recorded("saw_100_200"), {"step": 0.3})
    assert (found.clock, found.aliased) == ("step", True)
    assert found.period_s == pytest.approx(0.3)


def test_a_folded_cycle_without_a_clock_gets_no_number():
    found = classify(*recorded("saw_100_200"))
    assert found.aliased
    assert found.period_s is None
    assert found.clock is None


def test_a_period_that_no_clock_of_the_loop_has_is_not_given_one():
    assert classify(*recorded("saw_500_500"), {"step": 0.123}).clock is None


def test_the_first_sample_carries_the_previous_load_and_is_left_out():
    t, u = recorded("idle")
    assert u[0] == 17
    assert classify(t, [100.0, *u[1:]]).label == "idle"


def test_too_few_samples_have_no_shape():
    assert classify([0.0, 0.2, 0.4], [50.0, 50.0, 50.0]).label == "unknown"
    assert classify([], []).label == "unknown"


def test_four_cycles_are_not_yet_a_period():
    t = np.arange(0, 8, 0.2)
    u = 50 + 50 * np.sign(np.sin(2 * np.pi * t / 2.0))
    assert classify(list(t), list(u)).label == "erratic"
    t = np.arange(0, 14, 0.2)
    u = 50 + 50 * np.sign(np.sin(2 * np.pi * t / 2.0))
    assert classify(list(t), list(u)).label == "periodic"


@pytest.mark.parametrize("seed", range(12))
def test_random_bursts_are_erratic_not_periodic(seed):
    rng = np.random.default_rng(seed)
    busy: list[float] = []
    while len(busy) < 3000:  # 20 ms slices
        busy += [100.0] * int(rng.exponential(40) + 1) + [0.0] * int(rng.exponential(60) + 1)
    box = np.array(busy[:3000]).reshape(-1, 10).mean(axis=1)
    assert classify(list(np.arange(300) * 0.2), list(box)).label == "erratic"


def test_a_change_of_load_makes_two_regimes():
    rng = np.random.default_rng(0)
    t = np.arange(0, 60, 0.2)
    u = np.where(t < 20, 20.0, 97.0) + rng.normal(0, 1.5, len(t))
    found = classify(list(t), list(u))
    assert [r.label for r in found.regimes] == ["flat-low", "saturated"]
    assert found.regimes[0].t1_s == pytest.approx(20, abs=0.5)
    assert found.label == "saturated"  # of the longer one


def test_long_saves_in_a_busy_run_are_one_periodic_regime():
    t = np.arange(0, 120, 0.2)
    u = np.where((t % 15.0) < 3.0, 0.0, 96.0)
    found = classify(list(t), list(u), {"step": 0.25, "save": 15.0})
    assert found.label == "periodic"
    assert found.clock == "save"
    assert len(found.regimes) == 1


def test_a_windows_shape_uses_its_own_clocks():
    steps = make_steps(100, {"forward": 200, "backward": 300, "data_wait": 500})
    t = np.arange(0, 100, 0.2)
    util = 50 + 49 * np.sign(np.sin(2 * np.pi * t / 1.0 + 0.1))
    found = shape_of(window(steps, on_gpu=True, util=list(util)))
    assert found.label == "periodic"
    assert found.clock == "step"


def test_the_clocks_of_a_loop():
    steps = make_steps(
        200,
        {"forward": 100},
        extra=lambda i: (
            {"logging": 1} if i % 10 == 5 else {"checkpoint": 900} if i % 50 == 49 else {}
        ),
    )
    saves = [Interval(0, "checkpoint", s.t0_ns, s.t1_ns) for s in steps if s.labels["checkpoint"]]
    feeding = loader(num_workers=4, length=40, epochs=5, batches=200)
    clocks = clocks_of(window(steps, loaders=(feeding,), intervals=tuple(saves)))
    assert clocks["step"] == pytest.approx(0.1)
    assert clocks["workers x step"] == pytest.approx(0.4)
    assert clocks["log"] == pytest.approx(1.0, abs=0.02)
    assert clocks["save"] == pytest.approx(5.92, abs=0.05)
    assert clocks["epoch"] == pytest.approx(40 * 0.1181, abs=0.01)


def test_an_epoch_is_as_long_as_the_loop_makes_it():
    steps = make_steps(200, {"forward": 100})
    early = loader(length=1000, epochs=20, batches=400)  # the loop leaves after 20 of 1,000
    assert clocks_of(window(steps, loaders=(early,)))["epoch"] == pytest.approx(2.0)


def test_logging_in_every_step_is_no_clock_of_its_own():
    steps = make_steps(200, {"forward": 100, "logging": 1})
    assert "log" not in clocks_of(window(steps))


def test_a_dip_every_ten_steps_is_matched_with_the_log():
    steps = make_steps(
        600, {"forward": 200}, extra=lambda i: {"logging": 1000} if i % 10 == 5 else {}
    )
    period = 3.0
    t = np.arange(0, 180, 0.2)
    util = np.where((t % period) < 1.0, 0.0, 97.0)
    found = shape_of(window(steps, on_gpu=True, util=list(util)))
    assert (found.label, found.clock) == ("periodic", "log")
    assert found.period_s == pytest.approx(period, rel=0.05)
