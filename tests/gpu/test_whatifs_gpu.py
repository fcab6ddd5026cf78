"""What-ifs of a trial's leg on a real GPU: reads left out, pinned batches replayed, losses unwaited.

Run by hand: ``python -m pytest -m gpu tests/gpu/test_whatifs_gpu.py -s``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.support import needs_cuda
from tests.probe_support import deploy, run
from tests.unprivileged import REPOSITORY

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LOOP = """
import json, os, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
dev = "cuda"
model = torch.nn.Linear(64, 1, device=dev); opt = torch.optim.SGD(model.parameters(), 1e-4)
x = torch.ones(32, 64, device=dev)
counter = torch.zeros((), device=dev)
said = {}

def step():
    opt.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    counter.add_(1)
    return loss.detach()

def end():
    from _gputop_probe.state import S
    said["errors"], said["trial"] = S.errors, S.trial.report()
    print(json.dumps(said))
"""


def said_by(tmp_path: Path, body: str, *what_if: tuple[str, Any], warmup: int = 10) -> Any:
    """What a script says of itself, run as a leg with these what-ifs."""
    needs_cuda()
    script = tmp_path / "script.py"
    script.write_text(LOOP + textwrap.dedent(body) + "\nend()\n")
    config = {"warmup": warmup, "steps": 30, "scratch": str(tmp_path), "guard": "overlay"}
    rows = [{"key": key, "value": value} for key, value in what_if]
    placed = deploy(tmp_path, trial={**config, "seed": 0, "what_if": rows})
    done = run(script, env=placed.env())
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["errors"] == []
    return said


def rows_of(said: Any, key: str) -> list[dict[str, Any]]:
    return [row for row in said["trial"]["what_if"] if row["key"] == key]


def test_reads_are_real_every_nth_time_and_the_device_is_not_waited_for_between(
    tmp_path: Path,
) -> None:
    body = """
    seen = {name: [] for name in ("item", "float", "int", "list", "cpu", "to", "tested", "wait")}
    for i in range(1, 41):
        step()
        seen["item"].append(counter.item())
        seen["float"].append(float(counter))
        seen["int"].append(int(counter))
        seen["list"].append(counter.reshape(1).tolist())
        copy = counter.cpu()
        seen["cpu"].append(copy.clone())
        copy.zero_()  # what a script does to its copy is not to come back
        seen["to"].append(counter.to("cpu"))
        if counter.item() > 20:
            seen["tested"].append(i)
        torch.cuda._sleep(100_000_000)  # some 50 ms of work
        later = torch.cuda.Event(); later.record()
        torch.cuda.synchronize()
        seen["wait"].append(later.query())
    for name in ("cpu", "to"):
        seen[name] = [float(copy) for copy in seen[name]]
    said["seen"] = seen
    """
    said = said_by(tmp_path, body, ("sync_every", 10))
    seen = said["seen"]
    held = [float(10 * (i // 10) + 1) for i in range(40)]
    for name in ("item", "float", "cpu", "to"):
        assert seen[name] == held, name
    assert seen["int"] == [int(v) for v in held]
    assert seen["list"] == [[v] for v in held]
    assert seen["tested"] == list(range(21, 41))  # it steers the script: always real
    assert [i for i, done in enumerate(seen["wait"]) if done] == [0, 10, 20, 30]
    applied = [row for row in rows_of(said, "sync_every") if row["status"] == "applied"]
    assert len(applied) == 7 and {row["count"] for row in applied} == {36}
    (refused,) = (row for row in rows_of(said, "sync_every") if row["status"] == "refused")
    assert "decides a test" in refused["why"]


def test_the_scalers_own_reads_stay_real_and_training_stays_finite(tmp_path: Path) -> None:
    body = """
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 30)
    losses = []
    for i in range(60):
        opt.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    said["scale"], said["finite"] = scaler.get_scale(), bool(model.weight.isfinite().all())
    said["read"] = len(set(losses))
    """
    said = said_by(tmp_path, body, ("sync_every", 10))
    assert said["finite"] and said["scale"] < 2.0**30  # infinities were found, and answered
    assert said["read"] <= 6
    (row,) = rows_of(said, "sync_every")
    assert (row["status"], row["count"]) == ("applied", 54)
    assert row["place"].startswith("script.py:")


def test_pinned_batches_that_are_replayed_stay_pinned_and_unspoilt(tmp_path: Path) -> None:
    body = """
    data = TensorDataset(torch.arange(3200.0).repeat_interleave(64).reshape(3200, 64))
    pinned, firsts = [], []
    for epoch in range(2):
        for (batch,) in DataLoader(data, batch_size=32, pin_memory=True, num_workers=2):
            pinned.append(batch.is_pinned())
            firsts.append(float(batch[0, 0]))
            loss = model(batch.to(dev, non_blocking=True) * 1e-4).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
    said["pinned"], said["firsts"], said["passes"] = all(pinned), firsts, len(pinned)
    """
    said = said_by(tmp_path, body, ("replay_batch", 8), warmup=20)
    assert said["pinned"] and said["passes"] == 200
    assert set(said["firsts"][10:]) == {32.0 * n for n in range(8)}
    (row,) = rows_of(said, "replay_batch")
    assert row["status"] == "applied", row


def test_pinned_batches_written_into_while_replayed_come_back_as_they_were(tmp_path: Path) -> None:
    body = """
    data = TensorDataset(torch.ones(3200, 64))
    met = set()
    for (batch,) in DataLoader(data, batch_size=32, pin_memory=True):
        met.add(float(batch.sum()))
        loss = model(batch.to(dev, non_blocking=True)).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        torch.cuda.synchronize()
        batch.fill_(-1.0)
    said["met"] = sorted(met)
    """
    said = said_by(tmp_path, body, ("replay_batch", 8), warmup=20)
    assert said["met"] == [32.0 * 64]
    assert rows_of(said, "replay_batch")[0]["status"] == "applied"


def test_losses_on_the_gpu_are_told_without_one_wait_for_it(tmp_path: Path) -> None:
    body = """
    step()
    torch.cuda.synchronize()
    kept = []
    torch.cuda.set_sync_debug_mode("error")  # a read that waits would raise, ours too
    for i in range(300):
        kept.append(step())
    torch.cuda.set_sync_debug_mode("default")
    said["kept"] = [float(loss) for loss in kept[:7]]
    torch.cuda.synchronize()
    step()
    """
    said = said_by(tmp_path, body, warmup=50)
    losses = said["trial"]["losses"]
    assert losses["finite"] is True
    assert losses["first"][1:] == pytest.approx(said["kept"], rel=1e-6)
    assert len(losses["first"]) == 8


def test_a_loss_that_becomes_nan_on_the_gpu_spoils_the_what_if(tmp_path: Path) -> None:
    body = """
    for i in range(60):
        if i == 30:
            with torch.no_grad():
                x.fill_(float("nan"))
        step().item()
    """
    said = said_by(tmp_path, body, ("sync_every", 10))
    assert said["trial"]["losses"]["finite"] is False
    (row,) = rows_of(said, "sync_every")
    assert row["status"] == "inconclusive" and "NaN" in row["why"]


def test_a_graph_is_captured_and_replayed_in_a_leg_with_every_what_if(tmp_path: Path) -> None:
    body = """
    for i in range(5):
        step().item()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static = step()
    read = []
    for i in range(40):
        graph.replay()
        read.append(static.item())
    said["read"], said["counted"] = read, float(counter)
    """
    what_ifs = [("sync_every", 10), ("skip_checkpoint", True), ("no_eval", True)]
    said = said_by(tmp_path, body, *what_ifs, ("replay_batch", 8))
    assert said["counted"] == 48
    assert said["read"] == [said["read"][10 * (i // 10)] for i in range(40)]
    assert len(set(said["read"])) == 4
    assert {row["status"] for row in rows_of(said, "sync_every")} == {"applied"}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_step_runs_in_a_leg_that_leaves_reads_out(tmp_path: Path, mode: str) -> None:
    body = f"""
    fast = torch.compile(model, mode="{mode}")
    read = []
    for i in range(40):
        opt.zero_grad()
        loss = fast(x).square().mean()
        loss.backward()
        opt.step()
        read.append(loss.item())
    said["read"] = read
    """
    said = said_by(tmp_path, body, ("sync_every", 10))
    assert said["read"] == [said["read"][10 * (i // 10)] for i in range(40)]
    assert len(set(said["read"])) == 4
    assert rows_of(said, "sync_every")[0]["count"] == 36


def test_checkpoints_and_evaluations_are_left_out_on_the_gpu(tmp_path: Path) -> None:
    body = """
    data = TensorDataset(torch.ones(640, 64))
    held_out, evaluated = DataLoader(data, batch_size=32, pin_memory=True), []
    for epoch in range(3):
        for i in range(20):
            step()
        model.eval()
        with torch.no_grad():
            evaluated.append(sum(1 for (b,) in held_out if model(b.to(dev)).isfinite().all()))
        model.train()
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, "m.tmp")
        os.replace("m.tmp", "m.pt")
    said["evaluated"] = evaluated
    """
    said = said_by(tmp_path, body, ("skip_checkpoint", True), ("no_eval", True))
    assert said["evaluated"] == [1] * 3
    assert (tmp_path / "m.pt").read_bytes().startswith(b"gputop-train: this checkpoint was skipped")
    for key in ("skip_checkpoint", "no_eval"):
        assert {row["status"] for row in rows_of(said, key)} == {"applied"}


TRAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(256, 1024, device="cuda")
running = 0.0
for step in range(100_000):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    running += loss.item()
    if step % 100 == 0:
        print(step, running / (step + 1), flush=True)
"""


def test_the_command_measures_and_predicts_what_reads_cost(tmp_path: Path) -> None:
    needs_cuda()
    project, runs, told = tmp_path / "project", tmp_path / "runs", tmp_path / "told.json"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gputop_train", "trial", "--run-root", str(runs)),
            *("--rounds", "2", "--what-if", "sync_every=20", "--json", str(told), "train.py"),
        ],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    (candidate,) = json.loads(told.read_text())["candidates"]
    assert candidate["what_if"] == ["sync_every=20"]
    assert candidate["applied"] is True and candidate["refused"] is None, candidate
    assert candidate["speedup"] is not None
