from __future__ import annotations

import numpy as np
import pytest

from gputop_train.diagnose.stats import (
    contrast,
    mann_kendall,
    median,
    quantile,
    ratio_interval,
    theil_sen,
)


def test_no_values_have_no_median():
    assert median([]) is None
    assert quantile([], 0.95) is None


def test_a_contrast_finds_the_planted_difference_within_its_interval():
    rng = np.random.default_rng(1)
    without = rng.normal(100, 3, 80)
    found = contrast(list(without + 25), list(without))
    assert found is not None
    assert found.difference == pytest.approx(25, abs=0.01)
    assert found.low < 25 < found.high
    assert found.low > 20


def test_fewer_than_20_steps_in_an_arm_cannot_be_told():
    assert contrast([10.0] * 19, [5.0] * 500) is None
    assert contrast([10.0] * 500, [5.0] * 19) is None
    assert contrast([10.0] * 20, [5.0] * 20) is not None


def test_the_bootstrap_gives_the_same_interval_every_time():
    values = list(np.random.default_rng(2).normal(10, 2, 60))
    assert contrast(values, values[::2]) == contrast(values, values[::2])
    assert ratio_interval(values, values[::-1]) == ratio_interval(values, values[::-1])


def test_a_ratio_interval_holds_the_ratio():
    walls = list(np.random.default_rng(3).uniform(8, 12, 200))
    low, high = ratio_interval([w * 0.3 for w in walls], walls) or (0, 0)
    assert low <= 0.3 + 1e-12 and high >= 0.3 - 1e-12
    assert ratio_interval([1.0] * 5, [2.0] * 5) is None


def test_theil_sen_is_not_moved_by_a_few_wild_values():
    x = list(range(40))
    y = [3.0 * v for v in x]
    y[5], y[30] = 9_000.0, -9_000.0
    assert theil_sen(x, y) == pytest.approx(3.0)
    assert theil_sen([1, 1], [2, 3]) is None


def test_mann_kendall_tells_a_trend_from_noise():
    rng = np.random.default_rng(4)
    noise = rng.normal(0, 1, 40)
    assert mann_kendall(list(noise)) > 0.01
    assert mann_kendall(list(noise + np.arange(40) * 0.3)) < 0.001
    assert mann_kendall(list(noise - np.arange(40) * 0.3)) > 0.5


def test_mann_kendall_of_a_constant_is_no_trend():
    assert mann_kendall([5.0] * 30) == 1.0
    assert mann_kendall([1.0, 2.0]) == 1.0
