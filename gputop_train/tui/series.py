"""Samples and steps onto the bins of a time axis. Pure arithmetic.

Everything measured here holds over a span of time (a driver's sample over its window, a step from
boundary to boundary), so a bin gets the part of each span that lies in it. That keeps sums exact
at any zoom, and a bin nothing was measured in stays ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gputop_train.tui.snapshot import Axis, View

Floats = npt.NDArray[np.float64]
Times = Sequence[int] | npt.NDArray[np.int64]
Values = Sequence[float] | Floats


class Samples(NamedTuple):
    """One device's samples by time, in nanoseconds."""

    times: npt.NDArray[np.int64]
    values: Floats


#: A bin counts as measured when spans cover at least this much of it, or of the newest span.
MIN_COVER = 0.05
#: Spans of the time axis of a young run, in seconds: it grows with the run instead of leaving most
#: of the chart blank, in steps, so that columns keep their place in between.
YOUNG_S = (15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)


def axis_ending(now_ns: int, window_s: float, columns: int) -> Axis:
    """An axis whose bins lie on a fixed grid, so that a passing second moves columns as a whole.

    A bin keeps its value once it is over; otherwise every cell would flicker at every repaint.
    """
    columns = max(1, columns)
    bin_ns = max(1, int(window_s * 1e9) // columns)
    end = (now_ns // bin_ns + 1) * bin_ns
    return Axis(end - columns * bin_ns, end, columns)


def axis_for(now_ns: int, view: View, elapsed_s: float | None) -> Axis:
    """The time axis of a view: as long as asked for, or shorter while the run is young."""
    window_s = view.window_s
    if elapsed_s is not None:
        window_s = min([window_s, *(span for span in YOUNG_S if span >= elapsed_s)])
    return axis_ending(now_ns, window_s, view.columns)


def spread(t0: Times, t1: Times, amounts: Floats, axis: Axis) -> Floats:
    """Distribute each span's amounts evenly over its time and sum them by bin.

    Args:
        t0: Begins of spans that follow each other in time.
        t1: Their ends; where a span begins before the previous one ended, it is cut.
        amounts: Shape (spans, kinds).
        axis: The bins.

    Returns:
        Shape (columns, kinds).
    """
    if not len(t0):
        return np.zeros((axis.columns, amounts.shape[1]))
    # Relative to the axis, nanoseconds fit a double exactly.
    ends = np.maximum.accumulate((np.asarray(t1, np.int64) - axis.t0_ns).astype(np.float64))
    begins = (np.asarray(t0, np.int64) - axis.t0_ns).astype(np.float64)
    begins = np.maximum(begins, np.concatenate(([-np.inf], ends[:-1])))
    begins = np.minimum(begins, ends)
    knots = np.column_stack((begins, ends)).ravel()
    sums = np.vstack((np.zeros((1, amounts.shape[1])), np.cumsum(amounts, axis=0)))
    edges = np.linspace(0.0, float(axis.t1_ns - axis.t0_ns), axis.columns + 1)
    out = np.empty((axis.columns, amounts.shape[1]))
    for kind in range(amounts.shape[1]):
        at_knots = np.column_stack((sums[:-1, kind], sums[1:, kind])).ravel()
        out[:, kind] = np.diff(np.interp(edges, knots, at_knots))
    return out


def spans_of(times: Times) -> npt.NDArray[np.int64]:
    """Begin of the span each sample stands for: the previous sample, unless there was a pause."""
    known = np.asarray(times, np.int64)
    if len(known) < 2:
        return known - 200_000_000
    steps = np.diff(known)
    gaps = np.sort(steps[steps > 0])
    usual = int(gaps[len(gaps) // 2]) if len(gaps) else 200_000_000
    begins = np.where(steps <= 2.5 * usual, known[:-1], known[1:] - usual)
    return np.concatenate((known[:1] - usual, begins))


def mean_by_bin(t0: Times, t1: Times, values: Values, axis: Axis) -> tuple[float | None, ...]:
    """Time-weighted mean of samples by bin; ``None`` where none reached."""
    spans = np.asarray(t1, np.int64) - np.asarray(t0, np.int64)
    lengths = np.maximum(0, spans).astype(np.float64)
    known = np.asarray(values, dtype=np.float64)
    # One sample that is no number would make none of every sum after it.
    lengths[~np.isfinite(known)] = 0.0
    weighted = np.column_stack((np.nan_to_num(known, posinf=0.0, neginf=0.0) * lengths, lengths))
    sums = spread(t0, t1, weighted.reshape(-1, 2), axis)
    enough = MIN_COVER * axis.bin_ns
    return tuple(
        float(total / cover) if cover >= enough else None for total, cover in sums.tolist()
    )


def peak_by_bin(t0: Times, t1: Times, values: Values, axis: Axis) -> tuple[float | None, ...]:
    """Largest sample that touches each bin."""
    known = np.asarray(values, dtype=np.float64)
    bin_ns, most = axis.bin_ns, axis.columns - 1
    first = np.floor((np.asarray(t0, np.int64) - axis.t0_ns) / bin_ns).astype(np.int64)
    last = np.floor((np.asarray(t1, np.int64) - 1 - axis.t0_ns) / bin_ns).astype(np.int64)
    first, last = np.maximum(first, 0), np.minimum(last, most)
    touches = np.where(np.isfinite(known), np.maximum(0, last - first + 1), 0)
    # Each sample once for every bin it touches, and the how manieth of these it is.
    nth = np.arange(touches.sum()) - np.repeat(np.cumsum(touches) - touches, touches)
    out = np.full(axis.columns, -np.inf)
    np.maximum.at(out, np.repeat(first, touches) + nth, np.repeat(known, touches))
    return tuple(None if value == -math.inf else value for value in out.tolist())


def shares_by_bin(
    t0: Sequence[int], t1: Sequence[int], labels: Floats, axis: Axis
) -> tuple[list[tuple[float | None, ...]], list[float]]:
    """Shares of wall time: by label and bin, and by label over the whole axis.

    A bin's shares are of the time steps were measured in, which keeps the newest, half-filled bin
    right.
    """
    sums = spread(t0, t1, labels, axis)
    walls = sums.sum(axis=1)
    measured = walls >= MIN_COVER * axis.bin_ns
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = sums / walls[:, None]
    lanes = [
        tuple(float(v) if ok else None for v, ok in zip(parts[:, k], measured, strict=True))
        for k in range(sums.shape[1])
    ]
    total = float(walls.sum())
    whole = [float(s) / total if total > 0 else 0.0 for s in sums.sum(axis=0)]
    return lanes, whole


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
