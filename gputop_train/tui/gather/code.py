"""The person's source as it is now, and whether it still reads as the run saw it.

Read where the screen runs, by whoever runs it, and only to be shown: a file that is not there, not
text or too large is said so in words. A recording may name any path, so only Python files and the
run's own script are opened, and no special file.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gputop_train.tui.gather.moving import located, shifted, squeezed
from gputop_train.tui.views.lines import WORKERS, Line, Source

#: Larger sources are generated.
MAX_BYTES = 1 << 20
#: Nobody reads more of a line than this.
LONGEST = 1_000
#: A file is looked at again after so many seconds: it may lie on a slow network.
LOOK_S = 5.0
SUFFIXES = (".py", ".pyw", ".ipy")
#: Files whose text is kept.
MAX_FILES = 64


@dataclass(frozen=True, slots=True)
class Read:
    """A file's text, or why there is none; ``mtime_ns`` is when it was last changed."""

    lines: tuple[str, ...] = ()
    mtime_ns: int = 0
    why: str = ""
    squeezed: tuple[str, ...] = ()


@dataclass(slots=True)
class Sources:
    """Reads files, and keeps what it read until they change.

    Args:
        clock: Seconds, monotonic.
    """

    clock: Callable[[], float]
    _kept: dict[Path, tuple[float, tuple[int, ...], Read]] = field(default_factory=dict)

    def read(self, path: Path) -> Read:
        """A file's text, at most `LOOK_S` old."""
        now = self.clock()
        kept = self._kept.get(path)
        if kept is not None and now - kept[0] < LOOK_S:
            return kept[2]
        try:
            info = path.stat()
        except (OSError, ValueError) as error:
            key: tuple[int, ...] = ()
            read = Read(why=_why_not(path, error))
        else:
            key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
            read = kept[2] if kept is not None and kept[1] == key else read_text(path)
        if path not in self._kept and len(self._kept) >= MAX_FILES:
            self._kept.pop(next(iter(self._kept)))
        self._kept[path] = (now, key, read)
        return read


def place_of(file: str, cwd: str | None, script: str | None) -> Path | str:
    """Where a recorded file is to be read, or why it is not, in words."""
    name = file.replace("\\", "/").rsplit("/", 1)[-1]
    if not file or file.startswith("<") or "ipykernel" in file:
        return f"{name or 'This code'} is no file: its lines are shown as they were recorded."
    path = Path(file)
    if not path.is_absolute():
        if not cwd:
            return f"{file} was recorded without its directory."
        path = Path(cwd) / path
    if path.suffix not in SUFFIXES and file != script:
        return f"{name} is no Python file: its lines are shown as they were recorded."
    return path


def in_folder(file: str, cwd: str) -> Path | None:
    """Where another machine's file lies in this folder, if it is a checkout of the project."""
    path = Path(cwd) / file
    inside = path.relative_to(cwd) if cwd and path.is_relative_to(cwd) else None
    if inside is None or ".." in inside.parts or path.suffix not in SUFFIXES:
        return None
    try:
        return Path.cwd() / inside
    except OSError:  # this folder is gone
        return None


def read_text(path: Path) -> Read:
    """A source file's lines, without their ends; tabs are four columns."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return Read(why=f"{path.name} is not a regular file.")
            content = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return Read(why=_why_not(path, error))
    if len(content) > MAX_BYTES:
        return Read(why=f"{path.name} is larger than {MAX_BYTES >> 20} MB.")
    if b"\0" in content:
        return Read(why=f"{path.name} is not text.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return Read(why=f"{path.name} is not text in the encoding it names.")
    # Python counts lines by these ends alone; str.splitlines knows more.
    lines = re.split(r"\r\n|\r|\n", text)
    shown = tuple(line[:LONGEST].expandtabs(4).rstrip() for line in lines)
    return Read(shown, info.st_mtime_ns, squeezed=squeezed(shown))


def _why_not(path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return f"{path.name} is not on this machine."
    why = error.strerror if isinstance(error, OSError) else None
    return f"{path.name} cannot be read ({why or error})."


def judged(
    name: str, read: Read, recorded: Sequence[Line], started_wall_ns: int | None
) -> tuple[Source, tuple[Line, ...]]:
    """A file's text with what is to be known of it, and its lines where they stand in it now.

    Args:
        name: For the sentences.
        read: What it holds now.
        recorded: Lines as the run saw them, by number.
        started_wall_ns: When the run began; ``None`` = not known.
    """
    as_they_were = tuple(recorded)
    if not read.lines:
        return Source(note=f"{read.why} Its lines are shown as they were recorded."), as_they_were
    told = [line for line in recorded if line.text and any(p.kind != WORKERS for p in line.parts)]
    found = located(read.squeezed, [(line.number, line.text) for line in told])
    lost = sum(now is None for now in found.values())
    moved = sum(now not in (was, None) for was, now in found.items())
    late = started_wall_ns is None or read.mtime_ns > started_wall_ns
    if told and lost == len(told) and (lost > 1 or not late):
        what = "was changed after this run began" if late else "is not the file this run had"
        note = f"{name} {what}: its lines are shown as they were recorded."
        return Source(note=note), as_they_were
    last = len(read.lines)
    lines = tuple(sorted((_moved(line, found, last) for line in recorded), key=_place))
    what = "was changed after this run began" if late else "is not as this run had it"
    if lost or moved:
        parts = [f"{n} {word}" for n, word in ((moved, "moved"), (lost, "not found any more")) if n]
        note = f"{name} {what}: of {len(told)} costly lines {' and '.join(parts)}."
        return Source(read.lines, note, same=False), lines
    if late and started_wall_ns is not None:
        kept = "its costly lines read as they did" if told else "line numbers may be off"
        return Source(read.lines, f"{name} {what}; {kept}."), lines
    return Source(read.lines), lines


def _moved(line: Line, found: Mapping[int, int | None], last: int) -> Line:
    """A line where it stands now, in a text of so many lines."""
    now = found[line.number] if line.number in found else shifted(line.number, found)
    if now is None or not 1 <= now <= last:
        return replace(line, number=-line.number, was=line.number)
    return line if now == line.number else replace(line, number=now, was=line.number)


def _place(line: Line) -> tuple[bool, int]:
    return line.number < 0, abs(line.number)
