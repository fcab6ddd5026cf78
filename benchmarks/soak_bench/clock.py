"""A clock that is set by hand and shared by two processes: ``time.monotonic_ns`` of a made run."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

SECOND_NS = 1_000_000_000


class Clock:
    """Nanoseconds in a file of eight bytes.

    Args:
        path: Made, with the real time in it, where it is not there.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("<q", time.monotonic_ns()))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def __call__(self) -> int:
        return int(struct.unpack("<q", self._map[:8])[0])

    def set(self, now_ns: int) -> None:
        """Move it."""
        self._map[:8] = struct.pack("<q", now_ns)

    def rule(self) -> None:
        """Be the clock of this process; before anything of ours is imported."""
        time.monotonic_ns = self
