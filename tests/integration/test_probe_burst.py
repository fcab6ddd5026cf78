"""A profiler burst on request: what it tells, and that the script and its own profiler go on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import Deployed, deploy, run

LOOP = """
import pathlib, sys, time, torch
torch.manual_seed(0)
m = torch.nn.Linear(8, 1); o = torch.optim.SGD(m.parameters(), 0.1)
go = pathlib.Path(sys.argv[1])
def steps(n, pause=0.002):
    for _ in range(n):
        o.zero_grad(); m(torch.ones(4, 8)).sum().backward(); o.step(); time.sleep(pause)
def until_told():
    end = time.time() + 60
    while not go.exists() and time.time() < end:
        steps(5)
"""


def wait_for(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.05)
    return found


def ask(tmp_path: Path, body: str, **config: object) -> tuple[dict[str, Any], str, str, Deployed]:
    """Run a script, ask for a burst while it loops, let it go on, and give what it told."""
    script, go = tmp_path / "script.py", tmp_path / "go"
    script.write_text(LOOP + textwrap.dedent(body))
    deployed = deploy(tmp_path, **config)
    child = subprocess.Popen(
        [sys.executable, str(script), str(go)],
        env=deployed.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        (path,) = wait_for(deployed.ring_files)
        with Ring.open(path) as ring:
            wait_for(ring.snapshot)
            assert ring.request_burst(7)
            told = wait_for(lambda: (ring.snapshot() or {}).get("burst"))
        go.touch()
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    return told, out, err, deployed


def test_a_burst_on_a_cpu_counts_operators_and_no_kernels(tmp_path: Path) -> None:
    told, out, err, _ = ask(tmp_path, "until_told(); steps(20); print('done')\n")
    assert (told["state"], told["request"], told["automatic"]) == ("done", 7, False)
    assert told["cpu_ops_per_step"] > 10
    assert told["kernels"] is told["busy_share"] is told["kernel_us"] is None
    assert told["cost_ms"] + 0.01 >= told["start_ms"] + told["stop_ms"] > 0  # each is rounded
    assert (out, err) == ("done\n", "")  # Kineto has messages of its own: none may show


@pytest.mark.long
def test_the_scripts_own_profiler_works_as_ever_after_a_burst(tmp_path: Path) -> None:
    body = """
        def count():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
                steps(3)
            return sorted((e.key, e.count) for e in p.key_averages() if "aten::" in e.key)
        until_told()
        print(count(), torch._C._autograd._profiler_enabled())
    """
    _, out, err, _ = ask(tmp_path, body)
    script = tmp_path / "script.py"
    plain = run(script, str(tmp_path / "go"))
    assert out == plain.stdout.decode()
    # Its messages name times and processes; there must be as many of them, with the same words.
    assert [line.split("]")[-1] for line in err.splitlines()] == [
        line.split("]")[-1] for line in plain.stderr.decode().splitlines()
    ]


@pytest.mark.long
def test_a_script_that_starts_its_profiler_meanwhile_finds_ours_gone(tmp_path: Path) -> None:
    body = """
        import sys
        burst = sys.modules["_gputop_probe.state"].S
        until = time.time() + 60
        while burst.burst is None or burst.burst._state != 2:  # until one runs
            assert time.time() < until
            steps(1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            steps(3)
        print(sum(e.count for e in p.key_averages() if e.key == "Optimizer.step#SGD.step"))
        until_told()
    """
    told, out, _, _ = ask(tmp_path, body)
    assert told["state"] == "refused"
    assert "meanwhile" in told["reason"]
    assert out == "3\n"


def test_a_burst_is_refused_while_the_scripts_profiler_runs(tmp_path: Path) -> None:
    body = """
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            until_told()
        print("ok")
    """
    told, out, _, _ = ask(tmp_path, body)
    assert (told["state"], told["reason"]) == ("refused", "the script's own profiler runs")
    assert out == "ok\n"


def test_a_process_that_forks_amid_a_burst_is_as_without_us(tmp_path: Path) -> None:
    body = """
        import os, sys
        burst = sys.modules["_gputop_probe.state"].S
        until = time.time() + 60
        while burst.burst is None or burst.burst._state != 2:
            assert time.time() < until
            steps(1)
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        until_told()
    """
    told, out, err, _ = ask(tmp_path, body)
    assert told["state"] == "refused"
    assert (out, err) == ("3\n", "")


def test_a_script_that_fails_amid_a_burst_fails_as_ever(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    body = """
        burst = sys.modules["_gputop_probe.state"].S if "_gputop_probe.state" in sys.modules else None
        steps(5)
        until = time.time() + 60
        while burst and (burst.burst is None or burst.burst._state != 2):
            assert time.time() < until
            steps(1)
        raise KeyError("x")
    """
    script.write_text(LOOP + textwrap.dedent(body))
    plain = run(script, "none")
    deployed = deploy(tmp_path)
    child = subprocess.Popen(
        [sys.executable, str(script), "none"],
        env=deployed.env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    (path,) = wait_for(deployed.ring_files)
    with Ring.open(path) as ring:
        assert ring.request_burst(3)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (1, plain.stdout, plain.stderr)
    assert plain.returncode == 1
