"""Signals in plain mode: what reaches us goes to the process a bare launch would have signalled.

The signals are blocked and fetched with ``sigtimedwait``, which tells a terminal's Ctrl-C from a
``kill``: a terminal signals its whole foreground group, ``kill`` one process. Fetching them also
works as PID 1, where the kernel drops signals left at their default.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gputop_train.launch import identity, tied
from gputop_train.launch.identity import ProcessId

#: Seconds between the SIGTERM of a second Ctrl-C and SIGKILL: what ``docker stop`` grants.
ESCALATION_S = 10.0

FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGXCPU,
    }
)
#: After one of these the script is expected to end, so losing our stdout is no reason to leave it.
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGXCPU})


@dataclass(frozen=True, slots=True)
class Action:
    """What to do about one signal.

    Attributes:
        kind: ``send`` a signal on, ``pause`` the script and ourselves, ``detach``, or ``ignore``.
        group: To the whole process group, as a terminal would; else to the one process.
        kill_after_s: SIGKILL the group if it has not ended by then.
        say: A line for the person at the terminal.
    """

    kind: Literal["send", "pause", "detach", "ignore"]
    signum: int = 0
    group: bool = False
    kill_after_s: float | None = None
    say: str | None = None


def decide(
    signum: int, *, from_terminal: bool, interrupts: int, tie: tied.Tie | None = None
) -> Action:
    """Return what to do about a signal; pure.

    Args:
        signum: What arrived.
        from_terminal: The kernel sent it (``SI_KERNEL``), as it does for a key; not ``kill``.
        interrupts: Ctrl-C presses before this one.
        tie: What would end the training if we left.
    """
    if tie == "init" and signum in tied.UNNOTICED_BY_INIT:
        return Action("ignore")
    if signum == signal.SIGHUP:
        # A bare script would get it; a scheduler's warning may be any signal.
        return Action("send", signum) if tie == "job" else Action("detach")
    if signum not in FORWARDED:
        return Action("ignore")
    if signum == signal.SIGTSTP:
        return Action("pause", signum, group=from_terminal)
    if signum != signal.SIGINT or not from_terminal:
        return Action("send", signum, group=from_terminal)
    if interrupts == 0:
        return Action("send", signum, True, say="Interrupted; press Ctrl-C again to end it harder.")
    if interrupts == 1:
        return Action(
            "send",
            signal.SIGTERM,
            True,
            ESCALATION_S,
            f"Asked to end (SIGTERM); killed in {ESCALATION_S:.0f} s, or by another Ctrl-C.",
        )
    return Action("send", signal.SIGKILL, True, say="Killed.")


def fetched() -> frozenset[int]:
    """Return what the front fetches rather than handles; SIGCHLD only wakes it.

    Not what we were told to ignore, as ``nohup`` and shells in the background do: the kernel keeps
    ignored signals pending while they are blocked, so they would be fetched nevertheless.
    """
    wanted = FORWARDED | {signal.SIGHUP}
    return frozenset(n for n in wanted if signal.getsignal(n) != signal.SIG_IGN) | {signal.SIGCHLD}


def block() -> Collection[int]:
    """Block what ``Relay`` fetches, in this thread and those it starts; return the mask before."""
    # An ignored SIGCHLD, inherited, would take the shim's exit status away.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return signal.pthread_sigmask(signal.SIG_BLOCK, fetched())


class Relay:
    """Hands signals on to the script's process; the thin shell around ``decide``.

    Args:
        child: The script's process.
        shim: Its parent's PID.
        tie: What would end the training if we left.

    Attributes:
        ending: A signal that ends scripts has been handed on.
    """

    def __init__(self, child: ProcessId, shim: int, tie: tied.Tie | None = None) -> None:
        self._child = child
        self._shim = shim
        self._tie = tie
        self._fetched = fetched()
        self._interrupts = 0
        self._kill_at: float | None = None
        self._paused = False
        self.ending = False

    def fetch(self, timeout_s: float) -> Action | None:
        """Wait up to ``timeout_s`` for a signal, act on it, and return what was done."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._send(signal.SIGKILL, group=True)
            return Action("send", signal.SIGKILL, True, say="Killed.")
        found = signal.sigtimedwait(self._fetched, timeout_s)
        if found is None:
            return None
        from_terminal = found.si_code > 0  # SI_USER and its kin are zero and below, sigaction(2)
        action = decide(
            found.si_signo,
            from_terminal=from_terminal,
            interrupts=self._interrupts,
            tie=self._tie,
        )
        if found.si_signo == signal.SIGINT and from_terminal:
            self._interrupts += 1
        if (
            action.kind == "send"
            and not from_terminal
            and tied.sent_to_all(found.si_signo, found.si_pid, self._shim)
        ):
            self.ending = self.ending or found.si_signo in _ENDING
            return Action("ignore", found.si_signo)
        self._act(action)
        return action

    def resume(self) -> None:
        """Let a script go on that was paused with Ctrl-Z: nobody could after we left."""
        if self._paused:
            self._paused = False
            self._send(signal.SIGCONT, group=True)

    def send(self, signum: int, *, group: bool = False) -> bool:
        """Hand on one signal."""
        self.ending = self.ending or signum in _ENDING
        return self._send(signum, group=group)

    def _act(self, action: Action) -> None:
        if action.kill_after_s is not None:
            self._kill_at = time.monotonic() + action.kill_after_s
        if action.kind == "send":
            if action.signum == signal.SIGCONT and self._paused:
                self.resume()
            else:
                self.send(action.signum, group=action.group)
        elif action.kind == "pause":
            self._pause(group=action.group)

    def _pause(self, *, group: bool) -> None:
        self._paused = True
        self._send(signal.SIGTSTP, group=group)
        # The kernel drops SIGTSTP's default action in a session without a terminal (an orphaned
        # process group, setpgid(2)), so unless the script handles it, it is stopped outright.
        if not identity.catches(self._child.pid, signal.SIGTSTP):
            self._send(signal.SIGSTOP, group=group)
        os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's fg or bg wakes us with SIGCONT

    def _send(self, signum: int, *, group: bool) -> bool:
        deliver = identity.send_group if group else identity.send
        return deliver(self._child, signum)
