"""The few files the screen writes: the copied advice, pictures, a crash report."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_private(
    directory: Path | None, name: str, text: str, *, replace: bool = True
) -> Path | None:
    """Write a file only the user can read, never through a link; ``None`` when that fails.

    Without ``replace`` a file that is there already stays as it is, and that counts as failing.
    """
    if directory is None:
        return None
    path = directory / name
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | (os.O_TRUNC if replace else os.O_EXCL)
        | os.O_NOFOLLOW
        | os.O_CLOEXEC
    )
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return None
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:  # a full disk: half a file would pass for a whole one
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return path
