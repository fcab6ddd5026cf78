"""How much detail the overhead budget allows: reads and copies one by one, or in every k-th step.

A loop of a thousand ``.item()`` a step would pay more for our records than the whole budget. Step
edges, saves, evaluations and gc are never sampled away; steps that carry GPU events are always
recorded in full, so that what was idle can be matched with what the host did.
"""

from __future__ import annotations

from .state import S, append, now
from .words import CODE_BITS, UNRECORDED

BUDGET_SHARE = 0.2  # of the whole overhead budget
FULL_STEP_SPANS = 16  # fewer records than this in a step are never worth sampling
#: Timed inside a record; entering and leaving the wrapper is taken to cost as much again [D].
WRAPPER_FACTOR = 2.0
MAX_EVERY = 256
#: Longer than this is a wait for the interpreter lock, which the script's next line would have met.
RECORD_MAX_NS = 20_000
_TIMED = 16  # one record in so many is timed


class SpanGate:
    """Decides, step by step, whether reads and copies are recorded one by one."""

    def __init__(self) -> None:
        self.open = True
        self.every = 1
        # Steps that this one stands for: itself and those before it of which nothing was recorded.
        self.weight = 1
        self._closed = 0
        self.recorded = 0
        self.skipped = 0
        self._timed_ns = 0
        self._timed = 0
        self._mean_cost_ns = 0.0
        self.mean_step_ns = 0.0
        self._step = 0
        self._step_start = 0
        self.cost_ns = 0

    def timed(self, started: int) -> None:
        """Called at the end of a record: every now and then it tells what a record costs."""
        self.recorded += 1
        if self.recorded % _TIMED == 1:
            self._timed_ns += min(now() - started, RECORD_MAX_NS)
            self._timed += 1

    def tell_skipped(self) -> None:
        """Before the step's end edge: how many reads of it were only counted."""
        if self.skipped:
            append(self.skipped << CODE_BITS | UNRECORDED)
            self.skipped = 0

    def step_end(self, gpu_events_next: bool) -> None:
        """Choose k for the steps to come from the cost of the last recorded one."""
        t_ns = now()
        wall = t_ns - self._step_start if self._step_start else 0
        self._step_start = t_ns
        if wall:
            mean = self.mean_step_ns
            self.mean_step_ns = wall if not mean else mean + 0.05 * (min(wall, 4 * mean) - mean)
        if self.open and self._timed:
            self._choose(self.recorded)
        self.recorded = 0
        self._step += 1
        self.open = gpu_events_next or self._step % self.every == 0
        if self.open:
            self.weight, self._closed = self._closed + 1, 0
        else:
            self._closed += 1

    def _choose(self, records: int) -> None:
        cost = WRAPPER_FACTOR * self._timed_ns / self._timed * records
        self.cost_ns += int(cost)
        mean = self._mean_cost_ns
        self._mean_cost_ns = cost if not mean else mean + 0.2 * (cost - mean)
        if records < FULL_STEP_SPANS:
            self.every = 1
        elif self.mean_step_ns:
            budget = float(S.config.get("overhead_budget", 0.01)) * BUDGET_SHARE
            wanted = 1 + int(self._mean_cost_ns / (budget * self.mean_step_ns))
            self.every = min(wanted, MAX_EVERY)


gate = SpanGate()
