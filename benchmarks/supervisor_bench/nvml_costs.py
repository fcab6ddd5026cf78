"""What each NVML call costs beside a real card: calls, wall time and CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any


def nvml_costs(seconds: float) -> int:
    """What each NVML call costs (calls, wall and CPU time), through the collector as it runs."""
    from gputop_train.collect.nvml import NvmlCollector

    spent: dict[str, list[float]] = {}
    module = Counted(spent)
    cpu, wall = time.process_time(), time.monotonic()
    collector = NvmlCollector(None, set, module, env=dict(os.environ))
    records = [0, 0, 0]
    while time.monotonic() - wall < seconds:
        time.sleep(0.5)
        batch = collector.sample(time.monotonic_ns())
        records = [have + len(new) for have, new in zip(records, batch_parts(batch), strict=True)]
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    collector.close()
    print(f"{cpu / wall:.2%} of a core over {wall:.0f} s; util, gpu, gpm records: {records}")
    print(f"missing: {collector.missing}")
    print("| call | a second | wall | CPU | of a core |\n|---|---|---|---|---|")
    for name, (calls, wall_s, cpu_used) in sorted(spent.items(), key=lambda item: -item[1][2]):
        print(
            f"| {name} | {calls / wall:.2f} | {wall_s / calls * 1e3:.3f} ms "
            f"| {cpu_used / calls * 1e3:.3f} ms | {cpu_used / wall:.3%} |"
        )
    return 0


def batch_parts(batch: Any) -> Iterator[Any]:
    yield from (batch.util, batch.gpu, batch.gpm)


class Counted:
    """``pynvml`` with every call timed."""

    def __init__(self, spent: dict[str, list[float]]) -> None:
        import pynvml

        self._module = pynvml
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._module, name)
        if not (name.startswith("nvml") and callable(real)):
            return real

        def call(*args: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return real(*args)
            finally:
                entry = self._spent.setdefault(name, [0, 0.0, 0.0])
                entry[0] += 1
                entry[1] += time.perf_counter() - wall
                entry[2] += time.thread_time() - cpu

        setattr(self, name, call)
        return call
