"""Stopped and hung-up processes of ours: training goes on, and what they missed is counted."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gputop_train.store.reader import RunReader
from tests.faults.matrix import told
from tests.faults.training import (
    EXIT_CODE,
    TRAINING,
    lost_words,
    plain,
    report,
    screen,
    unharmed,
    watching,
)
from tests.launching import wait_for, world

pytestmark = pytest.mark.slow

RING_TRAINER = Path(__file__).parent.parent / "integration" / "ring_trainer.py"
MINUTE_S = 60.0


def test_a_stopped_supervisor_stops_nothing_and_what_it_missed_is_counted(tmp_path: Path) -> None:
    steps, gate = 17_500, tmp_path / "gate"  # 8 words each: more than the ring's 131,072
    with world(tmp_path) as here:
        begin = tmp_path / "begin"
        arguments = ["--steps", str(steps), "--step-ms", "0"]
        arguments += ["--after", str(begin), "--until", str(gate)]
        front = here.start("--no-tui", str(RING_TRAINER), *arguments)
        stopped = here.supervisor_pid()
        os.kill(stopped, signal.SIGSTOP)
        begin.touch()
        here.wait_for_output(b"step %d\n" % (steps - 1))
        os.kill(stopped, signal.SIGCONT)
        wait_for(lambda: watching(here) == stopped, "the supervisor at work")
        gate.touch()
        out, said = front.communicate(timeout=60)
        assert front.returncode == 0
        assert out == b"ready\n" + b"".join(b"step %d\n" % step for step in range(steps))
        found = report(here)
        with RunReader(here.run_dir()) as reader:
            (note, *_) = reader.notes("words-lost")
    (loss,) = found["data_lost"]
    assert loss["count"] >= 8 * steps - (1 << 17)
    # Nothing but what the ring had lost is missing, to a step at the seam.
    assert abs(8 * (steps - found["steps"]["count"]) - loss["count"]) <= 16
    assert "overwritten" in note.body["text"]
    assert b"overwritten before they could be read" in b" ".join(said.split())


@pytest.mark.long
def test_a_supervisor_stopped_for_a_minute_at_full_speed(tmp_path: Path) -> None:
    bare = plain(tmp_path, 100_000, 0)
    with world(tmp_path) as here:
        here.script(TRAINING)
        front = here.start("--no-tui", *bare.arguments(), stdout=subprocess.DEVNULL)
        here.wait_for_output(b"step 1000 ")
        stopped = here.supervisor_pid()
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        unharmed_while_stopped = wait_for_end(here.run_dir())
        time.sleep(max(0.0, MINUTE_S - (time.monotonic() - began)))
        os.kill(stopped, signal.SIGCONT)
        _, said = front.communicate(timeout=120)
        assert unharmed_while_stopped and front.returncode == EXIT_CODE
        unharmed(here, bare)
        found = report(here)
    missing = bare.steps - found["steps"]["count"]
    assert missing == 0 or "of its steps" in lost_words(found), (missing, found["data_lost"])
    told(
        "SIGSTOP: supervisor for a minute",
        lost=lost_words(found),
        said=next((line for line in said.decode().splitlines() if "not ready" in line), ""),
    )


def wait_for_end(run_dir: Path, patience_s: float = 900.0) -> bool:
    """Wait for a long training."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and not (run_dir / "exit.json").exists():
        time.sleep(0.2)
    return (run_dir / "exit.json").exists()


@pytest.mark.long
def test_a_screen_stopped_for_a_minute(tmp_path: Path) -> None:
    bare, gate = plain(tmp_path, 2_000, 1), tmp_path / "gate"
    with world(tmp_path) as here:
        here.script(TRAINING)
        with screen(here, *bare.arguments(0.0, gate, 100)) as shown:
            shown.shows()
            here.wait_for_output(b"step 99 ")
            shown.signal(signal.SIGSTOP)
            began = time.monotonic()
            gate.touch()
            unharmed(here, bare)
            found = report(here)  # the supervisor did not wait for the screen either
            time.sleep(max(0.0, MINUTE_S - (time.monotonic() - began)))
            assert not shown.ended()
            shown.signal(signal.SIGCONT)
            wait_for(lambda: shown.type(b"q") or shown.ended(), "the screen to be left")
            assert shown.wait() == EXIT_CODE
    assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, [])
    told("SIGSTOP: screen for a minute")


@pytest.mark.long
@pytest.mark.parametrize("face", ["screen", "plain lines"])
def test_a_terminal_that_hangs_up(face: str, tmp_path: Path) -> None:
    bare, gate = plain(tmp_path, 200, 1), tmp_path / "gate"
    with world(tmp_path) as here:
        here.script(TRAINING)
        mode = [] if face == "screen" else ["--no-tui"]
        with screen(here, *mode, *bare.arguments(0.0, gate, 100)) as shown:
            shown.shows() if face == "screen" else shown.shows(b"step 99 ")
            here.wait_for_output(b"step 99 ")
            # What the kernel does to the session when its terminal goes, and the terminal gone.
            os.killpg(shown.pid, signal.SIGHUP)
            shown.hang_up()
            shown.wait()
        gate.touch()
        unharmed(here, bare)
        found = report(here)
        back = subprocess.run(
            here.command("attach", "--run-root", str(here.root), here.run_dir().name, root=False),
            cwd=here.place,
            env=here.environ,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, [])
    assert back.returncode == EXIT_CODE, back.stderr  # it is found again, with its end
    told("SIGHUP: terminal closed", detail=face)
