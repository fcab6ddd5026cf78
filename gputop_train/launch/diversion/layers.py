"""Overlays and seals: how one directory is made to keep what is written to it apart.

An overlay shows the directory below and keeps every change in a store of the leg's; a seal shows it
and lets nothing be written. See Documentation/filesystems/overlayfs.rst of the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from gputop_train.launch.diversion import libc
from gputop_train.launch.diversion.mountinfo import Mount

#: So many mounts are enough for any machine met; more would make every look-up of a path slow.
MAX_LAYERS = 400


class WorldProblem(Exception):
    """The world cannot be made; the message is one clause that says why."""


class Layers:
    """Makes overlays, their changes kept below one private directory.

    Attributes:
        diverted: Directories whose changes are kept apart.
        sealed: Places that cannot be written.
        in_memory: Whether the changes are kept in memory, since the disk cannot keep them.
    """

    def __init__(self, store: str, memory_bytes: int, mark: str, *, privileged: bool) -> None:
        self.diverted: list[str] = []
        self.sealed: list[str] = []
        self.in_memory = False
        self._place = store
        # Not by its path, which leads into an overlay once the directory that holds it has one.
        self._store = f"/proc/self/fd/{open_path(store)}"
        self._mark = mark
        self._memory_bytes = memory_bytes
        self._privileged = privileged
        # Attributes of the name space "trusted" are the first user namespace's alone. Without
        # redirects a directory that was there before could not be renamed (EXDEV).
        first = _is_first_user_namespace()
        self._variants = (",redirect_dir=on,metacopy=off", "") if first else (",userxattr",)

    def path(self, name: str) -> str:
        """Make a directory for our own use in the store and return it."""
        made = f"{self._store}/{name}"
        os.mkdir(made, 0o700)  # noqa: PTH102
        return made

    def divert(
        self, lower: str, at: str, name: str, options: tuple[str, ...] = (), *, over: str = ""
    ) -> bool:
        """Mount at ``at`` what ``lower`` shows, its changes kept apart. People call it ``name``.

        What ``over`` holds is shown in place of what ``lower`` has at the same path.

        Returns:
            Whether it could be done.
        """
        if len(self.diverted) + len(self.sealed) >= MAX_LAYERS:
            raise WorldProblem("there are too many mounts")
        if self._overlay([path for path in (over, lower) if path], at, options):
            self.diverted.append(name)
            return True
        if not self.diverted and not self.in_memory:
            self._move_to_memory()
            return self.divert(lower, at, name, options, over=over)
        return False

    def seal(self, source: str, at: str, mount: Mount | None, name: str, *, deep: bool) -> None:
        """Mount ``source`` at ``at`` so that nothing can be written through it.

        Args:
            source: What to show.
            at: Where.
            mount: The mount it is on, whose locked options are kept.
            name: What people call it.
            deep: Whether mounts below it are to be seen; they are not sealed with it.

        Raises:
            OSError: It cannot be sealed.
        """
        libc.mount(source, at, "", libc.MS_BIND | (libc.MS_REC if deep else 0))
        flags = flags_of(mount.options if mount is not None else ())
        libc.mount("none", at, "", libc.MS_BIND | libc.MS_REMOUNT | libc.MS_RDONLY | flags)
        self.sealed.append(name)

    def _overlay(self, lowers: list[str], at: str, options: tuple[str, ...]) -> bool:
        number = len(self.diverted)
        upper, work = f"{self._store}/upper-{number}", f"{self._store}/work-{number}"
        with contextlib.ExitStack() as open_:
            try:
                for made in (upper, work):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(made, 0o700)  # noqa: PTH102
                self._look_like(upper, lowers[-1])
                # By descriptor: a path may hold a comma or a colon, which part the options.
                fds = [open_path(path) for path in (*lowers, upper, work)]
                for fd in fds:
                    open_.callback(os.close, fd)
            except OSError:
                return False
            below = ":".join(f"/proc/self/fd/{fd}" for fd in fds[:-2])
            places = (
                f"lowerdir={below},upperdir=/proc/self/fd/{fds[-2]},workdir=/proc/self/fd/{fds[-1]}"
            )
            for variant in self._variants:
                with contextlib.suppress(OSError):
                    data = places + variant
                    libc.mount(self._mark, at, "overlay", flags_of(options), data)
                    return True
        return False

    def _look_like(self, upper: str, lower: str) -> None:
        """The root of an overlay shows the attributes of its upper directory."""
        seen = os.stat(lower)  # noqa: PTH116
        mode = stat.S_IMODE(seen.st_mode)
        mine = seen.st_uid == os.geteuid()
        if self._privileged:
            with contextlib.suppress(OSError):
                os.chown(upper, seen.st_uid, seen.st_gid)
                mine = True
        if not mine:
            # It will seem to be ours: let the owner's rights be those we really have.
            may = [os.access(lower, right) for right in (os.R_OK, os.W_OK, os.X_OK)]
            mode = mode & ~0o700 | sum(bit for bit, yes in zip((256, 128, 64), may) if yes)  # noqa: B905
        os.chmod(upper, mode)  # noqa: PTH101

    def _move_to_memory(self) -> None:
        try:
            options = f"size={self._memory_bytes},mode=0700"
            libc.mount("tmpfs", self._place, "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, options)
            self._store = f"/proc/self/fd/{open_path(self._place)}"
        except OSError as error:
            why_not = f"memory for changed files cannot be had ({error.strerror})"
            raise WorldProblem(why_not) from None
        self.in_memory = True


def open_path(path: str) -> int:
    """Return a descriptor that only names a place (O_PATH)."""
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def flags_of(options: tuple[str, ...]) -> int:
    """Return the flags of mount(2) for the options of mountinfo."""
    return sum(flag for name, flag in libc.FLAGS.items() if name in options)


def _is_first_user_namespace() -> bool:
    with open("/proc/self/uid_map", encoding="ascii") as stream:  # noqa: PTH123
        return stream.read().split() == ["0", "0", "4294967295"]


def why(error: OSError) -> str:
    """Return what a refused call most likely means, as a clause."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return "this machine does not let you make mounts of your own"
    if error.errno in (errno.ENOSPC, errno.EUSERS):
        return "this machine allows no user namespaces"
    if error.errno in (errno.EINVAL, errno.ENOSYS, errno.ENODEV):
        return "the kernel cannot do it"
    return error.strerror or str(error)
