"""What ``gputop-train attach PID`` costs a training it was not started with: step time, in pairs.

    python benchmarks/attach_cost.py [--pairs 40] [--out TABLE.md]

One process trains throughout and notes when each step ended, and the CPU time it took. Attached and
plain stretches of two seconds take turns, in random order within each pair, so that a drift of the
machine meets both alike; a null control compares two plain stretches in the same way. Attached is
what ``attach`` does in two seconds: a piece of stacks, and two looks at ``/proc``.
"""

from __future__ import annotations

import argparse
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

import numpy as np

from gputop_train.launch.outside import spying
from gputop_train.launch.outside.around import Surroundings
from gputop_train.launch.outside.spying import Spy
from gputop_train.launch.outside.target import look_at

#: The lower quartile is of the steps that other programs left alone; CPU time knows no waiting.
WAYS = ("median", "lower quartile", "median of CPU time")
#: One thread, so that the other core is there for whoever looks: what a person's machine has.
LOOPS = {
    "model": """
def batches():
    x = torch.randn(64, 256)
    while True:
        yield x
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])
data = batches()
""",
    "DataLoader in the process": """
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
    ends.append((time.monotonic_ns(), time.thread_time_ns()))
    if len(ends) % 50 == 1:
        if len(ends) == 1: print("training", flush=True)
        if os.path.exists(sys.argv[1]): break
np.save(sys.argv[2], np.array(ends))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
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
            target = look_at(trainer.pid)
            spy, around = Spy(trainer.pid, spying.find()), Surroundings(target)
            samples = 0
            for _ in range(args.pairs):
                order = ["plain", "attached", "null"]
                lot.shuffle(order)
                for kind in order:
                    began = time.monotonic_ns()
                    if kind == "attached":
                        samples += attached(spy, around)
                    else:
                        time.sleep(spying.PIECE_S)
                    stretches.append((kind, began, time.monotonic_ns()))
            stop.touch()
            trainer.wait(60)
        finally:
            trainer.kill()
        at = np.load(ends)
    return {"name": name, "samples": samples, **compare(at, stretches, args.pairs)}


def attached(spy: Spy, around: Surroundings) -> int:
    """Two seconds of what attaching does; stacks it had."""
    around.look()
    piece = spy.take()
    around.look()
    assert piece is not None
    return sum(piece.stacks.values())


def compare(at: np.ndarray, stretches: list[tuple[str, int, int]], pairs: int) -> dict[str, object]:
    """Ratios of attached or null to plain, for each way of taking a stretch's step time."""
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in WAYS}
    for kind, began, ended in stretches:
        inside = at[(at[:, 0] >= began) & (at[:, 0] <= ended)]
        wall, cpu = (np.diff(inside, axis=0) / 1e6).T
        found = np.median(wall), np.quantile(wall, 0.25), np.median(cpu)
        for name, value in zip(WAYS, found, strict=True):
            taken[name].setdefault(kind, []).append(float(value))
    told: dict[str, object] = {
        "pairs": pairs,
        "step_ms": statistics.median(taken[WAYS[0]]["plain"]),
    }
    for name, values in taken.items():
        for kind in ("attached", "null"):
            ratios = [b / a for a, b in zip(values["plain"], values[kind], strict=True)]
            told[name, kind] = statistics.median(ratios), *interval(ratios)
    return told


def interval(ratios: list[float], rounds: int = 4000) -> tuple[float, float]:
    """95% bootstrap interval of the median ratio (percentiles)."""
    lot = random.Random(1)
    medians = sorted(statistics.median(lot.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.025 * rounds)], medians[int(0.975 * rounds)]


def table(rows: list[dict[str, object]], args: argparse.Namespace) -> str:
    def change(row: dict[str, object], name: str, kind: str) -> str:
        middle, low, high = row[name, kind]
        return f"{middle - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"

    lines = [
        "# What attaching from outside costs a step",
        "",
        f"{date.today()}, {os.cpu_count()} shared CPU cores (load {os.getloadavg()[1]:.1f} at the "
        f"end), Python {platform.python_version()}. Rerun:",
        f"`python benchmarks/attach_cost.py --pairs {args.pairs}`.",
        "",
        "One training process on one thread; plain and attached stretches of two seconds in turns.",
        "The change of the step's time is the median over pairs with its 95% bootstrap interval;",
        "`null` compares two plain stretches in the same way: what it shows is the machine's.",
        "",
        "| loop | step | stacks | of a stretch's steps | attached | null |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {row['step_ms']:.2f} ms | {row['samples']} in {row['pairs']} pairs | "
        f"{name} | {change(row, name, 'attached')} | {change(row, name, 'null')} |"
        for row in rows
        for name in WAYS
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
