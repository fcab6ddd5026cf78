"""Facts about what the kernel allows a process here: memory, files, threads, cores, tracing."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from gputop_train.collect.cgroup import group_directories, read_limits
from gputop_train.collect.gpu_readings import in_initial_pid_namespace
from gputop_train.collect.procfs import read_int, read_text
from gputop_train.doctor.facts import Host

#: Bit of CAP_SYS_PTRACE (linux/capability.h).
_CAP_SYS_PTRACE = 19
_CONTAINERS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))


def gather(environ: Mapping[str, str], proc: str = "/proc", shm: str = "/dev/shm") -> Host:
    """Read them.

    Args:
        environ: The environment a run would get.
        proc: Where procfs is.
        shm: Where POSIX shared memory is.
    """
    cgroup, mounts = read_text(f"{proc}/self/cgroup"), read_text(f"{proc}/self/mountinfo")
    limits = read_limits(cgroup, mounts)
    room = _room(shm)
    return Host(
        shm_total=room[0] if room else None,
        shm_free=room[1] if room else None,
        shm_writable=os.access(shm, os.W_OK | os.X_OK) if room else None,
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE),
        nproc=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        threads=_threads(proc),
        pids_left=_pids_left(cgroup, mounts),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        address_space=resource.getrlimit(resource.RLIMIT_AS)[0],
        online=os.cpu_count(),
        affinity=len(os.sched_getaffinity(0)),
        quota=limits.cpu_quota,
        memory=_memory(proc),
        memory_limit=limits.mem_limit,
        memory_used=limits.mem_used,
        infiniband=_has_entries("/sys/class/infiniband"),
        yama=read_int(f"{proc}/sys/kernel/yama/ptrace_scope"),
        traces_all=_traces_all(read_text(f"{proc}/self/status")),
        py_spy=_py_spy(environ),
        initial_pids=in_initial_pid_namespace(),
        container=_container(environ),
        clocksource=_stripped(
            read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        ),
        year=time.gmtime().tm_year,
    )


def _room(shm: str) -> tuple[int, int] | None:
    try:
        found = os.statvfs(shm)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _threads(proc: str) -> int | None:
    """Threads of this user, which is what RLIMIT_NPROC counts."""
    uid, count = os.getuid(), 0
    try:
        names = [entry.name for entry in os.scandir(proc) if entry.name.isdigit()]
    except OSError:
        return None
    for name in names:
        fields = _fields(read_text(f"{proc}/{name}/status"))
        if fields.get("Uid", "").split()[:1] == [str(uid)]:
            count += int(fields.get("Threads", "0"))
    return count


def _fields(status: str | None) -> dict[str, str]:
    pairs = (line.partition(":") for line in (status or "").splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _pids_left(cgroup: str | None, mounts: str | None) -> int | None:
    left: list[int] = []
    for directory, _ in group_directories(cgroup or "", mounts or "", "pids"):
        limit = read_int(f"{directory}/pids.max")  # "max" is no integer: None
        used = read_int(f"{directory}/pids.current")
        if limit is not None and used is not None:
            left.append(max(0, limit - used))
    return min(left, default=None)


def _memory(proc: str) -> int | None:
    words = _fields(read_text(f"{proc}/meminfo")).get("MemTotal", "").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _traces_all(status: str | None) -> bool | None:
    try:
        return bool(int(_fields(status)["CapEff"], 16) >> _CAP_SYS_PTRACE & 1)
    except (KeyError, ValueError):
        return None


def _py_spy(environ: Mapping[str, str]) -> str | None:
    own = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join((own, environ.get("PATH", os.defpath))))


def _container(environ: Mapping[str, str]) -> str | None:
    for place, name in _CONTAINERS:
        if Path(place).exists():
            return name
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    return None


def _has_entries(place: str) -> bool:
    try:
        return any(Path(place).iterdir())
    except OSError:
        return False


def _stripped(text: str | None) -> str | None:
    return text.strip() or None if text else None
