"""The reader's side of the probe's ring (docs/wire-format.md): hostile content in, plain words out.

The file is read with ``pread``, never mapped: a ring that is truncated or removed under the reader
then yields short reads instead of SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gputop_train import plainjson

MAGIC: Final = b"GPUTOPR1"
VERSION: Final = 1
HEADER_BYTES: Final = 4096
#: The probe keeps to 2 MB; twice that is accepted, more is not one of its files.
MAX_FILE_BYTES: Final = 4 << 20
#: Words delivered by one ``poll``: about 50 ms of parsing, and far above what a probe writes
#: between two polls.
MAX_POLL_WORDS: Final = 1 << 16
#: Slots just above the write position may already be overwritten before ``head`` says so. A reader
#: that has fallen behind this far leaves them and counts them lost.
GUARD_WORDS: Final = 4096
MAX_JSON_DEPTH: Final = 8
#: No probe writes a word in less time than this, whatever trains; nor is it younger than a second.
_WORD_NS: Final = 50
_YOUNG_NS: Final = 1_000_000_000

#: Errors that say nothing of a ring: we ourselves are short of descriptors or memory.
OUR_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_HEADER: Final = struct.Struct("<8sIIIiQQQQiI")
_LIVE_OFFSET: Final = 64
_LIVE: Final = struct.Struct("<QQQI")  # head, heartbeat, words lost in the probe, state
_MAILBOX_OFFSET: Final = 128
_SNAPSHOT_HEAD: Final = struct.Struct("<II")  # sequence, length

_STATE_FINISHED: Final = 1
_STATE_FAILED: Final = 2


class RingError(Exception):
    """The file is no ring this reader may trust; the message is fit to show to a person."""


@dataclass(frozen=True, slots=True)
class RingHeader:
    """The part of a ring's header that never changes.

    Attributes:
        pid: Process that trains.
        rank: Global rank, ``None`` outside distributed runs.
        local_rank: Rank on this host, ``None`` outside distributed runs.
        cap_words: Capacity of the ring.
        armed_wall_ns: Wall clock when the probe armed itself.
        armed_mono_ns: ``CLOCK_MONOTONIC`` at the same moment.
        start_ticks: Start time of the process, field 22 of ``/proc/PID/stat``.
        snapshot_bytes: Size of the snapshot area.
    """

    pid: int
    rank: int | None
    local_rank: int | None
    cap_words: int
    armed_wall_ns: int
    armed_mono_ns: int
    start_ticks: int
    snapshot_bytes: int


class Ring:
    """One training process's ring, open for reading.

    Attributes:
        header: What the header said when the ring was opened.
        path: Where it was opened.
        lost: Words this reader could not deliver because the writer was a whole ring ahead.
        spoiled: Times the writer's position made no sense: somebody else wrote into the file.
    """

    def __init__(self, fd: int, path: Path, header: RingHeader, *, from_oldest: bool) -> None:
        self.header = header
        self.path = path
        self.lost = 0
        self.spoiled = 0
        self._was_behind = False
        self._fd = fd
        self._mailbox_fd: int | None = None
        self._words_at = HEADER_BYTES + header.snapshot_bytes
        self._snapshot_seen: tuple[int, dict[str, Any]] | None = None
        self._next = 0
        if not from_oldest:
            live = self._live()
            self._next = live[0] if live else 0

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, from_oldest: bool = True) -> Ring:
        """Open a ring after checking that it is ours and well formed.

        Args:
            path: The ``.ring`` file. Symbolic links are refused.
            from_oldest: Start at the oldest word still there; else at words written from now on.

        Raises:
            RingError: It cannot be opened, belongs to somebody else, others may write or read it,
                or its header is not that of a version 1 ring.
        """
        place = Path(path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(place, flags)
        except OSError as error:
            raise RingError(
                f"The ring {place} could not be opened ({error.strerror}). "
                "Check that the run still exists and belongs to you."
            ) from error
        try:
            header = _checked_header(fd, place)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, place, header, from_oldest=from_oldest)

    def poll(self, limit: int = MAX_POLL_WORDS) -> array[int]:
        """New words since the last poll, at most ``limit``; empty when there are none.

        Words overwritten before they could be read are counted in ``lost`` exactly: words delivered
        plus words lost is the position reached in the stream.
        """
        words: array[int] = array("Q")
        live = self._live()
        if live is None:
            return words
        head, state = live[0], live[3]
        if head < self._next:
            # It never moves back. The writer has mended a lie by the next poll, so what stays low
            # is the truth, and what was read before was the lie.
            if self._was_behind:
                self.spoiled += 1
                self._next = head
            self._was_behind = True
            return words
        self._was_behind = False
        if head == self._next or head > self._highest():
            return words
        self._skip_to(self._oldest_safe(head, state))
        first = self._next
        count = min(head - first, limit)
        if count <= 0:
            return words
        raw = self._copy(first, count)
        words.frombytes(raw[: len(raw) & ~7])
        if sys.byteorder == "big":  # pragma: no cover - no such machine trains
            words.byteswap()
        self._next = first + len(words)
        live = self._live()
        if live is not None and live[0] >= head:
            # The writer went on while we copied: what it overwrote meanwhile may be torn.
            torn = min(self._oldest_safe(live[0], live[3]) - first, len(words))
            if torn > 0:
                del words[:torn]
                self.lost += torn
        return words

    def snapshot(self) -> dict[str, Any] | None:
        """The newest whole snapshot, or ``None`` while it is absent, torn or not what it should be.

        The same dictionary is returned until the probe writes another one: do not change it.
        """
        for _ in range(3):
            sequence, length = self._snapshot_head()
            if sequence == 0 or sequence & 1 or not 0 < length <= self.header.snapshot_bytes - 8:
                continue
            if self._snapshot_seen is not None and self._snapshot_seen[0] == sequence:
                return self._snapshot_seen[1]
            raw = self._pread(length, HEADER_BYTES + _SNAPSHOT_HEAD.size)
            if len(raw) != length or self._snapshot_head() != (sequence, length):
                continue
            parsed = _parse_snapshot(raw)
            if parsed is not None:
                self._snapshot_seen = (sequence, parsed)
            return parsed
        return None

    @property
    def heartbeat_ns(self) -> int:
        """``CLOCK_MONOTONIC`` ns of the probe's last sign of life; 0 when the file is gone."""
        live = self._live()
        return live[1] if live else 0

    @property
    def probe_lost(self) -> int:
        """Words the probe itself had to drop."""
        live = self._live()
        return live[2] if live else 0

    @property
    def finished(self) -> bool:
        """Whether the process said good-bye (a killed one never does)."""
        live = self._live()
        return live is not None and live[3] == _STATE_FINISHED

    @property
    def failed(self) -> bool:
        """Whether the probe gave up inside a process that trains on."""
        live = self._live()
        return live is not None and live[3] == _STATE_FAILED

    @property
    def gone(self) -> bool:
        """Whether the file was truncated or closed under us; nothing more will come."""
        return self._live() is None

    @property
    def behind(self) -> int:
        """Words written that ``poll`` has not delivered yet."""
        live = self._live()
        return max(0, live[0] - self._next) if live else 0

    def set_control(self, word: int) -> bool:
        """Write the control word of the mailbox; ``False`` when the ring cannot be written."""
        return self._write_mailbox(0, word)

    def request_burst(self, burst_id: int) -> bool:
        """Ask the probe for a burst; ``False`` when the ring cannot be written."""
        return self._write_mailbox(4, burst_id)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        fd, self._fd = self._fd, -1
        mailbox, self._mailbox_fd = self._mailbox_fd, None
        for open_fd in (fd, mailbox):
            if open_fd is not None and open_fd >= 0:
                os.close(open_fd)

    def __enter__(self) -> Ring:
        """Return the ring."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the ring."""
        self.close()

    def _pread(self, count: int, offset: int) -> bytes:
        if self._fd < 0:
            return b""
        try:
            return os.pread(self._fd, count, offset)
        except OSError:
            return b""

    def _live(self) -> tuple[int, int, int, int] | None:
        raw = self._pread(_LIVE.size, _LIVE_OFFSET)
        if len(raw) != _LIVE.size:
            return None
        head, heartbeat_ns, lost, state = _LIVE.unpack(raw)
        return head, heartbeat_ns, lost, state

    def _highest(self) -> int:
        """A position no probe can have reached by now: a head beyond it was overwritten."""
        since_ns = time.monotonic_ns() - self.header.armed_mono_ns
        return max(since_ns, _YOUNG_NS) // _WORD_NS if since_ns > 0 else sys.maxsize

    def _oldest_safe(self, head: int, state: int) -> int:
        """Lowest position that cannot be under the writer's pen."""
        cap = self.header.cap_words
        guard = 0 if state == _STATE_FINISHED else min(GUARD_WORDS, cap // 4)
        return max(0, head - cap + guard)

    def _skip_to(self, position: int) -> None:
        if position > self._next:
            self.lost += position - self._next
            self._next = position

    def _copy(self, first: int, count: int) -> bytes:
        cap = self.header.cap_words
        slot = first % cap
        straight = min(count, cap - slot)
        raw = self._pread(straight * 8, self._words_at + slot * 8)
        if len(raw) == straight * 8 and straight < count:
            raw += self._pread((count - straight) * 8, self._words_at)
        return raw

    def _snapshot_head(self) -> tuple[int, int]:
        raw = self._pread(_SNAPSHOT_HEAD.size, HEADER_BYTES)
        if len(raw) != _SNAPSHOT_HEAD.size:
            return 0, 0
        sequence, length = _SNAPSHOT_HEAD.unpack(raw)
        return sequence, length

    def _write_mailbox(self, offset: int, word: int) -> bool:
        try:
            fd = self._mailbox()
            if os.fstat(fd).st_size < HEADER_BYTES:
                return False  # truncated: writing would bring a hollow file back to life
            packed = struct.pack("<I", word & 0xFFFFFFFF)
            return os.pwrite(fd, packed, _MAILBOX_OFFSET + offset) == len(packed)
        except OSError:
            return False

    def _mailbox(self) -> int:
        if self._mailbox_fd is None:
            if self._fd < 0:
                raise OSError("the ring is closed")
            # Through /proc: the very inode we checked, even after its path was removed or replaced.
            self._mailbox_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_CLOEXEC)
        return self._mailbox_fd


def rings(directory: str | os.PathLike[str]) -> list[Path]:
    """The ring files of a run, oldest name first; empty when the directory is not there.

    Raises:
        OSError: We ourselves are short of descriptors or memory (`OUR_LIMITS`).
    """
    try:
        with os.scandir(directory) as entries:
            found = [
                Path(entry.path)
                for entry in entries
                if entry.name.endswith(".ring") and entry.is_file(follow_symlinks=False)
            ]
    except OSError as error:
        if error.errno in OUR_LIMITS:
            raise
        return []
    return sorted(found)


def _checked_header(fd: int, path: Path) -> RingHeader:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise RingError(f"{path} is not a regular file. Point at the run's own .ring file.")
    if os.geteuid() not in (0, status.st_uid):
        raise RingError(
            f"The ring {path} belongs to user {status.st_uid}. Attach as the user who trains."
        )
    if status.st_mode & 0o077:
        raise RingError(
            f"The ring {path} can be reached by other users. "
            "Start the run again; its runtime directory must be private (0700)."
        )
    raw = os.pread(fd, _HEADER.size, 0)
    if len(raw) != _HEADER.size or raw[:8] != MAGIC:
        raise RingError(f"{path} is not a ring of this tool. Point at the run's own .ring file.")
    _, version, size, pid, rank, cap, wall, mono, ticks, local, snap = _HEADER.unpack(raw)
    if version != VERSION or size != HEADER_BYTES:
        raise RingError(
            f"The ring {path} has format {version}, this version reads {VERSION}. "
            "Attach with the version that started the run."
        )
    needed = HEADER_BYTES + snap + cap * 8
    if cap < 1 or snap % 8 or not needed <= status.st_size <= MAX_FILE_BYTES:
        raise RingError(
            f"The ring {path} is damaged or was cut short. Start the run again to watch it."
        )
    return RingHeader(
        pid=pid,
        rank=rank if rank >= 0 else None,
        local_rank=local if local >= 0 else None,
        cap_words=cap,
        armed_wall_ns=wall,
        armed_mono_ns=mono,
        start_ticks=ticks,
        snapshot_bytes=snap,
    )


def _parse_snapshot(raw: bytes) -> dict[str, Any] | None:
    try:
        parsed = plainjson.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict) or not _shallow(parsed, MAX_JSON_DEPTH):
        return None
    return parsed


def _shallow(value: object, depth: int) -> bool:
    """Whether nothing nests deeper than ``depth``, so that readers may recurse into it."""
    if isinstance(value, dict):
        return depth > 0 and all(_shallow(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_shallow(item, depth - 1) for item in value)
    return True
