"""What terminals do to the screen: suspended, stalled, resized in a storm, signalled, too dumb."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputop_train.launch import identity
from gputop_train.store.reader import RunReader
from tests.terminal.screen_pty import LIVE, PATIENCE_S, Terminal
from tests.terminal.test_rerun_keys import MAIN, SCRIPT, joined, runs
from tests.terminal.tmux import Tmux
from tests.tui.made_run import S, run_json, write_store

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A run that started a minute ago and whose process, this one, is alive."""
    path = tmp_path / "3f2a"
    path.mkdir()
    start = time.monotonic_ns() - 60 * S
    write_store(path, start_ns=start, pid=os.getpid())
    run_json(path, start_ns=start, pid=os.getpid())
    return path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(SCRIPT.replace("        optimizer.zero_grad()\n", BEAT))
    yield tmp_path
    for run in (tmp_path / "kept").glob("*/run.json"):
        child = identity.recorded_child(json.loads(run.read_bytes()))
        if child is not None and identity.is_alive(child):
            identity.send_group(child, signal.SIGKILL)


#: The script tells that it goes on, apart from everything of ours.
BEAT = """        optimizer.zero_grad()
        with open(__file__ + ".beat", "a") as beat:
            beat.write(".")
"""


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


def steps_stored(place: Path) -> int:
    run = runs(place)[0]
    with RunReader(Path(str(run["store"]))) as reader:
        newest = reader.steps_tail(1)
        return newest[-1].index if newest else -1


def beats(place: Path) -> int:
    return (place / "train.py.beat").stat().st_size


@needs_tmux
def test_ctrl_z_gives_the_shell_its_terminal_and_fg_brings_the_screen_back(live: Path) -> None:
    with Tmux(live) as tmux:
        tmux.run(LIVE, str(live))
        tmux.wait_for("STARVED")
        for _ in range(2):
            tmux.press("C-z")
            tmux.wait_for("Stopped")
            tmux.line("stty -a | tr ' ' '\\n' | grep -x -e icanon -e echo | xargs echo modes")
            text = tmux.wait_for("modes icanon echo")
            assert "STARVED" not in text
            tmux.line("clear; fg")
            tmux.wait_for(lambda text: "STARVED" in text and "q quit" in text, "the screen again")
        tmux.press("2")
        tmux.wait_for("[2 steps]")
        tmux.press("q")
        tmux.wait_for("still running")
        tmux.press("d")
        tmux.wait_for("RESULT detached 0")
        tmux.line("echo back")
        tmux.wait_for(lambda text: "\nback" in text, "the shell")


def test_stopped_and_continued_from_outside_it_stays_whole(live: Path) -> None:
    with Terminal(LIVE, str(live)) as screen:
        screen.wait_for("STARVED")
        for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT):
            screen.process.send_signal(number)
            screen.pump(0.2)
        screen.type("2")
        screen.wait_for("[2 steps]")
        screen.type("1")  # each key counts once: a second reader of keys would eat some
        screen.wait_for("STARVED")
        screen.type("q")
        screen.wait_for("still running")
        screen.type("d")
        screen.wait_for("RESULT detached 0")
        assert screen.wait_exit() == 0
        assert screen.restored()


def test_sigint_leaves_with_130_and_restores_the_terminal(live: Path) -> None:
    with Terminal(LIVE, str(live)) as screen:
        screen.wait_for("STARVED")
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("RESULT detached 130")
        screen.wait_exit()
        assert screen.restored()
        assert "Traceback" not in screen.text


def test_a_storm_of_sizes_ends_in_the_right_picture(live: Path) -> None:
    sizes = random.Random(1)
    with Terminal(LIVE, str(live)) as screen:
        screen.wait_for("STARVED")
        for key in "1296":
            screen.type(key)
            for _ in range(15):
                screen.resize(sizes.randint(40, 300), sizes.randint(12, 100))
                screen.pump(0.01)
        for columns, rows in ((300, 100), (40, 12), (120, 40)):
            screen.resize(columns, rows)
            screen.type("1")
            text = screen.wait_for(
                lambda text: "STARVED" in text and "q quit" in text.split("\n")[-1],
                f"the screen at {columns}x{rows}",
            )
            assert len(text.split("\n")) == rows
        assert screen.process.poll() is None


def test_a_terminal_that_cannot_place_a_cursor_gets_plain_lines_and_one_sentence(
    tmp_path: Path,
) -> None:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    command = ["--run-root", str(tmp_path / "kept"), str(tmp_path / "hello.py")]
    with Terminal(MAIN, *command, env={"TERM": "dumb"}) as screen:
        assert screen.wait_exit() == 0
        assert "TERM=dumb cannot position the cursor" in " ".join(screen.text.split())
        assert "hello" in screen.text
        assert b"\x1b[" not in screen.raw


@pytest.mark.slow
def test_a_terminal_nobody_reads_stops_nothing_but_the_view(place: Path) -> None:
    command = ["--run-root", str(place / "kept"), str(place / "train.py")]
    with Terminal(MAIN, *command, env={"XDG_STATE_HOME": str(place / "state")}) as screen:
        screen.wait_for(lambda text: "samples/s" in text.split("\n")[0], "steps")
        for _ in range(60):  # repaints pile up unread
            screen.type("?\x1b")
            time.sleep(0.02)
        stored, beaten = steps_stored(place), beats(place)
        until(lambda: beats(place) > beaten + 60, "the script goes on")
        until(lambda: steps_stored(place) > stored + 60, "the supervisor goes on")
        # Read again, the view catches up by itself.
        screen.wait_for(lambda text: steps_shown(text) > stored + 60, "the steps since")
        screen.process.send_signal(signal.SIGHUP)
        assert screen.wait_exit() == 128 + signal.SIGHUP
        assert screen.restored()
        gone_on = beats(place)
        until(lambda: beats(place) > gone_on + 10, "the script outlives the screen")


def steps_shown(text: str) -> int:
    words = text.split("\n")[0].replace(",", "").split()
    return int(words[words.index("step") + 1]) if "step" in words[:-1] else -1


@pytest.mark.slow
@needs_tmux
def test_keys_lead_through_every_page_of_a_real_run(place: Path) -> None:
    words = [
        ("2", "[2 steps]"),
        ("3", "[3 lines]"),
        ("4", "[4 memory]"),
        ("5", "[5 workers]"),
        ("6", "[6 devices]"),
        ("7", "No trial of train.py is kept here"),
        ("8", "[8 findings]"),
        ("9", "following"),
    ]
    with Tmux(place, env={"XDG_STATE_HOME": str(place / "state")}) as tmux:
        tmux.run(MAIN, "--run-root", str(place / "kept"), str(place / "train.py"))
        tmux.wait_for(lambda text: "samples/s" in text.split("\n")[0], "steps")
        for key, seen in words:
            tmux.press(key)
            tmux.wait_for(seen)
        tmux.press("Escape")
        tmux.wait_for("[1 overview]")
        for _, seen in words[:3]:
            tmux.press("Tab")
            tmux.wait_for(seen)
        tmux.press("BTab")
        tmux.wait_for("[3 lines]")
        tmux.press("?")
        tmux.wait_for("On every page")
        tmux.press("Escape")
        tmux.wait_for("[3 lines]")
        tmux.resize(80, 24)
        tmux.wait_for(lambda text: "[3 lines]" in text and "1 main" in text, "the narrow names")
        tmux.press("q")
        tmux.wait_for(lambda text: "still running" in text, "the question")
        tmux.press("s")
        tmux.wait_for(lambda text: "shell>" in joined(text)[-8:], "the shell again")
