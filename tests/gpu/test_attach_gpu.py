"""Attach from outside beside a real GPU: what the driver tells bounds what stacks may claim."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.launch.outside import listing
from tests.gpu.support import bare_environment, needs_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]
DEMOS = Path(__file__).resolve().parents[2] / "demos"
WATCH_S = 20


@pytest.fixture(autouse=True, scope="module")
def _gpu():
    needs_cuda()


def attached(name, tmp_path):
    """The report of a demo that trains already."""
    log, target = tmp_path / "log", tmp_path / "report.json"
    with log.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-u", str(DEMOS / f"{name}.py"), "--steps", "10000000"],
            stdout=out,
            stderr=out,
            env=bare_environment(),
        )
    try:
        deadline = time.monotonic() + 120
        while "step " not in log.read_text():
            assert demo.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        command = [sys.executable, "-m", "gputop_train.cli", "attach", str(demo.pid)]
        said = subprocess.run(
            [*command, "--duration", str(WATCH_S), "--json", str(target)],
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        assert demo.poll() is None
        listed = {one.pid: one for one in listing.find(tmp_path)}[demo.pid]
        # By card where the driver's PIDs are ours, else only that a GPU is in use.
        assert listed.sight == "sampling" and listed.gpu
    finally:
        demo.kill()
        demo.wait()
    print(said)
    return json.loads(target.read_text())


def test_a_starved_gpu_is_told_by_stacks_and_driver_together(tmp_path):
    report = attached("starved", tmp_path)
    assert report["verdict"]["id"] == "input-bound"
    assert report["verdict"]["refined"] == "main-process-loading"
    (card,) = report["run"]["gpus"]
    assert card["name"] and 0 <= card["util_mean"] <= 100
    # No more is claimed than what the GPU, as busy as the driver says, cannot have worked through.
    wait = report["time"]["shares"]["data_wait"]
    bound = wait - report["gpu"]["util_mean"] / 100
    assert report["verdict"]["lost_share"] == pytest.approx(bound, abs=1e-5)
    assert report["time"]["shares"]["gpu_wait"] is None
    assert report["gpu"]["busy_share"] is None


def test_saves_beside_a_gpu_are_named_with_their_line(tmp_path):
    report = attached("checkpointing", tmp_path)
    assert report["verdict"]["id"] == "checkpoint-stall"
    assert "torch.save(" in report["verdict"]["where"][0]["what"]


def test_a_healthy_loop_is_not_warned_of(tmp_path):
    report = attached("healthy", tmp_path)
    assert (report["verdict"] or {"severity": "info"})["severity"] == "info"
    assert report["healthy"] is not True
