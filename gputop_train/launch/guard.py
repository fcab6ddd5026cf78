"""Keep a broken part from taking the rest of the supervisor down."""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gputop_train.collect.ring_reader import OUR_LIMITS
from gputop_train.report.format import printable
from gputop_train.store.errors import StoreError, StoreFull

T = TypeVar("T")

#: A part that failed is tried again after this long (a file system that came back, a driver that
#: was reloaded), this many times; then it stays off.
RETRY_NS = 30_000_000_000
MAX_FAILURES = 3
#: A locked store (a shell somebody forgot) comes free again: it is asked anew this often, for ever.
STORE_RETRY_NS = 5_000_000_000
#: Lines one supervisor may write to supervisor.log.
LOG_LINES = 400


@dataclass(slots=True)
class _Part:
    failures: int = 0
    resume_ns: int = 0
    waits: bool = False


class Guard:
    """Runs parts; an exception becomes one note per part and a pause, never a crash.

    Args:
        note: Stores a note: ``(kind, body)``. May itself fail.
        clock: ``CLOCK_MONOTONIC`` nanoseconds.
    """

    def __init__(
        self,
        note: Callable[[str, Mapping[str, Any]], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._note = note
        self._clock = clock
        self._parts: dict[str, _Part] = {}
        self._lines_left = LOG_LINES

    def run(self, part: str, call: Callable[[], T]) -> T | None:
        """Call unless the part is off; ``None`` when it is off or failed.

        A store that cannot be read or written just now only pauses a part: what waits for it is
        kept, so giving up would lose a run to a lock that somebody held for a minute. The same goes
        for descriptors and memory we ourselves are short of.

        Raises:
            StoreFull: Passed on: a full disk is no broken part, and who writes handles it.
        """
        state = self._parts.setdefault(part, _Part())
        if state.failures >= MAX_FAILURES or self._clock() < state.resume_ns:
            return None
        try:
            result = call()
        except StoreFull:
            raise
        except StoreError as error:
            self._wait(part, state, error)
            return None
        except OSError as error:
            if error.errno in OUR_LIMITS:
                self._wait(part, state, error, _short_of(error))
            else:
                self._failed(part, state, error)
            return None
        except Exception as error:
            self._failed(part, state, error)
            return None
        if state.waits:
            state.waits = False
            self.log(f"{part} works again")
        return result

    def retry_now(self, part: str) -> None:
        """End a pause: there will be no later."""
        self._parts.setdefault(part, _Part()).resume_ns = 0

    def is_off(self, part: str) -> bool:
        """Whether a part was given up for good."""
        return self._parts.get(part, _Part()).failures >= MAX_FAILURES

    def log(self, text: str) -> None:
        """One line to supervisor.log, within a bound; never raises."""
        if self._lines_left <= 0:
            return
        self._lines_left -= 1
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = printable(text)[:1000]
        if self._lines_left == 0:
            line += " (further lines are left out)"
        try:
            sys.stderr.write(f"{stamp} {line}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            pass

    def _wait(self, part: str, state: _Part, error: Exception, why: str | None = None) -> None:
        state.resume_ns = self._clock() + STORE_RETRY_NS
        if state.waits:  # once per spell, or an hour's lock would fill the log
            return
        state.waits = True
        self.log(f"{part} waits: {error}")
        if why is not None:
            text = f"Watching {part} waits: {why}."
            with contextlib.suppress(Exception):  # the store may be short of the same
                self._note("part-waits", {"part": part, "text": text})

    def _failed(self, part: str, state: _Part, error: Exception) -> None:
        state.failures += 1
        state.resume_ns = self._clock() + RETRY_NS
        off = state.failures >= MAX_FAILURES
        self.log(f"{part} failed{' and stays off' if off else ''}: {_describe(error)}")
        if state.failures > 1 and not off:
            return
        what = "is off for the rest of the run" if off else "is tried again later"
        text = f"Watching {part} failed and {what}: {_describe(error)}."
        try:
            self._note("part-failed", {"part": part, "off": off, "text": text})
        except Exception as failure:  # the store itself may be what is broken
            self.log(f"a note could not be stored: {_describe(failure)}")


def _short_of(error: OSError) -> str:
    what = "memory" if error.errno == errno.ENOMEM else "file descriptors (ulimit -n)"
    return f"the supervisor has no {what} left"


def _describe(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_filename.rpartition("/")[2] if trace is not None else ""
    place = f" ({name}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {error}{place}"
