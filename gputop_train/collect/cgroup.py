"""What a control group allows a process: CPU quota and memory limit, for cgroup v1, v2 and both.

The tightest limit of the process's group and all its ancestors counts. Inside a container the
mounted hierarchy may begin at the container's own group; then its visible part is what we can
know, plus v1's ``hierarchical_memory_limit``, which already includes the ancestors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gputop_train.collect.procfs import read_int, read_text

#: cgroup v1 writes "no limit" as the largest page-aligned 63-bit number; nothing real comes near.
_V1_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits in force; ``None`` = unlimited or unknown.

    Attributes:
        cpu_quota: Cores.
        mem_limit: Bytes.
        mem_used: Bytes charged to the group that carries ``mem_limit``, without file cache that the
            kernel gives up first (``inactive_file``); what ``docker stats`` and Kubernetes call
            the working set. ``None`` without a limit.
    """

    cpu_quota: float | None = None
    mem_limit: int | None = None
    mem_used: int | None = None


@dataclass(frozen=True, slots=True)
class _Mount:
    controllers: frozenset[str]  # empty for cgroup v2
    root: str
    point: str


def parse_mounts(mountinfo: str) -> list[_Mount]:
    """The cgroup hierarchies of a ``/proc/PID/mountinfo`` text (proc_pid_mountinfo(5))."""
    mounts: list[_Mount] = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 5 or len(tail) < 3:
            continue
        root, point = _unescape(fields[3]), _unescape(fields[4])
        if tail[0] == "cgroup2":
            mounts.append(_Mount(frozenset(), root, point))
        elif tail[0] == "cgroup":
            mounts.append(_Mount(frozenset(tail[2].split(",")), root, point))
    return mounts


def _unescape(path: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, char)
    return path


def group_directories(cgroup: str, mountinfo: str, controller: str) -> list[tuple[str, bool]]:
    """The directories that limit a process for one controller, from its own group upwards.

    Args:
        cgroup: Text of ``/proc/PID/cgroup``.
        mountinfo: Text of ``/proc/PID/mountinfo`` (or our own).
        controller: Such as ``cpu`` or ``memory``.

    Returns:
        ``(directory, is_v2)`` pairs; both hierarchies where both are mounted.
    """
    found: list[tuple[str, bool]] = []
    mounts = parse_mounts(mountinfo)
    for line in cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        names = frozenset(parts[1].split(",")) - {""}
        is_v2 = parts[0] == "0" and not names
        if not is_v2 and controller not in names:
            continue
        for mount in mounts:
            if (is_v2 and not mount.controllers) or (not is_v2 and controller in mount.controllers):
                found += [(directory, is_v2) for directory in _upwards(mount, parts[2])]
                break
    return found


def _upwards(mount: _Mount, path: str) -> Iterator[str]:
    root = mount.root.rstrip("/")
    # A group outside the part of the tree that is mounted here leaves us the mount itself.
    inner = path[len(root) :] if path == root or path.startswith(root + "/") else ""
    names = [n for n in inner.split("/") if n]
    if ".." in names:
        names = []
    point = mount.point.rstrip("/")
    for depth in range(len(names), -1, -1):
        yield "/".join([point, *names[:depth]])


def read_limits(cgroup: str | None, mountinfo: str | None) -> CgroupLimits:
    """The limits on the process whose ``cgroup`` and ``mountinfo`` texts are given."""
    if cgroup is None or mountinfo is None:
        return CgroupLimits()
    quotas = [
        quota
        for directory, is_v2 in group_directories(cgroup, mountinfo, "cpu")
        if (quota := _cpu_quota(directory, is_v2)) is not None
    ]
    limit: int | None = None
    used: int | None = None
    for directory, is_v2 in group_directories(cgroup, mountinfo, "memory"):
        here = _memory_limit(directory, is_v2)
        if here is not None and (limit is None or here < limit):
            limit, used = here, _memory_used(directory, is_v2)
    return CgroupLimits(min(quotas, default=None), limit, used)


def _cpu_quota(directory: str, is_v2: bool) -> float | None:
    if is_v2:
        return parse_cpu_max(read_text(f"{directory}/cpu.max"))
    quota = read_int(f"{directory}/cpu.cfs_quota_us")
    period = read_int(f"{directory}/cpu.cfs_period_us")
    if quota is None or quota <= 0 or not period or period < 0:
        return None
    return quota / period


def parse_cpu_max(text: str | None) -> float | None:
    """Cores allowed by a v2 ``cpu.max`` such as ``150000 100000``; ``None`` for ``max``."""
    fields = (text or "").split()
    if not fields or not all(f.isdigit() for f in fields):
        return None
    period = int(fields[1]) if len(fields) > 1 else 100_000
    return int(fields[0]) / period if period else None


def _memory_limit(directory: str, is_v2: bool) -> int | None:
    if is_v2:
        return read_int(f"{directory}/memory.max")  # "max" is no integer: None
    limits = [read_int(f"{directory}/memory.limit_in_bytes")]
    limits.append(
        parse_keys(read_text(f"{directory}/memory.stat")).get("hierarchical_memory_limit")
    )
    return min((n for n in limits if n is not None and n < _V1_UNLIMITED), default=None)


def _memory_used(directory: str, is_v2: bool) -> int | None:
    used = read_int(f"{directory}/{'memory.current' if is_v2 else 'memory.usage_in_bytes'}")
    stat = parse_keys(read_text(f"{directory}/memory.stat"))
    cache = stat.get("inactive_file" if is_v2 else "total_inactive_file")
    if used is None or cache is None:
        return None
    return max(0, used - cache)


def parse_keys(text: str | None) -> dict[str, int]:
    """``name value`` lines (``memory.stat``, ``/proc/vmstat``) as a mapping; others are skipped."""
    values: dict[str, int] = {}
    for line in (text or "").splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[1].lstrip("-").isdigit():
            values[fields[0]] = int(fields[1])
    return values
