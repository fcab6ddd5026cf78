"""The script's output on its way to ours, and our own lines beside it."""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path

from gputop_train.launch.logtail import open_regular
from gputop_train.report import format as fmt

_CHUNK_BYTES = 1 << 16
_POLL_S = 0.05
_HOLE = bytes(4096)


class OutputPump(threading.Thread):
    """Copies ``output.log`` byte for byte to a descriptor as it grows.

    A thread of its own, because a reader of ours that does not read (a pager) must not keep signals
    from the script. The script itself writes to the file and never waits for anybody.

    Attributes:
        lost: The reader is gone: a closed pipe, a vanished terminal.
        missing: There is no log to copy.
        mid_line: The last byte written was not a newline.
        skipped_bytes: Text given up by the bound on ``output.log`` before it could be copied.
    """

    def __init__(self, path: Path, target_fd: int, *, start: int = 0) -> None:
        super().__init__(name="output", daemon=True)
        self._start_at = start
        self._target = target_fd
        # None: it was removed, or something else lies there; then there is nothing to copy.
        self._source = open_regular(path)
        self.missing = self._source is None
        self._ending = threading.Event()
        self.lost = False
        self.mid_line = False
        self.skipped_bytes = 0

    def finish(self) -> None:
        """Copy what is there already, then end."""
        self._ending.set()

    def run(self) -> None:
        """Copy until told to finish or until nobody reads any more."""
        if self._source is None:
            self._ending.wait()
            return
        offset = self._start_at
        try:
            while True:
                last_round = self._ending.is_set()
                chunk = os.pread(self._source, _CHUNK_BYTES, offset)
                if chunk.startswith(_HOLE):
                    offset, chunk = self._over_hole(self._source, offset, chunk)
                if chunk:
                    self._write(chunk)
                    offset += len(chunk)
                elif last_round:
                    return
                else:
                    self._ending.wait(_POLL_S)
        except OSError:
            self.lost = True
        finally:
            os.close(self._source)

    def _over_hole(self, source: int, offset: int, chunk: bytes) -> tuple[int, bytes]:
        """Skip a range that was punched out of the log; zeros the script wrote are kept."""
        try:
            data = os.lseek(source, offset, os.SEEK_DATA)
        except OSError:
            return offset, chunk  # all hole up to the end, or a file system that cannot tell
        if data <= offset:
            return offset, chunk
        self.skipped_bytes += data - offset
        return data, os.pread(source, _CHUNK_BYTES, data)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[_write_some(self._target, view) :]
        self.mid_line = not chunk.endswith(b"\n")


def _write_some(fd: int, content: memoryview) -> int:
    try:
        return os.write(fd, content)
    except BlockingIOError:
        # Somebody who shares our stdout made it non-blocking.
        select.select([], [fd], [], 1.0)
        return 0


class Voice:
    """Our own lines, on stderr, kept apart from the script's output.

    Nothing it does can fail: a stderr that is gone is no reason to disturb anything.
    """

    def __init__(self, pump: OutputPump | None = None) -> None:
        self._pump = pump
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write one line of ours."""
        self.lines([f"gputop-train: {text}"])

    def lines(self, lines: list[str]) -> None:
        """Write lines; whoever chose a word in them, it does nothing to the terminal."""
        text = "\n".join(map(fmt.safe, lines)) + "\n"
        # On one terminal a progress bar may stand in the middle of a line.
        if self._pump is not None and self._pump.mid_line and os.isatty(2):
            text = "\n" + text
        with self._lock:
            write_all(2, text.encode("utf-8", "backslashreplace"))


def speaks_utf8() -> bool:
    """Return whether our streams' encoding has more than ASCII to draw with."""
    return (getattr(sys.stderr, "encoding", None) or "utf-8").lower().startswith("utf")


def write_all(fd: int, content: bytes) -> bool:
    """Write everything; return whether that worked."""
    view = memoryview(content)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return False
    return True
