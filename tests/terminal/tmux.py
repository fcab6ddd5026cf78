"""A shell in tmux: real keys, a real terminal emulator, real job control."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.terminal.screen_pty import PATIENCE_S


class Tmux:
    """One session with a shell in it.

    Args:
        folder: Where its socket and its files lie; short, for the socket's sake.
        env: On top of the test's own environment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        columns: int = 120,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._command = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        clean = {
            k: v
            for k, v in os.environ.items()
            if k not in ("NO_COLOR", "SSH_TTY", "SSH_CONNECTION", "TMUX")
        }
        self._env = clean | {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "PS1": "shell> "}
        self._env |= dict(env or {})
        size = ["-x", str(columns), "-y", str(rows)]
        self._tmux("-u", "new-session", "-d", *size, "bash", "--norc", "--noprofile")
        self.wait_for("shell>")

    def __enter__(self) -> Tmux:
        return self

    def __exit__(self, *_exc: object) -> None:
        subprocess.run([*self._command, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            [*self._command, *words], env=self._env, check=True, capture_output=True, timeout=60
        )
        return done.stdout.decode(errors="replace")

    def run(self, code: str, *words: str) -> None:
        """Have the shell run Python code."""
        self.line(" ".join(map(shlex.quote, [sys.executable, "-c", code, *words])))

    def line(self, text: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names, such as ``C-z``, ``Escape``, ``BTab`` or ``x``."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def text(self) -> str:
        """What is to be seen now."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, wanted: str | Callable[[str], bool], what: str = "") -> str:
        """Wait until the screen shows something; fails with the screen otherwise."""
        shown = wanted if callable(wanted) else lambda text: wanted in text
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            text = self.text
            if shown(text):
                return text
            time.sleep(0.1)
        raise AssertionError(f"never saw {what or wanted!r}; the screen was\n{self.text}")
