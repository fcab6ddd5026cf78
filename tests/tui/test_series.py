"""Spans of time land in the right bins, in full, at every zoom."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from gputop_train.tui import series
from gputop_train.tui.snapshot import Axis

S = 1_000_000_000
BASE = 3_000_000 * S  # a month of uptime: times far from zero must not lose precision


@given(
    lengths=st.lists(st.integers(1, 3 * S), min_size=1, max_size=40),
    columns=st.integers(1, 200),
)
@settings(max_examples=80, deadline=None)
def test_what_lies_on_the_axis_is_kept_to_the_nanosecond(lengths: list[int], columns: int) -> None:
    edges = np.concatenate(([0], np.cumsum(lengths))).tolist()
    t0 = [BASE + t for t in edges[:-1]]
    t1 = [BASE + t for t in edges[1:]]
    axis = Axis(BASE - S, BASE + edges[-1] + S, columns)
    out = series.spread(t0, t1, np.asarray(lengths, dtype=float).reshape(-1, 1), axis)
    assert out.sum() == pytest.approx(sum(lengths), abs=1)
    assert (out >= -1).all()
    assert (out <= axis.bin_ns + 1).all()


def test_a_span_across_a_border_is_divided_where_the_border_is() -> None:
    axis = Axis(BASE, BASE + 4 * S, 4)
    out = series.spread([BASE + S // 2], [BASE + S * 5 // 2], np.array([[100.0]]), axis)
    assert out[:, 0].tolist() == pytest.approx([25, 50, 25, 0])


def test_spans_that_overlap_are_not_counted_twice() -> None:
    axis = Axis(BASE, BASE + 2 * S, 2)
    t0, t1 = [BASE, BASE + S // 2], [BASE + S, BASE + 2 * S]
    mean = series.mean_by_bin(t0, t1, [10.0, 30.0], axis)
    assert mean == pytest.approx((10, 30))


def test_a_bin_without_a_sample_is_a_gap_and_not_a_zero() -> None:
    axis = Axis(BASE, BASE + 4 * S, 4)
    times = [BASE + S, BASE + 4 * S]
    mean = series.mean_by_bin([BASE, BASE + 3 * S], times, [0.0, 50.0], axis)
    assert mean == (0.0, None, None, 50.0)


def test_a_pause_in_sampling_is_not_filled_with_the_sample_after_it() -> None:
    times = [BASE + n * S // 5 for n in range(5)] + [BASE + 60 * S]
    begins = series.spans_of(times)
    assert begins[4] == times[3]
    assert begins[5] == times[5] - S // 5


def test_the_peak_of_a_bin_is_its_largest_sample() -> None:
    axis = Axis(BASE, BASE + 2 * S, 2)
    times = [BASE + n * S // 5 for n in range(1, 11)]
    values = [3.0, 57.0, 3.0, 3.0, 3.0, 9.0, 9.0, 8.0, 9.0, 9.0]
    assert series.peak_by_bin(series.spans_of(times), times, values, axis) == (57.0, 9.0)


def test_shares_of_a_half_measured_bin_are_of_what_was_measured() -> None:
    axis = Axis(BASE, BASE + 2 * S, 2)
    labels = np.array([[0.75 * S / 4, 0.25 * S / 4]])
    lanes, whole = series.shares_by_bin([BASE + S], [BASE + S + S // 4], labels, axis)
    assert lanes[0][0] is None
    assert lanes[0][1] == pytest.approx(0.75)
    assert whole == pytest.approx([0.75, 0.25])


@given(now=st.integers(0, 10**18), columns=st.integers(1, 300), window=st.integers(1, 3600))
@settings(max_examples=100, deadline=None)
def test_the_axis_holds_now_and_moves_by_whole_bins(now: int, columns: int, window: int) -> None:
    axis = series.axis_ending(now, window, columns)
    bin_ns = (axis.t1_ns - axis.t0_ns) // columns
    assert axis.t1_ns - bin_ns <= now < axis.t1_ns
    later = series.axis_ending(now + bin_ns // 3, window, columns)
    assert (later.t1_ns - axis.t1_ns) % bin_ns == 0


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 5), (0.95, 10), (0.1, 1), (1.0, 10)])
def test_a_quantile_is_the_nearest_rank(share: float, wanted: float) -> None:
    assert series.quantile([float(n) for n in range(1, 11)], share) == wanted
