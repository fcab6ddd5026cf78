"""What a person or a scheduler wants of a trial that runs: that it ends, and how urgently.

The signals are blocked and fetched with ``sigtimedwait``, so that every wait of a trial is a wait
for them too and nothing is torn apart by a handler in the middle of it. Legs run in sessions of
their own: a terminal's Ctrl-C reaches the trial alone, which ends the leg.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Any, Protocol

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Waiting(Protocol):
    """How a leg waits."""

    @property
    def stopped(self) -> bool:
        """Whether the trial is to end."""

    @property
    def urgency(self) -> int:
        """How often it was asked to."""

    def wait(self, seconds: float) -> None:
        """Wait, less where a signal comes."""


class Interrupts:
    """The signals that end a trial, while it is entered.

    Args:
        tell: Told once, in a line for the person who pressed the key.

    Attributes:
        signum: The first that came; ``None`` while none did.
        urgency: How many came. The second means: at once.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _line: None) -> None:
        self._tell = tell
        self.signum: int | None = None
        self.urgency = 0
        self._fetched: frozenset[int] = frozenset()
        self._mask: Collection[int] = ()
        self._handlers: dict[int, Any] = {}
        self._told = False

    def __enter__(self) -> Interrupts:
        # Not what we were told to ignore, as nohup does: it would be fetched nevertheless.
        wanted = {n for n in _ENDING if signal.getsignal(n) != signal.SIG_IGN}
        # The kernel may hand a signal to a thread of a library's, which does not block it.
        self._handlers = {n: signal.signal(n, self._caught) for n in wanted}
        # SIGCHLD only wakes us; one that is ignored would take the shims' exit statuses away.
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._fetched = frozenset({*wanted, signal.SIGCHLD})
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._fetched)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        while signal.sigtimedwait(self._fetched, 0) is not None:
            pass  # or a second Ctrl-C would be a traceback after all is done
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    @property
    def stopped(self) -> bool:
        """Whether the trial is to end."""
        self._take(0)
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """As a shell shows a process that the signal ended."""
        return 128 + (self.signum or signal.SIGINT)

    def wait(self, seconds: float) -> None:
        """Wait, less where a signal comes or a child ends."""
        self._take(seconds)

    def _take(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        found = signal.sigtimedwait(self._fetched, max(0.0, seconds))
        while found is not None:
            if found.si_signo != signal.SIGCHLD:
                self._caught(found.si_signo, None)
            elif time.monotonic() < deadline:
                break
            found = signal.sigtimedwait(self._fetched, 0)
        if self.signum is not None and not self._told:
            self._told = True
            self._tell("Stopping: the leg is ended first. Press Ctrl-C again to kill it.")

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        # Nothing else here: this may run in the middle of a line that is being told.
        self.urgency += 1
        self.signum = self.signum or number
