r"""The last lines of a growing log as a terminal would show them.

A script's log is hostile by accident: progress bars redraw one line with ``\r`` a hundred times a
second, nested bars move the cursor up, a stray ``print(tensor)`` is megabytes long, a subprocess
writes Latin-1 or binary. `LineFolder` is the pure part (text in, bounded plain lines out) and
`LogTail` follows a file with it, doing a bounded amount of work per poll.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from pathlib import Path

#: What one poll reads at most. A screen shows a few kilobytes; a script that prints faster than
#: this between two polls has its middle skipped (and counted), never its newest lines.
BACKLOG_BYTES = 256 * 1024
#: A line longer than this is cut: no terminal shows it, and a widget must not lay it out.
MAX_WIDTH = 2000
_PENDING_LIMIT = 4096
_TAB = 8

_CSI = r"\[[0-?]*[ -/]*[@-~]"
_STRING = r"[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
_SHORT = r"[ -/]*[0-OQ-WYZ\\`-~]"
_ESCAPE = re.compile(rf"\x1b(?:{_CSI}|{_STRING}|{_SHORT})")
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
# Bidi overrides are stripped with the C0 and C1 controls: they could reorder the whole screen line.
_CONTROL = r"\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_TOKEN = re.compile(rf"([^{_CONTROL}]+)|([{_CONTROL}])")


class LineFolder:
    r"""Fold a stream of text into the newest display lines.

    ``\r`` returns to the start of the line and later text overwrites, ``\b`` steps back, cursor-up
    and -down move between recent lines (nested progress bars), erase-in-line clears. Every other
    control sequence, colours included, is dropped, so the lines are safe to draw.
    """

    def __init__(self, max_lines: int = 500, max_width: int = MAX_WIDTH) -> None:
        self._max_lines = max_lines
        self._max_width = max_width
        self._rows: list[str] = [""]
        self._row = 0
        self._col = 0
        self._pending = ""

    def feed(self, text: str) -> None:
        """Take more text; sequences may be split anywhere between two calls."""
        text = self._pending + text
        self._pending = ""
        at = 0
        while at < len(text):
            escape = text.find("\x1b", at)
            if escape < 0:
                self._plain(text[at:])
                return
            self._plain(text[at:escape])
            at = self._escape(text, escape)

    def lines(self, count: int | None = None) -> list[str]:
        """The newest lines, oldest first; the unfinished last line is included when not empty."""
        rows = self._rows if self._rows[-1] else self._rows[:-1]
        keep = self._max_lines if count is None else min(count, self._max_lines)
        return [row.rstrip() for row in rows[-keep:]] if keep > 0 else []

    def _escape(self, text: str, start: int) -> int:
        match = _ESCAPE.match(text, start)
        if match:
            self._control(match.group())
            return match.end()
        if len(text) - start < _PENDING_LIMIT and _INCOMPLETE.match(text, start):
            self._pending = text[start:]
            return len(text)
        return start + 1

    def _control(self, sequence: str) -> None:
        if not sequence.startswith("\x1b["):
            return
        kind = sequence[-1]
        digits = sequence[2:-1]
        number = int(digits[:4]) if digits.isascii() and digits.isdigit() else None
        if kind == "A":
            self._row = max(self._row - (number or 1), 0)
        elif kind == "B":
            self._row = min(self._row + (number or 1), len(self._rows) - 1)
        elif kind == "C":
            self._col = min(self._col + (number or 1), self._max_width)
        elif kind == "D":
            self._col = max(self._col - (number or 1), 0)
        elif kind == "G":
            self._col = min((number or 1) - 1, self._max_width)
        elif kind == "K":
            self._erase(number or 0)

    def _erase(self, mode: int) -> None:
        line = self._rows[self._row]
        if mode == 0:
            self._rows[self._row] = line[: self._col]
        elif mode == 1:
            self._rows[self._row] = " " * min(self._col, len(line)) + line[self._col :]
        elif mode == 2:
            self._rows[self._row] = ""

    def _plain(self, text: str) -> None:
        for printable, control in _TOKEN.findall(text):
            if printable:
                self._write(printable)
            elif control in "\n\v\f":
                self._newline()
            elif control == "\r":
                self._col = 0
            elif control == "\b":
                self._col = max(self._col - 1, 0)
            elif control == "\t":
                self._write(" " * (_TAB - self._col % _TAB))

    def _write(self, text: str) -> None:
        text = text[: max(self._max_width - self._col, 0)]
        line = self._rows[self._row]
        if self._col > len(line):
            line += " " * (self._col - len(line))
        self._rows[self._row] = line[: self._col] + text + line[self._col + len(text) :]
        self._col += len(text)

    def _newline(self) -> None:
        self._col = 0
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
        # Twice the bound before cutting: dropping from the front of a list one line at a time
        # would make a fast log quadratic.
        if len(self._rows) > 2 * self._max_lines + 1:
            cut = len(self._rows) - self._max_lines - 1
            del self._rows[:cut]
            self._row = max(self._row - cut, 0)


class LogTail:
    """Follow a run's ``output.log``: the newest display lines, with bounded work per poll.

    Attributes:
        skipped_bytes: Bytes never looked at because the log grew faster than the polls.
        size: Bytes of the file at the last poll; ``None`` before there is one.
    """

    def __init__(self, path: str | os.PathLike[str], max_lines: int = 500) -> None:
        self._path = Path(path)
        self._max_lines = max_lines
        self._fd: int | None = None
        self._offset = 0
        self.skipped_bytes = 0
        self.size: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._folder = LineFolder(self._max_lines)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def poll(self) -> bool:
        """Read what is new; ``True`` when the lines may have changed. Never raises."""
        try:
            return self._poll()
        except OSError:
            return False

    def lines(self, count: int | None = None) -> list[str]:
        """The newest lines as plain text, oldest first."""
        return self._folder.lines(count)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _poll(self) -> bool:
        if self._fd is None:
            self._fd = open_regular(self._path)
            if self._fd is None:
                return False
        size = self.size = os.fstat(self._fd).st_size
        if size < self._offset:  # somebody emptied the file
            self._offset = 0
            self._reset()
        if size == self._offset:
            return False
        data = self._read(size)
        self._folder.feed(self._decoder.decode(data))
        return True

    def _read(self, size: int) -> bytes:
        assert self._fd is not None
        behind = size - self._offset
        skip = behind > BACKLOG_BYTES
        if skip:
            self.skipped_bytes += behind - BACKLOG_BYTES
            self._offset = size - BACKLOG_BYTES
        data = os.pread(self._fd, BACKLOG_BYTES, self._offset)
        self._offset += len(data)
        if not skip:
            return data
        self._decoder.reset()
        # Resume at the start of a line (or of a bar's frame), not in the middle of one.
        starts = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        return b"\n" + data[min(starts) + 1 :] if starts else b"\n" + data


def open_regular(path: Path) -> int | None:
    """Open a regular file, never a link or a FIFO (opening one would block)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
