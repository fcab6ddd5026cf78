"""Where our leaving would end the training: as PID 1 of a container, in a job of a scheduler.

Elsewhere training goes on without us. Here what remains is killed as soon as the first process is
gone: by the kernel in a PID namespace (pid_namespaces(7)), by the scheduler in a job's step. So we
stay where we would leave otherwise.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Literal

from gputop_train.collect.procfs import read_text

#: - ``init``: we are PID 1. Signals left at their default never reach a bare script there.
#: - ``job``: a batch system started us, and no terminal can be lost.
Tie = Literal["init", "job"]

#: Set by SLURM, PBS and LSF in the processes of a job.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
#: What a bare script does not notice as PID 1, where the kernel drops them at their default.
UNNOTICED_BY_INIT = frozenset({signal.SIGHUP, signal.SIGTSTP})
#: What signals every process of a step or a service, and not only those it knows by name.
_TO_ALL = frozenset({"slurmstepd", "systemd"})
#: They signal one process after the other; the witness may come after us.
_WITNESS_S = 0.5


def tie(environ: Mapping[str, str]) -> Tie | None:
    """Return what binds the training's life to ours, if anything does."""
    if os.getpid() == 1:
        return "init"
    if any(environ.get(name) for name in _JOBS) and not _has_terminal():
        return "job"
    return None


def sent_to_all(signum: int, sender: int, witness: int) -> bool:
    """Return whether a signal to us went to every process of our step, the script's among them.

    Handing it on would have a preemption's handler run twice. Those who signal a whole step or
    service are known by name; whether they did so this time, and not to us alone, is seen by a
    process of ours that keeps the signal blocked and is in nobody's list: it is pending there.

    Args:
        signum: The signal.
        sender: Who sent it (``si_pid``).
        witness: The shim's PID.
    """
    if (read_text(f"/proc/{sender}/comm") or "").strip() not in _TO_ALL:
        return False
    deadline = time.monotonic() + _WITNESS_S
    while not _is_pending(witness, signum):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _is_pending(pid: int, signum: int) -> bool:
    """Whether a signal waits for a process (``ShdPnd`` of proc_pid_status(5))."""
    for line in (read_text(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
