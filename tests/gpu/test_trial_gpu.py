"""A GPU in the world of a trial's leg: same results, same devices, nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.support import bare_environment, needs_cuda
from tests.trees import fingerprint
from tests.unprivileged import NOBODY, REPOSITORY, open_to_all, run_as_nobody

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

#: Trains on the GPU with pinned memory and workers, saves over its checkpoint, and says what it saw.
SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    data = TensorDataset(torch.randn(40_000, 64), torch.zeros(40_000, 1))
    loader = DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model.load_state_dict(torch.load("model.pt"))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(loader, 1):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            torch.save({k: v.cpu() for k, v in model.state_dict().items()}, "model.tmp")
            os.replace("model.tmp", "model.pt")
        if step == 10:
            print("saw", torch.cuda.get_device_name(0), loss.item().hex(), flush=True)
            if "ten" in sys.argv:
                return

if __name__ == "__main__":
    main()
"""
BEFORE = """
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
torch.save(net.state_dict(), "model.pt")
"""
RUN = "import runpy; runpy.run_module('gputop_train.cli', run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize("user", [os.geteuid(), NOBODY])
def test_cuda_trains_in_the_overlay_as_it_does_outside(tmp_path: Path, user: int) -> None:
    needs_cuda()
    project, runs = tmp_path / "project", tmp_path / "runs"
    project.mkdir()
    runs.mkdir()
    subprocess.run([sys.executable, "-c", BEFORE], cwd=project, check=True, timeout=300)
    (project / "train.py").write_text(SCRIPT)
    saved = (project / "model.pt").read_bytes()
    bare = subprocess.run(
        [sys.executable, "train.py", "ten"],
        cwd=project, env=bare_environment(), capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    (project / "model.pt").write_bytes(saved)
    if user != os.geteuid():
        open_to_all(tmp_path)
        for path in [tmp_path, *tmp_path.rglob("*")]:
            os.chown(path, user, user, follow_symlinks=False)
    before = fingerprint(project)
    words = [
        *("trial", "--run-root", str(runs), "--guard", "overlay", "--steps", "20"),
        *("--warmup", "10", "--rounds", "1", "--set", "num_workers=1", "train.py"),
    ]
    if user != os.geteuid():
        done = run_as_nobody(RUN, *words, cwd=project, timeout=500)
    else:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *words],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert fingerprint(project) == before
    assert [path.name for path in runs.iterdir()] == ["trials"]
    (kept,) = runs.glob("trials/*/trial.json")
    assert [leg["status"] for leg in json.loads(kept.read_text())["legs"]] == ["measured"] * 2
    for log in runs.glob("trials/*/runs/*/output.log"):
        assert bare.stdout.strip() in log.read_text()
