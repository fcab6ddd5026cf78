"""A real pseudo-terminal with an emulator behind it: types keys, reads the screen, resizes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

#: Generous: nothing here asserts how fast something is, only that it happens.
PATIENCE_S = 40.0


class Terminal:
    """Runs Python code on its own terminal."""

    def __init__(
        self,
        code: str,
        *args: str,
        columns: int = 120,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = bytearray()
        self.master, self.slave = pty.openpty()
        self._size(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        clean = {
            k: v
            for k, v in os.environ.items()
            if k not in ("NO_COLOR", "SSH_TTY", "SSH_CONNECTION")
        }
        clean |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONUTF8": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=clean | dict(env or {}),
            start_new_session=True,
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        self._size(columns, rows)
        self.screen.resize(rows, columns)
        self.process.send_signal(signal.SIGWINCH)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """Take the terminal away: nobody reads or writes it any more, and no signal says so."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1

    def pump(self, seconds: float = 0.1) -> None:
        """Take what was written for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.master], [], [], left)[0]:
                return
            data = os.read(self.master, 65536)
            self.raw += data
            self._stream.feed(data)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def wait_for(self, wanted: str | Callable[[str], bool], what: str = "") -> str:
        """Pump until the screen shows something; fails with the screen otherwise."""
        shown = wanted if callable(wanted) else lambda text: wanted in text
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.pump()
            if shown(self.text):
                return self.text
            if self.process.poll() is not None:
                self.pump(0.3)
                if shown(self.text):
                    return self.text
                break
        raise AssertionError(f"never saw {what or wanted!r}; the screen was\n{self.text}")

    def wait_exit(self) -> int:
        """Pump until the process is gone."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if self.master >= 0:
                self.pump()
            if self.process.poll() is not None:
                if self.master >= 0:
                    self.pump(0.3)
                return self.process.returncode
            if self.master < 0:
                time.sleep(0.1)
        raise AssertionError(f"did not end; the screen was\n{self.text}")

    def restored(self) -> bool:
        """Whether the terminal is as it was: settings, main screen, cursor shown, no mouse."""
        same = termios.tcgetattr(self.slave)[:4] == self.before[:4]
        left = self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h")
        cursor = self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        return same and left and cursor


LIVE = """
import sys
from gputop_train.tui.app import run_live
result = run_live(sys.argv[1])
print(f"RESULT {result.action} {result.exit_code}")
print(f"ERROR {result.error}")
"""
REPLAY = LIVE.replace("run_live", "run_replay")


def home() -> Path:
    return Path(__file__).resolve().parents[2]
