"""A look at ``/proc``: who is a process, whose session it is in, when it started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of ``/proc/PID/stat``, as far as identity needs it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def running(self) -> bool:
        """Not a zombie, which only waits to be reaped and runs no code."""
        return self.state not in "ZX"


def parse_stat(text: str) -> Process | None:
    """Parse ``/proc/PID/stat``; the name in brackets may itself hold brackets and blanks."""
    opening, closing = text.find("("), text.rfind(")")
    if opening < 0 or closing < opening:
        return None
    fields = text[closing + 1 :].split()
    try:
        return Process(
            pid=int(text[:opening]),
            state=fields[0],
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def read_process(pid: int) -> Process | None:
    """The process with this id, or ``None`` when there is none (or it is hidden from us)."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_text("utf-8", "replace"))
    except OSError:
        return None


def process_table() -> dict[int, Process]:
    """Every process we can see, by id."""
    table: dict[int, Process] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            process = read_process(int(entry.name))
            if process is not None:
                table[process.pid] = process
    return table
