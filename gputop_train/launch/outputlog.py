"""Keep a run's ``output.log`` bounded while the script goes on writing to it.

The file belongs to the child, which appends to it for as long as it lives, so it can be neither
rotated nor truncated under it. Instead the oldest ranges are given back to the file system by
punching holes: offsets stay as they are, the child notices nothing, and the newest text remains.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from gputop_train.launch.logtail import LineFolder, LogTail

__all__ = ["LOG_LIMIT_BYTES", "LineFolder", "LogBound", "LogTail"]

#: Newest bytes of a script's output that are kept (design.md, "Where things live").
LOG_LIMIT_BYTES = 256 * 1024 * 1024
#: Holes are whole blocks; a range smaller than a block would only be zeroed, not freed.
_BLOCK = 4096
_KEEP_SIZE = 0x01  # FALLOC_FL_KEEP_SIZE
_PUNCH_HOLE = 0x02  # FALLOC_FL_PUNCH_HOLE


class LogBound:
    """Punch away all but the newest ``limit_bytes`` of a log.

    Attributes:
        dropped_bytes: Bytes of the script's output that were given up, in total.
        unsupported: Why nothing can be punched here, in one sentence; ``None`` while it works.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        limit_bytes: int = LOG_LIMIT_BYTES,
        slack: int | None = None,
    ) -> None:
        self._limit = limit_bytes
        # Acting on every few bytes would be a system call per tick for nothing.
        self._slack = max(limit_bytes // 16, _BLOCK) if slack is None else slack
        self.unsupported: str | None = None
        self._fd = os.open(Path(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.dropped_bytes = _leading_hole(self._fd)

    def enforce(self) -> int:
        """Punch what is over the limit.

        Returns:
            Bytes dropped by this call; 0 when nothing was due or it is not possible here.

        Raises:
            OSError: The file system failed in a way that is not plain lack of support.
        """
        if self.unsupported is not None:
            return 0
        size = os.fstat(self._fd).st_size
        if size < self.dropped_bytes:  # the log was emptied by hand: start counting again
            self.dropped_bytes = 0
        if size - self.dropped_bytes <= self._limit + self._slack:
            return 0
        end = (size - self._limit) // _BLOCK * _BLOCK
        dropped = end - self.dropped_bytes
        if dropped <= 0 or not self._punch(end):
            return 0
        self.dropped_bytes = end
        return dropped

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _punch(self, end: int) -> bool:
        code = _fallocate(
            self._fd, _PUNCH_HOLE | _KEEP_SIZE, self.dropped_bytes, end - self.dropped_bytes
        )
        if code == 0:
            return True
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            self.unsupported = (
                "The file system of output.log cannot give up the log's oldest text, so it grows "
                "without bound; use --run-root on a local disk if the script prints a lot."
            )
            return False
        raise OSError(code, os.strerror(code))


def _leading_hole(fd: int) -> int:
    """Bytes already punched at the front, so that a new supervisor goes on counting."""
    try:
        first = os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:  # ENXIO: no data at all; EINVAL: the file system knows no holes
        return 0
    return first // _BLOCK * _BLOCK


def _fallocate(fd: int, mode: int, offset: int, length: int) -> int:
    """Call ``fallocate(2)``, which the standard library only offers without modes; give errno."""
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:
        return errno.ENOSYS
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return 0 if call(fd, mode, offset, length) == 0 else ctypes.get_errno()
