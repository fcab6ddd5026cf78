"""Who a process is: PID, start time and boot, so that a signal can never reach a stranger.

PIDs are reused, homes are shared between nodes and machines reboot, so a PID read from a file
means nothing by itself. The start time in clock ticks since boot (field 22 of ``/proc/PID/stat``)
together with the kernel's boot id names one process for ever; see proc_pid_stat(5), random(4).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot.

    Attributes:
        start_ticks: Start time in clock ticks since boot.
        pgid: Process group it leads, when it leads one; ``None`` when unknown.
    """

    pid: int
    start_ticks: int
    boot_id: str
    pgid: int | None = None


def boot_id() -> str | None:
    """Return the kernel's id of this boot, ``None`` where ``/proc`` does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def pid_namespace() -> str | None:
    """Return what names the PID namespace we are in, such as ``pid:[4026531836]``.

    Two containers of one machine share its boot and may share its name, and a PID of one of them
    means nothing in the other (pid_namespaces(7)). ``None`` where ``/proc`` does not tell.
    """
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the state (field 3) on."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name stands in brackets and may itself hold spaces, brackets and any byte.
    return raw[raw.rfind(b")") + 1 :].decode("ascii", "replace").split() or None


def start_ticks(pid: int) -> int | None:
    """Return when ``pid`` started, in clock ticks since boot; ``None`` when it is gone."""
    fields = _stat_fields(pid)
    try:
        return int(fields[19]) if fields else None
    except (IndexError, ValueError):
        return None


def is_running(pid: int) -> bool:
    """Return whether ``pid`` exists and is more than a zombie."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def same_process(pid: int, ticks: int | None, boot: str | None) -> bool:
    """Return whether ``pid`` is, now and on this machine, the process that was recorded.

    A zombie still counts as the same process: its PID cannot have been reused. Unknown start time
    or boot never match.
    """
    if pid <= 0 or ticks is None or not boot:
        return False
    return boot_id() == boot and start_ticks(pid) == ticks


def is_alive(process: ProcessId) -> bool:
    """Return whether this very process still runs.

    One that is out of sight is taken for it: to signal a process takes more (`send`), and to
    declare a training dead that goes on would be worse.
    """
    same = same_process(process.pid, process.start_ticks, process.boot_id)
    return (same and is_running(process.pid)) or out_of_sight(process.pid)


def out_of_sight(pid: int) -> bool:
    """Return whether there is such a process and we have no descriptor left to look at it with."""
    try:
        os.close(os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as failure:
        if failure.errno not in (errno.EMFILE, errno.ENFILE) or pid <= 0:
            return False
    else:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's, but who is it?
    return True


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a process that runs now, ``None`` when it is gone."""
    ticks, boot = start_ticks(pid), boot_id()
    if ticks is None or boot is None:
        return None
    try:
        pgid: int | None = os.getpgid(pid)
    except OSError:
        pgid = None
    return ProcessId(pid, ticks, boot, pgid)


def recorded_child(run: Mapping[str, Any]) -> ProcessId | None:
    """Return the training process ``run.json`` names, ``None`` when it is not fully named."""
    child = run.get("child")
    boot = run.get("boot_id")
    if not isinstance(child, Mapping) or not isinstance(boot, str):
        return None
    pid, ticks, pgid = child.get("pid"), child.get("start_ticks"), child.get("pgid")
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return None
    return ProcessId(pid, ticks, boot, pgid if isinstance(pgid, int) else None)


def send(process: ProcessId, signum: int) -> bool:
    """Send a signal to this very process, never to another that got its PID.

    Where the kernel has pidfds the check and the signal cannot be torn apart: the descriptor is
    opened first and keeps meaning the process it was opened for.

    Returns:
        Whether the signal was delivered; ``False`` when the process is gone or is somebody else.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except (OSError, AttributeError) as failure:
        if isinstance(failure, OSError) and failure.errno == errno.ESRCH:
            return False
        pidfd = None  # old kernel or a sandbox without pidfds
    try:
        if not same_process(process.pid, process.start_ticks, process.boot_id):
            return False
        if pidfd is None:
            os.kill(process.pid, signum)
        else:
            signal.pidfd_send_signal(pidfd, signum)
    except OSError:
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


def send_group(process: ProcessId, signum: int) -> bool:
    """Send a signal to the process group that ``process`` leads.

    The leader must still be the recorded process (a zombie will do): as long as it is, neither its
    PID nor its group id can belong to anybody else.

    Returns:
        Whether the signal was delivered to at least one process.
    """
    # Group 1 and below mean "everybody" to kill(2); our own group is never the child's.
    if process.pgid is None or process.pgid <= 1 or process.pgid == os.getpgrp():
        return False
    if process.pgid != process.pid:
        return False
    if not same_process(process.pid, process.start_ticks, process.boot_id):
        return False
    try:
        if os.getpgid(process.pid) != process.pgid:
            return False
        os.killpg(process.pgid, signum)
    except OSError:
        return False
    return True


def catches(pid: int, signum: int) -> bool:
    """Return whether ``pid`` handles ``signum`` itself (``SigCgt`` of proc_pid_status(5))."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False
