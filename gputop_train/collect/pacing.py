"""How often a call may be made so that it stays within a share of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: However dear, a reading is not put off further: it would be of no use.
LONGEST_NS = 10_000_000_000


class Pace:
    """Spaces calls by the CPU time they take on the calling thread, averaged over about four.

    Args:
        share: Part of one core they may cost.
        shortest_ns: Time between two of them however cheap they are.
        longest_ns: Time between two of them however dear they are.
    """

    def __init__(self, share: float, *, shortest_ns: int = 0, longest_ns: int = LONGEST_NS) -> None:
        self._share = share
        self._shortest_ns = shortest_ns
        self._longest_ns = longest_ns
        self._cost_ns: float | None = None
        self._due_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether the call may be made."""
        return now_ns >= self._due_ns

    def wait_ns(self, stretch: float) -> int:
        """Time from one call to the next, as the calls' cost stands."""
        paced_ns = (self._cost_ns or 0.0) / self._share
        return int(min(max(self._shortest_ns, paced_ns) * stretch, self._longest_ns))

    def run(self, now_ns: int, call: Callable[[], T], stretch: float = 1.0) -> T:
        """Make the call and note what it cost; it may raise.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            call: What to do.
            stretch: Factor on the time to the next one.
        """
        began_ns = time.thread_time_ns()
        try:
            return call()
        finally:
            cost_ns = time.thread_time_ns() - began_ns
            known = self._cost_ns
            self._cost_ns = cost_ns if known is None else known + (cost_ns - known) / 4
            self._due_ns = now_ns + self.wait_ns(stretch)
