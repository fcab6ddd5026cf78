"""Windows made in code for the diagnosis tests: every number in them is chosen by the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gputop_train.diagnose.evidence import totals_of
from gputop_train.diagnose.stats import median, quantile
from gputop_train.diagnose.window import Depth, Window
from gputop_train.model import (
    LABELS,
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    Step,
    UtilSample,
)

MS = 1_000_000
UUID = "GPU-aaaa"
HOOKS = ("data", "backward", "optimizer", "sync", "h2d", "save", "eval", "gc")


def probe(on_gpu: bool, *, without: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    """A probe's state with every hook in place but ``without``."""
    state: dict[str, Any] = {
        "param_device": "cuda:0" if on_gpu else "cpu",
        "cuda": {"built": on_gpu, "initialized": on_gpu, "available": on_gpu or None},
        "hooks": {name: name not in without for name in HOOKS},
        "flags": {"threads": 1},
    }
    return state | more


def labels(**ms: float) -> dict[str, int]:
    """Label durations in ms, the rest zero."""
    return {label: round(ms.get(label, 0.0) * MS) for label in LABELS}


def make_steps(
    count: int,
    usual: Mapping[str, float],
    *,
    extra: Callable[[int], Mapping[str, float]] | None = None,
    exposed: Mapping[str, float] | None = None,
    dry: float | None = None,
    syncs: Callable[[int], int] | int = 0,
) -> list[Step]:
    """Steps back to back. ``usual``, ``extra(i)`` and ``exposed`` are milliseconds by label."""
    steps, t = [], 1_000 * MS
    for i in range(count):
        ms = dict(usual)
        for label, more in (extra(i) if extra else {}).items():
            ms[label] = ms.get(label, 0.0) + more
        host = labels(**ms)
        wall = sum(host.values())
        steps.append(
            Step(
                rank=0,
                index=i,
                t0_ns=t,
                t1_ns=t + wall,
                labels=host,
                exposed={k: round(v * MS) for k, v in exposed.items()} if exposed else None,
                dry=dry,
                syncs=syncs(i) if callable(syncs) else syncs,
                measured_ns=wall,
            )
        )
        t += wall
    return steps


def intervals_of(steps: Sequence[Step], label: str, site_id: int | None = None) -> list[Interval]:
    """One interval for each step that carries the label, at the step's start."""
    return [
        Interval(0, label, s.t0_ns, s.t0_ns + s.labels[label], site_id)
        for s in steps
        if s.labels[label]
    ]


def loader(**changes: Any) -> Loader:
    """The loader that feeds training, in the main process unless changed."""
    values: dict[str, Any] = {
        "rank": 0,
        "id": 1,
        "file": "/home/ann/train.py",
        "line": 41,
        "call": "DataLoader(train_set, batch_size=64)",
        "dataset": "Photos",
        "num_workers": 0,
        "batch_size": 64,
        "pin_memory": False,
        "persistent_workers": False,
        "prefetch_factor": None,
        "iterable": False,
        "batches": 100,
        "wait_ns": 1_000 * MS,
        "feeds_training": True,
        "epochs": 1,
    }
    return Loader(**(values | changes))


def site(kind: str, line: int, **changes: Any) -> Site:
    """A place in train.py."""
    values: dict[str, Any] = {
        "rank": 0,
        "id": line,
        "kind": kind,
        "file": "/home/ann/train.py",
        "line": line,
        "func": "main",
        "call": f"call_{line}()",
        "count": 10,
        "total_ns": 10 * MS,
    }
    return Site(**(values | changes))


def window(
    steps: Sequence[Step],
    *,
    on_gpu: bool = False,
    util: float | Sequence[float] | None = None,
    cores: int | None = 8,
    trainer: float | None = 1.0,
    workers: Sequence[float | Mapping[str, Any]] = (),
    depths: Sequence[int] = (),
    memory: Sequence[float] = (),
    device_bytes: int | None = None,
    warmup: int = 10,
    **more: Any,
) -> Window:
    """A window over these steps.

    Args:
        util: Driver utilisation: one mean held throughout, or the samples themselves.
        workers: Cores each worker process keeps busy, or fields of its samples.
        memory: Bytes held, one sample per element, spread over the window.
    """
    begin = steps[0].t0_ns if steps else 0
    end = steps[-1].t1_ns if steps else 0
    walls = [s.wall_ns / MS for s in steps]
    series = [util] * 50 if isinstance(util, (int, float)) else list(util or ())
    times = [begin + (end - begin) * k // max(1, len(series)) for k in range(len(series))]
    procs = [ProcSample(begin + k, 10, "trainer", cpu=trainer) for k in range(3)]
    for number, use in enumerate(workers):
        fields = dict(use) if isinstance(use, Mapping) else {"cpu": use}
        procs += [ProcSample(begin + k, 20 + number, "worker", **fields) for k in range(3)]
    samples = [
        MemorySample(
            0,
            begin + (end - begin) * k // max(1, len(memory) - 1),
            None,
            "cuda-allocator" if on_gpu else "rss-anon",
            int(value),
        )
        for k, value in enumerate(memory)
    ]
    values: dict[str, Any] = {
        "t0_ns": begin,
        "t1_ns": end,
        "steps": tuple(steps),
        "totals": totals_of(steps),
        "whole": totals_of(steps),
        "steps_seen": len(steps) + (warmup if steps else 0),
        "warmup_excluded": warmup if steps else 0,
        "median_ms": median(walls),
        "p95_ms": quantile(walls, 0.95),
        "util": tuple(UtilSample(t, UUID, u) for t, u in zip(times, series, strict=True)),
        "util_mean": sum(series) / len(series) if series else None,
        "gpu": (GpuSample(begin, UUID, memory_total=device_bytes, foreign_processes=0),)
        if series or device_bytes
        else (),
        "gpu_uuid": UUID if on_gpu else None,
        "host": (
            HostSample(
                begin,
                cpus_total=cores,
                cpus_allowed=cores,
                mem_total=16_000_000_000,
                mem_available=12_000_000_000,
            ),
        ),
        "procs": tuple(procs),
        "depths": tuple(Depth(1, begin + k, ready) for k, ready in enumerate(depths)),
        "memory": tuple(samples),
        "probe": probe(on_gpu),
    }
    return Window(**(values | more))


def readings(steps: Sequence[Step], **fields: Any) -> tuple[GpuSample, ...]:
    """Readings of the card once a second over these steps; a callable field is asked by number."""
    seconds = (steps[-1].t1_ns - steps[0].t0_ns) // (1_000 * MS)
    values = {"memory_total": 141_000_000_000, "foreign_processes": 0} | fields
    return tuple(
        GpuSample(
            steps[0].t0_ns + k * 1_000 * MS,
            UUID,
            **{name: value(k) if callable(value) else value for name, value in values.items()},
        )
        for k in range(int(seconds) + 1)
    )


def gpm(count: int = 40, **percent: float | None) -> tuple[GpmSample, ...]:
    """Readings of the GPM counters that all say the same."""
    return tuple(GpmSample(1_000 * MS + k * 500 * MS, UUID, **percent) for k in range(count))
