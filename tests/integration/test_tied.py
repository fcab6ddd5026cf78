"""Where the training ends with us: PID 1 of a container, a step of a batch job.

What signals a whole step is called ``slurmstepd`` here and is not SLURM's: an interpreter under that
name, which signals every process of the step as ``proctrack/linuxproc`` and ``proctrack/cgroup`` do,
or one process as ``proctrack/pgid`` does. benchmarks/slurm.py has the real one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_launch_screen import Screen
from tests.launching import World, needs_namespaces, world

SCRIPT = """
import os, signal, sys, time
def told(number, frame):
    print("got", signal.Signals(number).name, flush=True)
for name in ("SIGUSR1", "SIGHUP", "SIGTERM"):
    signal.signal(getattr(signal, name), told)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("end", flush=True)
sys.exit(5)
"""


@pytest.fixture
def here(tmp_path):
    with world(tmp_path) as made:
        made.script(SCRIPT)
        yield made


def arguments(here: World) -> tuple[str, str]:
    return "train.py", str(here.place / "stop")


def ended(here: World, process: subprocess.Popen[bytes]) -> list[str]:
    """Let the script end; what it printed."""
    (here.place / "stop").touch()
    process.communicate(timeout=60)
    return here.output().decode().split("\n")[:-1]


@needs_namespaces
def test_as_pid_1_neither_a_hangup_nor_a_lost_reader_ends_the_training(here):
    read, write = os.pipe()
    outer = subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", "--kill-child", *here.command(*arguments(here))],
        cwd=here.place, env=here.environ, stdout=write, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    try:
        here.wait_for_output(b"ready")
        first = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        os.close(read)
        for number in (signal.SIGHUP, signal.SIGTSTP, signal.SIGUSR1):
            os.kill(first, number)
        # The reader is missed with the line this makes the script print.
        here.wait_for_output(b"got SIGUSR1")
        os.kill(first, signal.SIGTERM)
        here.wait_for_output(b"got SIGTERM")
        assert ended(here, outer) == ["ready", "got SIGUSR1", "got SIGTERM", "end"]
    finally:
        outer.kill()
        outer.communicate()
    assert outer.returncode == 5


@needs_namespaces
def test_as_pid_1_leaving_the_screen_goes_on_in_plain_lines(here):
    unshare = [shutil.which("unshare"), "-pf", "--mount-proc", "--kill-child"]
    whole = [*unshare, *here.command(*arguments(here))]
    here.command = lambda *_: whole
    screen = Screen(here)
    try:
        screen.read_until(b"\x1b[?1049h")
        here.wait_for_output(b"ready")
        os.write(screen.fd, b"q")
        screen.read_until(b"detach")
        os.write(screen.fd, b"d")
        screen.read_until(b"Leaving would end the training")
        assert not (here.run_dir() / "exit.json").exists()
        (here.place / "stop").touch()
        assert screen.leave() == 5
    finally:
        with contextlib.suppress(OSError):
            os.kill(screen.pid, signal.SIGKILL)
            os.waitpid(screen.pid, 0)
        os.close(screen.fd)


@pytest.fixture
def job(here):
    """A run in what looks like a step of SLURM's, without a terminal."""
    here.environ["SLURM_JOB_ID"] = "7"
    process = here.start(*arguments(here), start_new_session=True)
    here.wait_for_output(b"ready")
    return process


def from_slurmstepd(here: World, number: int, *pids: int) -> None:
    """Signal processes one after the other, by a process of that name that waits for its end."""
    step = here.place / "slurmstepd"
    if not step.exists():
        step.symlink_to(os.path.realpath(sys.executable))
    code = f"import os, sys; [os.kill(p, {int(number)}) for p in {pids}]; sys.stdin.read()"
    SENDERS.append(subprocess.Popen([step, "-I", "-S", "-c", code], stdin=subprocess.PIPE))


SENDERS: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def no_sender_is_left():
    yield
    while SENDERS:
        SENDERS.pop().communicate(timeout=60)


def test_a_signal_to_a_whole_step_reaches_the_script_once(here, job):
    run = here.run_json()
    everybody = job.pid, run["shim"]["pid"], run["child"]["pid"]
    from_slurmstepd(here, signal.SIGUSR1, *everybody)
    here.wait_for_output(b"got SIGUSR1")
    from_slurmstepd(here, signal.SIGTERM, *everybody)
    here.wait_for_output(b"got SIGTERM")
    # Whatever we handed on of those has come by the time the next of ours arrives.
    os.kill(job.pid, signal.SIGHUP)
    here.wait_for_output(b"got SIGHUP")
    assert ended(here, job) == ["ready", "got SIGUSR1", "got SIGTERM", "got SIGHUP", "end"]
    assert job.returncode == 5


def test_a_signal_of_the_step_to_us_alone_is_handed_on(here, job):
    from_slurmstepd(here, signal.SIGUSR1, job.pid)
    here.wait_for_output(b"got SIGUSR1")
    assert ended(here, job) == ["ready", "got SIGUSR1", "end"]


@pytest.mark.parametrize(
    ("environ", "said"), [({"PBS_JOBID": "1.host"}, "job"), ({"PBS_JOBID": ""}, "None")]
)
def test_a_job_is_known_by_its_scheduler_and_by_having_no_terminal(environ, said):
    code = "import os; from gputop_train.launch import tied; print(tied.tie(os.environ))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SLURM_JOB_ID": "", **environ},
        capture_output=True, text=True, check=True, start_new_session=True,
    )  # fmt: skip
    assert done.stdout.strip() == said
