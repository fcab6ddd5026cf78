"""Real launches for tests: the command line as a person types it, in a world of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch import identity

#: Generous on purpose: it bounds a failure, it does not measure anything.
PATIENCE_S = 60.0

needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(
        ["unshare", "-pf", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="PID namespaces cannot be made here",
)


def wait_for(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """Wait until ``condition`` returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {PATIENCE_S:.0f} s")


class World:
    """A directory with scripts, a run root, and an environment for launching from."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "kept"
        # What would choose the interpreter or change a Python's ways is the test's to set.
        ruled = ("VIRTUAL_ENV", "CONDA_PREFIX", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if name not in ruled and not name.startswith("PYTHON")
        }
        self.environ["PATH"] = f"{Path(sys.executable).parent}:{self.environ['PATH']}"
        self.environ["XDG_STATE_HOME"] = str(place / "state")
        self._started: list[subprocess.Popen[bytes]] = []

    def script(self, text: str, name: str = "train.py") -> Path:
        """Write a script and return its path."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def command(self, *arguments: str | bytes, root: bool = True) -> list[str | bytes]:
        """Return the command line of a launch."""
        own: list[str | bytes] = ["--run-root", str(self.root)] if root else []
        return [sys.executable, "-m", "gputop_train.cli", *own, *arguments]

    def run(self, *arguments: str | bytes, **given: Any) -> subprocess.CompletedProcess[bytes]:
        """Launch and wait; stdout and stderr are captured as bytes."""
        given.setdefault("stdin", None if "input" in given else subprocess.DEVNULL)
        if given["stdin"] is None:
            del given["stdin"]
        given.setdefault("env", self.environ)
        root = given.pop("root", True)
        return subprocess.run(
            self.command(*arguments, root=root),
            capture_output=True,
            cwd=self.place,
            timeout=PATIENCE_S,
            check=False,
            **given,
        )

    def start(self, *arguments: str | bytes, **given: Any) -> subprocess.Popen[bytes]:
        """Launch and return at once; ended with the test."""
        given.setdefault("stdin", subprocess.DEVNULL)
        given.setdefault("stdout", subprocess.PIPE)
        given.setdefault("stderr", subprocess.PIPE)
        root = given.pop("root", True)
        process = subprocess.Popen(
            self.command(*arguments, root=root), cwd=self.place, env=self.environ, **given
        )
        self._started.append(process)
        return process

    def run_dir(self) -> Path:
        """Wait for the one run there is, and return its directory."""
        found: list[Path] = wait_for(lambda: list(self.root.glob("*/run.json")), "a run")
        assert len(found) == 1
        return found[0].parent

    def run_json(self) -> dict[str, Any]:
        """Return what was written about the one run."""
        loaded: dict[str, Any] = json.loads((self.run_dir() / "run.json").read_bytes())
        return loaded

    def exit_json(self) -> dict[str, Any]:
        """Wait for the record of the run's end."""
        path = self.run_dir() / "exit.json"
        wait_for(path.exists, "exit.json")
        loaded: dict[str, Any] = json.loads(path.read_bytes())
        return loaded

    def output(self) -> bytes:
        """Return what the script has printed so far."""
        return (self.run_dir() / "output.log").read_bytes()

    def wait_for_output(self, text: bytes) -> None:
        """Wait until the script has printed ``text``."""
        wait_for(lambda: text in self.output(), f"{text!r} in the output")

    def supervisor_pid(self) -> int:
        """Wait for the run's supervisor and return its PID."""
        wanted = str(self.run_dir()).encode()

        def find() -> int | None:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        words = (entry / "cmdline").read_bytes().split(b"\0")
                        if wanted in words and b"gputop_train.launch.supervisor" in words:
                            return int(entry.name)
            return None

        found: int = wait_for(find, "a supervisor")
        return found

    def gone(self, role: str = "child") -> bool:
        """Return whether the run's child or shim has ended."""
        who = identity.recorded_child({**self.run_json(), "child": self.run_json()[role]})
        return who is None or not identity.is_alive(who)

    def clean(self) -> None:
        """End what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for run_json in self.root.glob("*/run.json"):
            child = identity.recorded_child(json.loads(run_json.read_bytes()))
            if child is not None and identity.is_alive(child):
                identity.send_group(child, signal.SIGKILL)


@contextlib.contextmanager
def world(place: Path) -> Iterator[World]:
    """Yield a world that is cleaned up after use."""
    made = World(place)
    try:
        yield made
    finally:
        made.clean()
