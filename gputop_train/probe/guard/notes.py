"""What a guarded leg made itself, known to all its processes, and the one line it ends with.

A path is noted before it is made, so that whoever cleans up knows of it whatever happens; every
process may change what any of them noted.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

EXIT_CODE = 97
_FILE_MODE = 0o600


class Notes:
    """The notes of a leg, in its scratch directory."""

    def __init__(self, scratch: str) -> None:
        self._scratch = scratch
        self._made: set[str] = set()
        self._parents: set[str] = set()
        self._read = 0

    def made(self, path: str) -> bool:
        """Whether the leg made this itself."""
        if path in self._made:
            return True
        self._refresh()
        return path in self._made

    def note_new(self, path: str) -> None:
        """Say that ``path`` is about to be made; its directory's times are to be as they were."""
        parent = os.path.dirname(path)
        line: dict[str, Any] = {"path": path}
        if parent not in self._parents:
            self._parents.add(parent)
            if not self.made(parent):
                line["parent_ns"] = os.stat(parent).st_mtime_ns
        self._append(line)
        self._made.add(path)

    def note_touched(self, path: str, mtime_ns: int) -> None:
        """Say that an empty file is about to be opened, which may change its time."""
        self._append({"touched": path, "mtime_ns": mtime_ns})

    def refuse(self, call: str, path: str, *, program: bool = False) -> None:
        """Say what was about to happen, and end the leg before it does. Does not return.

        Args:
            call: The call that was about to do it.
            path: The file it would have changed.
            program: The call was about to start another program, whose words ``path`` is.
        """
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            # A descriptor of its own: opened through the operating system, looked at by no hook.
            fd = os.open(os.path.join(self._scratch, "refused.jsonl"), flags)
            if os.pread(fd, 1, 0) in (b"", b"\0"):
                row = {"call": call, "path": path, **({"program": True} if program else {})}
                os.pwrite(fd, json.dumps(row).encode() + b"\n", 0)
            os.close(fd)
        finally:
            _end(self._scratch)

    def _append(self, line: dict[str, Any]) -> None:
        fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)

    @property
    def _file(self) -> str:
        return os.path.join(self._scratch, "created.jsonl")

    def _refresh(self) -> None:
        fd = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            text = os.pread(fd, size - self._read, self._read) if size > self._read else b""
        finally:
            os.close(fd)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                path = json.loads(line).get("path")
            except (ValueError, AttributeError):
                continue
            if isinstance(path, str):
                self._made.add(path)


def _end(scratch: str) -> None:
    """End the leg: from a worker or a child, all of the session with it, if that is the leg's."""
    try:
        session = os.getsid(0)
        if session > 1 and session != os.getpid() and _is_of(session, scratch):
            os.killpg(session, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os._exit(EXIT_CODE)


def _is_of(leader: int, scratch: str) -> bool:
    """Whether a process was started as part of the leg: it inherited the name of its scratch."""
    fd = os.open("/proc/%d/environ" % leader, os.O_RDONLY | os.O_CLOEXEC)
    try:
        environ = b""
        while True:
            more = os.read(fd, 65536)
            if not more:
                break
            environ += more
    finally:
        os.close(fd)
    return os.fsencode("GPUTOP_TRAIN_SCRATCH=" + scratch) in environ.split(b"\0")
