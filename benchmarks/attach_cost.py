"""What ``gputop-train attach PID`` costs a training it was not started with: step time, in pairs.

    python benchmarks/attach_cost.py [--pairs 12] [--seconds 6] [--out TABLE.md]

One process trains throughout and notes when each step ended. Attached and plain stretches take
turns, in random order within each pair, so that a drift of the machine meets both alike; a null
control compares two plain stretches in the same way. The seconds in which the attaching program
itself starts are told apart: they are CPU time on another core, once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

#: One thread, so that the other core is there for whoever looks: what a person's machine has.
LOOPS = {
    "model, 2 ms": """
def batches():
    x = torch.randn(64, 256)
    while True:
        yield x
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])
data = batches()
""",
    "DataLoader in the process, 10 ms": """
class Items(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.from_numpy(np.sort(rng.normal(size=4096)).astype(np.float32)[:256])
rng = np.random.default_rng(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
data = torch.utils.data.DataLoader(Items(), batch_size=32)
""",
}
TRAIN = """
import os, sys, time
import numpy as np, torch
torch.set_num_threads(1)
{setup}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
ends = []
for x in data:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    ends.append(time.monotonic_ns())
    if len(ends) % 50 == 1:
        if len(ends) == 1: print("training", flush=True)
        if os.path.exists(sys.argv[1]): break
np.save(sys.argv[2], np.array(ends))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one stretch")
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    rows = [measure(name, setup, args) for name, setup in LOOPS.items()]
    text = table(rows, args)
    print(text)
    if args.out:
        args.out.write_text(text)
    return 0


def measure(name: str, setup: str, args: argparse.Namespace) -> dict[str, object]:
    """One loop, from its start to its end."""
    stretches: list[tuple[str, int, int]] = []
    with tempfile.TemporaryDirectory(prefix="attach-cost-") as place:
        script, stop, ends = Path(place, "train.py"), Path(place, "stop"), Path(place, "ends.npy")
        script.write_text(TRAIN.format(setup=setup))
        trainer = subprocess.Popen(
            [sys.executable, script, stop, ends], stdout=subprocess.PIPE, text=True
        )
        try:
            assert trainer.stdout is not None and trainer.stdout.readline() == "training\n"
            time.sleep(3)  # the caches of a loop that has just begun
            lot = random.Random(0)
            samples = 0
            for _ in range(args.pairs):
                order = ["plain", "attached", "null"]
                lot.shuffle(order)
                for kind in order:
                    if kind == "attached":
                        began, ended, seen = attached(trainer.pid, args.seconds)
                        samples += seen
                    else:
                        began = time.monotonic_ns()
                        time.sleep(args.seconds)
                        ended = time.monotonic_ns()
                    stretches.append((kind, began, ended))
            stop.touch()
            trainer.wait(60)
        finally:
            trainer.kill()
        import numpy as np

        at = np.load(ends)
    return {"name": name, "samples": samples, **compare(at, stretches, args.pairs)}


def attached(pid: int, seconds: float) -> tuple[int, int, int]:
    """Attach for so long; when it began to look, when it left, and stacks it had."""
    command = [sys.executable, "-m", "gputop_train.cli", "attach", str(pid), "--json", "-"]
    with subprocess.Popen(
        [*command, "--duration", str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stderr is not None and "looking at" in program.stderr.readline()
        began = time.monotonic_ns()
        told, _ = program.communicate()
    ended = min(time.monotonic_ns(), began + int(seconds * 1e9))
    return began, ended, json.loads(told)["attached"]["samples"]


def compare(at: object, stretches: list[tuple[str, int, int]], pairs: int) -> dict[str, object]:
    import numpy as np

    at = np.asarray(at)
    mean: dict[str, list[float]] = {"plain": [], "attached": [], "null": []}
    median: dict[str, list[float]] = {"plain": [], "attached": [], "null": []}
    for kind, began, ended in stretches:
        steps = np.diff(at[(at >= began) & (at <= ended)]) / 1e6
        mean[kind].append(float(steps.mean()))
        median[kind].append(float(np.median(steps)))
    found: dict[str, object] = {"step_ms": statistics.median(median["plain"]), "pairs": pairs}
    for name, values in (("mean", mean), ("median", median)):
        for kind in ("attached", "null"):
            ratios = [b / a for a, b in zip(values["plain"], values[kind], strict=True)]
            found[f"{name}_{kind}"] = statistics.median(ratios)
            found[f"{name}_{kind}_range"] = interval(ratios)
    return found


def interval(ratios: list[float], rounds: int = 4000) -> tuple[float, float]:
    """95% bootstrap interval of the median ratio (percentiles)."""
    lot = random.Random(1)
    medians = sorted(statistics.median(lot.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def table(rows: list[dict[str, object]], args: argparse.Namespace) -> str:
    def change(row: dict[str, object], key: str) -> str:
        low, high = row[f"{key}_range"]  # type: ignore[misc]
        return f"{row[key] - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"  # type: ignore[operator]

    load = os.getloadavg()[1]
    lines = [
        "# What attaching from outside costs a step",
        "",
        f"{date.today()}, {os.cpu_count()} shared CPU cores (load {load:.1f} at the end), Python "
        f"{platform.python_version()}. Rerun:",
        f"`python benchmarks/attach_cost.py --pairs {args.pairs} --seconds {args.seconds:g}`.",
        "",
        "One training process on one thread; plain and attached stretches in turns, change of the",
        "step's time as the median over pairs with its 95% bootstrap interval. `null` compares two",
        "plain stretches in the same way: what it shows is the machine's.",
        "",
        "| loop | step | pairs | median step, attached | null | mean step, attached | null |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['step_ms']:.2f} ms | {row['pairs']} | "
        f"{change(row, 'median_attached')} | {change(row, 'median_null')} | "
        f"{change(row, 'mean_attached')} | {change(row, 'mean_null')} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
