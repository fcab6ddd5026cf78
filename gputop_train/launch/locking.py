"""One supervisor per run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class AlreadyWatched(Exception):
    """Another process holds the run."""


def take_lock(run_dir: Path) -> int:
    """Become the run's only supervisor; the lock goes with the process, however it ends.

    Returns:
        The descriptor that holds the lock; close it to let go.

    Raises:
        AlreadyWatched: Another process holds it.
        OSError: The lock file cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(run_dir / "supervisor.lock", flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise AlreadyWatched(f"{run_dir.name} has a supervisor already") from None
    except OSError:
        # A file system without locks (some NFS mounts): two observers are better than none, and
        # the store takes each row once.
        pass
    return fd
