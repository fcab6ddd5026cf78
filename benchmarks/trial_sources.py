"""`gputop-train trial --what-if replay_batch` where batches come from no DataLoader.

    python benchmarks/trial_sources.py [--max-minutes M] [--only WORDS] [--out FILE]

Four scripts of the usual kinds: a slow `get_batch(split)`, a slow generator, a queue that a slow
thread fills, and a `get_batch` that is quick beside its step, which waits as for a device. Shown:
that the first three are found guilty and the last is acquitted. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMON = """
import queue, threading, time
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
rng = np.random.default_rng(0)
tokens = rng.integers(0, 256, size=200_000)
BLOCK = 64


def corrupted(count, times):
    \"\"\"Windows of the text, each passed through a filter and back: work in NumPy.\"\"\"
    rows = []
    for start in rng.integers(0, len(tokens) - BLOCK - 1, size=count):
        window = tokens[start : start + BLOCK + 1].astype(np.float64)
        for _ in range(times):
            window = np.fft.irfft(np.fft.rfft(window), n=len(window))
        rows.append(np.rint(window).clip(0, 255).astype(np.int64))
    return torch.from_numpy(np.stack(rows))


def build(width):
    model = nn.Sequential(nn.Embedding(256, width), nn.Linear(width, width), nn.GELU(),
                          nn.Linear(width, 256))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x).view(-1, 256), y.reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

FUNCTION = """
def get_batch(split, times={times}):
    data = corrupted(16, times)
    return data[:, :-1], data[:, 1:]


@torch.no_grad()
def estimate_loss():
    model.eval()
    for split in ("train", "val"):
        x, y = get_batch(split)
        nn.functional.cross_entropy(model(x).view(-1, 256), y.reshape(-1))
    model.train()


model, optimizer = build(64)
x, y = get_batch("train")
for step in range(100_000):
    if step % 500 == 0:
        estimate_loss()
    train_step(model, optimizer, x, y)
    time.sleep({waits})
    x, y = get_batch("train")
"""

GENERATOR = """
def batches(count):
    while True:
        data = corrupted(count, 60)
        yield data[:, :-1], data[:, 1:]


def main():
    model, optimizer = build(64)
    for x, y in batches(16):
        train_step(model, optimizer, x, y)


main()
"""

QUEUE = """
def fill(ready):
    while True:
        time.sleep(0.03)  # a slow disk
        data = corrupted(16, 1)
        ready.put((data[:, :-1], data[:, 1:]))


ready = queue.Queue(maxsize=4)
threading.Thread(target=fill, args=(ready,), daemon=True).start()
model, optimizer = build(64)
while True:
    train_step(model, optimizer, *ready.get())
"""

SCRIPTS = {
    "a slow get_batch(split)": (COMMON + FUNCTION.format(times=60, waits=0), "confirmed"),
    "a slow generator": (COMMON + GENERATOR, "confirmed"),
    "a queue that a slow thread fills": (COMMON + QUEUE, "confirmed"),
    "a quick get_batch(split)": (COMMON + FUNCTION.format(times=0, waits=0.1), "acquitted"),
}


def by_trial(text: str, minutes: float) -> dict[str, Any]:
    """What the trial says."""
    with tempfile.TemporaryDirectory(prefix="gputop-trial-") as place:
        project = Path(place) / "project"
        project.mkdir()
        (project / "train.py").write_text(text)
        command = [sys.executable, "-m", "gputop_train", "trial", "--run-root", place + "/runs"]
        command += ["--python", sys.executable, "--json", "-", "--max-minutes", str(minutes)]
        done = subprocess.run(
            [*command, "--what-if", "replay_batch", "train.py"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def main() -> None:
    """Try each and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-minutes", type=float, default=4.0, help="of each trial")
    parser.add_argument("--only", default="", help="those whose name has these words")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [
        "# `replay_batch` where batches come from no DataLoader",
        "",
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}. Rerun: `python benchmarks/trial_sources.py`",
        "",
        "| batches come from | achieved | interval | predicted | wanted | shown |",
        "|---|---|---|---|---|---|",
    ]
    said = []
    for name, (text, wanted) in SCRIPTS.items():
        if args.only not in name:
            continue
        found = by_trial(text, args.max_minutes)
        (one,) = found["candidates"]
        interval = " to ".join(f"{end:.2f}" for end in one["interval"] or ()) or "-"
        speed = f"{one['speedup']:.2f}x" if one["speedup"] is not None else one["status"]
        told = f"up to {one['predicted']:.2f}x" if one["predicted"] is not None else "-"
        judged = "acquitted" if wanted == "acquitted" else "guilt is confirmed"
        shown = "yes" if judged in one["sentence"] else "**no**"
        lines.append(f"| {name} | {speed} | {interval} | {told} | {wanted} | {shown} |")
        said += ["", f"{name}: {one['sentence']}"]
        print("\n".join(said[-2:]), file=sys.stderr)
    text = "\n".join([*lines, *said])
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
