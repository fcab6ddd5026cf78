"""How much a script has printed, from its ``output.log`` as it stands. Reads; holds nothing up."""

from __future__ import annotations

import os
from pathlib import Path

from gputop_train.launch.logtail import open_regular
from gputop_train.report.line_facts import Output

#: The newest bytes of the log whose lines are counted; the rest is taken to be like them.
COUNTED_BYTES = 64 * 1024 * 1024
_CHUNK = 1 << 20


def printed(log: Path) -> Output | None:
    """Size of a log and the lines in its newest part; a progress bar's redraw counts as a line.

    Args:
        log: ``output.log`` of a run.

    Returns:
        ``None`` where there is no such file.
    """
    fd = open_regular(log)
    if fd is None:
        return None
    try:
        total = os.fstat(fd).st_size
        start = max(_first_kept(fd), total - COUNTED_BYTES)
        lines = 0
        at = start
        while at < total and (chunk := os.pread(fd, min(_CHUNK, total - at), at)):
            lines += chunk.count(b"\n") + chunk.count(b"\r")
            at += len(chunk)
        return Output(total, at - start, lines)
    except OSError:
        return None
    finally:
        os.close(fd)


def _first_kept(fd: int) -> int:
    """Where the log begins: its oldest ranges are given back to the file system as holes."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:
        return 0
