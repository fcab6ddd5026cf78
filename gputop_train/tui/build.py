"""From the store's records to the parts of a `Snapshot`. Pure: no files, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import Any

import numpy as np

from gputop_train.collect.devices import match_uuid
from gputop_train.model import (
    LABELS,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Step,
)
from gputop_train.report import settings
from gputop_train.store.rollup import LoaderDepth, StepRollup
from gputop_train.tui import series
from gputop_train.tui.snapshot import (
    Axis,
    HostView,
    Lane,
    LoaderView,
    Mark,
    MemoryView,
    RunView,
    StepView,
)
from gputop_train.tui.text import run_title

#: Lanes below this share of the window are not worth a row.
LANE_FLOOR = 0.005
#: Points of the queue's history next to the workers.
DEPTH_POINTS = 12


def run_view(run: Mapping[str, Any], probe: Mapping[str, Any] | None) -> RunView:
    """What was launched, from ``run.json`` and the probe's newest words."""
    became = settings.outcomes(run, () if probe is None else (probe,))
    changed = tuple(settings.mark(setting) for setting in became)
    return RunView(
        id=str(run.get("id", "")),
        script=run_title(run) or "?",
        name=str(run.get("name") or ""),
        device=device_name(probe),
        changed=changed,
        compared_with=str(run.get("compared_with") or ""),
    )


def device_name(probe: Mapping[str, Any] | None) -> str:
    """The GPU the trainer uses, such as ``GPU 0 H200``; empty without one."""
    cuda = (probe or {}).get("cuda") or {}
    if not cuda.get("initialized") and not cuda.get("name"):
        return ""
    index = cuda.get("device")
    name = str(cuda.get("name") or "").removeprefix("NVIDIA ").strip()
    return " ".join(part for part in ("GPU", "" if index is None else str(index), name) if part)


def card_of(gpu: Sequence[GpuSample], state: Mapping[str, Any]) -> list[GpuSample]:
    """Readings of the card a rank computes on, from those of all cards."""
    known = list(dict.fromkeys(s.uuid for s in gpu))
    cuda = state.get("cuda")
    told = cuda.get("uuid") if isinstance(cuda, Mapping) else None
    uuid = match_uuid(told, known) if isinstance(told, str) else None
    if uuid is None and len(known) == 1:
        uuid = known[0]
    return [s for s in gpu if s.uuid == uuid]


def lanes(steps: Sequence[Step | StepRollup], axis: Axis) -> tuple[tuple[Lane, ...], list[float]]:
    """Phase lanes of the window, and each label's share in the order of `model.LABELS`."""
    table = np.asarray([_amounts(step.labels) for step in steps], dtype=np.float64)
    table = table.reshape(-1, len(LABELS))
    by_bin, whole = series.shares_by_bin(
        [step.t0_ns for step in steps], [step.t1_ns for step in steps], table, axis
    )
    kept = tuple(
        Lane(label, share, values)
        for label, share, values in zip(LABELS, whole, by_bin, strict=True)
        if share >= LANE_FLOOR
    )
    return kept, whole


def _amounts(labels: Mapping[str, int]) -> tuple[int, ...]:
    """In the order of `model.LABELS`, which is that of a store's steps."""
    if tuple(labels) == LABELS:
        return tuple(labels.values())
    return tuple(labels.get(label, 0) for label in LABELS)


def step_view(
    newest: Sequence[Step],
    rollups: Sequence[StepRollup],
    *,
    count: int,
    total: int | None,
    walls_ms: Sequence[float] | None = None,
) -> StepView:
    """How long steps take.

    Args:
        newest: The window's steps in full, or the newest there are.
        rollups: The window's seconds, for the mean step and its parts; falls back on ``newest``.
        count: Steps since the start.
        total: Steps after which the run stops, if so.
        walls_ms: What median and 95th percentile are of; ``None`` = of ``newest``.
    """
    if not newest:
        return StepView(count, total)
    walls = list(walls_ms or (step.wall_ns / 1e6 for step in newest))
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
    samples: Sequence[MemorySample],
    gpu: Sequence[GpuSample],
    host: HostSample | None,
    axis: Axis | None = None,
    used: int | None = None,
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
    # Not every sample carries the peaks, and an allocator's own may be reset by the script.
    for name in ("peak_reserved", "peak_allocated"):
        peak = max((n for s in samples if (n := getattr(s, name)) is not None), default=None)
        if peak is not None:
            break
    return MemoryView(
        basis=newest.basis,
        allocated=newest.allocated,
        reserved=newest.reserved,
        peak=peak,
        total=total,
        used=used if newest.basis == "cuda-allocator" else None,
        history=_held([s for s in samples if s.basis == newest.basis], axis) if axis else (),
    )


def _held(samples: Sequence[MemorySample], axis: Axis) -> tuple[float | None, ...]:
    times = [sample.t_ns for sample in samples]
    held = [float(sample.allocated) for sample in samples]
    return series.mean_by_bin(series.spans_of(times), times, held, axis)


def clocks(median_ms: float | None, intervals: Sequence[Interval]) -> dict[str, float]:
    """Periods of the loop in seconds: a step, and the time from one save or evaluation to the next.

    As `diagnose.shape.clocks_of`, from what is on the screen.
    """
    out = {"step": median_ms / 1e3} if median_ms else {}
    for name, label in (("save", "checkpoint"), ("eval", "eval")):
        starts = sorted(i.t0_ns for i in intervals if i.label == label)
        if len(starts) >= 3:
            out[name] = median(b - a for a, b in itertools.pairwise(starts)) / 1e9
    return out


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
