"""The probe in a process that already trains, as Python 3.14's ``sys.remote_exec`` brings it there.

Where there is no 3.14, a stand-in for its interpreter names the script to the process, which runs
it between two bytecodes of its own loop: what ``sys.remote_exec`` makes a target do. The probe, the
run and the supervisor are the real ones.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gputop_train.launch import identity
from gputop_train.launch.attach import report_of, run_of_pid
from gputop_train.launch.outside import remote
from gputop_train.launch.outside.target import Refused, look_at
from gputop_train.launch.runs import list_runs, supervisor_pid
from gputop_train.store.errors import StoreError

PATIENCE_S = 120.0
SCRIPT = """
import os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
inbox, stop = sys.argv[1:]
before = set(globals()) | {"before", "x", "step", "path", "file"}
step = 0
while not os.path.exists(stop):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        step += 1
        time.sleep(0.005)
        if os.path.exists(inbox):
            with open(inbox) as file:
                path = file.read()
            os.unlink(inbox)
            with open(path) as file:
                exec(compile(file.read(), path, "exec"), globals())
    print("step", step, flush=True)
print("left over:", sorted(set(globals()) - before), [p for p in sys.path if "probe" in p])
"""


@pytest.fixture
def training(tmp_path):
    script, log = tmp_path / "train.py", tmp_path / "log"
    script.write_text(SCRIPT)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, script, tmp_path / "inbox", tmp_path / "stop"], stdout=out, stderr=out
        )
    until(lambda: "step" in log.read_text(), process)
    yield process
    process.kill()
    process.wait()


def until(condition, process=None):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.05)
    return found


def interpreter(tmp_path, line):
    stub = tmp_path / "python3.14"
    stub.write_text(f"#!/bin/sh\n{line}\n")
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    return str(stub)


def steps_of(run_dir):
    try:
        return ((report_of(run_dir) or {}).get("steps") or {}).get("count") or 0
    except StoreError:
        return 0


def test_a_process_that_takes_code_becomes_a_run_from_the_next_step_on(training, tmp_path):
    root = tmp_path / "runs"
    # sh has the script's path as its sixth argument: -I -S -c CODE PID SCRIPT.
    call = f'printf %s "$6" > {tmp_path}/inbox.new && mv {tmp_path}/inbox.new {tmp_path}/inbox'
    run_dir = remote.join(look_at(training.pid), root, interpreter=interpreter(tmp_path, call))
    try:
        until(lambda: steps_of(run_dir) >= 20, training)
        (info,) = list_runs(root)
        assert (info.id, info.state, info.pid) == (run_dir.name, "live", training.pid)
        assert run_of_pid(training.pid, [info]) == info
        (tmp_path / "stop").touch()
        assert training.wait(PATIENCE_S) == 0
        report = until(lambda: (run_dir / "report.json").exists() and report_of(run_dir))
    finally:
        watcher = supervisor_pid(run_dir)
        if watcher is not None:
            os.kill(watcher, 9)
    assert report["steps"]["median_ms"] > 0
    assert report["time"]["shares"]["backward"] > 0
    assert report["run"]["exit_code"] is None
    assert "joined while it ran" in report["run"]["exit_reason"]
    assert "left over: [] []" in (tmp_path / "log").read_text()


def test_a_process_that_takes_no_code_is_refused_and_nothing_is_left(training, tmp_path):
    root = tmp_path / "runs"
    mine = look_at(training.pid)
    stub = interpreter(tmp_path, "echo 'RuntimeError: remote debugging is not enabled' >&2; exit 1")
    with pytest.raises(Refused, match="remote debugging is not enabled"):
        remote.join(mine, root, interpreter=stub)
    assert list(root.iterdir()) == []
    # It may come for the script after we gave up: an empty one is there for it, and nothing else.
    with pytest.raises(Refused, match="took no code"):
        remote.join(mine, root, interpreter=interpreter(tmp_path, "exit 0"), wait_s=0.1)
    (left,) = (path for path in root.rglob("*") if path.is_file())
    assert (left.name, left.read_text()) == (remote.JOIN, "")
    gone = replace(mine, process=identity.ProcessId(mine.pid, 1, mine.process.boot_id))
    with pytest.raises(Refused, match="ended meanwhile"):
        remote.join(gone, root, interpreter=interpreter(tmp_path, "exit 0"))
    assert training.poll() is None


def test_only_an_interpreter_that_takes_code_is_asked():
    assert [remote.takes_code(v) for v in (None, (3, 13), (3, 14), (3, 15))] == [
        False,
        False,
        True,
        True,
    ]
