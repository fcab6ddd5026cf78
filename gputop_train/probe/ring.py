"""Writer of the ring file (docs/wire-format.md). Owned by the helper thread alone.

Written with ``pwrite``, not a mapping: a file that somebody truncates under a mapping kills the
process with SIGBUS at its next write; ``pwrite`` just fills it again.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from array import array
from typing import Any

MAGIC = b"GPUTOPR1"
VERSION = 1
HEADER = 4096
SNAPSHOT_BYTES = 256 * 1024
WORDS = 1 << 17  # 1 MiB: about 13 s at 10,000 words/s, far more than a reader's pause

_HEAD = struct.Struct("<8sIIIiQQQQiI")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_NATIVE: Any = type(len)

RUNNING, FINISHED, FAILED = 0, 1, 2


class UnsafeDirectory(OSError):
    """The runtime directory is not ours alone."""


def check_directory(path: str) -> None:
    """Refuse a directory that is a link, someone else's, or open to others."""
    info = os.lstat(path)
    if (info.st_mode & 0o170000) != 0o040000 or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise UnsafeDirectory("unsafe runtime directory " + path)


def _check_limit(end: int, limit: int | None) -> None:
    """Refuse what RLIMIT_FSIZE forbids.

    The kernel would do so with SIGXFSZ as well, which ends a process that takes it as it comes:
    Python ignores it, a script may have put the default back.
    """
    if limit is not None and end > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _first_limit() -> int | None:
    """RLIMIT_FSIZE in bytes; None where there is none, or it cannot be read."""
    try:
        with open("/proc/self/limits", "rb") as stream:
            line = next(line for line in stream if line.startswith(b"Max file size"))
        return int(line.split()[3])
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _limit_by_script() -> int | None:
    """The same later: only a script that has ``resource`` can have changed it.

    Not imported here, where a file of that name beside the script would be run in its stead.
    """
    module: Any = sys.modules.get("resource")
    read: Any = getattr(module, "getrlimit", None)
    if type(read) is not _NATIVE:
        return None
    limit: int = read(module.RLIMIT_FSIZE)[0]
    return limit if limit >= 0 else None


class RingWriter:
    """One process's ring file."""

    def __init__(
        self,
        path: str,
        *,
        pid: int,
        start_ticks: int,
        rank: int,
        local_rank: int,
        wall_ns: int,
        mono_ns: int,
        words: int = WORDS,
        snapshot_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        self.path = path
        self.capacity = words
        self.snapshot_bytes = snapshot_bytes
        self.head = 0
        self._sequence = 0
        self._data = HEADER + snapshot_bytes
        size = self._data + words * 8
        _check_limit(size, _first_limit())
        temporary = "%s.tmp%d" % (path, pid)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        self._fd = os.open(temporary, flags, 0o600)
        try:
            # Blocks are taken now, so that a full disk is an error here and not later.
            os.posix_fallocate(self._fd, 0, size)
            header = _HEAD.pack(
                MAGIC, VERSION, HEADER, pid, rank, words, wall_ns, mono_ns,
                start_ticks, local_rank, snapshot_bytes,
            )  # fmt: skip
            os.pwrite(self._fd, header, 0)
            os.rename(temporary, path)
        except BaseException:
            os.close(self._fd)
            os.unlink(temporary)
            raise

    def write(self, words: list[int]) -> None:
        """Copy words in bulk; the head moves last, so a reader never sees an unwritten word."""
        data = array("Q", words).tobytes()
        count = len(words)
        if count > self.capacity:
            data = data[-self.capacity * 8 :]
            self.head += count - self.capacity
            count = self.capacity
        slot = self.head % self.capacity
        first = min(count, self.capacity - slot)
        self._put(data[: first * 8], self._data + slot * 8)
        if first < count:
            self._put(data[first * 8 :], self._data)
        self.head += count
        self._put(_U64.pack(self.head), 64)

    def beat(self, t_ns: int, lost: int) -> None:
        """Heartbeat and the number of words the queue dropped."""
        self._put(_U64.pack(t_ns) + _U64.pack(lost), 72)

    def set_state(self, state: int) -> None:
        """RUNNING, FINISHED or FAILED."""
        self._put(_U32.pack(state), 88)

    def control(self) -> int:
        """The mailbox word a reader wrote; 0 when unreadable."""
        raw = os.pread(self._fd, 4, 128)
        return int(_U32.unpack(raw)[0]) if len(raw) == 4 else 0

    def burst_request(self) -> int:
        """Number of the burst a reader asked for last; 0 when none or unreadable."""
        raw = os.pread(self._fd, 4, 132)
        return int(_U32.unpack(raw)[0]) if len(raw) == 4 else 0

    def snapshot(self, body: bytes) -> bool:
        """Publish the state as JSON; False when it does not fit (the old one stays)."""
        if len(body) > self.snapshot_bytes - 8:
            return False
        self._sequence = (self._sequence + 2) & 0xFFFFFFFF
        self._put(_U32.pack(self._sequence - 1) + _U32.pack(len(body)), HEADER)
        self._put(body, HEADER + 8)
        self._put(_U32.pack(self._sequence), HEADER)
        return True

    def _put(self, data: bytes, offset: int) -> None:
        _check_limit(offset + len(data), _limit_by_script())
        os.pwrite(self._fd, data, offset)

    def close(self) -> None:
        """Close the descriptor; the file stays for the reader."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 when unreadable."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return int(stream.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
