"""The world a leg of a trial runs in: the same files at the same paths, every change kept apart.

A process that may mount builds the whole tree anew, overlay upon overlay, and makes it its root.
One that may not gets a user namespace, in which the kernel shows no directory through an overlay
while a locked mount lies below it; there every directory without one gets its overlay in place, and
those with one are sealed. What the kernel keeps (``/proc``, ``/sys``, ``/dev`` with the loaders'
shared memory), what we keep ourselves (the run directory) and sockets and pipes of services stay
real.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.launch.diversion import libc
from gputop_train.launch.diversion.layers import Layers, WorldProblem, open_path, why
from gputop_train.launch.diversion.mountinfo import Mount, visible, within
from gputop_train.launch.diversion.places import grounds_of, meetings, mount_at, nearest
from gputop_train.launch.diversion.split import split


def enter(plan: Mapping[str, Any], words: Sequence[str] = ()) -> dict[str, Any]:
    """Put this process, which must have one thread, into the world ``plan`` describes.

    Args:
        plan: ``store`` (private directory for what is changed), ``real`` (paths that stay real),
            ``memory_bytes`` (the most that is kept in memory where no disk can keep it),
            ``mark`` (the name its mounts bear) and ``over`` (pairs of a place and a directory that
            is shown over it: ``TrialLeg.over``).
        words: The command's arguments; what they name may be where it writes.

    Returns:
        ``{"mnt", "diverted", "sealed", "in_memory"}``; ``mnt`` names the mount namespace.

    Raises:
        WorldProblem: It cannot be made, or would not hold the working directory.
    """
    try:
        cwd = os.getcwd()  # noqa: PTH109
    except OSError:
        raise WorldProblem("the working directory has been removed") from None
    privileged = libc.may_mount()
    # Before owners are seen through a user namespace, where all others look the same.
    grounds = [] if privileged else grounds_of(words, os.environ, cwd)
    try:
        _leave(privileged)
    except OSError as error:
        raise WorldProblem(why(error)) from None
    mounts = visible()
    store, mark = str(plan["store"]), str(plan["mark"])
    layers = Layers(store, int(plan["memory_bytes"]), mark, privileged=privileged)
    with contextlib.ExitStack() as open_:
        kept = [(path, open_path(path)) for path in map(os.path.realpath, plan["real"])]
        laid = [(path, open_path(path), open_path(over)) for path, over in _laid_over(plan)]
        met: list[tuple[str, int]] = []
        for path in meetings(mounts, [p for p, _ in kept]):
            with contextlib.suppress(OSError):  # others' sockets come and go
                met.append((path, open_path(path)))
        for fd in [fd for _, fd in (*kept, *met)] + [fd for _, *pair in laid for fd in pair]:
            open_.callback(os.close, fd)
        try:
            root = _stack(layers, mounts) if privileged else split(layers, mounts, grounds)
            _check_place(cwd, mounts, layers)
            for path, real, over in laid:
                _lay_over(layers, mounts, root, path, real, over)
            for path, fd in kept:
                libc.mount(f"/proc/self/fd/{fd}", root + path, "", libc.MS_BIND)
            libc.mount("tmpfs", root + store, "tmpfs", libc.MS_RDONLY, "size=4k")
            for path, fd in met:
                with contextlib.suppress(OSError):
                    libc.mount(f"/proc/self/fd/{fd}", root + path, "", libc.MS_BIND)
            if root:
                _move_into(root)
            os.chdir(cwd)
        except OSError as error:
            raise WorldProblem(f"{why(error)} ({error.filename})") from None
    return {
        "mnt": os.readlink("/proc/self/ns/mnt"),  # noqa: PTH115
        "diverted": layers.diverted,
        "sealed": layers.sealed,
        "in_memory": layers.in_memory,
    }


def _leave(privileged: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    if privileged:
        libc.unshare(libc.CLONE_NEWNS)
    else:
        libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:  # noqa: PTH123
                stream.write(text)
    libc.mount("none", "/", "", libc.MS_REC | libc.MS_PRIVATE)


def _stack(layers: Layers, mounts: list[Mount]) -> str:
    """Build the tree anew and return where."""
    hidden: list[str] = []
    root = ""
    for mount in mounts:
        if any(within(mount.point, place) for place in hidden):
            continue
        if mount.point == "/":
            root = _stack_root(layers, mount)
            continue
        at = root + mount.point
        try:
            if mount.is_kernels or mount.is_read_only:
                libc.mount(mount.point, at, "", libc.MS_BIND)
            elif not os.path.isdir(mount.point) or not layers.divert(  # noqa: PTH112
                mount.point, at, mount.point, mount.options
            ):
                layers.seal(mount.point, at, mount, mount.point, deep=False)
        except OSError:
            if mount.point in ("/proc", "/dev", "/sys"):
                raise
            hidden.append(mount.point)  # what cannot be shown safely is not shown
    return root


def _stack_root(layers: Layers, mount: Mount) -> str:
    root = layers.path("root")
    if layers.divert("/", root, "/", mount.options):
        return root
    if layers.in_memory:  # the store has become a file system of its own meanwhile
        root = layers.path("root")
        if layers.divert("/", root, "/", mount.options):
            return root
    raise WorldProblem("the kernel makes no overlay of the root file system")


def _laid_over(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(os.path.realpath(place), str(over)) for place, over in plan.get("over") or ()]


def _lay_over(
    layers: Layers, mounts: list[Mount], root: str, place: str, real: int, over: int
) -> None:
    """Show older code over a place.

    Descriptors lead to both as they are outside: the kernel stacks overlays only two deep, and the
    overlay at hand would take what hides a file in ``over`` for its own.
    """
    with contextlib.ExitStack() as open_:
        below = []
        for mount in mounts:
            if mount.point != place and within(mount.point, place):
                below.append((mount.point, open_path(root + mount.point)))
                open_.callback(os.close, below[-1][1])
        options = mount_at(place, mounts).options
        below_it, shown = f"/proc/self/fd/{real}", f"/proc/self/fd/{over}"
        if not layers.divert(below_it, root + place, place, options, over=shown):
            raise WorldProblem(f"older code cannot be laid over {place}")
        for point, fd in below:
            libc.mount(f"/proc/self/fd/{fd}", root + point, "", libc.MS_BIND)


def _check_place(cwd: str, mounts: list[Mount], layers: Layers) -> None:
    """The script's own directory must be one in which it can write, and not really."""
    places = [*layers.diverted, *layers.sealed, *(m.point for m in mounts if m.is_kernels)]
    place = nearest(cwd, places)
    if place in layers.diverted or not os.access(cwd, os.W_OK):
        return
    if place in layers.sealed and any(m.point != cwd and within(m.point, cwd) for m in mounts):
        raise WorldProblem(f"another file system is mounted below {cwd}")
    raise WorldProblem(f"the file system of {cwd} cannot be overlaid")


def _move_into(root: str) -> None:
    """Make ``root`` the root and let go of the old one; pivot_root(2), "pivot_root(".", ".")"."""
    os.chdir(root)
    libc.mount("none", root, "", libc.MS_PRIVATE)
    libc.pivot_root(".", ".")
    libc.unmount(".", libc.MNT_DETACH)
