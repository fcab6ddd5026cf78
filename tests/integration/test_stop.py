"""The stop ladder ends the whole run, and never a process that is not the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_train.launch import identity
from gputop_train.launch.processes import process_table, runs_code
from gputop_train.launch.stop import ladder

QUICK = {"grace_s": (0.6, 0.6), "kill_wait_s": 5.0}


@pytest.fixture
def launch():
    """Start Python code in a session of its own, as the shim does, and wait until it is ready."""
    started = []

    def start(code: str) -> tuple[subprocess.Popen[str], identity.ProcessId]:
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        found = identity.identify(child.pid)
        assert found is not None
        return child, found

    yield start
    for child in started:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def session_members(sid: int) -> set[int]:
    return {p.pid for p in process_table().values() if p.session == sid and runs_code(p)}


def test_a_script_that_heeds_ctrl_c_gets_nothing_worse(launch, tmp_path):
    said = tmp_path / "said"
    child, target = launch(
        f"""
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    open({str(said)!r}, "w").write("saved")
    raise SystemExit(3)
"""
    )
    outcome = ladder(target, **QUICK)
    assert outcome.ended
    assert outcome.signals == ("SIGINT",)
    assert child.wait() == 3
    assert said.read_text() == "saved"


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1 and "CHILD" not in os.environ:
    os.environ["CHILD"] = "1"
    grandchild = "import time; time.sleep(60)"
    code = ("import signal, subprocess, sys, time\\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
            "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\\n"
            "print('up', flush=True)\\n"
            "time.sleep(60)")
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    worker.stdout.readline()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_script_that_ignores_everything_is_killed_with_its_grandchildren(launch):
    child, target = launch(STUBBORN)
    assert len(session_members(child.pid)) == 3
    sent: list[str] = []
    outcome = ladder(target, on_signal=sent.append, **QUICK)
    assert outcome.ended
    assert outcome.signals == ("SIGINT", "SIGTERM", "SIGKILL")
    assert sent == list(outcome.signals)
    assert child.wait() == -signal.SIGKILL
    assert session_members(child.pid) == set()


def test_what_a_script_leaves_behind_in_its_session_is_ended_too(launch):
    child, target = launch(
        """
import os, signal, subprocess, sys, time
code = ("import os, signal, time; os.setpgid(0, 0); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(60)")
stray = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
stray.stdout.readline()
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("ready", flush=True)
time.sleep(60)
"""
    )
    assert len(session_members(child.pid)) == 2
    outcome = ladder(target, grace_s=(10.0, 3.0))
    assert outcome.ended
    assert outcome.signals == ("SIGINT", "SIGTERM")
    assert session_members(child.pid) == set()


def test_workers_in_sessions_of_their_own_go_when_their_launcher_had_to_be_killed(launch):
    child, target = launch(
        """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                          start_new_session=True)
print("ready", flush=True)
time.sleep(60)
"""
    )
    (worker,) = [p.pid for p in process_table().values() if p.ppid == child.pid]
    outcome = ladder(target, **QUICK)
    assert outcome.ended
    assert not identity.is_running(worker)


def test_a_service_in_its_own_session_survives_a_script_that_left_by_itself(launch):
    child, target = launch(
        """
import subprocess, sys, time
service = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                           start_new_session=True)
print("ready", flush=True)
time.sleep(60)
"""
    )
    (service,) = [p.pid for p in process_table().values() if p.ppid == child.pid]
    try:
        assert ladder(target, **QUICK).ended
        assert identity.is_running(service)
    finally:
        os.kill(service, signal.SIGKILL)


def test_a_suspended_script_is_woken_to_hear_the_signal(launch):
    child, target = launch(
        """
import signal, time
signal.signal(signal.SIGINT, lambda *a: exit(5))
print("ready", flush=True)
time.sleep(60)
"""
    )
    os.kill(child.pid, signal.SIGSTOP)
    while Path(f"/proc/{child.pid}/stat").read_text().split()[2] != "T":
        time.sleep(0.01)
    outcome = ladder(target, grace_s=(10.0, 5.0))
    assert outcome.signals == ("SIGINT",)
    assert child.wait() == 5


@pytest.mark.parametrize("what", ["start_ticks", "boot_id"])
def test_nothing_is_signalled_when_the_id_is_somebody_elses_by_now(launch, what):
    child, target = launch("import time; print('ready', flush=True); time.sleep(60)")
    other = {"start_ticks": target.start_ticks - 1, "boot_id": "0" * 36}[what]
    outcome = ladder(replace(target, **{what: other}), **QUICK)
    assert outcome.ended
    assert outcome.signals == ()
    assert child.poll() is None


def test_a_reused_session_id_is_not_the_run(launch):
    # The leader's id belongs to another process now; its session must not be taken for ours.
    child, target = launch(STUBBORN)
    before = session_members(child.pid)
    ladder(replace(target, start_ticks=target.start_ticks - 1), **QUICK)
    assert session_members(child.pid) == before
