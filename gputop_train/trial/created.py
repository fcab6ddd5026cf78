"""The new files of a guarded leg: noted as they were made, removed when it is over.

The probe notes every path that was not there before; what is removed must still be that very file
(device, inode, made after the leg began), and of directories only empty ones go.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_NOTES = "created.jsonl"


@dataclass(frozen=True, slots=True)
class Removal:
    """What was removed, and which of the noted paths are still there."""

    removed: tuple[str, ...]
    left: tuple[str, ...]


def remove(leg: Path) -> Removal:
    """Remove what the leg with this scratch directory created."""
    removed: list[str] = []
    left: list[str] = []
    # Deepest first, so that a directory is empty when its turn comes.
    began = _began(leg)
    for path in sorted(_noted(leg), key=lambda path: (-path.count("/"), path)):
        with contextlib.suppress(FileNotFoundError):
            try:
                (removed if _remove(path, began) else left).append(path)
            except FileNotFoundError:
                raise
            except OSError:
                left.append(path)
    return Removal(tuple(removed), tuple(left))


def _began(leg: Path) -> float:
    try:
        return (leg / "refused.jsonl").lstat().st_mtime
    except OSError:
        return float("inf")


def _noted(leg: Path) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in (leg / _NOTES).read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                note = json.loads(line.decode("utf-8", "surrogateescape"))
                path = note.get("path") if isinstance(note, dict) else None
                if isinstance(path, str) and os.path.isabs(path):  # noqa: PTH117
                    found.add(path)
    return found


def _remove(path: str, began: float) -> bool:
    """Remove one; a file that was there before the leg was changed by nobody and stays."""
    seen = os.lstat(path)
    if seen.st_ctime < began:
        return False
    if stat.S_ISDIR(seen.st_mode):
        os.rmdir(path)  # noqa: PTH106
    else:
        os.unlink(path)  # noqa: PTH108
    return True
