"""Loops so fast that the probe records the phases of some steps only: nothing else is lost."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect import words as W
from gputop_train.collect.batch import Batch
from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from tests.probe_support import deploy, run

PREAMBLE = """
import time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)

def loss_of(net):
    return net(torch.ones(4, 8)).square().mean()
"""

LOADED = """
class Data(Dataset):
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        if index in (500, 900):
            time.sleep(0.05)
        return torch.ones(8)

optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
held = torch.utils.data.TensorDataset(torch.ones(40, 8))
for number, x in enumerate(DataLoader(Data(), batch_size=None)):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number % 400 == 399:
        torch.save(model.state_dict(), "weights.pt")
        model.eval()
        with torch.no_grad():
            for (y,) in DataLoader(held, batch_size=4):
                model(y)
                time.sleep(0.002)
        model.train()
"""

TWO_OPTIMIZERS = """
other = torch.nn.Linear(8, 8)
one = torch.optim.SGD(model.parameters(), lr=1e-3)
two = torch.optim.Adam(other.parameters(), lr=1e-3)
for _ in range(600):
    for _ in range(2):
        one.zero_grad()
        loss_of(model).backward()
        one.step()
    two.zero_grad()
    loss_of(other).backward()
    two.step()
"""

CLOSURES = """
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
def closure():
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    return loss
for _ in range(600):
    optimizer.step(closure)
"""

SKIPPED = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=10**6)
for number in range(1000):
    optimizer.zero_grad()
    loss = loss_of(model)
    scaler.scale(loss * float("inf") if number % 90 == 70 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


COMPILED = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
compiled = torch.compile(model, backend="eager")

def train(x):
    loss = compiled(x).square().mean()
    loss.backward()  # a graph break
    return loss

step = torch.compile(train, backend="eager")
for number in range(500):
    optimizer.zero_grad()
    # Shapes change while nothing is recorded, so dynamo compiles there too.
    loss = step(torch.ones(4 if number < 300 else 4 + number % 3, 8))
    optimizer.step()
import torch._dynamo
counted = torch._dynamo.utils.counters
print(loss.item().hex(), dict(counted["stats"]), sum(counted["graph_break"].values()))
print(dict(counted["recompiles"]), dict(counted["frames"]))
"""


def watch(tmp_path: Path, body: str) -> tuple[Batch, list[int], dict[str, Any]]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PREAMBLE + body))
    # A budget so small that even a loaded machine's loops are too fast for it.
    deployed = deploy(tmp_path, overhead_budget=1e-5)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    with Ring.open(deployed.ring_files()[0]) as ring:
        words = list(ring.poll())
        snapshot = ring.snapshot()
    timeline = Timeline(0)
    fed = [timeline.feed(words), timeline.finish()]
    assert not timeline.bad
    assert snapshot is not None
    assert not snapshot["errors"]
    merged = Batch(
        steps=tuple(step for batch in fed for step in batch.steps),
        intervals=tuple(interval for batch in fed for interval in batch.intervals),
    )
    return merged, [word & W.CODE_MASK for word in words], snapshot


def test_a_fast_loop_keeps_its_count_its_saves_its_evaluations_and_its_long_waits(
    tmp_path: Path,
) -> None:
    batch, codes, snapshot = watch(tmp_path, LOADED)
    assert codes.count(W.STEP_TICK) > 200
    assert len(batch.steps) == 1200
    labels = [interval.label for interval in batch.intervals]
    # What follows the last step belongs to no step; the first two are told whatever was recorded.
    assert labels.count("checkpoint") == 3
    evals = [i.t1_ns - i.t0_ns for i in batch.intervals if i.label == "eval"]
    assert len(evals) == 3
    assert min(evals) > 20_000_000
    waits = sorted(step.labels["data_wait"] for step in batch.steps)
    assert waits[-2] > 50_000_000 > 20_000_000 > waits[-12]
    assert all(sum(step.labels.values()) == step.wall_ns for step in batch.steps)
    assert snapshot["detail"]["steps"] == 1200
    assert snapshot["detail"]["recorded"] == 1200 - codes.count(W.STEP_TICK)
    assert snapshot["cost"]["total_ns"] > snapshot["cost"]["phases_ns"] > 0


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        pytest.param(TWO_OPTIMIZERS, 1200, id="two optimizers, one of them twice a step"),
        pytest.param(CLOSURES, 600, id="closures", marks=pytest.mark.long),
        pytest.param(SKIPPED, 1000, id="steps that the scaler skips"),
    ],
)
def test_steps_are_counted_as_ever(tmp_path: Path, body: str, steps: int) -> None:
    batch, codes, _ = watch(tmp_path, body)
    assert codes.count(W.STEP_TICK) > 100
    assert abs(len(batch.steps) - steps) <= 1


PLAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number in range(900):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
"""


def test_steps_that_only_ticked_before_the_end_are_in_the_probes_own_count(tmp_path: Path) -> None:
    batch, codes, snapshot = watch(tmp_path, PLAIN)
    assert codes[-1] == W.STEP_TICK  # it ended while nothing was recorded
    assert len(batch.steps) == snapshot["detail"]["steps"] == snapshot["cost"]["steps"] == 900


def test_a_forked_child_counts_none_of_its_parents_steps(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    told = "import os, sys\npid = os.fork()\nprint(sys.modules['_gputop_probe.state'].S.steps)\n"
    wait = "sys.stdout.flush()\nos._exit(0) if pid == 0 else os.waitpid(pid, 0)\n"
    script.write_text(textwrap.dedent(PREAMBLE + PLAIN) + told + wait)
    deployed = deploy(tmp_path, overhead_budget=1e-5)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    assert "0" in result.stdout.decode().split()


def test_compiled_code_sees_no_difference_between_recorded_and_unrecorded_steps(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PREAMBLE + COMPILED))
    deployed = deploy(tmp_path, overhead_budget=1e-5)
    bare, watched = run(script), run(script, env=deployed.env())
    assert watched.returncode == bare.returncode == 0, bare.stderr.decode()
    assert watched.stdout == bare.stdout
    with Ring.open(deployed.ring_files()[0]) as ring:
        codes = [word & W.CODE_MASK for word in ring.poll()]
    assert codes.count(W.STEP_TICK) > 200
    assert codes.count(W.COMPILE << 1) >= 2  # told whatever else was recorded
