"""Places a leg's world must get right: where a script may write, and where it meets services."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from gputop_train.launch.diversion.mountinfo import Mount, within

#: Where services leave sockets and pipes that do not work through an overlay.
MEETING_PLACES = ("/tmp", "/run", "/var/run", "/var/tmp")
MAX_MEETINGS = 200
#: Directories of somebody else's in which everybody writes.
SHARED_PLACES = ("/tmp", "/var/tmp")
MAX_NAMED = 64


def nearest(path: str, places: Sequence[str]) -> str | None:
    """Return the innermost of ``places`` that holds ``path``."""
    return max((place for place in places if within(path, place)), key=len, default=None)


def mount_at(path: str, mounts: Sequence[Mount]) -> Mount:
    """Return the mount ``path`` is on."""
    point = nearest(path, [mount.point for mount in mounts])
    return next(mount for mount in mounts if mount.point == point)


def grounds_of(words: Sequence[str], environ: Mapping[str, str], cwd: str) -> list[str]:
    """Return where what a command may write to begins to be its user's own.

    In a user namespace only what belongs to its one user and group can be copied into an overlay,
    and with a file all directories above it; an overlay's own root need not be copied. So these are
    the directories that need an overlay of their own.
    """
    named = _named_places(words, environ, cwd)
    return list(dict.fromkeys(_owned_top(path) for path in named if os.access(path, os.W_OK)))


def _named_places(words: Sequence[str], environ: Mapping[str, str], cwd: str) -> list[str]:
    """Existing directories a command may write to, as far as its words tell.

    The working directory and the shared ones first; then what arguments (``--out=DIR`` too) and
    variables such as ``HOME`` and ``TMPDIR`` name. A name that does not exist yet stands for the
    directory it would be made in.
    """
    found = dict.fromkeys(os.path.realpath(path) for path in (cwd, *SHARED_PLACES))
    candidates = [word.rpartition("=")[2] for word in words]
    candidates += [value for value in environ.values() if value.startswith("/")]
    for candidate in candidates:
        if "\0" in candidate or len(candidate) > 4096 or ":" in candidate:
            continue
        path = os.path.realpath(candidate)
        if not os.path.isdir(path):  # noqa: PTH112
            path = os.path.dirname(path)  # noqa: PTH120
        if os.path.isdir(path) and os.access(path, os.W_OK):  # noqa: PTH112
            found.setdefault(path)
    return list(found)[:MAX_NAMED]


def _owned_top(path: str) -> str:
    """The outermost directory from which on all the way is ours; ``path`` where it is not."""
    top = path
    while _is_mine(top) and _is_mine(os.path.dirname(top)):  # noqa: PTH120
        top = os.path.dirname(top)  # noqa: PTH120
    return top


def _is_mine(path: str) -> bool:
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return (seen.st_uid, seen.st_gid) == (os.geteuid(), os.getegid()) and path != "/"


def meetings(mounts: list[Mount], kept: list[str]) -> list[str]:
    """Return sockets and named pipes that processes outside may have open."""
    found: list[str] = []
    for path in _candidates():
        if len(found) >= MAX_MEETINGS:
            break
        if path in found or any(within(path, place) for place in kept):
            continue
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)) and not mount_at(path, mounts).is_kernels:
            found.append(path)
    return found


def _candidates() -> Iterator[str]:
    with contextlib.suppress(OSError), open("/proc/net/unix", "rb") as stream:  # noqa: PTH123
        for line in stream:
            fields = line.rstrip(b"\n").split(b" ")
            if fields[-1].startswith(b"/"):
                yield os.path.realpath(os.fsdecode(fields[-1]))
    for place in map(os.path.realpath, MEETING_PLACES):
        for entry in _entries(place):
            yield entry.path
            if entry.is_dir(follow_symlinks=False):
                yield from (inner.path for inner in _entries(entry.path))


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(path))[:1000]
    except OSError:
        return []
