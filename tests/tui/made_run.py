"""A run directory with a real store, written by the real writer from known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from gputop_train.launch import identity
from gputop_train.model import (
    LABELS,
    Diagnosis,
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
from gputop_train.store.writer import RunWriter

from .fakes import STARVED

MS, S = 1_000_000, 1_000_000_000
GIB = 1 << 30
START = 5_000 * S
UUID = "GPU-11111111-2222-3333-4444-555555555555"
#: One step: 60 ms data wait, 15 forward, 20 backward, 5 optimizer.
PARTS = {"data_wait": 60 * MS, "forward": 15 * MS, "backward": 20 * MS, "optimizer": 5 * MS}
STEP_NS = sum(PARTS.values())


def run_json(path: Path, *, start_ns: int = START, pid: int | None = None, **more: Any) -> None:
    child = identity.identify(pid) if pid is not None else None
    body: dict[str, Any] = {
        "schema": 1,
        "id": path.name,
        "name": None,
        "command": ["python", "train.py", "--lr", "0.1"],
        "cwd": "/home/me/proj",
        "script": "train.py",
        "mode": "script",
        "started_wall_ns": 1_700_000_000 * S,
        "started_mono_ns": start_ns,
        "host": __import__("socket").gethostname(),
        "boot_id": identity.boot_id(),
        "child": {"pid": child.pid, "start_ticks": child.start_ticks, "pgid": None, "sid": None}
        if child
        else None,
        "store": str(path / "run.sqlite"),
        "overrides": {},
        "options": {"steps": None},
        "attempt": 1,
    }
    (path / "run.json").write_text(json.dumps(body | more))


def exit_json(path: Path, ended_ns: int, code: int | None = 0, signal: int | None = None) -> None:
    body = {"exit_code": code, "signal": signal, "ended_wall_ns": 0, "ended_mono_ns": ended_ns}
    (path / "exit.json").write_text(json.dumps(body))


def steps(count: int, start_ns: int = START, first: int = 0) -> list[Step]:
    out = []
    for i in range(count):
        t0 = start_ns + i * STEP_NS
        out.append(
            Step(
                rank=0,
                index=first + i,
                t0_ns=t0,
                t1_ns=t0 + STEP_NS,
                labels=dict.fromkeys(LABELS, 0) | PARTS,
                samples=64,
                measured_ns=STEP_NS,
            )
        )
    return out


def write_store(
    path: Path, *, seconds: int = 60, gpu: bool = True, start_ns: int = START, pid: int = 4242
) -> int:
    """Fill a store with ``seconds`` of training; returns the time of its end."""
    end = start_ns + seconds * S
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(seconds * S // STEP_NS, start_ns))
        writer.add_intervals([Interval(0, "checkpoint", end - 20 * S, end - 19 * S)])
        writer.put_loaders(
            [
                Loader(
                    rank=0,
                    id=1,
                    file="train.py",
                    line=41,
                    call="DataLoader(...)",
                    dataset="Pictures",
                    num_workers=2 if gpu else 0,
                    batch_size=64,
                    pin_memory=False,
                    persistent_workers=False,
                    prefetch_factor=2 if gpu else None,
                    iterable=False,
                    worker_pids=(pid + 1, pid + 2) if gpu else (),
                    ready=0,
                    batches=10,
                    feeds_training=True,
                )
            ],
            end - S,
        )
        writer.put_probe_state(
            0, {"cuda": cuda(gpu), "param_device": "cuda" if gpu else "cpu"}, end
        )
        if gpu:
            ticks = range(start_ns, end, S // 5)
            writer.add_util([UtilSample(t, UUID, 30.0 + 10 * (i % 2)) for i, t in enumerate(ticks)])
            writer.add_gpu(
                GpuSample(t, UUID, memory_total=80 * GIB, power_w=228.0, power_limit_w=700.0)
                for t in range(start_ns, end, S)
            )
            writer.add_gpm(GpmSample(t, UUID, sm=20.0) for t in range(start_ns, end, S))
            writer.add_memory(
                [MemorySample(0, end - S, 10, "cuda-allocator", 4 * GIB, 6 * GIB, 5 * GIB, 7 * GIB)]
            )
        else:
            writer.set_meta("missing", {"nvml": "no NVIDIA driver"})
            writer.add_memory([MemorySample(0, end - S, 10, "rss-anon", GIB)])
        for t in range(start_ns, end, S):
            writer.add_host(
                HostSample(t, cpu_busy=1.5, cpus_total=16, cpus_allowed=4, mem_total=8 * GIB)
            )
            writer.add_procs(
                [
                    ProcSample(t, pid, "trainer", cpu=1.0),
                    ProcSample(t, pid + 1, "worker", cpu=0.5),
                    ProcSample(t, pid + 2, "worker", cpu=0.25, read_bytes_per_s=3 << 20),
                ]
            )
        writer.add_finding(
            start_ns + 5 * S,
            msgspec.to_builtins(Diagnosis("too-early", None, note="9 of 20 steps seen.")),
        )
        writer.add_finding(
            start_ns + 20 * S, msgspec.to_builtins(Diagnosis("verdict", False, STARVED))
        )
        writer.commit()
    (path / "output.log").write_text("hello\nstep 1\rstep 2\rstep 3\n")
    return end


def cuda(gpu: bool) -> dict[str, Any]:
    if not gpu:
        return {"built": False, "available": False, "initialized": False}
    return {
        "built": True,
        "available": True,
        "initialized": True,
        "device": 0,
        "uuid": UUID,
        "name": "NVIDIA H200",
    }
