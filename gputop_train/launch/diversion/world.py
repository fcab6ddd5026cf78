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
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from gputop_train.launch.diversion import libc
from gputop_train.launch.diversion.layers import Layers, WorldProblem, open_path, why
from gputop_train.launch.diversion.mountinfo import Mount, visible, within

#: Where services leave sockets and pipes that do not work through an overlay.
MEETING_PLACES = ("/tmp", "/run", "/var/run", "/var/tmp")
MAX_MEETINGS = 200
#: Directories of somebody else's in which everybody writes.
SHARED_PLACES = ("/tmp", "/var/tmp")


def enter(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Put this process, which must have one thread, into the world ``plan`` describes.

    Args:
        plan: ``store`` (private directory for what is changed), ``real`` (paths that stay real),
            ``memory_bytes`` (the most that is kept in memory where no disk can keep it),
            ``mark`` (the name its mounts bear) and ``over`` (pairs of a place and a directory that
            is shown over it: ``TrialLeg.over``).

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
        met = [(path, open_path(path)) for path in _meetings(mounts, [p for p, _ in kept])]
        for fd in [fd for _, fd in (*kept, *met)] + [fd for _, *pair in laid for fd in pair]:
            open_.callback(os.close, fd)
        try:
            root = _stack(layers, mounts) if privileged else _split(layers, mounts, cwd)
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
            # Before its own path is opened: the store may become a file system of its own.
            root = _stack_root(layers, mount)
            continue
        at = root + mount.point
        try:
            if mount.is_kernels or mount.is_read_only:
                libc.mount(mount.point, at, "", libc.MS_BIND)
            elif not _is_directory(mount.point) or not layers.divert(
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
    raise WorldProblem("the kernel makes no overlay of the root file system")


def _split(layers: Layers, mounts: list[Mount], cwd: str) -> str:
    """Overlay in place every directory below which nothing is mounted."""
    if os.access("/", os.W_OK):
        raise WorldProblem("the root directory is yours and other file systems are mounted in it")
    with contextlib.ExitStack() as open_:
        shared = []
        for path in dict.fromkeys((*SHARED_PLACES, cwd)):
            if _is_anothers(path) and os.access(path, os.W_OK):
                shared.append((path, open_path(path)))
                open_.callback(os.close, shared[-1][1])
        for child in _children("/"):
            _cover(layers, mounts, child, _mount_at("/", mounts))
        for path, fd in shared:
            # A directory that belongs to somebody else cannot be copied up into our namespace, but
            # an overlay's own root need not be.
            if path not in layers.diverted and _nearest(path, layers.diverted):
                layers.divert(f"/proc/self/fd/{fd}", path, path)
    return ""


def _cover(layers: Layers, mounts: list[Mount], path: str, above: Mount) -> None:
    mount = next((m for m in mounts if m.point == path), above)
    if mount.is_kernels or mount.is_read_only or os.path.islink(path):  # noqa: PTH114
        return
    if not _is_directory(path):
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
        options = _mount_at(place, mounts).options
        below_it, shown = f"/proc/self/fd/{real}", f"/proc/self/fd/{over}"
        if not layers.divert(below_it, root + place, place, options, over=shown):
            raise WorldProblem(f"older code cannot be laid over {place}")
        for point, fd in below:
            libc.mount(f"/proc/self/fd/{fd}", root + point, "", libc.MS_BIND)


def _check_place(cwd: str, mounts: list[Mount], layers: Layers) -> None:
    """The script's own directory must be one in which it can write, and not really."""
    places = [*layers.diverted, *layers.sealed, *(m.point for m in mounts if m.is_kernels)]
    nearest = _nearest(cwd, places)
    if nearest in layers.diverted:
        return
    if nearest in layers.sealed and any(m.point != cwd and within(m.point, cwd) for m in mounts):
        raise WorldProblem(f"another file system is mounted below {cwd}")
    raise WorldProblem(f"the file system of {cwd} cannot be overlaid")


def _nearest(path: str, places: list[str]) -> str | None:
    return max((place for place in places if within(path, place)), key=len, default=None)


def _mount_at(path: str, mounts: list[Mount]) -> Mount:
    point = _nearest(path, [mount.point for mount in mounts])
    return next(mount for mount in mounts if mount.point == point)


def _children(path: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(path)]
    except OSError:
        return []


def _is_directory(path: str) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def _is_anothers(path: str) -> bool:
    try:
        seen = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    return (seen.st_uid, seen.st_gid) != (os.geteuid(), os.getegid())


def _meetings(mounts: list[Mount], kept: list[str]) -> list[str]:
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
        if (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)) and not _mount_at(path, mounts).is_kernels:
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


def _move_into(root: str) -> None:
    """Make ``root`` the root and let go of the old one; pivot_root(2), "pivot_root(".", ".")"."""
    os.chdir(root)
    libc.mount("none", root, "", libc.MS_PRIVATE)
    libc.pivot_root(".", ".")
    libc.unmount(".", libc.MNT_DETACH)
