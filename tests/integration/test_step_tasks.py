"""``srun -n 2 gputop-train train.py``: one run, told once, with both ranks in it.

SLURM is a stand-in here: the variables of its step, and its tasks side by side.
benchmarks/slurm.py has the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_train.launch import tasks
from gputop_train.launch.options import Options, Target
from gputop_train.launch.threshold import Command
from tests.integration.supervised import TRAINER
from tests.launching import world

STEP = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NODEID": "0",
}


@pytest.fixture
def here(tmp_path):
    with world(tmp_path) as made:
        made.environ |= STEP
        yield made


def start(here, rank, *arguments):
    here.environ |= {"SLURM_LOCALID": str(rank), "SLURM_PROCID": str(rank)}
    return here.start("--json", "report.json", "--", sys.executable, str(TRAINER), *arguments)


def test_two_tasks_are_two_ranks_of_one_run_and_the_first_one_speaks(here):
    stay = here.place / "stay"
    until = ("--until", str(stay))
    first = start(here, 0, "--steps", "30", "--rank", "0", "--exit", "4", *until)
    here.run_dir()
    second = start(here, 1, "--steps", "31", "--rank", "1", "--exit", "5")
    out, said = second.communicate(timeout=90)
    stay.touch()
    first_out, first_said = first.communicate(timeout=90)
    assert (first.returncode, second.returncode) == (4, 5)
    assert said == b""
    assert out.endswith(b"step 30\n") and first_out.endswith(b"step 29\n")
    assert first_said.count(b"gputop-train: run ") == 1
    report = json.loads((here.place / "report.json").read_bytes())
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert report["steps"]["count"] == 30
    assert here.run_json()["step"] == f"12.0.0@{os.uname().nodename}"


def test_steps_asked_for_end_every_task_of_the_step(here):
    flag = here.place / "second-is-here"
    begin = (f"until [ -e {flag} ]; do sleep 0.05; done", f"touch {flag}")
    tasks = []
    for rank in (0, 1):
        here.environ |= {"SLURM_LOCALID": str(rank), "SLURM_PROCID": str(rank)}
        words = f"{sys.executable} {TRAINER} --steps 9999 --step-ms 20 --rank {rank}"
        command = ("sh", "-c", f"{begin[rank]}; exec {words}")
        tasks.append(here.start("--steps", "150", "--", *command))
        here.run_dir()
    for task in tasks:
        task.communicate(timeout=90)
    assert tasks[0].returncode == 0  # stopped as asked
    assert tasks[1].returncode != 0  # by the same signals


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, f"12.0.0@{os.uname().nodename}"),
        ({"SLURM_RESTART_COUNT": "2"}, f"12.0.2@{os.uname().nodename}"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_STEP_ID": ""}, None),  # a batch script
        ({"SLURM_STEP_NUM_TASKS": "many"}, None),
    ],
)
def test_what_is_a_step_of_several_tasks(changes, expected):
    assert tasks.step_of({**STEP, **changes}) == expected


def test_a_requeued_job_is_another_attempt():
    assert tasks.attempt(STEP) == 1
    assert tasks.attempt({**STEP, "SLURM_RESTART_COUNT": "2"}) == 3
    assert tasks.attempt({"SLURM_RESTART_COUNT": "2"}) == 1  # of no job


def test_a_task_without_a_run_to_join_is_launched_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(tasks.os, "execve", lambda *_: pytest.fail("became the script"))
    options = Options(target=Target("script", ("train.py",)), run_root=str(tmp_path))
    command = Command(sys.executable, (sys.executable, "train.py"), sys.executable)
    (tmp_path / "aaa").mkdir()
    (tmp_path / "aaa" / "run.json").write_text('{"id": "aaa", "step": "11.0.0@elsewhere"}')
    for environ in ({**STEP, "SLURM_LOCALID": "1"}, {**STEP, "SLURM_LOCALID": "0"}, {}):
        assert tasks.join(options, command, environ) is None


@pytest.mark.parametrize("what", ["open to others", "another user's", "ended"])
def test_no_run_is_joined_that_is_not_ours_or_has_ended(tmp_path, monkeypatch, what):
    monkeypatch.setattr(tasks, "_PATIENCE_S", 0.1)
    place = tmp_path / "aaa"
    place.mkdir(0o700)
    step = tasks.step_of(STEP)
    (place / "run.json").write_text(json.dumps({"id": "aaa", "step": step}))
    assert tasks._await_run(tmp_path, step) == place
    if what == "open to others":
        place.chmod(0o755)
    elif what == "ended":
        (place / "exit.json").write_text("{}")
    elif os.geteuid() == 0:
        os.chown(place, 65534, 65534)
    else:
        pytest.skip("only root can give a directory away")
    assert tasks._await_run(tmp_path, step) is None


def test_each_node_writes_a_report_of_its_own():
    second = {**STEP, "SLURM_NODEID": "1"}
    named = str(Path("out") / "report.json")
    assert tasks.report_file(named, STEP) == named
    assert tasks.report_file(named, second) == str(Path("out") / "report-node1.json")
    assert tasks.report_file("-", second) == "-"
    assert tasks.report_file(named, {"SLURM_NODEID": "1"}) == named


def test_the_script_of_a_later_task_gets_the_default_of_the_signals_python_ignores(here):
    first = start(here, 0, "--steps", "20", "--until", str(here.place / "go"))
    here.run_dir()
    here.environ |= {"SLURM_LOCALID": "1", "SLURM_PROCID": "1"}
    command = ["env", "PYTHONPATH=", "grep", "SigIgn", "/proc/self/status"]
    told = subprocess.run(
        here.command("--", *command), cwd=here.place, env=here.environ,
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    bare = subprocess.run(command, capture_output=True, check=True)
    assert told.stdout == bare.stdout
    (here.place / "go").touch()
    first.communicate(timeout=60)
