"""A world for a process that may not mount but in a user namespace: overlays in place.

There the kernel shows no directory through an overlay while a mount it locked lies below, and
copies nothing into one that belongs to an id the namespace does not know, nor what lies below that.
So every directory below which nothing is mounted gets an overlay, those above are sealed, and each
place the script may write to gets one more where what is the user's own begins.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from gputop_train.launch.diversion.layers import Layers, WorldProblem, open_path
from gputop_train.launch.diversion.mountinfo import Mount, within
from gputop_train.launch.diversion.places import mount_at, nearest


def split(layers: Layers, mounts: Sequence[Mount], grounds: Sequence[str]) -> str:
    """Make the world in place; return the prefix of its paths, which is none.

    Args:
        layers: Makes the overlays.
        mounts: What is mounted, parents first.
        grounds: Directories that need an overlay of their own (``places.grounds_of``).

    Raises:
        WorldProblem: There are too many mounts, or the root directory itself can be written.
        OSError: Something can be neither diverted nor sealed.
    """
    if os.access("/", os.W_OK):
        raise WorldProblem("the root directory is yours and other file systems are mounted in it")
    with contextlib.ExitStack() as open_:
        # What they are outside: the overlay that is about to cover them is no ground for another.
        held = [(ground, open_path(ground)) for ground in sorted(grounds, key=len)]
        for _, fd in held:
            open_.callback(os.close, fd)
        for child in _children("/"):
            _cover(layers, mounts, child, mount_at("/", mounts))
        for ground, fd in held:
            covered = nearest(ground, [*layers.diverted, *layers.sealed])
            if covered in layers.diverted and covered != ground:
                layers.divert(f"/proc/self/fd/{fd}", ground, ground)
    return ""


def _cover(layers: Layers, mounts: Sequence[Mount], path: str, above: Mount) -> None:
    mount = next((m for m in mounts if m.point == path), above)
    if mount.is_kernels or mount.is_read_only or os.path.islink(path):  # noqa: PTH114
        return
    if not os.path.isdir(path):  # noqa: PTH112
        if os.access(path, os.W_OK):
            layers.seal(path, path, mount, path, deep=False)
        return
    if not os.access(path, os.X_OK):
        return  # nothing below it can be reached
    below = any(m.point != path and within(m.point, path) for m in mounts)
    if not below and layers.divert(path, path, path, mount.options):
        return
    children = _children(path) if below else []
    layers.seal(path, path, mount, path, deep=True)
    for child in children:
        _cover(layers, mounts, child, mount)


def _children(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path)]
    except OSError:
        return []
