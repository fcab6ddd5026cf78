"""On a real NVIDIA GPU: out-of-memory errors, caught and not, are as without us, and are pictured.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_memory_real.py``. A fraction of the card keeps
it small: 1 GB may be allocated.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import Deployed, deploy, run

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.fail("these tests need an NVIDIA GPU; CI deselects them with -m 'not gpu'")


PREAMBLE = """
import time, traceback, torch
from torch import nn
torch.manual_seed(0)
MB = 1 << 20
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(1024 * MB / total)
def numbers():
    stats = torch.cuda.memory_stats()
    print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(),
          torch.cuda.max_memory_reserved(), stats["num_ooms"], stats["num_alloc_retries"], flush=True)
"""
TRAIN = """
model = nn.Linear(1024, 1024, bias=False, device="cuda"); o = torch.optim.Adam(model.parameters())
def step():
    o.zero_grad(); loss = model(torch.ones(8, 1024, device="cuda")).sum(); loss.backward(); o.step()
    return loss
for _ in range(20): step()
torch.cuda.synchronize(); time.sleep(1.2)  # the state is published once a second
numbers(); torch.cuda.reset_peak_memory_stats(); numbers()
"""
#: Out of memory in the forward, in the backward (the engine's thread), and at last for good.
ENDS = """
def too_big(n):
    return torch.empty(n * MB, dtype=torch.uint8, device="cuda")
for size in (3000, 100):
    try:
        too_big(size); print("fits", size)
    except torch.cuda.OutOfMemoryError as error:
        traceback.print_exc(); print(type(error).__name__)
time.sleep(1.1)
w = torch.ones(MB, device="cuda", requires_grad=True)
wide = w.expand(60, -1) * 1.0
torch.cuda.empty_cache()
ballast = too_big((1024 * MB - torch.cuda.memory_reserved()) // MB - 100)
try:
    wide.sum().backward()
except torch.cuda.OutOfMemoryError as error:
    traceback.print_exc()
del ballast, wide
print(step().item().hex(), torch.randn(1, device="cuda").item().hex()); numbers()
time.sleep(1.1)
print(torch.cuda.memory_allocated(), flush=True)
too_big(2000)
"""
HISTORY = """
torch.cuda.memory._record_memory_history(max_entries=20000)
kept = torch.empty(300 * MB, dtype=torch.uint8, device="cuda")
other = [torch.empty(20 * MB, dtype=torch.uint8, device="cuda") for _ in range(4)]
try: torch.empty(900 * MB, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError: print("caught")
numbers()
print(torch._C._cuda_isHistoryEnabled(), len(torch.cuda.memory._snapshot()["device_traces"][0]) > 4)
"""


def bare_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def pair(tmp_path: Path, body: str) -> tuple[Any, Any, Deployed]:
    """The script bare and watched, one after the other: they share the card's free memory."""
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + body)
    deployed = deploy(tmp_path)
    return run(script, env=bare_env()), run(script, env=deployed.env()), deployed


def masked(output: bytes) -> bytes:
    """torch's message names the process and what else is free on the card."""
    text = re.sub(rb"Process \d+ has", b"Process N has", output)
    return re.sub(rb"of which [\d.]+ \w+ is free", b"of which N is free", text)


def snapshot_of(deployed: Deployed) -> dict[str, Any]:
    (path,) = deployed.ring_files()
    with Ring.open(path) as ring:
        found = ring.snapshot()
    assert found is not None
    return found


def test_errors_caught_and_not_are_as_without_us_and_the_last_is_pictured(tmp_path: Path) -> None:
    bare, ours, deployed = pair(tmp_path, TRAIN + ENDS)
    assert b"fits 100" in bare.stdout and bare.returncode == 1, bare.stderr.decode()
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
    assert masked(ours.stderr) == masked(bare.stderr)
    assert bare.stderr.count(b"out of memory") == 3

    found = snapshot_of(deployed)
    oom, weight = found["oom"], 1024 * 1024 * 4
    print("picture:", oom)
    assert found["hooks"]["oom"] is True and found["errors"] == []
    assert (oom["count"], oom["step"], oom["steps_after"]) == (3, 21, 0)
    assert oom["requested"] == 2000 << 20
    assert abs(oom["limit"] - (1024 << 20)) < 1 << 21 and oom["free"] > 0
    assert oom["allocated"] == int(bare.stdout.split()[-1])
    assert oom["reserved"] >= oom["allocated"]
    assert oom["thread"] == "training"
    assert [row["func"] for row in oom["stack"]] == ["too_big", "<module>"]
    assert oom["stack"][1]["call"] == "too_big(2000)"
    held = oom["held"]
    # The optimizer's step counters are on the CPU; w is in no optimizer.
    assert (held["parameters"], held["gradients"], held["optimizer_state"]) == (
        weight, weight, 2 * weight,
    )  # fmt: skip
    assert held["other"] == oom["allocated"] - 4 * weight
    assert oom["lines_missing"] == "allocation history is off"

    steady = found["held"]
    print("held:", steady)
    assert steady["device"] == "cuda:0" and steady["parameters"] == weight
    assert 0 <= steady["other"] < 256 << 20  # cuBLAS keeps a workspace


def test_an_error_in_backward_names_the_line_that_called_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + TRAIN + ENDS.split("print(step()")[0])
    deployed = deploy(tmp_path)
    result = run(script, env=deployed.env())
    assert result.returncode == 0, result.stderr.decode()
    oom = snapshot_of(deployed)["oom"]
    print("in backward:", oom)
    assert oom["thread"] == "autograd"
    assert oom["stack"][0]["call"] == "wide.sum().backward()"
    assert oom["held"]["gradients"] == 1024 * 1024 * 4


def test_recorded_history_gives_the_biggest_allocations_by_line(tmp_path: Path) -> None:
    bare, ours, deployed = pair(tmp_path, TRAIN + HISTORY)
    assert bare.returncode == 0 and b"caught" in bare.stdout, bare.stderr.decode()
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        bare.returncode, bare.stdout, bare.stderr,
    )  # fmt: skip
    lines = snapshot_of(deployed)["oom"]["lines"]
    print("by line:", lines)
    script = (PREAMBLE + TRAIN + HISTORY).splitlines()
    found = [(script[row["line"] - 1].split(" ")[0], row["bytes"] >> 20) for row in lines[:2]]
    assert found == [("kept", 300), ("other", 80)]
    assert lines[1]["blocks"] == 4


def test_a_first_forward_that_does_not_fit_leaves_its_picture(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + "torch.empty(3000 * MB, dtype=torch.uint8, device='cuda')\n")
    deployed = deploy(tmp_path)
    assert run(script, env=deployed.env()).returncode == 1
    found = snapshot_of(deployed)
    assert found["oom"]["requested"] == 3000 << 20
    assert found["oom"]["stack"][0]["func"] == "<module>"
