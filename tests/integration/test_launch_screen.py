"""The screen shows the run; leaving it, losing it or crashing it is never the script's business."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import PATIENCE_S, World, world

pytestmark = pytest.mark.slow

WAITER = """
import os, signal, sys, time
def tell(number, frame):
    print("got", signal.Signals(number).name, flush=True)
signal.signal(signal.SIGUSR1, tell)
print("stdin", os.readlink("/proc/self/fd/0"), flush=True)
print("colour", os.environ.get("FORCE_COLOR"), os.environ.get("COLUMNS"), flush=True)
print("ready", flush=True)
while not os.path.exists("leave"):
    time.sleep(0.02)
sys.exit(5)
"""


class Screen:
    """A front with its screen on a terminal of 120 columns and 40 lines."""

    def __init__(self, here: World, *arguments: str, **extra: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.chdir(here.place)
            words = [os.fsencode(word) for word in here.command(*arguments)]
            os.execve(words[0], words, {**here.environ, "TERM": "xterm-256color", **extra})
        self.said = b""

    def read_until(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.said:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.said[-500:]!r}"
            if select.select([self.fd], [], [], 0.2)[0]:
                self.said += os.read(self.fd, 65536)

    def leave(self, key: bytes | None = None) -> int:
        """Read to the end, typing ``key`` now and then, and return the exit code."""
        deadline = time.monotonic() + PATIENCE_S
        with contextlib.suppress(OSError):
            while True:
                assert time.monotonic() < deadline, self.said[-2000:]
                if not select.select([self.fd], [], [], 0.5)[0]:
                    if key is not None:
                        os.write(self.fd, key)
                    continue
                chunk = os.read(self.fd, 65536)
                if not chunk:
                    break
                self.said += chunk
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    @property
    def after(self) -> bytes:
        """What stands on the normal screen after the live one."""
        return self.said.rpartition(b"\x1b[?1049l")[2]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.script(WAITER)
        yield made


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        with contextlib.suppress(OSError):
            os.close(screen.fd)
        with contextlib.suppress(OSError):
            os.kill(screen.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(screen.pid, 0)


def test_on_a_terminal_the_screen_shows_the_run_and_leaves_with_its_exit_code(
    here: World, screens: list[Screen]
) -> None:
    screens.append(Screen(here, "train.py"))
    screens[0].read_until(b"\x1b[?1049h")
    here.wait_for_output(b"ready")
    assert b"stdin /dev/null" in here.output()
    assert b"colour 1 120" in here.output()
    (here.place / "leave").touch()
    here.exit_json()
    assert screens[0].leave(key=b"q") == 5
    assert here.run_dir().name.encode() in screens[0].after


def test_signals_reach_the_script_while_the_screen_is_up(
    here: World, screens: list[Screen]
) -> None:
    screens.append(Screen(here, "train.py"))
    screens[0].read_until(b"\x1b[?1049h")
    here.wait_for_output(b"ready")
    os.kill(screens[0].pid, signal.SIGUSR1)
    here.wait_for_output(b"got SIGUSR1")
    os.kill(screens[0].pid, signal.SIGTERM)
    assert screens[0].leave() == 128 + signal.SIGTERM
    assert here.exit_json()["signal"] == signal.SIGTERM


def test_closing_the_window_leaves_training_alone(here: World, screens: list[Screen]) -> None:
    screens.append(Screen(here, "train.py"))
    screens[0].read_until(b"\x1b[?1049h")
    here.wait_for_output(b"ready")
    os.close(screens[0].fd)
    os.waitpid(screens[0].pid, 0)
    assert not here.gone()
    (here.place / "leave").touch()
    assert here.exit_json()["exit_code"] == 5


def test_a_script_that_reads_the_keyboard_is_told_to_run_without_the_screen(
    here: World, screens: list[Screen]
) -> None:
    here.script("input('name? ')")
    screens.append(Screen(here, "train.py"))
    screens[0].read_until(b"\x1b[?1049h")
    assert here.exit_json()["exit_code"] == 1
    assert screens[0].leave(key=b"q") == 1
    assert b"--no-tui" in screens[0].after


def test_a_terminal_that_cannot_show_the_screen_gets_plain_lines(
    here: World, screens: list[Screen]
) -> None:
    (here.place / "leave").touch()
    screens.append(Screen(here, "train.py", TERM="dumb"))
    assert screens[0].leave() == 5
    assert b"\x1b[?1049h" not in screens[0].said
    assert b"ready" in screens[0].said
    assert b"plain lines instead" in screens[0].said
