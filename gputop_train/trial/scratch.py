"""Where a trial keeps what may not stay: private, gone afterwards whatever happened.

A trial has one directory, a leg has one within it. Who made it holds a lock on it for as long as he
lives, so that whoever comes after a ``kill -9`` can tell what was left from what is in use. A leg's
directory goes once no process of the leg is left; nothing outside it is ever touched, but for the
new files of a guarded leg, which ``created.py`` removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gputop_train import paths
from gputop_train.launch.offline import OFFLINE_DIR
from gputop_train.trial import created
from gputop_train.trial.inhabitants import end_all

PREFIX = ".trial-"
LOCK = "lock"
CACHES = "caches"
REFUSED, CREATED, BEGAN = "refused.jsonl", "created.jsonl", "began"
#: Room taken beforehand for the one line a guarded leg leaves when it is ended.
REFUSED_BYTES = 8192
#: A directory without a lock that is younger than this may be about to get one.
_NEW_S = 10.0
#: What a leg may leave free of the disk it writes its changes to.
_LEAVE_BYTES = 1 << 30
_LEAVE_SHARE = 0.05


class ScratchError(Exception):
    """There is no place for scratch; one sentence of why, and one of what to do."""


@dataclass(frozen=True, slots=True)
class LegScratch:
    """The scratch of one leg.

    Attributes:
        path: What ``TrialLeg.scratch`` wants.
        caches: What ``TrialLeg.caches`` wants: the same for all legs of a trial.
    """

    path: Path
    caches: Path

    def short_of_room(self) -> str | None:
        """Say so in one sentence when the leg has filled the disk so far that it must be ended."""
        try:
            room = os.statvfs(self.path)
        except OSError:
            return None
        total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
        if free >= min(_LEAVE_BYTES, total * _LEAVE_SHARE):
            return None
        return f"The files it wrote left only {free >> 20} MiB free on the disk of {self.path}."


class Scratch:
    """The scratch of one trial; use it as a context manager.

    Args:
        root: The run root. On a network file system a local place is taken instead.

    Raises:
        ScratchError: No directory can be made.
    """

    def __init__(self, root: Path) -> None:
        self._lock = -1
        self._legs = 0
        base = _base(root)
        self.path = base / f"{PREFIX}{secrets.token_hex(6)}"
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
            self._lock = os.open(
                self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.path / CACHES).mkdir(mode=0o700)
        except OSError as error:
            self.close()
            raise ScratchError(
                f"There is no place for a trial's scratch in {base}: {error.strerror or error}. "
                "Name another directory with --run-root; nothing was started."
            ) from error

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def leg(self) -> Iterator[LegScratch]:
        """Give a leg its directory; afterwards end what is left of the leg, and remove it.

        Raises:
            OSError: It cannot be made, most likely since the disk is full.
        """
        self._legs += 1
        path = self.path / f"leg-{self._legs}"
        try:
            path.mkdir(mode=0o700)
            (path / OFFLINE_DIR).mkdir(mode=0o700)
            for name in (BEGAN, REFUSED, CREATED):
                os.close(paths.open_private_file(path / name))
            _reserve(path / REFUSED)
            yield LegScratch(path, self.path / CACHES)
        finally:
            _clear(path)

    def close(self) -> None:
        """Remove everything; safe to call twice."""
        for leg in _legs(self.path):
            _clear(leg)
        remove_tree(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep(root: Path) -> list[Path]:
    """End and remove what trials left whose owner was killed; return what was removed."""
    removed = []
    # A local base that is not ours alone was made by somebody else, with what they like in it.
    for base in dict.fromkeys((root, *filter(paths.is_private_dir, _local_bases()))):
        for place in _trials(base):
            with _abandoned(place) as yes:
                if yes:
                    for leg in _legs(place):
                        _clear(leg)
                    remove_tree(place)
                    removed.append(place)
    return removed


def remove_tree(path: Path) -> bool:
    """Remove a private directory and all below it, following no link; return whether it is gone."""
    for attempt in range(5):
        _open_up(path)
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            return True
        time.sleep(0.05 * 2**attempt)
    return False


def _clear(leg: Path) -> None:
    end_all(leg)
    created.remove(leg)
    remove_tree(leg)


def _reserve(path: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, REFUSED_BYTES)
        finally:
            os.close(fd)


def _open_up(path: Path) -> None:
    """Overlays leave directories without any right, and scripts may have made some."""
    for place, names, _ in os.walk(path, followlinks=False):
        for name in names:
            inner = os.path.join(place, name)  # noqa: PTH118
            with contextlib.suppress(OSError):
                seen = os.lstat(inner)
                if stat.S_ISDIR(seen.st_mode) and seen.st_mode & 0o700 != 0o700:
                    os.chmod(inner, 0o700)  # noqa: PTH101


def _base(root: Path) -> Path:
    if not paths.is_network_fs(root):
        return root
    for base in _local_bases():
        with contextlib.suppress(paths.PathError):
            return paths.make_private_dir(base)
    return root


def _local_bases() -> list[Path]:
    """Where scratch goes that may not go to the run root: as a store does, see ``paths``."""
    places = dict.fromkeys(("/var/tmp", tempfile.gettempdir(), "/tmp"))
    own = f"gputop-train-{os.geteuid()}"
    return [Path(place) / own for place in places if not paths.is_network_fs(Path(place))]


def _trials(base: Path) -> list[Path]:
    try:
        return [p for p in base.iterdir() if p.name.startswith(PREFIX) and _is_ours(p)]
    except OSError:
        return []


def _legs(place: Path) -> list[Path]:
    try:
        return [p for p in place.iterdir() if p.name.startswith("leg-") and _is_ours(p)]
    except OSError:
        return []


def _is_ours(path: Path) -> bool:
    try:
        seen = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


@contextlib.contextmanager
def _abandoned(place: Path) -> Iterator[bool]:
    """Whether nobody owns it any more; if so it is ours meanwhile."""
    try:
        age_s = time.time() - place.lstat().st_mtime
        fd = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield os.path.lexists(place) and age_s > _NEW_S
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)


# The guard is chosen where the scratch is made; who needs one needs the other.
from gputop_train.trial.overlay import guard_available  # noqa: E402

__all__ = ["LegScratch", "Scratch", "ScratchError", "guard_available", "remove_tree", "sweep"]
