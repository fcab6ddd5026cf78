"""What is seen of the target beside its stacks: its processes, the machine's cores, its GPUs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gputop_train.collect.host import CpuTimes, cores_between, cpus_allowed, parse_cpu_times
from gputop_train.collect.nvml import NvmlCollector
from gputop_train.collect.procfs import read_text
from gputop_train.collect.procs import (
    ProcStat,
    Rates,
    Reading,
    Traffic,
    parse_io,
    parse_run_delay,
    process_table,
    rates_between,
)
from gputop_train.launch.outside.observed import Card, Worker
from gputop_train.launch.outside.target import Target, is_python
from gputop_train.launch.sampling import environment_of

_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing-fork")


@dataclass(slots=True)
class _Series:
    """One process while it is watched."""

    first: Reading
    last: Reading
    states: Counter[str] = field(default_factory=Counter)


class Surroundings:
    """Reads ``/proc`` and the driver once a second; never raises.

    Args:
        target: The process.
        nvml: A module to call in place of ``pynvml``, for tests.
    """

    def __init__(self, target: Target, nvml: Any = None) -> None:
        self._target = target
        self._series: dict[int, _Series] = {}
        self._cpu: list[CpuTimes] = []
        self._gpus: NvmlCollector | None = None
        self._util: dict[str, list[float]] = {}
        self._ours: dict[str, int | None] = {}
        self._shared: dict[str, bool | None] = {}
        if target.on_gpu:
            environ = environment_of(target.pid)
            self._gpus = NvmlCollector(None, self._pids, nvml, env=environ)

    @property
    def missing(self) -> dict[str, str]:
        """Signals that are absent, and why."""
        if self._gpus is None:
            return {"nvml": "The process uses no GPU."}
        return dict(self._gpus.missing)

    def look(self) -> None:
        """Take one reading of everything."""
        now_ns = time.monotonic_ns()
        table = process_table()
        for stat in [table.get(self._target.pid), *self._workers(table.values())]:
            if stat is None:
                continue
            delay_ns = parse_run_delay(read_text(f"/proc/{stat.pid}/schedstat"))
            reading = Reading(now_ns, stat, self._io(stat.pid), delay_ns)
            known = self._series.get(stat.pid)
            if known is None or known.first.stat.start_ticks != stat.start_ticks:
                known = self._series[stat.pid] = _Series(reading, reading)
            known.last = reading
            known.states[stat.state] += 1
        times = parse_cpu_times(read_text("/proc/stat"))
        if times is not None:
            self._cpu = [*self._cpu[:1], times]
        if self._gpus is not None:
            self._look_at_gpus(now_ns)

    def close(self) -> None:
        """Let go of the driver."""
        if self._gpus is not None:
            self._gpus.close()

    def trainer(self) -> Rates:
        """What the training process did meanwhile; the delay is its main thread's."""
        known = self._series.get(self._target.pid)
        return Rates() if known is None else rates_between(known.first, known.last)

    def cores(self) -> int | None:
        """Cores the training process may use, by its affinity."""
        return cpus_allowed(self._target.pid)

    def cores_free(self) -> float | None:
        """Mean idle cores of the machine."""
        if len(self._cpu) < 2:
            return None
        busy = cores_between(self._cpu[0], self._cpu[1])
        return None if busy is None else max(0.0, self._cpu[1].cpus - sum(busy))

    def workers(self) -> tuple[Worker, ...]:
        """The worker processes, over the time they were seen."""
        found = []
        for pid, known in sorted(self._series.items()):
            if pid == self._target.pid:
                continue
            rates = rates_between(known.first, known.last)
            looks = sum(known.states.values())
            found.append(Worker(pid, rates.cpu, known.states["D"] / looks, rates.read_bytes_per_s))
        return tuple(found)

    def cards(self) -> tuple[Card, ...]:
        """The GPUs the process may use, in CUDA's order."""
        if self._gpus is None:
            return ()
        found = []
        for device in self._gpus.devices:
            util = self._util.get(device.uuid)
            found.append(
                Card(
                    device.uuid,
                    device.name,
                    sum(util) / len(util) if util else None,
                    self._ours.get(device.uuid),
                    device.memory_total,
                    self._shared.get(device.uuid),
                )
            )
        return tuple(found)

    def _look_at_gpus(self, now_ns: int) -> None:
        assert self._gpus is not None
        batch = self._gpus.sample(now_ns)
        for sample in batch.util:
            self._util.setdefault(sample.uuid, []).append(float(sample.util))
        for reading in batch.gpu:
            self._ours[reading.uuid] = reading.memory_ours
            others = reading.foreign_processes
            self._shared[reading.uuid] = None if others is None else others > 0

    def _pids(self) -> set[int]:
        return {self._target.pid, *self._series}

    def _workers(self, processes: Iterable[ProcStat]) -> Sequence[ProcStat]:
        """Python processes the target started: forks of it, or spawned by multiprocessing."""
        children = [p for p in processes if p.ppid == self._target.pid and p.state not in "ZX"]
        own = read_text(f"/proc/{self._target.pid}/cmdline")
        return [p for p in children if p.pid in self._series or _is_worker(p.pid, own)]

    @staticmethod
    def _io(pid: int) -> Traffic | None:
        return parse_io(read_text(f"/proc/{pid}/io"))


def _is_worker(pid: int, parents: str | None) -> bool:
    command = read_text(f"/proc/{pid}/cmdline") or ""
    if command != parents and not any(word in command for word in _SPAWNED):
        return False
    if "resource_tracker" in command:
        return False
    return is_python(pid, read_text(f"/proc/{pid}/maps") or "")
