"""Joining a run again, by whatever a person remembers of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from supervised import Run, Runs, wait_for

from gputop_train.launch import identity
from gputop_train.launch.attach import (
    AttachError,
    ensure_supervised,
    report_of,
    resolve,
    stop_run,
)
from gputop_train.launch.runs import supervisor_pid


@pytest.fixture
def runs(tmp_path):
    started = Runs(tmp_path / "runs")
    yield started
    started.clean()


def attach(runs: Runs, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gputop_train.cli", "attach", "--no-tui"]
    return subprocess.Popen(
        [*command, "--run-root", str(runs.root), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def adopted(run: Run) -> None:
    """Remember a supervisor that attach started, so that it goes with the test."""
    pid = supervisor_pid(run.dir)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not identity.is_running(pid))


def test_a_run_is_found_by_id_its_beginning_its_name_or_any_of_its_processes(runs, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],\n"
        "                          start_new_session=True)\n"
        "print(worker.pid, flush=True)\n"
        "worker.wait()\n"
    )
    run = runs.start(script=script, name="baseline")
    wait_for(lambda: "\n" in run.output)
    worker = int(run.output)
    ids = [run.dir.name, run.dir.name[:5], "baseline", str(run.child.pid), str(worker), None]
    try:
        assert [resolve(word, runs.root).id for word in ids] == [run.dir.name] * len(ids)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_process_we_did_not_start_is_told_apart_and_nothing_is_faked(runs):
    with pytest.raises(AttachError, match="not started by gputop-train"):
        resolve(str(os.getpid()), runs.root)


def test_what_cannot_be_found_says_what_to_do(runs, tmp_path):
    with pytest.raises(AttachError, match="no runs yet"):
        resolve(None, runs.root)
    with pytest.raises(AttachError, match="gputop-train runs"):
        resolve("nosuchrun", runs.root)
    run = runs.start("--steps", "3")
    run.wait_report()
    with pytest.raises(AttachError, match="has ended"):
        resolve(None, runs.root)


def test_an_ambiguous_beginning_lists_the_runs(tmp_path):
    for name in ("abc1", "abc2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"id": name}))
    with pytest.raises(AttachError, match="abc1"):
        resolve("abc", tmp_path)
    assert resolve("abc2", tmp_path).id == "abc2"


def test_an_orphaned_run_gets_a_supervisor_and_a_watched_one_keeps_its_own(runs):
    run = runs.start("--steps", "10", held=True)
    wait_for(run.watched)
    first = run.supervisor
    assert ensure_supervised(run.dir) is True
    assert supervisor_pid(run.dir) == first
    run.kill_supervisor()
    assert ensure_supervised(run.dir) is True
    assert supervisor_pid(run.dir) not in (None, first)
    adopted(run)


def test_attach_follows_to_the_end_and_leaves_with_the_scripts_code(runs):
    run = runs.start("--steps", "250", "--exit", "7", held=True)
    run.wait_steps(3)
    run.kill_supervisor()
    client = attach(runs, run.dir.name)
    wait_for(lambda: supervisor_pid(run.dir))
    run.let_go()
    out, err = client.communicate(timeout=60)
    assert client.returncode == 7
    assert "step 249\n" in out
    assert f"attached to run {run.dir.name}" in err
    assert run.wait_report()["steps"]["count"] == 250


@pytest.mark.slow
def test_attach_for_a_while_leaves_training_alone_and_writes_what_is_known(runs, tmp_path):
    run = runs.start("--steps", "100000", "--step-ms", "9")
    run.wait_steps(30)
    target = tmp_path / "so-far.json"
    client = attach(runs, "--duration", "2", "--json", str(target))
    _, err = client.communicate(timeout=60)
    assert client.returncode == 0
    assert "training goes on" in err
    assert identity.is_alive(run.child)
    report = json.loads(target.read_text())
    assert report["run"]["exit_code"] is None
    assert report["steps"]["count"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_to_attach_reaches_the_run(runs, number):
    run = runs.start("--steps", "100000", "--step-ms", "9")
    run.wait_steps(3)
    client = attach(runs, run.dir.name)
    assert client.stdout is not None
    assert client.stdout.readline()  # it follows
    client.send_signal(number)
    client.communicate(timeout=60)
    assert client.returncode == 0
    assert identity.is_alive(run.child)


@pytest.mark.slow
def test_json_on_stdout_is_the_report_alone(runs):
    run = runs.start("--steps", "120", held=True)
    client = attach(runs, run.dir.name, "--json", "-")
    run.wait_steps(119)
    run.let_go()
    out, err = client.communicate(timeout=60)
    assert json.loads(out)["run"]["id"] == run.dir.name
    assert "step 119" in err


@pytest.mark.slow
def test_a_report_is_there_while_the_run_lives_and_after_its_supervisor_died(runs):
    run = runs.start("--steps", "120", held=True)
    alive = wait_for(lambda: report_of(run.dir))
    assert alive["run"]["id"] == run.dir.name
    run.kill_supervisor()
    run.let_go()
    run.wait_exit()
    final = report_of(run.dir)
    assert final is not None
    assert final["steps"]["count"] == 120


def test_a_run_whose_supervisor_was_killed_can_still_be_stopped(runs):
    run = runs.start("--steps", "100000", "--step-ms", "9")
    wait_for(run.watched)
    run.kill_supervisor()
    assert stop_run(run.dir) is None
    assert run.wait_report()["run"]["stopped_by"] == "user"
    assert not identity.is_alive(run.child)
    assert "nothing to stop" in str(stop_run(run.dir))
