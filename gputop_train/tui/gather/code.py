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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gputop_train.tui.views.lines import WORKERS, Line, Source

#: Larger sources are generated.
MAX_BYTES = 1 << 20
#: A file is looked at again after so many seconds: it may lie on a slow network.
LOOK_S = 5.0
#: A recorded call is looked for this many lines around its own: it may begin above it.
NEAR = 3
#: So much of it, blanks left out: the rest may stand further below, or was cut.
TOLD = 40
SUFFIXES = (".py", ".pyw", ".ipy")
#: Files whose text is kept.
MAX_FILES = 64
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Read:
    """A file's text, or why there is none; ``mtime_ns`` is when it was last changed."""

    lines: tuple[str, ...] = ()
    mtime_ns: int = 0
    why: str = ""


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
        except OSError as error:
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


def in_folder(file: str, cwd: str | None, folder: Path) -> Path | None:
    """Where a file of another machine's lies in a checkout of the same project: see `judged`."""
    if not cwd:
        return None
    path = Path(cwd) / file
    inside = path.relative_to(cwd) if path.is_relative_to(cwd) else None
    if inside is None or ".." in inside.parts or path.suffix not in SUFFIXES:
        return None
    return folder / inside


def read_text(path: Path) -> Read:
    """A source file's lines, without their ends; tabs are four columns."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return Read(why=f"{path.name} is not a regular file.")
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
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
    return Read(tuple(line.expandtabs(4).rstrip() for line in lines), info.st_mtime_ns)


def _why_not(path: Path, error: OSError) -> str:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return f"{path.name} is not on this machine."
    return f"{path.name} cannot be read ({error.strerror or error})."


def judged(name: str, read: Read, recorded: Sequence[Line], started_wall_ns: int | None) -> Source:
    """A file's text with what is to be known of it.

    Args:
        name: For the sentences.
        read: What it holds now.
        recorded: Lines as the run saw them.
        started_wall_ns: When the run began; ``None`` = not known.
    """
    if not read.lines:
        return Source(note=f"{read.why} Its lines are shown as they were recorded.")
    told = [line for line in recorded if line.text and any(p.kind != WORKERS for p in line.parts)]
    moved = frozenset(line.number for line in told if not _reads_as(read.lines, line))
    late = started_wall_ns is None or read.mtime_ns > started_wall_ns
    if told and len(moved) == len(told) and (len(told) > 1 or not late):
        what = "was changed after this run began" if late else "is not the file this run had"
        return Source(note=f"{name} {what}: its lines are shown as they were recorded.")
    if moved:
        what = "was changed after this run began" if late else "is not as this run had it"
        return Source(
            read.lines,
            f"{name} {what}: {len(moved)} of {len(told)} lines do not read as recorded, and line "
            "numbers may be off.",
            moved,
        )
    if late and started_wall_ns is not None:
        what = "its costly lines read as they did" if told else "line numbers may be off"
        return Source(read.lines, f"{name} was changed after this run began; {what}.")
    return Source(read.lines)


def _reads_as(lines: Sequence[str], line: Line) -> bool:
    """Whether the recorded code stands at its line, or begins a few above it."""
    begin, end = max(0, line.number - 1 - NEAR), line.number + NEAR
    wanted = _BLANKS.sub("", line.text)[:TOLD]
    return wanted in _BLANKS.sub("", "".join(lines[begin:end]))
