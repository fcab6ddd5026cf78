"""The few calls of the C library that make a world of mounts; ``os`` has them from 3.12 on at best.

Everything raises OSError with the errno of the call. See mount(2), unshare(2), pivot_root(2).
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000
MNT_DETACH = 0x2
CAP_SYS_ADMIN = 21

#: Options of mountinfo that must be named again when such a mount is changed; the kernel refuses to
#: let go of those it locked for a user namespace.
FLAGS = {
    "ro": MS_RDONLY,
    "nosuid": MS_NOSUID,
    "nodev": MS_NODEV,
    "noexec": MS_NOEXEC,
    "noatime": MS_NOATIME,
    "nodiratime": MS_NODIRATIME,
    "relatime": MS_RELATIME,
}


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent."""
    _check(_library().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount, bind or remount."""
    _check(
        _library().mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            os.fsencode(data) if data else None,
        ),
        target,
    )


def unmount(target: str, flags: int = 0) -> None:
    """Take the topmost mount of ``target`` away."""
    _check(_library().umount2(os.fsencode(target), ctypes.c_int(flags)), target)


def pivot_root(new: str, old: str) -> None:
    """Make ``new`` the root of this mount namespace and put the old root at ``old``."""
    _check(_library().pivot_root(os.fsencode(new), os.fsencode(old)), new)


def may_mount() -> bool:
    """Whether this process holds CAP_SYS_ADMIN, so that it needs no user namespace."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:  # noqa: PTH123
        for line in stream:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False
