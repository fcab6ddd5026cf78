"""Nine kinds of training in one process, each for a few seconds, with what a profiler says of each.

Prints one JSON line per kind: when it ran, how long ``next()`` took by the script's own clock, the
step time, and the union of kernel intervals of three steps under ``torch.profiler`` as a share of
the step time before it. One optimizer holds all parameters, as a run has one.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BIG = 4096 if DEVICE == "cuda" else 64


class Waiting(Dataset):
    """A batch that takes a known time to come."""

    def __init__(self, wait_s, shape):
        self.wait_s, self.shape = wait_s, shape

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if self.wait_s:
            time.sleep(self.wait_s)
        return torch.zeros(self.shape)


def loader(wait_s, *shape):
    return iter(DataLoader(Waiting(wait_s, shape), batch_size=None))


def mlp(width, depth):
    return nn.Sequential(
        *[part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    ).to(DEVICE)


tiny, wide = mlp(64, 24), mlp(BIG, 6)
layer = nn.TransformerEncoderLayer(BIG // 4, 16, BIG, dropout=0.0, batch_first=True)
former = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE)
conv = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.BatchNorm2d(128),
    nn.ReLU(), nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
).to(DEVICE)  # fmt: skip
models = (tiny, wide, former, conv)
optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], 0.0)
x_tiny = torch.randn(32, 64, device=DEVICE)
x_wide = torch.randn(BIG, BIG, device=DEVICE)
x_former = torch.randn(16, 256 if BIG > 64 else 8, BIG // 4, device=DEVICE)
x_conv = torch.randn(64 if BIG > 64 else 2, 3, 128, 128, device=DEVICE)
last = {}


def backward(model, x):
    loss = model(x).square().mean()
    loss.backward()
    last["loss"] = loss


def update():
    optimizer.step()
    optimizer.zero_grad()


def plain(model, x):
    def step(batch):
        backward(model, x)
        update()

    return step


def half_precision(batch):
    with torch.autocast(DEVICE, torch.bfloat16):
        backward(former, x_former)
    update()


def accumulated(batch):
    for _ in range(8):
        backward(tiny, x_tiny)
    update()


def copying(batch):
    moved = batch.to(DEVICE)
    backward(tiny, x_tiny + moved[:1, :64])
    update()


def reading(batch):
    backward(wide, x_wide[:1024])
    update()
    last["value"] = last["loss"].item()


def waits_after(wait_s):
    """A model that is done before the wait begins: all of the wait is idle time."""
    return loader(wait_s, 4, 4), plain(tiny, x_tiny)


KINDS = {
    "launch-bound tiny MLP": lambda: (loader(0, 4, 4), plain(tiny, x_tiny)),
    "GPU-bound large MLP": lambda: (loader(0, 4, 4), plain(wide, x_wide)),
    "transformer, bf16 autocast": lambda: (loader(0, 4, 4), half_precision),
    "conv net": lambda: (loader(0, 4, 4), plain(conv, x_conv)),
    "starved half": lambda: (loader(0.012, 4, 4), draining(wide, x_wide[:1024])),
    "starved 80%": lambda: (loader(0.048, 4, 4), draining(wide, x_wide[:1024])),
    "pageable copies": lambda: (loader(0, 1 << 12, 1 << 12), copying),
    "a read each step": lambda: (loader(0, 4, 4), reading),
    "small, accumulated": lambda: (loader(0, 4, 4), accumulated),
    "wait 2 ms": lambda: waits_after(0.002),
    "wait 5 ms": lambda: waits_after(0.005),
    "wait 20 ms": lambda: waits_after(0.020),
}


def draining(model, x):
    """The queue is drained before the next batch is asked for, so that the wait is idle time."""

    def step(batch):
        backward(model, x)
        update()
        if DEVICE == "cuda":
            torch.cuda.current_stream().synchronize()

    return step


def once(batches, step, waits):
    begun = time.perf_counter_ns()
    batch = next(batches)
    waits.append(time.perf_counter_ns() - begun)
    step(batch)


def drain():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def union_ms(events):
    total = reached = 0
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if str(e.device_type()).endswith("CUDA") and not e.name().startswith(("Memcpy", "Memset"))
    )
    for begin, end in spans:
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total / 1e6, len(spans)


def run(name, make):
    batches, step = make()
    for _ in range(5):
        once(batches, step, [])
    drain()
    waits, t0 = [], time.monotonic_ns()
    seconds = SECONDS if not name.startswith("wait") else SECONDS / 2
    while time.monotonic_ns() - t0 < seconds * 1e9:
        once(batches, step, waits)
    drain()
    t1 = time.monotonic_ns()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if DEVICE == "cuda":
        kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(3):
            once(batches, step, [])
    busy_ms, kernels = union_ms(profiler.profiler.kineto_results.events())
    step_ms = (t1 - t0) / len(waits) / 1e6
    print(
        json.dumps(
            {
                "name": name,
                "t0_ns": t0,
                "t1_ns": t1,
                "steps": len(waits),
                "step_ms": step_ms,
                "wait_ms": sum(waits) / len(waits) / 1e6,
                "busy": busy_ms / 3 / step_ms,
                "kernels": kernels / 3,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    for kind, make in KINDS.items():
        run(kind, make)
