"""The device over time, from the driver's samples or the run's processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gputop_train.diagnose.shape import classify
from gputop_train.model import GpuSample, ProcSample
from gputop_train.store.rollup import UtilRollup
from gputop_train.tui import series
from gputop_train.tui.plot import average, latest
from gputop_train.tui.snapshot import Axis, Chart, Series
from gputop_train.tui.text import milliseconds

_NS = 1_000_000_000
#: Driver samples the shape is read from: at five a second, the newest two minutes. It bounds what
#: the reading costs, about 20 ms.
SHAPE_SAMPLES = 600
#: Training this long over, the newest reading says nothing about it.
LATE_NS = 2 * _NS


def gpu_chart(
    util: Mapping[str, series.Samples],
    rollups: Sequence[UtilRollup],
    sm: Mapping[str, series.Samples],
    gpu: Sequence[GpuSample],
    axis: Axis,
    device: str,
    *,
    training: tuple[int, int] | None = None,
    shape: str = "",
    over: bool = False,
) -> Chart | None:
    """Utilisation as the driver sampled it; the mean over the run's GPUs if it uses several.

    Args:
        util: The newest samples by device.
        rollups: Seconds before them.
        sm: SM activity by device.
        gpu: Power and temperature, the newest last.
        axis: The bins.
        device: The GPU by name.
        training: First to last step on the axis. Means are over that time: how idle a GPU was
            while the script imported torch is no property of the training.
        shape: From `shape_words`.
        over: Whether training has ended: then nothing is "now".
    """
    area = util_of(util, rollups, axis)
    if area is None:
        return None
    devices = set(util) | {r.uuid for r in rollups}
    line = _sm_line(sm, axis, training)
    whole = util_of(util, rollups, _within(axis, training))
    now, mean = latest(area.mean), whole.mean[0] if whole is not None else None
    ends = [int(s.times[-1]) for s in util.values()] + [r.t1_ns for r in rollups]
    late = over or (training is not None and max(ends) > training[1] + LATE_NS)
    facts = [f"{now:.0f}% now"] if now is not None and not late else []
    facts += [f"{mean:.0f}% mean"] if mean is not None else []
    facts += [f"shape {shape}"] if shape else []
    if line is not None and line.average is not None:
        facts.append(f"SM active {line.average:.0f}%")
    facts += _electric(gpu) if len(devices) == 1 else []
    name = (
        f"{len(devices)} GPUs, mean utilisation"
        if len(devices) > 1
        else f"{device or 'GPU'} utilisation"
    )
    return Chart(name, "gpu", area, line, tuple(facts))


def _within(axis: Axis, training: tuple[int, int] | None) -> Axis:
    """One bin of the time of training on the axis, or of all of it: means at any width agree."""
    first, last = training or (axis.t0_ns, axis.t1_ns)
    first, last = max(first, axis.t0_ns), min(last, axis.t1_ns)
    return Axis(first, last, 1) if last > first else Axis(axis.t0_ns, axis.t1_ns, 1)


def shape_words(
    util: Mapping[str, series.Samples], training: tuple[int, int], clocks: Mapping[str, float]
) -> str:
    """The series' shape and its period, such as ``periodic, 2.7 s (save)``; empty if not known.

    Args:
        util: Samples by device; of several there is no one shape.
        training: First to last step: only samples of that time count.
        clocks: Known periods of the loop in seconds. A cycle too fast for the driver's sampling
            shows up at a wrong period; only one that a clock explains gets a number.
    """
    if len(util) != 1:
        return ""
    ((times, values),) = util.values()
    first, last = np.searchsorted(times, training[0]), np.searchsorted(times, training[1], "right")
    times, values = times[first:last][-SHAPE_SAMPLES:], values[first:last][-SHAPE_SAMPLES:]
    if not len(times):
        return ""
    shape = classify(((times - times[0]) / _NS).tolist(), values.tolist(), clocks)
    if shape.label == "unknown":
        return ""
    if shape.period_s is None:
        return shape.label
    clock = f" ({shape.clock})" if shape.clock else ""
    return f"{shape.label}, {milliseconds(shape.period_s * 1000)}{clock}"


def _electric(gpu: Sequence[GpuSample]) -> list[str]:
    if not gpu:
        return []
    newest = gpu[-1]
    out = []
    if newest.power_w is not None:
        limit = f" of {newest.power_limit_w:.0f}" if newest.power_limit_w else ""
        out.append(f"{newest.power_w:.0f}{limit} W")
    if newest.temperature_c is not None:
        out.append(f"{newest.temperature_c} C")
    return out


def util_of(
    util: Mapping[str, series.Samples], rollups: Sequence[UtilRollup], axis: Axis
) -> Series | None:
    """Utilisation by bin, the mean over devices; ``None`` without a sample."""
    means: list[tuple[float | None, ...]] = []
    peaks: list[tuple[float | None, ...]] = []
    for samples in util.values():
        begins = series.spans_of(samples.times)
        means.append(series.mean_by_bin(begins, samples.times, samples.values, axis))
        peaks.append(series.peak_by_bin(begins, samples.times, samples.values, axis))
    seconds: dict[str, list[UtilRollup]] = {}
    for rollup in rollups:
        seconds.setdefault(rollup.uuid, []).append(rollup)
    for rows in seconds.values():
        begins = np.asarray([row.t0_ns for row in rows], np.int64)
        ends = np.asarray([row.t1_ns for row in rows], np.int64)
        means.append(series.mean_by_bin(begins, ends, [row.mean for row in rows], axis))
        peaks.append(series.peak_by_bin(begins, ends, [row.hi for row in rows], axis))
    if not means:
        return None
    return Series("util", _across(means, largest=False), _across(peaks, largest=True))


def _across(rows: Sequence[tuple[float | None, ...]], *, largest: bool) -> tuple[float | None, ...]:
    if len(rows) == 1:
        return rows[0]
    out: list[float | None] = []
    for column in zip(*rows, strict=True):
        known = [value for value in column if value is not None]
        out.append((max(known) if largest else sum(known) / len(known)) if known else None)
    return tuple(out)


def _sm_line(
    sm: Mapping[str, series.Samples], axis: Axis, training: tuple[int, int] | None
) -> Series | None:
    """SM activity, the mean over the run's GPUs as the utilisation above it."""
    if not sm:
        return None

    def mean_on(bins: Axis) -> tuple[float | None, ...]:
        rows = [
            series.mean_by_bin(series.spans_of(known.times), *known, bins) for known in sm.values()
        ]
        return _across(rows, largest=False)

    return Series("SM active", mean_on(axis), average=mean_on(_within(axis, training))[0])


def cpu_chart(
    procs: Sequence[ProcSample], cores: float | None, axis: Axis, *, over: bool = False
) -> Chart | None:
    """Cores the run's processes keep busy, in percent of those it may use.

    Args:
        procs: Readings of the processes.
        cores: Cores the run may use.
        axis: The bins.
        over: Whether training has ended: then nothing is "now".
    """
    if not cores:
        return None
    by_time: dict[int, float] = {}
    for sample in procs:
        if sample.cpu is not None:
            by_time[sample.t_ns] = by_time.get(sample.t_ns, 0.0) + sample.cpu
    if not by_time:
        return None
    times = sorted(by_time)
    values = [min(100.0, by_time[t] / cores * 100) for t in times]
    begins = series.spans_of(times)
    area = Series(
        "cpu",
        series.mean_by_bin(begins, times, values, axis),
        series.peak_by_bin(begins, times, values, axis),
    )
    busy = by_time[times[-1]]
    mean = average(area.mean)
    allowed = f"{cores:.1f}".removesuffix(".0")
    facts = [] if over else [f"{busy:.1f} of {allowed} cores now"]
    of = f" of {allowed} cores" if over else ""
    facts += [f"{mean:.0f}% mean{of}"] if mean is not None else []
    return Chart("CPU of this run", "cpu", area, None, tuple(facts))
