"""``run.json`` and ``exit.json``: written so that a full disk or a crash leaves no half of them."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train import paths, plainjson
from gputop_train.report import schema

#: Room set aside for run.json before anything starts: arguments may be long, disks may be full.
_SPARE_BYTES = 2048
_READ_LIMIT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Exit:
    """How the script ended.

    Attributes:
        exit_code: Its own; ``None`` when it was killed by ``signal`` or nobody saw it end.
        reason: Why the code is unknown, in one sentence; ``None`` when it is known.
    """

    exit_code: int | None
    signal: int | None = None
    reason: str | None = None

    @property
    def status(self) -> int:
        """The exit code a shell would show: 128+n for a signal, 125 when unknown."""
        if self.signal is not None:
            return 128 + self.signal
        return 125 if self.exit_code is None else self.exit_code


class ReservedFile:
    """A file whose room on the disk is taken now and whose content comes later, atomically."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Take the room.

        Raises:
            OSError: The disk is full or the directory cannot be written.
        """
        self._path = path
        self._temporary = path.with_name(f".{path.name}")
        self._size = size_bytes
        self._fd = paths.open_private_file(self._temporary, os.O_RDWR)
        # Written, not only allocated: some file systems take an allocation and fail the write.
        _write_all(self._fd, b" " * size_bytes)

    def commit(self, content: bytes) -> None:
        """Give the file its content and its name."""
        try:
            _write_all(self._fd, content.ljust(self._size))
            self._temporary.replace(self._path)
        finally:
            os.close(self._fd)


def reserve_run_json(run_dir: Path, run: Mapping[str, Any]) -> ReservedFile:
    """Take the room that ``run`` will need once the child's identity is known.

    Raises:
        OSError: As ``ReservedFile``.
    """
    return ReservedFile(run_dir / "run.json", len(_encode(run)) + _SPARE_BYTES)


def commit_run_json(reserved: ReservedFile, run: Mapping[str, Any]) -> None:
    """Write ``run.json`` into the room taken for it."""
    reserved.commit(_encode(run))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from a regular file, ``None`` when there is none or it is damaged.

    A number that no counter holds is ``None`` in it.
    """
    try:
        # Without O_NONBLOCK, a FIFO somebody put there would hold us for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode):
                return None
            # By its size: room for the whole limit would be taken with every look, twice a second.
            loaded = plainjson.loads(stream.read(min(seen.st_size, _READ_LIMIT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def read_report(run_dir: Path) -> dict[str, Any] | None:
    """Return the run's report; ``None`` while there is none, and where it is damaged.

    It is made from the store, so a damaged one is made anew from there.
    """
    found = read_json(run_dir / "report.json")
    return None if found is None or schema.damaged(found) else found


def read_exit(run_dir: Path) -> Exit | None:
    """Return how the run ended as ``exit.json`` tells it, ``None`` while it does not."""
    found = read_json(run_dir / "exit.json")
    if found is None:
        return None
    code, signum, reason = found.get("exit_code"), found.get("signal"), found.get("reason")
    return Exit(
        code if isinstance(code, int) else None,
        signum if isinstance(signum, int) else None,
        reason if isinstance(reason, str) else None,
    )


def write_exit(run_dir: Path, ended: Exit) -> None:
    """Write ``exit.json`` in the shim's place, unless there is one already. Never raises."""
    record = {
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "reason": ended.reason,
        "ended_wall_ns": time.time_ns(),
        "ended_mono_ns": time.monotonic_ns(),
    }
    temporary = run_dir / f".exit.{os.getpid()}.json"
    with contextlib.suppress(OSError):
        fd = paths.open_private_file(temporary)
        with os.fdopen(fd, "wb") as stream:
            stream.write(_encode(record))
        # A link, unlike a rename, never replaces what another witness wrote first.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, run_dir / "exit.json")
        temporary.unlink()


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode("ascii") + b"\n"


def _write_all(fd: int, content: bytes) -> None:
    offset = 0
    while offset < len(content):
        offset += os.pwrite(fd, content[offset:], offset)
