"""The child at the threshold, forked by the shim: it waits until all about it is written down."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId


class LaunchError(Exception):
    """The run could not be started; ``code`` is our exit code."""

    def __init__(self, message: str, code: int = 125) -> None:
        super().__init__(message)
        self.code = code


class PlaceError(LaunchError):
    """The run root takes no run; another one may.

    Args:
        why: What is wrong with it, a clause without a full stop.
        remedy: What to do, a sentence.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(f"{why}. {remedy}")
        self.why = why


class WorldError(LaunchError):
    """The leg of a trial cannot get the world of its own that ``guard="overlay"`` asks for."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is executed: the file, ``argv``, and the interpreter where it is one we chose."""

    executable: str
    argv: tuple[str, ...]
    python: str | None


class Threshold:
    """The child, forked and waiting to execute its command."""

    def __init__(self, shim_pid: int, status: int, go: int) -> None:
        self.shim_pid = shim_pid
        self._status = os.fdopen(status, "rb", buffering=0)
        self._go = go

    def __enter__(self) -> Threshold:
        return self

    def __exit__(self, *_: object) -> None:
        self._status.close()
        # Unless it was told to go, the end of this pipe tells the child to leave.
        if self._go >= 0:
            os.close(self._go)

    def child(self) -> ProcessId:
        """Return who it is; it waits."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._status.read(1)
            if not byte:
                raise LaunchError(
                    "The process that waits for the script could not be started. "
                    "Check the limits on processes and memory (ulimit -a)."
                )
            line += byte
        child = identity.identify(int(line))
        if child is None:
            raise LaunchError(
                "The script's process cannot be seen in /proc. Mount /proc, or run without "
                "gputop-train."
            )
        return child

    def go(self, command: Command) -> None:
        """Let it execute; wait until it has, or raise what kept it from it."""
        os.write(self._go, b"g")
        os.close(self._go)
        self._go = -1
        failed = self._status.read()
        if failed:
            code = int(failed)
            os.waitpid(self.shim_pid, 0)
            raise cannot_execute(command, code)


def cannot_execute(command: Command, code: int) -> LaunchError:
    """Return what to raise for the errno of a failed exec."""
    return LaunchError(
        f"{command.executable} cannot be executed: {os.strerror(code)}. "
        "Check that it is a program, or run it through its interpreter.",
        127 if code == 2 else 126,
    )
