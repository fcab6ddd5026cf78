"""Two gloo ranks on the CPU under torchrun: each its ring, and who waits for whom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import Ring
from gputop_train.collect.timeline import Timeline
from gputop_train.diagnose.accounting import shares
from gputop_train.diagnose.comm import with_comm
from gputop_train.diagnose.steady import totals_of
from gputop_train.model import Step
from tests.probe_support import deploy

SLOW_RANK = """
import os, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo"); rank = dist.get_rank()
model = DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)), gradient_as_bucket_view=True)
o = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(8, 64)
for i in range(30):
    if rank == 1: time.sleep(0.05)  # the slow rank
    o.zero_grad(); model(x).sum().backward(); o.step()
for i in range(20):
    o.zero_grad(); model(x).sum().backward(); o.step()
    if rank == 1: time.sleep(0.08)
    dist.barrier()
digest = sum(p.double().sum() for p in model.parameters()).item().hex()
if rank == 0: print(digest, flush=True)
dist.destroy_process_group()
"""
SHARDED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
torch.set_num_threads(1); torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2, bias=False))
mesh = init_device_mesh("cpu", (2,))
for layer in model: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
o = torch.optim.Adam(model.parameters())
for _ in range(12):
    o.zero_grad(); model(torch.ones(4, 64)).sum().backward(); o.step()
dist.destroy_process_group()
"""


def torchrun(
    tmp_path: Path, body: str
) -> tuple[subprocess.CompletedProcess[bytes], list[tuple[list[Step], dict[str, Any]]]]:
    """Run a script on two ranks; each rank's steps and last snapshot, by rank."""
    script = tmp_path / "train.py"
    script.write_text(body)
    deployed = deploy(tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(script)],
        env=deployed.env(OMP_NUM_THREADS="1"),
        capture_output=True,
        timeout=240,
        check=False,
    )  # fmt: skip
    found = {}
    for path in deployed.ring_files():
        with Ring.open(path) as ring:
            timeline, steps = Timeline(ring.header.rank), []
            while words := ring.poll():
                steps += timeline.feed(words).steps
            steps += timeline.finish().steps
            found[ring.header.rank] = (list(steps), ring.snapshot() or {})
    return result, [found[rank] for rank in sorted(found)]


def share_of(steps: list[Step], label: str) -> float:
    return sum(s.labels[label] for s in steps) / sum(s.wall_ns for s in steps)


def test_the_fast_rank_waits_for_the_slow_one_and_says_so(tmp_path: Path) -> None:
    result, ranks = torchrun(tmp_path, SLOW_RANK)
    assert result.returncode == 0, result.stderr.decode()
    assert len(ranks) == 2
    (fast, fast_state), (slow, slow_state) = ranks
    assert len(fast) == len(slow) == 50

    (ddp,) = fast_state["ddp"]
    assert (ddp["backend"], ddp["world_size"], ddp["device"]) == ("gloo", 2, "cpu")
    assert ddp["gradient_as_bucket_view"] and not ddp["find_unused_parameters"]
    assert ddp["has_rebuilt_buckets"] and sum(ddp["bucket_bytes"]) == (64 * 64 + 64 + 64 + 1) * 4
    assert ddp["samples"] >= 5 and ddp["per_step"] == 1.0
    assert ddp["exposed_ns"] > 35e6 > slow_state["ddp"][0]["exposed_ns"]

    # DDP's own wait is inside the engine: it comes out of backward, and only as far as measured.
    for steps, state, least, most in ((fast, fast_state, 0.7, 1.0), (slow, slow_state, 0.0, 0.4)):
        early = totals_of(steps[5:29])
        before = shares(early)
        after = with_comm(before, state, early, len(steps))
        assert least <= after["comm"] <= most
        assert abs(sum(after.values()) - 1) < 1e-9
        # To the last bit, so in the order it is computed in: (x - w) + w need not be x.
        waited = after["comm"] - before["comm"]
        assert after["backward"] == before["backward"] - waited

    # A blocking call of the script's is what the sampler sees, with its line.
    assert share_of(fast[35:], "comm") > 0.4
    calls = [row[5] for row in fast_state["sites"] if row[6] == "comm"]
    assert any("dist.barrier()" in call for call in calls)


def test_sharded_parameters_have_steps_and_the_memory_of_their_shard(tmp_path: Path) -> None:
    result, ranks = torchrun(tmp_path, SHARDED)
    assert result.returncode == 0, result.stderr.decode()
    for steps, state in ranks:
        assert len(steps) == 12
        assert share_of(steps[3:], "backward") > 0
        held = state["held"]
        assert held["parameters"] == held["gradients"] == (64 * 64 + 64 * 2) * 4 // 2
        assert 2 * held["parameters"] <= held["optimizer_state"] <= 2 * held["parameters"] + 16
        assert held["partial"] is False
