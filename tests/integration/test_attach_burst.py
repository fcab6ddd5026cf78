"""``attach --burst``: three steps of a live run traced on demand, in words."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.launch import bursting

LOOP = """
import pathlib, sys, time, torch
m = torch.nn.Linear(8, 1); o = torch.optim.SGD(m.parameters(), 0.1)
end = time.time() + 90
while not pathlib.Path(sys.argv[1]).exists() and time.time() < end:
    o.zero_grad(); m(torch.ones(4, 8)).sum().backward(); o.step(); time.sleep(0.005)
print("done")
"""


def cli(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gputop_train.cli", *map(str, arguments)]


def test_a_live_run_is_traced_on_demand_and_goes_on(tmp_path: Path) -> None:
    script, root, stop = tmp_path / "loop.py", tmp_path / "runs", tmp_path / "stop"
    script.write_text(LOOP)
    child = subprocess.Popen(
        cli("--no-tui", "--run-root", root, script, stop), stdout=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            asked = subprocess.run(
                cli("attach", "--burst", "--run-root", root), capture_output=True, text=True
            )
            if asked.returncode == 0:
                break
            time.sleep(0.5)  # not alive yet, or no step yet: each says so
            assert "Traceback" not in asked.stderr
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.startswith("3 steps of ") and "operators each" in asked.stdout
        stop.touch()
        assert child.communicate(timeout=60)[0] == "done\n" and child.returncode == 0
    finally:
        child.kill()
    late = subprocess.run(
        cli("attach", "--burst", "--run-root", root), capture_output=True, text=True
    )
    assert late.returncode == 1 and "has ended" in late.stderr and not late.stdout


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            {
                "state": "done",
                "steps": 3,
                "step_ms": 4.25,
                "kernels_per_step": 2122.0,
                "kernel_us": 15.04,
                "busy_share": 0.42,
                "copy_share": None,
                "cost_ms": 36.5,
            },
            "3 steps of 4.2 ms: 2,122 kernels each, 15.0 us on average, GPU busy 42%; cost 36.5 ms",
        ),
        (
            {"state": "refused", "reason": "the script's own profiler runs"},
            "no burst: the script's own profiler runs",
        ),
        ({"state": "refused"}, "no burst: it was refused"),
    ],
)
def test_a_burst_in_words(told: dict[str, object], words: str) -> None:
    assert bursting.words(told) == words
