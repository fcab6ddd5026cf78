"""What the probe costs a step, measured in place: toggled A B B A blocks in one process.

    python benchmarks/overhead.py [--steps-ms 0.5 1 2 10 50] [--device cpu|cuda] [--seconds 40]

One process trains one model; blocks of steps alternate between hooks in place (B) and the original
functions put back (A). Host speed drifts by 1.5x between minutes, so only neighbouring blocks are
compared. The null control toggles the same way between two plain states: what it reads is bias and
noise of the method. Printed per step size: the median ratio B/A with its 95% interval (bootstrap
over block pairs), the null's, and their difference.

Left in place in A blocks as well: the helper thread asleep, the import watcher, and wrappers that
only run at saves, evaluations and garbage collections.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
# width of the MLP and batch that give about so many ms a step on one core
SIZES = {0.5: (64, 32), 1.0: (192, 64), 2.0: (320, 96), 10.0: (768, 192), 50.0: (1536, 320)}


def parent(args: argparse.Namespace) -> None:
    """Run each size in a process of its own with the probe deployed, and table the results."""
    rows = []
    for size in args.steps_ms:
        with tempfile.TemporaryDirectory() as folder:
            probe, rings = Path(folder) / "probe", Path(folder) / "rings"
            probe.mkdir()
            rings.mkdir(mode=0o700)
            source = HERE / "gputop_train" / "probe"
            shutil.copy(source / "bootstrap" / "sitecustomize.py", probe)
            shutil.copytree(source, probe / "_gputop_probe")
            config = {"v": 1, "ring_dir": str(rings), "overhead_budget": 0.01, "sampler_hz": 40}
            (probe / "config.json").write_text(json.dumps({**config, "overrides": []}))
            command = [sys.executable, __file__, "--child", str(size), "--device", args.device]
            done = subprocess.run(
                [*command, "--seconds", str(args.seconds)],
                env={**os.environ, "PYTHONPATH": str(probe)},
                capture_output=True,
                text=True,
                check=True,
            )
        row = json.loads(done.stdout)
        rows.append(row)
        print(table_row(row), flush=True)
    machine = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }
    print(json.dumps({"machine": machine, "rows": rows}))


def table_row(row: dict[str, Any]) -> str:
    """One size."""
    return (
        f"| {row['step_ms']:.2f} ms | {row['ratio']:.4f} [{row['low']:.4f}, {row['high']:.4f}] | "
        f"{row['null']:.4f} [{row['null_low']:.4f}, {row['null_high']:.4f}] | "
        f"{row['ratio'] - row['null']:+.4f} | {row['pairs']} |"
    )


def child(size: float, device: str, seconds: float) -> None:
    """Train in blocks, toggling the hooks."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    width, batch = SIZES[size]
    layers = [torch.nn.Linear(width, width) if i % 2 == 0 else torch.nn.ReLU() for i in range(7)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(64 * batch, width))
    sampler = BatchSampler(RandomSampler(data), batch, True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)

    def batches() -> Any:
        while True:
            yield from loader

    stream = batches()

    def step() -> None:
        (x,) = next(stream)
        loss = model(x.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(30):
        step()
    toggle = Toggle(torch, device)
    started = time.perf_counter()
    for _ in range(20):
        step()
    per_step = (time.perf_counter() - started) / 20
    count = max(4, int(0.12 / per_step))  # about 0.12 s a block
    null_pairs = pairs(step, count, seconds / 2, toggle.plain, toggle.plain)
    real_pairs = pairs(step, count, seconds / 2, toggle.plain, toggle.watched)
    result = {"size": size, "device": device, "pairs": len(real_pairs)}
    result["step_ms"] = statistics.median(a for a, _ in real_pairs) * 1e3
    for prefix, found in (("", real_pairs), ("null_", null_pairs)):
        middle, low, high = interval([b / a for a, b in found])
        result[prefix + "low"], result[prefix + "high"] = low, high
        result["null" if prefix else "ratio"] = middle
    print(json.dumps(result))


class Toggle:
    """Puts the probe's hooks in place and takes them out again."""

    def __init__(self, torch: Any, device: str) -> None:
        import _gputop_probe.state as state
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        self._state = state.S
        assert self._state.armed, "the probe did not arm"
        self._tensor = torch.Tensor
        self._places: list[tuple[Any, str]] = [
            (torch.autograd, "_engine_run_backward"),
            (dataloader._BaseDataLoaderIter, "__next__"),
            (dataloader.DataLoader, "__iter__"),
        ]
        if device == "cuda":
            names = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "to", "cuda")
            self._places += [(torch.Tensor, name) for name in names]
        self._ours = [getattr(owner, name) for owner, name in self._places]
        self._pre = optimizer._global_optimizer_pre_hooks
        self._post = optimizer._global_optimizer_post_hooks
        self._hooks = (dict(self._pre), dict(self._post))
        self._sampler = self._state.helper._sampler

    def plain(self) -> None:
        """Originals back, sampler asleep."""
        for (owner, name), ours in zip(self._places, self._ours, strict=True):
            setattr(owner, name, ours.__wrapped__)
        self._pre.clear()
        self._post.clear()
        self._state.helper._sampler = None

    def watched(self) -> None:
        """Hooks in, sampler awake."""
        for (owner, name), ours in zip(self._places, self._ours, strict=True):
            setattr(owner, name, ours)
        self._pre.update(self._hooks[0])
        self._post.update(self._hooks[1])
        self._state.helper._sampler = self._sampler


def pairs(
    step: Callable[[], None], count: int, seconds: float, a: Any, b: Any
) -> list[tuple[float, float]]:
    """A B B A A B B A ... for so long; each neighbouring A and B make a pair."""

    def block(enter: Callable[[], None]) -> float:
        enter()
        for _ in range(max(2, count // 10)):  # caches settle
            step()
        started = time.perf_counter()
        for _ in range(count):
            step()
        return (time.perf_counter() - started) / count

    found: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    forward = True
    while time.monotonic() < end:
        if forward:
            first = block(a)
            found.append((first, block(b)))
        else:
            second = block(b)
            found.append((block(a), second))
        forward = not forward
    return found


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Median and its 95% bootstrap interval."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(1000))
    return statistics.median(ratios), medians[25], medians[974]


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps-ms", type=float, nargs="*", default=sorted(SIZES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--child", type=float)
    args = parser.parse_args()
    if args.child is not None:
        child(args.child, args.device, args.seconds)
    else:
        print("| step | ratio watched/plain | null control | difference | pairs |")
        print("|---|---|---|---|---|")
        parent(args)


if __name__ == "__main__":
    main()
