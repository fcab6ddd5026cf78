"""What a process did before its first step is told: its milestones, and the lines it was seen at."""

from __future__ import annotations

import textwrap
import time
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import deploy, run

SCRIPT = """
import multiprocessing, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader

def scan(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        longest = max(len(word) for words in [[[c] for c in "quick" * 9] for _ in range(99)]
                      for word in words)
    return longest

def train():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for x in DataLoader([torch.ones(4)] * 8, 4):
        model(x).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    if "forked" in sys.argv:
        train()
        child = multiprocessing.get_context("fork").Process(target=train)
        child.start()
        child.join()
    else:
        scan(1.5)
        train()
"""
MARKS = ["process_ns", "torch_begin_ns", "torch_ns", "loader_ns", "iter_ns", "armed_ns", "step_ns"]


def told(tmp_path: Path, *args: str) -> list[dict[str, Any]]:
    """The snapshots' ``startup``, the process that began first first."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    deployed = deploy(tmp_path)
    done = run(script, *args, env=deployed.env())
    assert done.returncode == 0 and done.stderr == b"", done.stderr
    found = [Ring.open(path).snapshot() or {} for path in deployed.ring_files()]
    assert all(snap["errors"] == [] for snap in found)
    return sorted((snap["startup"] for snap in found), key=lambda s: s["process_ns"])


def test_milestones_come_in_order_and_the_scan_is_named(tmp_path: Path) -> None:
    before_ns = time.monotonic_ns()
    (startup,) = told(tmp_path)
    times = [startup[name] for name in MARKS]
    assert times == sorted(times)
    assert before_ns - 20_000_000 <= times[0] and times[-1] <= time.monotonic_ns()  # a clock tick
    # Not only the scan makes objects: torch imports some of its own parts when first used.
    assert any(file.endswith("script.py") for file, *_ in startup["lines"])
    assert {func for _, _, func, _ in startup["lines"]} & {"scan", "<genexpr>", "<listcomp>"}
    assert startup["looks"] >= sum(count for *_, count in startup["lines"]) > 0
    assert startup["look_ns"] > 0


def test_a_forked_trainer_has_a_beginning_of_its_own(tmp_path: Path) -> None:
    parent, child = told(tmp_path, "forked")
    assert child["torch_ns"] == parent["torch_ns"]
    assert child["process_ns"] >= parent["step_ns"] - 20_000_000
    assert child["process_ns"] - 20_000_000 <= child["loader_ns"] < child["step_ns"]
    assert child["looks"] == 0 and child["lines"] == []
