"""What a profiler burst costs on a GPU, and what it leaves behind: python benchmarks/burst_cost.py

For a launch-bound and a larger model, in one process each: step time before, Kineto's start and
stop (the first time and later ones), step time right after and later on, what the trace reads, and
whether stopping waits for work that is still queued. ``TEARDOWN_CUPTI=1`` in the environment shows
the same where Kineto detaches CUPTI afterwards.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from gputop_train.probe import trace

MODELS = ("tiny", "large")
BLOCKS = 7


def build(torch: Any, name: str) -> Any:
    """A function that makes one training step."""
    nn = torch.nn
    width, depth, rows = (64, 12, 32) if name == "tiny" else (4096, 6, 8192)
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    x = torch.randn(rows, width, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def step_ms(torch: Any, step: Any, seconds: float = 0.3) -> float:
    """Mean time of a step over a block, synchronised at both ends."""
    torch.cuda.synchronize()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(5):
            step()
        count += 5
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / count * 1e3


def burst(torch: Any, step: Any) -> dict[str, Any]:
    """One trace of one settling and three counted steps, as the probe takes it."""
    traced = trace.Trace(torch, cuda=True)
    traced.start()
    ends = []
    for _ in range(4):
        step()
        ends.append(time.time_ns())
    result = traced.stop()
    begun = time.thread_time_ns()
    events = len(result.events())
    listed_ms = (time.thread_time_ns() - begun) / 1e6
    begun = time.thread_time_ns()
    found = trace.reduce(result, ends[0], ends[-1])
    return {
        "start_ms": traced.start_ns / 1e6,
        "stop_ms": traced.stop_ns / 1e6,
        "steps_ms": [(b - a) / 1e6 for a, b in itertools.pairwise(ends)],
        "events": events,
        "list_ms": listed_ms,
        "reduce_ms": (time.thread_time_ns() - begun) / 1e6,
        **found,
    }


def stop_under_load(torch: Any) -> tuple[float, float]:
    """Milliseconds that stopping takes with work queued, and how long that work goes on for."""
    a = torch.randn(8192, 8192, device="cuda")
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    traced = trace.Trace(torch, cuda=True)
    traced.start()
    for _ in range(40):
        a @ a
    begun = time.perf_counter()
    traced.stop()
    stopped = time.perf_counter()
    torch.cuda.synchronize()
    return (stopped - begun) * 1e3, (time.perf_counter() - stopped) * 1e3


def measure(name: str) -> dict[str, Any]:
    """All readings of one model in this process."""
    import torch

    step = build(torch, name)
    step_ms(torch, step, 1.0)
    null = [step_ms(torch, step) for _ in range(BLOCKS)]
    first = burst(torch, step)
    after = [step_ms(torch, step) for _ in range(BLOCKS)]
    second = burst(torch, step)
    later = [step_ms(torch, step) for _ in range(BLOCKS)]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as theirs:
        for _ in range(3):
            step()
    kernels = sum(1 for e in theirs.events() if str(e.device_type).endswith("CUDA"))
    last = [step_ms(torch, step) for _ in range(BLOCKS)]
    return {
        "model": name,
        "torch": torch.__version__,
        "step_ms": {
            "before": null,
            "after": after,
            "after_second": later,
            "after_torch_profiler": last,
        },
        "ratio": statistics.median(after) / statistics.median(null),
        "ratio_second": statistics.median(later) / statistics.median(null),
        "ratio_torch_profiler": statistics.median(last) / statistics.median(null),
        "first": first,
        "second": second,
        "stop_under_load_ms": stop_under_load(torch),
        "torch_profiler_kernels": kernels,
    }


def main() -> int:
    """Measure each model in a process of its own."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return 0
    failed = 0
    for name in MODELS:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
        failed += done.returncode != 0
        print(done.stdout.strip() or done.stderr[-2000:])
        print(f"{name}: {len(done.stderr.splitlines())} lines on stderr", done.stderr[:300])
    return failed


if __name__ == "__main__":
    sys.exit(main())
