r"""A run's whole ``output.log`` by ranges: pages of display lines anywhere in it, and search.

The file may be a quarter of a gigabyte, grow meanwhile, begin with a hole where old output was
given up, hold lines of many megabytes (a printed tensor, an epoch of a progress bar) and bars that
redraw several lines. Nothing here reads more of it than a page needs, except a search, which can
be called off. A place in the file is the offset at which a line's first byte lies.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputop_train.launch.logtail import MAX_WIDTH, LineFolder, open_regular

_CHUNK = 256 * 1024
#: What folding one page reads at most: bars that redraw their lines can take any number of bytes.
FOLD_BYTES = 2 * 1024 * 1024
#: Of a line longer than this only the end is folded, or the beginning where nothing redraws it.
LINE_BYTES = 64 * 1024
#: A printed tensor is read from its beginning, so far.
_HEAD_BYTES = 4 * MAX_WIDTH
_COLOURS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A display line and where in the file it begins."""

    start: int
    text: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """Display lines that follow each other.

    Attributes:
        lines: From the top.
        end: Offset after what was folded for them.
        first: Offset of the first byte that is still there.
        size: Size of the file.
    """

    lines: tuple[LogLine, ...]
    end: int
    first: int
    size: int

    @property
    def at_end(self) -> bool:
        """Whether the newest line is among them."""
        return self.end >= self.size


class _Marked(LineFolder):
    """Remembers at which offset each line began."""

    def __init__(self, start: int) -> None:
        super().__init__(max_lines=1 << 30)
        self.mark = start
        self.starts = [start]

    def _newline(self) -> None:
        super()._newline()
        if len(self._rows) > len(self.starts):
            self.starts.append(self.mark)


class LogFile:
    """The file, opened when it is first needed. Calls never raise; a file that is gone is empty.

    Not for several threads at once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._fd: int | None = None
        self._hole = (0, 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        """Bytes up to the end, what was given up included."""
        if self._fd is None:
            self._fd = open_regular(self._path)
        return os.fstat(self._fd).st_size if self._fd is not None else 0

    def first(self) -> int:
        """Where the first line that is still there begins: 0, or behind a leading hole."""
        if not self.size() or self._fd is None:
            return 0
        try:
            data = os.lseek(self._fd, 0, os.SEEK_DATA)
        except OSError:  # nothing but a hole, or a file system that cannot say
            return 0
        if data != self._hole[0]:
            # The line in which the hole ends is cut: begin with the next one.
            self._hole = data, self._after_newline(data)
        return self._hole[1] if data else 0

    # Pages

    def page(self, start: int, rows: int) -> LogPage:
        """``rows`` lines from the line that begins at ``start`` on; fewer at the end of the file.

        Fewer also where bars that redraw their lines took up all that is read for a page: then
        ``end`` is where to go on.
        """
        size, first = self.size(), self.first()
        start = max(first, min(start, size))
        folder = _Marked(start)
        end, fed = start, 0
        for begin, stop in self._raw_lines(start, size):
            folder.mark = stop
            fed += self._feed(folder, begin, stop)
            end = stop
            if len(folder.starts) > rows or fed >= FOLD_BYTES:
                break
        lines = self._lines(folder)[:rows]
        if len(folder.starts) > rows and len(lines) == rows:
            end = min(end, folder.starts[rows])
        return LogPage(tuple(lines), end, first, size)

    def before(self, stop: int, rows: int) -> int:
        """Where the line begins that is ``rows`` lines above the one at ``stop``.

        ``size()`` as ``stop`` counts from the end of the file.
        """
        first = self.first()
        stop = min(stop, self.size())
        want = rows + 8
        start = stop
        while True:
            begin, fed = stop, 0
            starts: list[int] = []
            for begin in self._starts_before(stop):
                starts.append(begin)
                fed += min(LINE_BYTES, (starts[-2] if len(starts) > 1 else stop) - begin)
                if len(starts) >= want or fed >= FOLD_BYTES:
                    break
            if not starts:
                return max(first, stop)
            folder = _Marked(begin)
            for a, b in zip(reversed(starts), [*reversed(starts[:-1]), stop], strict=True):
                folder.mark = b
                self._feed(folder, a, b)
            above = [line.start for line in self._lines(folder) if line.start < stop]
            if len(above) >= rows:
                return above[-rows] if rows else stop
            start = above[0] if above else start
            if begin <= first or fed >= FOLD_BYTES:
                return max(first, start)
            want *= 4

    def last(self, rows: int) -> int:
        """Where a page of ``rows`` begins that shows the end of the file."""
        return self.before(self.size(), rows)

    # Search

    def find(
        self,
        pattern: str,
        start: int,
        *,
        back: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[int, int] | None:
        """Beginning and end of the nearest line that shows ``pattern``; ``None`` if there is none.

        Colours within it do not matter. Upper and lower case are one unless the pattern has upper
        case.

        Args:
            pattern: Plain text, not empty.
            start: Where the first line looked at begins; backwards, where the last one ends.
            back: Search towards the beginning.
            cancelled: Asked now and then; true ends the search.
        """
        fold = pattern == pattern.lower()
        needle = pattern.encode()
        for begin, stop in self._pieces_before(start) if back else self._pieces_after(start):
            if cancelled():
                return None
            lines: Sequence[tuple[int, int]] = [(begin, stop)]
            if stop - begin <= _CHUNK:
                found = _lines_with(self._read(begin, stop), needle, fold=fold)
                lines = [(begin + a, begin + b) for a, b in found]
            for a, b in reversed(lines) if back else lines:
                if cancelled():
                    return None
                if self._shows(a, b, pattern, fold=fold):
                    return a, b
        return None

    def _shows(self, start: int, stop: int, pattern: str, *, fold: bool) -> bool:
        """Whether the line as displayed has the pattern: a bar's earlier frames are gone."""
        folder = LineFolder(max_lines=4)
        self._feed(folder, start, stop)
        text = "\n".join(folder.lines())
        return pattern in (text.lower() if fold else text)

    def _pieces_after(self, start: int) -> Iterator[tuple[int, int]]:
        """Whole lines from ``start`` on, a chunk at most or else a single line."""
        size = self.size()
        start = max(start, self.first())
        while start < size:
            data = self._read(start, min(size, start + _CHUNK))
            newline = data.rfind(b"\n")
            stop = start + newline + 1 if newline >= 0 else self._after_newline(start)
            yield start, stop
            start = stop

    def _pieces_before(self, stop: int) -> Iterator[tuple[int, int]]:
        """Whole lines before ``stop``, the nearest first."""
        first = self.first()
        while stop > first:
            begin = max(first, stop - _CHUNK)
            if begin > first:
                newline = self._read(begin, stop - 1).find(b"\n")
                begin = begin + newline + 1 if newline >= 0 else self._line_start(begin)
            begin = max(first, begin)
            yield begin, stop
            stop = begin

    # Lines as they lie in the file

    def _raw_lines(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Beginning and end, its newline included, of each line from ``start`` on."""
        while start < size:
            data = self._read(start, min(size, start + LINE_BYTES))
            if not data:
                return
            newline = data.rfind(b"\n")
            if newline < 0:
                stop = self._after_newline(start + len(data) - 1)
                yield start, stop
                start = stop
                continue
            at = start
            for raw in _split(data[: newline + 1]):
                yield at, at + len(raw)
                at += len(raw)
            start = at

    def _starts_before(self, stop: int) -> Iterator[int]:
        """Beginnings of the lines before ``stop``, the nearest first."""
        first = self.first()
        at = stop
        while at > first:
            begin = max(first, at - LINE_BYTES)
            data = self._read(begin, at)
            # The newline that ends the nearest line is not the beginning of another.
            search = len(data) - 1 if data.endswith(b"\n") else len(data)
            found = False
            while (newline := data.rfind(b"\n", 0, search)) >= 0:
                found = True
                yield begin + newline + 1
                at = begin + newline + 1
                search = newline
            if not found:
                at = first if begin == first else max(first, self._line_start(begin))
                yield at

    def _line_start(self, offset: int) -> int:
        """Where the line begins that a byte at ``offset`` belongs to."""
        while offset > 0:
            begin = max(0, offset - _CHUNK)
            newline = self._read(begin, offset).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            offset = begin
        return 0

    def _after_newline(self, offset: int) -> int:
        """The offset after the first newline at or behind ``offset``, or the end of the file."""
        size = self.size()
        while offset < size:
            data = self._read(offset, min(size, offset + _CHUNK))
            newline = data.find(b"\n")
            if newline >= 0:
                return offset + newline + 1
            if not data:
                break
            offset += len(data)
        return size

    def _feed(self, folder: LineFolder, start: int, stop: int) -> int:
        """Fold a line as it lies in the file; gives the bytes that were read for it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if stop - start <= LINE_BYTES:
            data = self._read(start, stop)
            folder.feed(decoder.decode(data))
            return len(data)
        tail = self._read(stop - LINE_BYTES, stop)
        redrawn = tail.find(b"\r")
        if 0 <= redrawn < len(tail) - 2:
            folder.feed(decoder.decode(tail[redrawn:]))
        else:
            head = self._read(start, start + _HEAD_BYTES)
            folder.feed(decoder.decode(head) + ("\n" if tail.endswith(b"\n") else ""))
        return LINE_BYTES

    @staticmethod
    def _lines(folder: _Marked) -> list[LogLine]:
        texts = folder.lines()
        return [LogLine(at, text) for at, text in zip(folder.starts, texts, strict=False)]

    def _read(self, start: int, stop: int) -> bytes:
        if self._fd is None or stop <= start:
            return b""
        try:
            return os.pread(self._fd, stop - start, start)
        except OSError:
            return b""


def _lines_with(data: bytes, needle: bytes, *, fold: bool) -> list[tuple[int, int]]:
    """Lines whose bytes have the needle, as offsets into ``data``."""

    def has(raw: bytes) -> bool:
        text = _COLOURS.sub(b"", raw) if b"\x1b" in raw else raw
        return needle in (text.lower() if fold else text)

    if not has(data):  # most pieces of most logs
        return []
    found, at = [], 0
    for raw in _split(data):
        if has(raw):
            found.append((at, at + len(raw)))
        at += len(raw)
    return found


def _split(data: bytes) -> list[bytes]:
    """Lines with their newline, which alone ends one: not a carriage return."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
