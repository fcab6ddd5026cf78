"""The probe brought into a running process by ``sys.remote_exec``: real Python 3.14, real torch.

    python benchmarks/attach_remote.py [--rounds 5] [--python PATH] [--out TABLE.md]

``--python`` is an interpreter of 3.14 or newer that has torch; the one this runs on by default. In
each round the same seeded script runs twice, once alone and once joined after its hundredth step by
``gputop-train attach PID``. Compared are the parameters bit for bit, the random state, the output
and the exit code; counted are the steps of the report beside the script's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

JOIN_AT, STEPS = 100, 700
SCRIPT = """
import hashlib, json, os, sys, threading, time, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
class Items(Dataset):
    def __len__(self):
        return 1600
    def __getitem__(self, i):
        time.sleep(0.0005)
        return torch.full((64,), float(i % 7))
parts = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(128, 64)
model = torch.nn.Sequential(*parts)
optimizer = torch.optim.Adam(model.parameters())
before = set(globals()) | {"before", "x", "loss", "step", "ends", "state"}
step, ends = 0, []
while step < int(sys.argv[2]):
    for x in DataLoader(Items(), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        ends.append(time.monotonic_ns())
        step += 1
        if step % 50 == 0:
            print("step", step, loss.item(), flush=True)
        if step >= int(sys.argv[2]):
            break
state = hashlib.sha256()
for value in [*model.state_dict().values(), torch.get_rng_state()]:
    state.update(value.numpy().tobytes())
print("state", state.hexdigest(), "left", sorted(set(globals()) - before),
      [p for p in sys.path if "probe" in p], "threads", threading.active_count(), flush=True)
json.dump(ends, open(sys.argv[1], "w"))
sys.exit(3)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    told = subprocess.run(
        [args.python, "-c", "import sys, torch; print(sys.version.split()[0], torch.__version__)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    version, torch = told.stdout.split()
    if tuple(map(int, version.split(".")[:2])) < (3, 14):
        parser.error(f"{args.python} is Python {version}; sys.remote_exec came with 3.14.")
    with tempfile.TemporaryDirectory(prefix="attach-remote-") as place:
        rows = [one_round(args.python, Path(place, str(i))) for i in range(args.rounds)]
        refused = switched_off(args.python, Path(place, "off"))
    text = table(rows, refused, version, torch, args)
    print(text)
    if args.out:
        args.out.write_text(text)
    return 0 if all(row["same"] for row in rows) and refused else 1


def one_round(python: str, place: Path) -> dict[str, Any]:
    """The script alone, then joined."""
    place.mkdir()
    script = place / "train.py"
    script.write_text(SCRIPT)
    alone, joined = place / "alone.json", place / "joined.json"
    plain = subprocess.run(
        [python, script, alone, str(STEPS)], capture_output=True, text=True, check=False
    )
    process = start(python, script, joined)
    head = read_to(process, f"step {JOIN_AT} ")
    began = time.monotonic_ns()
    report_path = place / "report.json"
    attached = attach(process.pid, place, "--json", str(report_path))
    rest, errors = process.communicate(timeout=120)
    _, said = attached.communicate(timeout=120)
    assert report_path.exists(), said
    report = json.loads(report_path.read_bytes())
    ends = json.loads(joined.read_text())
    after = [t for t in ends if t >= began]
    first = ends[-report["steps"]["count"]]
    return {
        "same": plain.stdout == head + rest
        and plain.returncode == process.returncode == 3
        and plain.stderr == errors == "",
        "own": len(after),
        "counted": report["steps"]["count"],
        "arrival_ms": (first - began) / 1e6,
        "ratio": later_over_earlier(ends, first) / later_over_earlier(load(alone), None),
        "verdict": (report["verdict"] or {}).get("id"),
        "where": [f"{w['file'].rsplit('/')[-1]}:{w['line']}" for w in report["verdict"]["where"]],
    }


def switched_off(python: str, place: Path) -> bool:
    """With ``PYTHON_DISABLE_REMOTE_DEBUG`` set in the target it is said, and stacks are sampled."""
    place.mkdir()
    script = place / "train.py"
    script.write_text(SCRIPT)
    process = start(python, script, place / "ends.json", PYTHON_DISABLE_REMOTE_DEBUG="1")
    read_to(process, "step 50 ")
    _, said = attach(process.pid, place, "--duration", "2").communicate(timeout=120)
    process.communicate(timeout=120)
    return process.returncode == 3 and "PYTHON_DISABLE_REMOTE_DEBUG" in said


def start(python: str, script: Path, ends: Path, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, script, ends, str(STEPS)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environ},
    )


def attach(pid: int, place: Path, *words: str) -> subprocess.Popen[str]:
    root = ("--run-root", str(place / "runs"))
    return subprocess.Popen(
        [sys.executable, "-m", "gputop_train.cli", "attach", str(pid), "--no-tui", *root, *words],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def read_to(process: subprocess.Popen[str], begin: str) -> str:
    """What the script prints up to the line that begins so."""
    assert process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith(begin):
        lines.append(process.stdout.readline())
        assert lines[-1], "the script ended early"
    return "".join(lines)


def load(path: Path) -> list[int]:
    found: list[int] = json.loads(path.read_text())
    return found


def later_over_earlier(ends: list[int], first: int | None) -> float:
    """Median step time after the join over that before it; of a plain run, at the same steps."""
    times = [b - a for a, b in itertools.pairwise(ends)]
    at = JOIN_AT + 20 if first is None else ends.index(first) + 20
    return statistics.median(times[at:]) / statistics.median(times[10:JOIN_AT])


def table(
    rows: list[dict[str, Any]], refused: bool, version: str, torch: str, args: argparse.Namespace
) -> str:
    lines = [
        "# The probe brought into a running process",
        "",
        f"{date.today()}, Python {version}, torch {torch}, {os.cpu_count()} shared CPU cores (load "
        f"{os.getloadavg()[1]:.1f} at the end). Rerun, with an interpreter of 3.14 or newer that",
        f"has torch: `python benchmarks/attach_remote.py --rounds {args.rounds} --python PATH`.",
        "",
        f"A seeded script of {STEPS} steps that exits with 3, alone and joined after {JOIN_AT} of",
        "them. As alone: parameters and random state bit for bit, output, exit code, global names,",
        "`sys.path`, threads listed. Step time: after the join over before it, divided by the same",
        "ratio of the run alone.",
        "",
        "| round | as alone | steps since | counted | first after | step time | verdict | at |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {i} | {'yes' if row['same'] else 'NO'} | {row['own']} | {row['counted']} | "
        f"{row['arrival_ms']:.0f} ms | {row['ratio']:.3f} | `{row['verdict']}` | "
        f"{', '.join(row['where'])} |"
        for i, row in enumerate(rows, 1)
    ]
    lines += [
        "",
        "Steps before the first counted one ran while the command started. With",
        "`PYTHON_DISABLE_REMOTE_DEBUG` set in the target it was "
        + ("refused, said, and sampled instead." if refused else "NOT refused as it should be."),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
