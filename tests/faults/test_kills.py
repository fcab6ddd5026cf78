"""kill -9 of each process of a run, at random moments: training is the one that would have been."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from gputop_train.launch import runfile, spawn
from gputop_train.store.reader import RunReader
from tests.faults.matrix import told
from tests.faults.training import (
    EXIT_CODE,
    TRAINING,
    Plain,
    gone,
    kill,
    loader_worker,
    lost_words,
    plain,
    printed_steps,
    report,
    screen,
    unharmed,
    watching,
)
from tests.launching import World, wait_for, world

pytestmark = pytest.mark.slow

#: Rounds of the long form, 200 in all; their moments come from the round's number. Supervisors and
#: screens are killed ten times under one training each, which goes on; the others once.
STRIKES = 10
TRAININGS = {"supervisor": 8, "screen": 7}
ROUNDS = {"trainer": 20, "worker": 20, "shim": 10}
#: How a message ends of which one side was killed, in torch's own tracebacks.
CUT_OFF = rb"(ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)[^\n]*$"
#: What torch says where a worker was killed, its process left out.
WORKER_GONE = (
    rb"^RuntimeError: DataLoader worker \(pid\(?s?\)? \d+\) (is killed by signal|exited unexp)|"
    # The name alone: torch's handler of a dead child cut short how this one was printed.
    rb"^(object type name: )?"
) + CUT_OFF
PAUSE_S = 0.01


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return plain(tmp_path_factory.mktemp("plain"), 100, 1)


def test_supervisors_and_screens_may_all_be_killed_under_one_training(
    tmp_path: Path,
) -> None:
    bare, gate = plain(tmp_path, 100, 0), tmp_path / "gate"
    with world(tmp_path) as here:
        here.script(TRAINING)
        with screen(here, *bare.arguments(0.0, gate, 60)) as first:
            first.shows()
            replaced = replace_killed(here)  # by the screen that launched the run
            kill(first.pid)
        kill(replaced)
        with screen(here, "attach", here.run_dir().name) as second:
            second.shows()
            here.wait_for_output(b"step 59")
            replace_killed(here)  # by the screen that joined it
            kill(second.pid)
        gate.touch()
        unharmed(here, bare)
        found = report(here)
    assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, [])
    assert found["run"]["exit_code"] == EXIT_CODE
    told("kill -9: supervisor")
    told("kill -9: screen")


def replace_killed(here: World) -> int:
    """Kill the supervisor and wait until somebody has put another in its place."""
    victim: int = wait_for(lambda: watching(here), "a supervisor")
    kill(victim)
    found: int = wait_for(lambda: watching(here) not in (None, victim) and watching(here))
    return found


# -- by hand ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def length_s(tmp_path_factory: pytest.TempPathFactory, bare: Plain) -> float:
    """Wall time from a launch to its end: what moments are drawn from."""
    with world(tmp_path_factory.mktemp("length")) as here:
        here.script(TRAINING)
        began = time.monotonic()
        assert here.run("--no-tui", *bare.arguments(PAUSE_S)).returncode == EXIT_CODE
        return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("number", range(TRAININGS["supervisor"]))
def test_supervisors_killed_at_random_moments(number: int, tmp_path: Path) -> None:
    bare, gate, moments = plain(tmp_path, 400, 1), tmp_path / "gate", random.Random(number)
    with world(tmp_path) as here:
        here.script(TRAINING)
        front = here.start("--no-tui", *bare.arguments(0.02, gate, 390))
        victim = here.supervisor_pid()
        kill(front.pid)  # which would put another one in its place
        started = []
        for strike in range(STRIKES):
            time.sleep(moments.random() * 2)
            kill(victim)
            if strike == STRIKES - 2:
                here.wait_for_output(b"step 389 ")
                gate.touch()  # the last one is struck while the run ends, or after it
            if strike < STRIKES - 1:
                next_one = spawn.start_supervisor(here.run_dir(), here.environ)
                assert next_one is not None
                started.append(victim := next_one)
        for pid in started:
            os.waitpid(pid, 0)
        check_all_there(here, bare)
    for _ in range(STRIKES):
        told("kill -9: supervisor", detail=f"training {number}")


@pytest.mark.long
@pytest.mark.parametrize("number", range(TRAININGS["screen"]))
def test_screens_killed_at_random_moments(number: int, tmp_path: Path) -> None:
    bare, gate, moments = plain(tmp_path, 400, 1), tmp_path / "gate", random.Random(-1 - number)
    with world(tmp_path) as here:
        here.script(TRAINING)
        words = bare.arguments(0.02, gate, 390)
        for strike in range(STRIKES):
            with screen(here, *words) as shown:
                time.sleep(moments.random() * 3)
                if not shown.ended():
                    kill(shown.pid)
            if list(
                here.root.glob("*/run.json")
            ):  # else it was killed before it started the script
                words = ["attach", here.run_dir().name]
            if strike == STRIKES - 2:
                here.wait_for_output(b"step 389 ")
                gate.touch()
        check_all_there(here, bare)
    for _ in range(STRIKES):
        told("kill -9: screen", detail=f"training {number}")


def check_all_there(here: World, bare: Plain) -> None:
    """Nothing was harmed, and every step is in the record, once."""
    unharmed(here, bare)
    found = report(here)
    assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, []), found["steps"]
    assert found["run"]["exit_code"] == EXIT_CODE
    with RunReader(here.run_dir()) as reader:
        assert [step.index for step in reader.steps()] == list(range(bare.steps))


@pytest.mark.long
@pytest.mark.parametrize(
    ("process", "number"),
    [(process, number) for process, rounds in ROUNDS.items() for number in range(rounds)],
)
def test_killed_at_a_random_moment(
    process: str, number: int, tmp_path: Path, bare: Plain, length_s: float
) -> None:
    moment = random.Random(f"{process} {number}").random() * length_s
    while not struck(process, moment, tmp_path / f"after-{moment:.3f}", bare):
        moment *= 0.7


def struck(process: str, moment_s: float, place: Path, bare: Plain) -> bool:
    """One round; ``False`` when the process was not there any more."""
    place.mkdir()
    with world(place) as here:
        here.script(TRAINING)
        here.start("--no-tui", *bare.arguments(PAUSE_S))
        time.sleep(moment_s)
        victim = find(process, here)
        if victim is None or gone(victim):
            return False
        kill(victim)
        if process == "shim":
            unharmed(here, bare)
            found = report(here)
            assert (found["steps"]["count"], found["data_lost"]) == (bare.steps, [])
            lost = "nothing" if found["run"]["exit_code"] == EXIT_CODE else "the exit code"
        else:
            code = 1 if process == "worker" else 128 + signal.SIGKILL
            lost = check_training(here, bare, {code, EXIT_CODE})
        ended = runfile.read_exit(here.run_dir())
        said = (ended.reason if ended is not None else None) or ""
    told(f"kill -9: {NAMES[process]}", lost=lost, said=said, detail=f"after {moment_s:.2f} s")
    return True


NAMES = {
    "trainer": "training process",
    "worker": "loader worker",
    "shim": "shim",
}


def find(process: str, here: World) -> int | None:
    """The process to kill, once it is there; ``None`` when the run has ended without it."""
    ended = here.run_dir() / "exit.json"
    looks = {
        "trainer": lambda: (here.run_json().get("child") or {}).get("pid"),
        "worker": lambda: loader_worker(here),
        "shim": lambda: (here.run_json().get("shim") or {}).get("pid"),
    }
    return wait_for(lambda: looks[process]() or (ended.exists() and -1)) or None


def check_training(here: World, bare: Plain, codes: set[int]) -> str:
    """A training that was struck itself ends as torch would have it end; what was not recorded."""
    wait_for((here.run_dir() / "exit.json").exists, "the script's end")
    ended = runfile.read_exit(here.run_dir())
    assert ended is not None and ended.status in codes, ended
    output = here.output()
    steps = printed_steps(output)
    before = b"\n".join(output.splitlines()[:steps])
    assert bare.output.startswith(before)
    if ended.status == 1:
        assert re.search(WORKER_GONE, output, re.MULTILINE), output
    elif ended.status == EXIT_CODE:
        assert output == bare.output
    else:
        # Nothing else but the last words of a worker that finds its parent gone, which are torch's.
        rest = output[len(before) :].strip()
        assert bare.output.startswith(output) or re.search(CUT_OFF, rest), rest
        assert b"gputop" not in rest
    found = report(here)
    assert found["run"]["exit_code"] == ended.status
    assert lost_words(found) == "nothing"
    missing = steps - (found["steps"]["count"] or 0)
    # The end of a step is told before the script prints it, but a killed process takes along what
    # its probe had not written yet.
    assert missing >= 0 or missing == -1
    return "nothing" if missing <= 0 else f"the last {missing} steps"
