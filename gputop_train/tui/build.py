"""From the store's records to the parts of a `Snapshot`. Pure: no files, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any

import numpy as np

from gputop_train.model import (
    LABELS,
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Step,
    UtilSample,
)
from gputop_train.report import settings
from gputop_train.store.rollup import LoaderDepth, StepRollup, UtilRollup
from gputop_train.tui import series
from gputop_train.tui.snapshot import (
    Axis,
    Chart,
    HostView,
    Lane,
    LoaderView,
    Mark,
    MemoryView,
    RunView,
    Series,
    StepView,
)

#: Lanes below this share of the window are not worth a row.
LANE_FLOOR = 0.005
#: Points of the queue's history next to the workers.
DEPTH_POINTS = 12


def run_view(run: Mapping[str, Any], probe: Mapping[str, Any] | None) -> RunView:
    """What was launched, from ``run.json`` and the probe's newest words."""
    script = run.get("script")
    command = [str(word) for word in run.get("command") or []]
    title = PurePath(script).name if isinstance(script, str) and script else " ".join(command)
    became = settings.outcomes(run, () if probe is None else (probe,))
    changed = tuple(settings.mark(setting) for setting in became)
    return RunView(
        id=str(run.get("id", "")),
        script=title or "?",
        name=str(run.get("name") or ""),
        device=device_name(probe),
        changed=changed,
    )


def device_name(probe: Mapping[str, Any] | None) -> str:
    """The GPU the trainer uses, such as ``GPU 0 H200``; empty without one."""
    cuda = (probe or {}).get("cuda") or {}
    if not cuda.get("initialized") and not cuda.get("name"):
        return ""
    index = cuda.get("device")
    name = str(cuda.get("name") or "").removeprefix("NVIDIA ").strip()
    return " ".join(part for part in ("GPU", "" if index is None else str(index), name) if part)


def lanes(
    steps: Sequence[Step] | Sequence[StepRollup], axis: Axis
) -> tuple[tuple[Lane, ...], list[float]]:
    """Phase lanes of the window, and each label's share in the order of `model.LABELS`."""
    table = np.asarray(
        [[step.labels.get(label, 0) for label in LABELS] for step in steps], dtype=np.float64
    ).reshape(-1, len(LABELS))
    by_bin, whole = series.shares_by_bin(
        [step.t0_ns for step in steps], [step.t1_ns for step in steps], table, axis
    )
    kept = tuple(
        Lane(label, share, values)
        for label, share, values in zip(LABELS, whole, by_bin, strict=True)
        if share >= LANE_FLOOR
    )
    return kept, whole


def step_view(
    newest: Sequence[Step], rollups: Sequence[StepRollup], *, count: int, total: int | None
) -> StepView:
    """How long steps take.

    Args:
        newest: The newest steps in full, for median and 95th percentile.
        rollups: The window's seconds, for the mean step and its parts; falls back on ``newest``.
        count: Steps since the start.
        total: Steps after which the run stops, if so.
    """
    if not newest:
        return StepView(count, total)
    walls = [step.wall_ns / 1e6 for step in newest]
    source: Sequence[Step] | Sequence[StepRollup] = rollups or newest
    n = sum(rollup.n for rollup in rollups) or len(newest)
    sums = {label: sum(item.labels.get(label, 0) for item in source) for label in LABELS}
    wall_s = sum(sums.values()) / 1e9
    samples = [item.samples for item in source]
    known = [value for value in samples if value is not None]
    rate = sum(known) / wall_s if wall_s > 0 and known and len(known) == len(samples) else None
    return StepView(
        count=count,
        total=total,
        window_steps=n,
        median_ms=median(walls),
        p95_ms=series.quantile(walls, 0.95) if len(walls) >= 20 else None,
        parts=tuple((label, ns / 1e6 / n) for label, ns in sums.items() if ns > 0),
        samples_per_s=rate if rate else None,
    )


def gpu_chart(
    util: Sequence[UtilSample],
    rollups: Sequence[UtilRollup],
    gpm: Sequence[GpmSample],
    gpu: Sequence[GpuSample],
    axis: Axis,
    device: str,
) -> Chart | None:
    """Utilisation as the driver sampled it; the mean over the run's GPUs if it uses several."""
    area = _util_area(util, rollups, axis)
    if area is None:
        return None
    devices = {s.uuid for s in util} | {r.uuid for r in rollups}
    line = _gpm_line(gpm, axis)
    now, mean = series.latest(area.mean), series.average(area.mean)
    facts = [f"{now:.0f}% now"] if now is not None else []
    facts += [f"{mean:.0f}% mean"] if mean is not None else []
    if line is not None and (sm := series.average(line.mean)) is not None:
        facts.append(f"SM active {sm:.0f}%")
    facts += _electric(gpu)
    name = (
        f"{len(devices)} GPUs, mean utilisation"
        if len(devices) > 1
        else f"{device or 'GPU'} utilisation"
    )
    return Chart(name, "gpu", area, line, tuple(facts))


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


def _util_area(
    util: Sequence[UtilSample], rollups: Sequence[UtilRollup], axis: Axis
) -> Series | None:
    means: list[tuple[float | None, ...]] = []
    peaks: list[tuple[float | None, ...]] = []
    by_uuid: dict[str, list[UtilSample]] = {}
    for sample in util:
        by_uuid.setdefault(sample.uuid, []).append(sample)
    for samples in by_uuid.values():
        times = [s.t_ns for s in samples]
        begins, values = series.spans_of(times), [s.util for s in samples]
        means.append(series.mean_by_bin(begins, times, values, axis))
        peaks.append(series.peak_by_bin(begins, times, values, axis))
    seconds: dict[str, list[UtilRollup]] = {}
    for rollup in rollups:
        seconds.setdefault(rollup.uuid, []).append(rollup)
    for rows in seconds.values():
        begins = [row.sec * 1_000_000_000 for row in rows]
        ends = [begin + 1_000_000_000 for begin in begins]
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


def _gpm_line(gpm: Sequence[GpmSample], axis: Axis) -> Series | None:
    """SM activity of the first device; several would not be told apart as lines."""
    if not gpm:
        return None
    first = gpm[0].uuid
    known = [(s.t_ns, s.sm) for s in gpm if s.uuid == first and s.sm is not None]
    if not known:
        return None
    times = [t for t, _ in known]
    mean = series.mean_by_bin(series.spans_of(times), times, [sm for _, sm in known], axis)
    return Series("SM active", mean)


def cpu_chart(procs: Sequence[ProcSample], cores: float | None, axis: Axis) -> Chart | None:
    """Cores the run's processes keep busy, in percent of those it may use."""
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
    mean = series.average(area.mean)
    allowed = f"{cores:.1f}".removesuffix(".0")
    facts = [f"{busy:.1f} of {allowed} cores now"]
    facts += [f"{mean:.0f}% mean"] if mean is not None else []
    return Chart("CPU used by this run", "cpu", area, None, tuple(facts))


def allowed_cores(host: HostSample | None) -> float | None:
    """Cores this run may use: affinity, and the cgroup's quota where that is less."""
    if host is None:
        return None
    limits = [float(n) for n in (host.cpus_allowed or host.cpus_total, host.cpu_quota) if n]
    return min(limits) if limits else None


def marks(intervals: Sequence[Interval], axis: Axis) -> tuple[Mark, ...]:
    """Checkpoints and evaluations that began within the axis, one mark per cell."""
    seen: dict[int, Mark] = {}
    for interval in intervals:
        column = axis.column(interval.t0_ns)
        if column is None:
            continue
        if interval.label == "checkpoint":
            seen[column] = Mark("checkpoint", column)
        elif interval.label == "eval":
            seen.setdefault(column, Mark("eval", column))
    return tuple(seen[column] for column in sorted(seen))


def memory_view(
    samples: Sequence[MemorySample], gpu: Sequence[GpuSample], host: HostSample | None
) -> MemoryView | None:
    """The newest allocator state with the end of the device, or of RAM for a CPU run."""
    if not samples:
        return None
    newest = samples[-1]
    if newest.basis == "cuda-allocator":
        total = next((g.memory_total for g in reversed(gpu) if g.memory_total), None)
    else:
        limits = [n for n in (host.mem_limit, host.mem_total) if n] if host is not None else []
        total = min(limits) if limits else None
    return MemoryView(
        basis=newest.basis,
        allocated=newest.allocated,
        reserved=newest.reserved,
        peak=newest.peak_reserved if newest.peak_reserved is not None else newest.peak_allocated,
        total=total,
    )


def loader_view(
    loaders: Sequence[Loader],
    depths: Sequence[LoaderDepth],
    procs: Sequence[ProcSample],
    axis: Axis,
) -> LoaderView | None:
    """The loader that feeds training (or, until one is known to, the busiest)."""
    if not loaders:
        return None
    loader = max(loaders, key=lambda one: (one.feeds_training, one.rank == 0, one.batches))
    newest: dict[int, float | None] = {}
    for sample in procs:
        if sample.role == "worker":
            newest[sample.pid] = sample.cpu
    mine = [d for d in depths if d.loader_id == loader.id and d.rank == loader.rank]
    depth = _thin([d.ready for d in mine], DEPTH_POINTS)
    capacity = loader.num_workers * (loader.prefetch_factor or 0) or None
    return LoaderView(
        num_workers=loader.num_workers,
        place=f"{PurePath(loader.file).name}:{loader.line}",
        cpu=tuple(newest.get(pid) for pid in loader.worker_pids),
        ready=mine[-1].ready if mine else loader.ready,
        capacity=capacity,
        depth=depth,
    )


def _thin(values: Sequence[int | None], points: int) -> tuple[int | None, ...]:
    """At most ``points`` values, evenly picked, the newest always among them."""
    if len(values) <= points:
        return tuple(values)
    stride = len(values) / points
    return tuple(values[round((position + 1) * stride) - 1] for position in range(points))


def host_view(host: HostSample | None, procs: Sequence[ProcSample]) -> HostView | None:
    """The machine's cores and what the run reads."""
    if host is None:
        return None
    newest = max((p.t_ns for p in procs), default=None)
    reads = [
        p.read_bytes_per_s for p in procs if p.t_ns == newest and p.read_bytes_per_s is not None
    ]
    return HostView(
        cores_busy=host.cpu_busy,
        cores_total=host.cpus_total,
        cores_allowed=allowed_cores(host),
        read_bytes_per_s=sum(reads) if reads else None,
    )
