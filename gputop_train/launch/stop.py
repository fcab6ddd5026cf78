"""End a run by the ladder SIGINT, SIGTERM, SIGKILL, signalling nothing that is not the run.

A process id means nothing by itself: ids are reused, and home directories are shared between
machines. So every signal goes to a process whose boot id and start time were checked first, through
a pidfd where the kernel has them. A session id cannot be handed out again while any process still
is in that session, so a session counts as ours only while one process known to be ours is in it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId
from gputop_train.launch.processes import ProcStat, process_table, read_process, runs_code

#: Seconds a script gets to save and leave after SIGINT, then after SIGTERM (design.md: SLURM's
#: default KillWait is 30 s, docker stop gives 10 s after one signal).
GRACE_S = (10.0, 5.0)
#: How long we look whether SIGKILL worked; a process in an uninterruptible read may outlive it.
KILL_WAIT_S = 5.0
_POLL_S = 0.05
#: What is left of a session after its leader went gets at most this long to tidy up by itself.
_STRAY_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What the ladder did.

    Attributes:
        ended: Nothing of the run is left.
        signals: Names of the signals sent, in order; empty when there was nothing to signal.
        survivors: Processes of the run that outlived SIGKILL or that we may not signal.
        reason: Why it did not end, in one sentence; empty when it did.
    """

    ended: bool
    signals: tuple[str, ...] = ()
    survivors: tuple[int, ...] = ()
    reason: str = ""


def ladder(
    target: ProcessId,
    *,
    grace_s: tuple[float, float] = GRACE_S,
    kill_wait_s: float = KILL_WAIT_S,
    on_signal: Callable[[str], None] | None = None,
) -> StopOutcome:
    """Stop a run: SIGINT to its process group, then SIGTERM, then SIGKILL, with time in between.

    The group gets the first two, as from a terminal's Ctrl-C and from a scheduler; whatever is left
    in the session once its leader is gone climbs the rest of the ladder by itself. Blocks for up to
    ``sum(grace_s) + kill_wait_s`` seconds and a little: call it from a thread of its own.

    Args:
        target: The child as ``run.json`` knows it.
        grace_s: Seconds after SIGINT and after SIGTERM.
        kill_wait_s: Seconds to watch SIGKILL work.
        on_signal: Called with the name of each signal as it is sent.

    Returns:
        What was sent and what, if anything, is left.
    """
    run = _Members(target)
    if not run.refresh():
        return StopOutcome(ended=True, reason="")
    sent: list[str] = []

    def send(number: signal.Signals, *, hard: bool = False) -> None:
        run.send(number, whole_tree=hard)
        sent.append(number.name)
        if on_signal is not None:
            on_signal(number.name)

    send(signal.SIGINT)
    if not run.wait(grace_s[0], strays_s=_STRAY_GRACE_S):
        send(signal.SIGTERM)
        if not run.wait(grace_s[1]):
            send(signal.SIGKILL, hard=True)
            run.wait(kill_wait_s)
    left = run.left()
    return StopOutcome(not left, tuple(sent), tuple(left), _why(left))


def _why(left: list[int]) -> str:
    if not left:
        return ""
    if _forbidden(left[0]):
        return (
            f"Process {left[0]} runs as another user by now and may not be signalled; "
            "ask that user or root to end it."
        )
    return (
        f"Process {left[0]} has not ended after SIGKILL, most likely waiting for a device or a "
        "network file system; it will end when the kernel lets it go."
    )


@dataclass(slots=True)
class _Members:
    """The processes known to be of the run, each with the start time that proves it."""

    target: ProcessId
    known: dict[int, int] = field(default_factory=dict)
    elsewhere: dict[int, int] = field(default_factory=dict)
    leader_killed: bool = False

    def refresh(self) -> bool:
        """Look again who belongs to the run; ``False`` when nobody is left."""
        if self.target.boot_id != identity.boot_id():
            return False
        table = process_table()
        leader = table.get(self.target.pid)
        leader_alive = leader is not None and leader.start_ticks == self.target.start_ticks
        self.known = {
            pid: ticks
            for pid, ticks in self.known.items()
            if pid in table and table[pid].start_ticks == ticks and runs_code(table[pid])
        }
        if leader is not None and leader_alive and runs_code(leader):
            # A task that a scheduler started leads no session of its own.
            self.known[leader.pid] = leader.start_ticks
        if leader_alive or self.known:
            for process in table.values():
                if process.session == self.target.pid and runs_code(process):
                    self.known[process.pid] = process.start_ticks
        if leader_alive:
            self.elsewhere.update(_descendants_elsewhere(self.target.pid, table))
        return bool(self.left(table))

    def left(self, table: dict[int, ProcStat] | None = None) -> list[int]:
        """Ids of the run's processes that still live, the leader first."""
        watched = dict(self.known)
        if self.leader_killed:
            watched.update(self.elsewhere)
        alive = []
        for pid, ticks in watched.items():
            process = table.get(pid) if table is not None else read_process(pid)
            if process is not None and process.start_ticks == ticks and runs_code(process):
                alive.append(pid)
        return sorted(alive, key=lambda pid: (pid != self.target.pid, pid))

    def send(self, number: signal.Signals, *, whole_tree: bool) -> None:
        """Send one rung to the group (or its remains) and, when hard, to everything known."""
        self.refresh()
        leader = read_process(self.target.pid) if identity.is_alive(self.target) else None
        if leader is not None and not whole_tree:
            if not identity.send_group(self.target, number):
                identity.send(self.target, number)
            if leader.state in "Tt":  # suspended: it would never get to handle the signal
                identity.send(self.target, signal.SIGCONT)
            return
        if leader is not None:
            # torchrun starts its workers in sessions of their own and cannot end them once it is
            # killed, so they go with it; a service that outlives a leader who left by himself
            # (an uploader finishing its queue) is none of our business.
            self.leader_killed = True
        targets = {**self.known, **(self.elsewhere if self.leader_killed else {})}
        for pid, ticks in targets.items():
            identity.send(ProcessId(pid, ticks, self.target.boot_id), number)

    def wait(self, seconds: float, *, strays_s: float | None = None) -> bool:
        """Wait until the run is over, what its leader left behind only ``strays_s`` long."""
        deadline = time.monotonic() + seconds
        leader_seen = True
        while True:
            if not self.refresh():
                return True
            now = time.monotonic()
            if leader_seen and self.target.pid not in self.known:
                leader_seen = False
                deadline = min(deadline, now + strays_s) if strays_s is not None else deadline
            if now >= deadline:
                return False
            time.sleep(_POLL_S)


def _forbidden(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _descendants_elsewhere(root: int, table: dict[int, ProcStat]) -> dict[int, int]:
    """Descendants of ``root`` that left its session, with their start times."""
    children: dict[int, list[ProcStat]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: dict[int, int] = {}
    queue = [root]
    while queue:
        for process in children.get(queue.pop(), ()):
            queue.append(process.pid)
            if process.session != root and runs_code(process):
                found[process.pid] = process.start_ticks
    return found
