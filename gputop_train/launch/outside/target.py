"""The process to look at: who it is, whether it may be looked at, and if not, what to do about it.

Reading another process's stacks needs what ``ptrace`` needs (PTRACE_MODE_ATTACH of ptrace(2)): the
same user, no stricter word of a security module, or CAP_SYS_PTRACE. Opening ``/proc/PID/mem`` asks
the kernel that very question and does nothing to the process.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from gputop_train.collect.procfs import read_int, read_text
from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.processes import process_table, read_process, runs_code
from gputop_train.launch.secrets import mask_arguments
from gputop_train.report import format as fmt

_CAP_SYS_PTRACE = 19
#: Inode of the first PID namespace (PROC_PID_INIT_INO of the kernel's proc_ns.h).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_LIBPYTHON = re.compile(r"/libpython(\d)\.(\d+)")
_EXECUTABLE = re.compile(r"(?:python|pypy)(\d(?:\.\d+)?)?")
_STDLIB = re.compile(r"/lib(?:64)?/python(\d)\.(\d+)/")
LIST = "gputop-train attach"


class Refused(Exception):
    """The process cannot be looked at; one sentence of why and one of what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Python process of which the stacks may be read.

    Attributes:
        command: Its arguments, secrets masked.
        python: Version of its interpreter as (major, minor); ``None`` where no file tells it.
        has_torch: Whether torch's libraries are mapped.
        on_gpu: Whether the CUDA or HIP driver's library is mapped.
        directory: Where it works now: what its relative paths begin at.
        root: What to put before its paths to read its files; empty where they are ours too.
    """

    process: ProcessId
    command: tuple[str, ...]
    python: tuple[int, int] | None
    has_torch: bool
    on_gpu: bool
    directory: str | None = None
    root: str = ""

    @property
    def pid(self) -> int:
        """Its process id, as we see it."""
        return self.process.pid


def look_at(pid: int) -> Target:
    """The process with this id, once it is sure that it may be looked at.

    Raises:
        Refused: It is gone, not Python, somebody else's, or shielded.
    """
    process = identity.identify(pid)
    stat = read_process(pid)
    if process is None or stat is None:
        raise Refused(_no_such(pid))
    if not runs_code(stat):
        raise Refused(f"Process {pid} has ended already. See which train with: {LIST}")
    if (leader := _number_of(pid, "Tgid")) not in (pid, None):
        raise Refused(f"{pid} is a thread of process {leader}. Attach to that: {LIST} {leader}")
    if pid == os.getpid():
        raise Refused(f"Process {pid} is gputop-train itself. See which train with: {LIST}")
    refuse_without_right(pid)
    maps = read_text(f"/proc/{pid}/maps") or ""
    argv = arguments_of(pid)
    if not maps:
        raise Refused(f"Process {pid} is no program of a user's. See which train with: {LIST}")
    if not is_python(pid, maps):
        raise Refused(
            f"Process {pid} is not Python: it runs "
            f"{fmt.printable(_executable(pid) or 'something else')}. "
            f"Name the training process; see which there are with: {LIST}"
        )
    return Target(
        process,
        argv,
        python_version(pid, maps),
        has_torch(maps),
        uses_gpu(maps),
        _link(pid, "cwd"),
        "" if _link(pid, "ns/mnt") == _link("self", "ns/mnt") else f"/proc/{pid}/root",
    )


def arguments_of(pid: int) -> tuple[str, ...]:
    """The command line of a process with its secrets masked; empty when it is not to be had."""
    text = read_text(f"/proc/{pid}/cmdline") or ""
    return tuple(mask_arguments(text.split("\0")[:-1]))


def is_python(pid: int, maps: str) -> bool:
    """Whether a process is an interpreter or holds one."""
    named = _EXECUTABLE.match(Path(_executable(pid) or "").name)
    return named is not None or _LIBPYTHON.search(maps) is not None


def has_torch(maps: str) -> bool:
    """Whether torch's libraries are among what a process has mapped."""
    return "libtorch_cpu" in maps or "libtorch_python" in maps or "libtorch.so" in maps


def uses_gpu(maps: str) -> bool:
    """Whether a process holds the driver of a GPU."""
    return "libcuda.so" in maps or "libamdhip64" in maps


def python_version(pid: int, maps: str) -> tuple[int, int] | None:
    """Version of the interpreter, by the names of the files it has mapped."""
    found = _LIBPYTHON.search(maps) or _STDLIB.search(maps)
    if found is not None:
        return int(found[1]), int(found[2])
    named = _EXECUTABLE.match(Path(_executable(pid) or "").name)
    if named is not None and named[1] and "." in named[1]:
        major, minor = named[1].split(".")
        return int(major), int(minor)
    return None


def refuse_without_right(pid: int) -> None:
    """Ask the kernel whether the memory of a process may be read.

    Raises:
        Refused: It may not, or the process has just ended.
    """
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except (FileNotFoundError, ProcessLookupError):
        raise Refused(_no_such(pid)) from None
    except OSError:
        raise Refused(why_not(pid)) from None


def why_not(pid: int) -> str:
    """Why the stacks of a process may not be read, and what to do."""
    owner = owner_of(pid)
    if owner is not None and owner != os.geteuid() and os.geteuid() != 0:
        name = _user_name(owner)
        return (
            f"Process {pid} belongs to {name}, and stacks are shown to its own user only. "
            f"Attach as that user: sudo -u {name} {_again(pid)}"
        )
    scope = read_int(_YAMA)
    if scope == 3:
        return (
            "This kernel shows no process's stacks to anybody (kernel.yama.ptrace_scope=3), until "
            "it is booted anew. Start the script with: gputop-train train.py"
        )
    if not _has_capability():
        if _in_container():
            return (
                f"This container lacks the capability to look at process {pid}. Start it with "
                "--cap-add SYS_PTRACE (docker, podman; securityContext.capabilities in "
                f"Kubernetes), or attach from the host: sudo {_again(pid)}"
            )
        if scope in (1, 2):
            whom = "its parents" if scope == 1 else "root"
            return (
                f"This kernel shows a process's stacks to {whom} only "
                f"(kernel.yama.ptrace_scope={scope}). Attach as root: sudo {_again(pid)}; or allow "
                "it until the next boot: sudo sysctl kernel.yama.ptrace_scope=0"
            )
        return (
            f"Process {pid} is shielded by its capabilities or was started with a changed user. "
            f"Attach as root: sudo {_again(pid)}"
        )
    return (
        f"A security module or seccomp profile keeps process {pid} from being looked at. In a "
        "container add --security-opt seccomp=unconfined, or attach from the host."
    )


def foreign_namespace(pid: int) -> int | None:
    """The PID that a process in a PID namespace below ours has there; ``None`` for one in ours."""
    for line in (read_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("NSpid:"):
            ids = line.split()[1:]
            return int(ids[-1]) if len(ids) > 1 else None
    return None


def _no_such(pid: int) -> str:
    inner = [p for p in process_table() if p != pid and foreign_namespace(p) == pid]
    if inner:
        ours = ", ".join(map(str, inner[:3]))
        return (
            f"There is no process {pid} here; a container's process {pid} is {ours} from here. "
            f"Attach to that: {LIST} {inner[0]}"
        )
    if _in_container():
        return (
            f"There is no process {pid} in this container; PIDs of the host and of other "
            f"containers mean nothing here. See which train here with: {LIST}"
        )
    return f"There is no run and no process {pid} on this machine. See which train with: {LIST}"


def _again(pid: int) -> str:
    own = Path(sys.argv[0]).name or "gputop-train"
    full = str(Path(sys.executable).with_name("gputop-train"))
    return f"{full if Path(full).exists() else own} attach {pid}"


def owner_of(pid: int) -> int | None:
    """The real user id of a process; ``None`` when it is gone.

    The directory's owner is no answer: it is root's once the process cannot be dumped.
    """
    return _number_of(pid, "Uid")


def _number_of(pid: int, key: str) -> int | None:
    """The first number of a line of ``/proc/PID/status`` (proc_pid_status(5))."""
    for line in (read_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return None


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _has_capability() -> bool:
    for line in (read_text("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    return False


def _in_container() -> bool:
    return _link("self", "ns/pid") not in (_INITIAL_PID_NAMESPACE, None)


def _executable(pid: int) -> str | None:
    found = _link(pid, "exe")
    return None if found is None else found.removesuffix(" (deleted)")


def _link(pid: int | str, name: str) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return None
