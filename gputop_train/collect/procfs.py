"""Reading small kernel files: whole, cheap, and never an exception."""

from __future__ import annotations

import os

#: No file we read is larger in practice; the bound keeps a hostile mount from feeding us for ever.
MAX_BYTES = 4 << 20


def read_text(path: str) -> str | None:
    """The whole text of a kernel file, or ``None`` when it is absent, refused or vanished.

    ``os.read`` in place of ``open()``: a third of the cost, which counts when 64 loader workers
    are read every second. Files under ``/proc`` hand out at most a page a read, hence the loop.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    chunks: list[bytes] = []
    size = 0
    try:
        while size < MAX_BYTES:
            chunk = os.read(fd, 65536)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
    except OSError:  # the process ended under way (ESRCH), or PSI is switched off (EOPNOTSUPP)
        return None
    finally:
        os.close(fd)
    return b"".join(chunks).decode("utf-8", "replace")


def read_int(path: str) -> int | None:
    """The single integer a kernel file holds, or ``None`` for anything else."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None
