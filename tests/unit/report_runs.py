"""Whole runs in a real store, small enough to know every number of their report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputop_train.diagnose import evidence
from gputop_train.diagnose.engine import diagnose
from gputop_train.model import (
    LABELS,
    Diagnosis,
    GpuSample,
    HostSample,
    Loader,
    MemorySample,
    ProcSample,
    Step,
    UtilSample,
)
from gputop_train.report import json as report_json
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

SECOND = 1_000_000_000
START = 1_000 * SECOND
UUID = "GPU-11111111-2222-3333-4444-555555555555"
RUN: dict[str, Any] = {
    "schema": 1,
    "id": "3f2a91",
    "name": None,
    "command": ["python", "train.py", "--epochs", "3"],
    "host": "node7",
    "started_wall_ns": 1_790_000_000 * SECOND,
    "started_mono_ns": START - 5 * SECOND,
    "overrides": {},
    "changes_results": [],
    "attempt": 1,
}
HOOKS = ("data", "backward", "optimizer", "sync", "h2d", "save", "eval", "gc")


def ended(code: int | None = 0, **more: Any) -> dict[str, Any]:
    """``exit.json`` of a run that took 35 s."""
    return {"exit_code": code, "signal": None, "ended_mono_ns": START + 30 * SECOND} | more


def probe_state(on_gpu: bool = False) -> dict[str, Any]:
    """A probe that is well."""
    cuda: dict[str, Any] = {"built": on_gpu, "initialized": on_gpu}
    if on_gpu:
        cuda |= {"available": True, "uuid": UUID.removeprefix("GPU-"), "name": "NVIDIA H200"}
    return {
        "python": "3.11.7",
        "torch": "2.13.0",
        "host": "node7",
        "param_device": "cuda:0" if on_gpu else "cpu",
        "cuda": cuda,
        "hooks": dict.fromkeys(HOOKS, True),
        "flags": {"threads": 1},
        "cost": {"total_ns": 100 * 20_000, "steps": 100},
        "memory": {"peak_allocated": 41_000, "peak_reserved": 58_000, "retries": 0},
    }


def steps_of(count: int, ms: Mapping[str, float], rank: int = 0, **more: Any) -> list[Step]:
    """Steps back to back with these milliseconds by label; all of it measured by edges."""
    labels = {label: round(ms.get(label, 0) * 1_000_000) for label in LABELS}
    wall = sum(labels.values())
    return [
        Step(
            rank,
            i,
            START + i * wall,
            START + (i + 1) * wall,
            labels,
            **({"samples": 32, "measured_ns": wall} | more),
        )
        for i in range(count)
    ]


def feeding_loader() -> Loader:
    """The loader of a loop that loads in its main process."""
    place = ("/proj/train.py", 41, "DataLoader(train_set, batch_size=32)", "Photos")
    return Loader(0, 1, *place, 0, 32, False, False, None, False, feeds_training=True, batches=100)


class Recorded:
    """A store to fill, and the report of what was put into it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.sqlite"
        self.writer = RunWriter(self.path, now_ns=lambda: START + 31 * SECOND)

    def train(
        self, steps: Sequence[Step], *, on_gpu: bool = False, rank: int = 0, util: float = 97.0
    ) -> Recorded:
        """Steps with what a supervisor stores beside them."""
        last = steps[-1].t1_ns if steps else START
        self.writer.add_steps(steps)
        state = probe_state(on_gpu)
        if not steps:
            state["cost"] = {"steps": 0}
        self.writer.put_probe_state(rank, state, last)
        for second in range(int((last - START) / SECOND) + 1):
            t_ns = START + second * SECOND
            self.writer.add_host([HostSample(t_ns, cpus_total=4, cpus_allowed=4)])
            self.writer.add_procs([ProcSample(t_ns, 100, "trainer", cpu=1.0, rank=rank)])
            if on_gpu:
                self.writer.add_gpu([GpuSample(t_ns, UUID, memory_total=139_000_000)])
                self.writer.add_util([UtilSample(t_ns + i, UUID, util) for i in range(5)])
        return self

    def remember(self, samples: Sequence[MemorySample]) -> Recorded:
        """Memory readings."""
        self.writer.add_memory(samples)
        return self

    def report(
        self,
        exit_: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] = RUN,
        diagnosis: Diagnosis | None = None,
    ) -> dict[str, Any]:
        """What ``--json`` would write, through JSON itself."""
        self.writer.commit()
        with RunReader(self.path) as reader:
            window = evidence.build(reader, final=True)
            found = diagnosis or diagnose(window)
            report = report_json.build(dict(run), exit_, reader, found, window)
        return json.loads(json.dumps(report, allow_nan=False))
