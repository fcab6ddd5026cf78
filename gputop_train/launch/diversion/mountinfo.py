"""What is mounted where, as the process itself sees it; proc_pid_mountinfo(5)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

#: File systems of the kernel's own, sockets of services and triggers of automount: nothing a person
#: keeps files in, and nothing that works through an overlay.
# fmt: off
KERNEL_TYPES = frozenset(
    (
        "autofs", "bdev", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs",
        "cpuset", "debugfs", "devpts", "devtmpfs", "efivarfs", "functionfs", "fusectl",
        "hugetlbfs", "mqueue", "nfsd", "nsfs", "proc", "pstore", "resctrl", "rpc_pipefs",
        "securityfs", "selinuxfs", "smackfs", "sysfs", "tracefs",
    )
)
# fmt: on
KERNEL_PLACES = ("/proc", "/sys", "/dev")


@dataclass(frozen=True)
class Mount:
    """One mount.

    Attributes:
        number: The kernel's id of it.
        point: Where, as seen from our root.
        kind: Type of the file system.
        options: Of the mount itself, such as ``ro`` and ``nosuid``.
    """

    number: int
    point: str
    kind: str
    options: tuple[str, ...]

    @property
    def is_kernels(self) -> bool:
        """Whether it stays as it is in every world."""
        return self.kind in KERNEL_TYPES or any(within(self.point, p) for p in KERNEL_PLACES)

    @property
    def is_read_only(self) -> bool:
        """Whether nobody can write through it."""
        return "ro" in self.options


def within(path: str, place: str) -> bool:
    """Whether ``path`` is ``place`` or below it."""
    return path == place or place == "/" or path.startswith(place + "/")


def parse(text: str) -> list[Mount]:
    """Return all mounts of ``/proc/self/mountinfo``, in its order; lines that are none are left."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 6 or not fields[0].isdigit() or not after:
            continue
        kind = after.split(" ")[0]
        found.append(Mount(int(fields[0]), _plain(fields[4]), kind, tuple(fields[5].split(","))))
    return found


def _plain(text: str) -> str:
    """Space, tab, newline and backslash stand as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def visible() -> list[Mount]:
    """Return the mounts that a path leads to, parents first: not those below another mount."""
    with open("/proc/self/mountinfo", "rb") as stream:  # noqa: PTH123
        everything = parse(os.fsdecode(stream.read()))
    seen = [mount for mount in everything if mount_of(mount.point) == mount.number]
    return sorted(seen, key=lambda mount: (mount.point.rstrip("/").count("/"), mount.point))


def mount_of(path: str) -> int | None:
    """Return the id of the mount ``path`` is on; ``None`` when it cannot be reached."""
    try:
        # O_PATH touches nothing: no automount, no device is opened.
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as stream:  # noqa: PTH123
            for line in stream:
                if line.startswith("mnt_id:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return None
