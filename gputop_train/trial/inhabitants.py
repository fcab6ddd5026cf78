"""Who lives in a leg's world, and how the last of them leave.

A leg's session is ended by the ladder; this is for what escaped it: services a script detached,
processes with an emptied environment. A process counts as the leg's when it inherited the name of
the leg's scratch in its environment, or lives in a mount namespace that bears the leg's mark. The
number of a namespace alone would not do: the kernel hands it out again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from gputop_train.launch import identity
from gputop_train.launch.diversion.way import RESULT, mark_of
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.offline import SCRATCH_VARIABLE
from gputop_train.launch.processes import process_table, runs_code

#: Seconds after SIGTERM, and after SIGKILL.
_GRACE_S = (2.0, 5.0)
_POLL_S = 0.02


def end_all(leg: Path) -> bool:
    """End every process of the leg whose scratch this is; return whether none is left."""
    for number, seconds in zip((signal.SIGTERM, signal.SIGKILL), _GRACE_S, strict=True):
        deadline = time.monotonic() + seconds
        signalled: set[ProcessId] = set()
        while True:
            found = living_in(leg)
            if not found:
                return True
            for process in set(found) - signalled:
                identity.send(process, number)
                signalled.add(process)
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
    return False


def living_in(leg: Path) -> list[ProcessId]:
    """Return the processes of a leg that run now, never this one."""
    boot = identity.boot_id()
    if boot is None:
        return []
    named = f"{SCRATCH_VARIABLE}={leg}"
    world = _world(leg)
    found = []
    for pid, process in process_table().items():
        if pid == os.getpid() or not runs_code(process):
            continue
        if _inherited(pid, os.fsencode(named)) or (world and _lives_in(pid, world, mark_of(leg))):
            found.append(ProcessId(pid, process.start_ticks, boot))
    return found


def _world(leg: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        told = json.loads((leg / RESULT).read_text("utf-8", "surrogateescape"))
        if isinstance(told, dict) and isinstance(told.get("mnt"), str):
            return str(told["mnt"])
    return None


def _inherited(pid: int, named: bytes) -> bool:
    try:
        return named in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _lives_in(pid: int, world: str, mark: str) -> bool:
    try:
        if str(Path(f"/proc/{pid}/ns/mnt").readlink()) != world:
            return False
        return mark.encode() in Path(f"/proc/{pid}/mountinfo").read_bytes().split()
    except OSError:
        return False
