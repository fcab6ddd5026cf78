"""The new files of a guarded leg: noted as they were made, removed when it is over.

The probe notes every path before it makes it, and only paths where nothing was. What is removed
must have changed since the leg began; a directory goes when nothing else is in it. The times of the
directories they were in, and of empty lock files that were opened, are set back.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOTES = "created.jsonl"
#: A file with the time the leg's scratch was made, which is before the leg began.
_BEGAN = "began"


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, and which of the noted paths are still there."""

    removed: tuple[str, ...]
    left: tuple[str, ...]


def remove(leg: Path) -> Removal:
    """Remove what the leg with this scratch directory created; run it again at any time."""
    notes = list(_notes(leg))
    began_ns = _began(leg)
    removed: list[str] = []
    left: list[str] = []
    paths = {note["path"] for note in notes if _is_path(note.get("path"))}
    # Deepest first, so that a directory is empty when its turn comes.
    for path in sorted(paths, key=lambda path: (-path.count("/"), path)):
        if os.path.lexists(path):
            (removed if _remove(path, began_ns) else left).append(path)
    for note in notes:
        _set_back(note, began_ns)
    return Removal(tuple(removed), tuple(left))


def _began(leg: Path) -> int:
    try:
        return (leg / _BEGAN).lstat().st_ctime_ns
    except OSError:
        return 1 << 63


def _notes(leg: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(OSError):
        for line in (leg / _NOTES).read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                note = json.loads(line)
                if isinstance(note, dict):
                    yield note


def _is_path(value: object) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value  # noqa: PTH117


def _remove(path: str, began_ns: int) -> bool:
    """Remove a path and what lies below it, as far as it is new; return whether it is gone."""
    try:
        seen = os.lstat(path)
        if stat.S_ISDIR(seen.st_mode):
            with os.scandir(path) as entries:
                inner = [entry.path for entry in entries]
            for below in inner:
                _remove(below, began_ns)
            os.rmdir(path)  # noqa: PTH106
        elif seen.st_ctime_ns >= began_ns:
            os.unlink(path)  # noqa: PTH108
    except OSError:
        pass
    return not os.path.lexists(path)


def _set_back(note: dict[str, Any], began_ns: int) -> None:
    """Give a place the time it had, unless somebody else has changed it since."""
    if _is_path(note.get("touched")) and isinstance(note.get("mtime_ns"), int):
        path, mtime_ns = note["touched"], note["mtime_ns"]
    elif _is_path(note.get("path")) and isinstance(note.get("parent_ns"), int):
        path, mtime_ns = os.path.dirname(note["path"]), note["parent_ns"]  # noqa: PTH120
    else:
        return
    with contextlib.suppress(OSError):
        seen = os.lstat(path)
        empty = stat.S_ISREG(seen.st_mode) and seen.st_size == 0
        if seen.st_mtime_ns >= began_ns and (empty or stat.S_ISDIR(seen.st_mode)):
            os.utime(path, ns=(seen.st_atime_ns, mtime_ns), follow_symlinks=False)
