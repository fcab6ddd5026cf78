"""From our side: how a leg's command is started inside its world, and how we hear that it was not.

Ordinary runs and legs that are guarded in another way go past all of this.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.launch.diversion import enter
from gputop_train.launch.options import TrialLeg

#: Names in a leg's scratch directory.
STORE, PLAN, RESULT = "store", "world-plan.json", "world.json"
#: Where no disk can hold an overlay's changes, memory does: at most a quarter of what is free, and
#: no more than this.
MEMORY_SHARE = 4
MEMORY_MAX_BYTES = 16 * 1024**3


class NoWay(Exception):
    """A leg cannot be kept from changing files; the message is a clause that says why."""


@dataclass(slots=True)
class Way:
    """What is executed in place of the command, and what comes back from it.

    Attributes:
        executable: The file.
        argv: Its arguments.
        pass_fds: Descriptors it must inherit.
    """

    executable: str
    argv: tuple[str, ...]
    pass_fds: tuple[int, ...] = ()
    _heard: int = -1
    _ours: list[int] = field(default_factory=list)

    def started(self) -> None:
        """Let go of what only the child needs now."""
        for fd in self._ours:
            os.close(fd)
        self._ours.clear()

    def failure(self) -> dict[str, Any] | None:
        """Wait until the command runs; return what kept it from it, ``None`` when it runs.

        Returns:
            ``{"world": "why there is none"}`` or ``{"exec": errno}``.
        """
        if self._heard < 0:
            return None
        self.started()
        told = b""
        while chunk := os.read(self._heard, 4096):
            told += chunk
        if not told:
            return None
        answer = json.loads(told)
        return answer if isinstance(answer, dict) else {}


@contextlib.contextmanager
def way(
    leg: TrialLeg | None, executable: str, argv: Sequence[str], real: Sequence[Path]
) -> Iterator[Way]:
    """Give the way a command is started: as it is, or through the door to its world.

    Args:
        leg: ``None`` for an ordinary run.
        executable: The command's file.
        argv: Its arguments.
        real: What stays real in the world besides the leg's scratch and its trial's caches.

    Raises:
        NoWay: The command would not load the guard it needs.
        OSError: The scratch directory cannot be written.
    """
    if leg is not None and leg.guard == "refuse":
        why = unguarded(executable, argv)
        if why is not None:
            raise NoWay(why)
    if leg is None or leg.guard != "overlay":
        yield Way(executable, tuple(argv))
        return
    scratch = Path(leg.scratch)
    caches = (Path(leg.caches),) if leg.caches is not None else ()
    plan = write_plan(scratch, (*real, *caches), leg.over)
    heard, told = os.pipe()
    door = (sys.executable or "python3", "-I", "-S", enter.__file__, str(plan), str(told))
    made = Way(door[0], (*door, executable, *argv), (told,), heard, [told])
    try:
        yield made
    finally:
        made.started()
        os.close(heard)


def unguarded(executable: str, argv: Sequence[str]) -> str | None:
    """Return why the probe's guard would not be in a command, ``None`` when it will be.

    It comes through ``PYTHONPATH``, so it must be a Python, or a script that starts one.
    """
    name = Path(executable).name
    if name.startswith("python"):
        for word in argv[1:]:
            if not word.startswith("-") or word in ("-c", "-m"):
                return None
            if not word.startswith("--") and any(letter in word[1:] for letter in "IES"):
                return f"python {word} looks at no PYTHONPATH"
        return None
    try:
        with Path(executable).open("rb") as stream:
            first = stream.readline(256)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})"
    if first.startswith(b"#!") and b"python" in first:
        return None
    return f"{name} is not a Python program, and what it changes cannot be watched"


def write_plan(scratch: Path, real: Sequence[Path], over: Sequence[tuple[str, str]] = ()) -> Path:
    """Write what ``world.enter`` wants to know into a leg's scratch directory.

    Raises:
        OSError: It cannot be written.
    """
    store = scratch / STORE
    store.mkdir(mode=0o700)
    body = {
        "store": str(store.resolve()),
        "real": [str(scratch), *map(str, real)],
        "memory_bytes": memory_bytes(),
        "mark": mark_of(scratch),
        "over": [list(pair) for pair in over],
        "result": str(scratch / RESULT),
    }
    plan = scratch / PLAN
    fd = os.open(plan, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as stream:
        json.dump(body, stream, ensure_ascii=False)
    return plan


def mark_of(scratch: Path) -> str:
    """Return the name a leg's mounts bear in mountinfo."""
    return f"gputop-train{scratch.parent.name}-{scratch.name}"


def memory_bytes() -> int:
    """Return how much changed files may take where they are kept in memory."""
    free = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return max(64 * 1024**2, min(free // MEMORY_SHARE, MEMORY_MAX_BYTES))
