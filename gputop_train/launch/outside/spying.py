"""Stacks from outside, by py-spy: two seconds at a time, and the process is never stopped.

``--nonblocking`` is what keeps the process running: py-spy then reads its memory while it changes
(process_vm_readv(2)) instead of pausing it, and a stack that was torn is an error it counts. Two
seconds at a time, since py-spy writes at its end only; a piece that is killed leaves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from gputop_train.collect.procfs import read_text
from gputop_train.launch import identity
from gputop_train.launch.outside.target import LIST, Refused, why_not

#: Samples a second, and seconds of one piece.
RATE_HZ = 20
PIECE_S = 2
#: What py-spy gets to write down a piece that is cut short.
_GRACE_S = 2.0
#: How long a process may be seen that ends: large memory takes a while to be freed.
_ENDING_S = 0.5
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: (.*))?\Z")
_FRAME = re.compile(r"(.+?) \((.*?)(?::(\d+))?\)\Z")
_ERRORS = re.compile(r"Errors: (\d+)")
MISSING = (
    "Looking at a process from outside needs py-spy, which is not installed here. "
    "Install it: pip install 'gputop-train[attach]'"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack; ``line`` is 0 where it is not known."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of the target; ``main`` says whether it is the one the process began with."""

    id: str
    name: str
    main: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """What two seconds of sampling gave.

    Attributes:
        stacks: How often each stack was seen in each thread, outermost frame first.
        errors: Samples in which no stack could be read.
    """

    stacks: Counter[tuple[Thread, tuple[Frame, ...]]] = field(default_factory=Counter)
    errors: int = 0


def find() -> str:
    """The py-spy to call: the one beside our own interpreter, else the first on the path.

    Raises:
        Refused: There is none.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found is None:
        raise Refused(MISSING)
    return found


def parse(
    text: str, pid: int, directory: str | None = None
) -> Counter[tuple[Thread, tuple[Frame, ...]]]:
    """Read py-spy's ``raw`` format: ``thread (1): name;function (file:line);... count``.

    A line that cannot be read (a semicolon in a path) is left out.

    Args:
        text: What py-spy wrote.
        pid: The process.
        directory: What relative paths begin at: ``python train.py`` has one.
    """
    found: Counter[tuple[Thread, tuple[Frame, ...]]] = Counter()
    for row in text.splitlines():
        stack, _, count = row.rpartition(" ")
        head, *calls = stack.split(";")
        named = _THREAD.match(head)
        frames = [_FRAME.match(call) for call in calls]
        if named is None or not count.isdigit() or not frames or None in frames:
            continue
        main = named[1] == str(pid) or named[2] == "MainThread"
        found[
            Thread(named[1], named[2] or "", main),
            tuple(
                Frame(_whole(call[2], directory), call[1].rsplit(".", 1)[-1], int(call[3] or 0))
                for call in frames
                if call is not None
            ),
        ] += int(count)
    return found


def _whole(file: str, directory: str | None) -> str:
    if directory is None or file[:1] in ("/", "<"):
        return file
    return os.path.normpath(f"{directory}/{file}")


class Spy:
    """Samples one process, a piece at a time.

    Args:
        pid: The process.
        program: The py-spy to call; from `find`.
        directory: What the process's relative paths begin at.
    """

    def __init__(self, pid: int, program: str, *, directory: str | None = None) -> None:
        self._directory = directory
        self._pid = pid
        self._program = program
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None
        self._closed = False

    def take(self, seconds: int = PIECE_S) -> Piece | None:
        """Sample for so long; ``None`` once `close` was called or the process has ended.

        Raises:
            Refused: Its stacks cannot be read at all.
        """
        command = [self._program, "record", "--pid", str(self._pid), "--format", "raw"]
        command += ["--rate", str(RATE_HZ), "--duration", str(seconds), "--output", "/dev/stdout"]
        command += ["--idle", "--threads", "--nonblocking", "--full-filenames"]
        with self._lock:
            if self._closed:
                return None
            running = self._running = self._start(command)
        out, err = running.communicate()
        if running.returncode != 0:
            if self._closed or self._has_ended():
                return None
            raise Refused(_in_words(err, self._pid))
        errors = _ERRORS.search(err) or _ERRORS.search(out)
        return Piece(parse(out, self._pid, self._directory), int(errors[1]) if errors else 0)

    def close(self) -> None:
        """End what is under way, keeping what it has; safe twice and from another thread."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is None or running.poll() is not None:
            return
        running.send_signal(signal.SIGINT)  # py-spy writes what it has and ends
        try:
            running.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            running.kill()

    def _has_ended(self) -> bool:
        """Whether the process is gone, or goes within the moment its end takes."""
        deadline = time.monotonic() + _ENDING_S
        while identity.is_running(self._pid) and read_text(f"/proc/{self._pid}/maps"):
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    @staticmethod
    def _start(command: list[str]) -> subprocess.Popen[str]:
        # Not niced: on a full machine it would then get a core when training waits, and see that.
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,  # a Ctrl-C is for us alone
            )
        except OSError as failure:
            raise Refused(
                f"py-spy cannot be run ({failure.strerror}). "
                "Install it anew: pip install --force-reinstall py-spy"
            ) from None


def _in_words(err: str, pid: int) -> str:
    """What py-spy's refusal means."""
    if "Permission" in err or "Operation not permitted" in err:
        return why_not(pid)
    said = next((line for line in err.splitlines() if line.startswith("Error:")), "")
    if "python version" in said.lower() or "Unsupported version" in err:
        return (
            f"py-spy does not know the interpreter of process {pid}: it is too new, or linked in a "
            "way that hides its state. Update it (pip install -U py-spy), or start the script "
            "with: gputop-train train.py"
        )
    what = said.removeprefix("Error: ").rstrip(".") or "py-spy gave no reason"
    return f"The stacks of process {pid} cannot be read ({what}). See which can with: {LIST}"
