"""A look at ``/proc``: who is a process, whose session it is in, whether it still runs code."""

from __future__ import annotations

from gputop_train.collect.procfs import read_text
from gputop_train.collect.procs import ProcStat, parse_stat, process_table

__all__ = ["ProcStat", "process_table", "read_process", "runs_code"]


def read_process(pid: int) -> ProcStat | None:
    """The process with this id, or ``None`` when there is none (or it is hidden from us)."""
    return parse_stat(read_text(f"/proc/{pid}/stat"))


def runs_code(process: ProcStat) -> bool:
    """Not a zombie, which only waits to be reaped."""
    return process.state not in ("Z", "X", "x")
