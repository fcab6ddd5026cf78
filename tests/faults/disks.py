"""A disk of a few megabytes that can be filled to the last byte and given room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs of its own size."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all room but ``leave_bytes``."""
        with open(self.place / "filler", "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        if leave_bytes:
            os.truncate(self.filler, max(0, self.filler.stat().st_size - leave_bytes))

    @property
    def filler(self) -> Path:
        """What takes the room."""
        return self.place / "filler"

    def free(self) -> None:
        """Give the room back."""
        self.filler.unlink()


@contextlib.contextmanager
def small_disk(place: Path, size: str, *, read_only: bool = False) -> Iterator[SmallDisk]:
    """Mount a small disk; skips where no file system may be mounted."""
    place.mkdir(exist_ok=True)
    options = f"size={size},mode=0700" + (",ro" if read_only else "")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip("no file system may be mounted here: " + mounted.stderr.decode().strip())
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
