"""A judged window is let go of: a screen and a supervisor judge thousands of them."""

from __future__ import annotations

import gc

import pytest
from synthetic_windows import make_steps, window

from gputop_train.diagnose import accounting, cards, engine, pool, shape
from gputop_train.diagnose.window import Window, once


def made_window() -> Window:
    steps = make_steps(60, {"data_wait": 60.0, "forward": 20.0, "backward": 20.0})
    return window(steps, on_gpu=True, util=40.0, memory=[1e9] * 20, device_bytes=80 * 10**9)


def windows() -> int:
    gc.collect()
    return sum(isinstance(found, Window) for found in gc.get_objects())


def test_no_window_outlives_its_judgement():
    engine.diagnose(made_window())
    before = windows()
    for _ in range(3):
        engine.diagnose(made_window())
    assert windows() <= before


@pytest.mark.parametrize(
    "make", [accounting.account, cards.loaded, pool.pool, shape.shape_of], ids=lambda f: f.__name__
)
def test_what_is_made_of_a_window_is_made_once(make):
    one = made_window()
    assert make(one) is make(one)


def test_each_window_has_its_own():
    made = once(lambda one: [one.rank])
    one, other = Window(rank=1), Window(rank=2)
    assert (made(one), made(other)) == ([1], [2])
    assert made(one) is made(one)
