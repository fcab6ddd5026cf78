"""Stores of runs whose memory grows, rests or ran out, written by the real writer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gputop_train.model import GpuProcess, GpuSample, HostSample, MemorySample, ProcSample
from gputop_train.store.writer import RunWriter

from .made_run import GIB, START, UUID, S, cuda, run_json, steps

SECONDS = 60
END = START + SECONDS * S
MIB = 1 << 20

HELD: dict[str, Any] = {
    "t_ns": START + 5 * S,
    "step": 41,
    "device": "cuda:0",
    "parameters": 6 * GIB,
    "gradients": 6 * GIB,
    "optimizer_state": 12 * GIB,
    "allocated": 30 * GIB,
    "other": 6 * GIB,
    "tensors": 900,
    "partial": False,
}
OOM: dict[str, Any] = {
    "t_ns": START + 50 * S,
    "count": 2,
    "step": 498,
    "steps_after": 0,
    "device": 0,
    "requested": 3 * GIB,
    "limit": 80 * GIB,
    "free": GIB,
    "allocated": 70 * GIB,
    "reserved": 78 * GIB,
    "inactive_split": 5 * GIB,
    "retries": 4,
    "thread": "main",
    "stack": [{"file": "/home/me/proj/train.py", "line": 62, "call": "model(x)"}],
    "held": {"parameters": 6 * GIB, "optimizer_state": 12 * GIB, "other": 52 * GIB},
    "lines": None,
    "lines_missing": "allocation history is off",
}


def write(
    path: Path,
    *,
    grows: float = 0.0,
    oom: bool = False,
    gpu: bool = True,
    neighbour: bool = False,
    seconds: int = SECONDS,
) -> int:
    """Fill a store; ``grows`` is bytes a second. Returns its end."""
    path.mkdir(parents=True, exist_ok=True)
    run_json(path, pid=os.getpid())
    with RunWriter(path / "run.sqlite") as writer:
        writer.add_steps(steps(seconds * 10))
        state: dict[str, Any] = {"cuda": cuda(gpu), "held": HELD if gpu else None}
        if oom:
            state["oom"] = OOM
        writer.put_probe_state(0, state, END)
        for second in range(seconds):
            for half in range(2):
                t = START + second * S + half * S // 2
                wave = (second * 2 + half) % 3 * 200 * MIB
                held = int(30 * GIB + grows * (second + half / 2))
                if gpu:
                    sample = MemorySample(
                        0,
                        t,
                        None,
                        "cuda-allocator",
                        held + wave,
                        held + 4 * GIB,
                        held + 3 * GIB,
                        held + 4 * GIB,
                        4 if oom else 0,
                        2 if oom else 0,
                        300 * MIB,
                    )
                else:
                    sample = MemorySample(0, t, None, "rss-anon", held // 30 + wave // 40)
                writer.add_memory([sample])
            t = START + second * S
            if gpu:
                ours = int(35 * GIB + grows * second)
                theirs = 9 * GIB if neighbour else 0
                writer.add_gpu(
                    [
                        GpuSample(
                            t,
                            UUID,
                            memory_used=ours + theirs,
                            memory_total=80 * GIB,
                            memory_ours=ours,
                            foreign_processes=1 if neighbour else 0,
                            foreign=(GpuProcess(4711, "python3", theirs),) if neighbour else (),
                        )
                    ]
                )
            else:
                writer.set_meta("missing", {"nvml": "no NVIDIA driver"})
            writer.add_host(
                HostSample(
                    t,
                    cpu_busy=3.0,
                    cpus_total=16,
                    mem_available=200 * GIB,
                    mem_total=256 * GIB,
                )
            )
            writer.add_procs(
                [
                    ProcSample(t, 4000, "trainer", cpu=1.0, rss=3 * GIB, rss_anon=GIB),
                    *(
                        ProcSample(t, 5000 + w, "worker", cpu=0.5, rss_anon=GIB, uss=310 * MIB)
                        for w in range(4)
                    ),
                ]
            )
        writer.commit()
    (path / "output.log").write_text("")
    return END
