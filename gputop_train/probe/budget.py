"""How much detail the overhead budget allows, and what of it each part of the probe may spend.

Two samplings, both by whole steps. ``Duty`` decides which steps have their phases recorded: all of
them where that is cheap enough, else short runs of steps with unrecorded ones between. ``SpanGate``
decides in which of the recorded steps reads and copies are told one by one. Step ends, saves,
evaluations, gc, compilation, logging and long waits for data are never sampled away. Steps that
carry GPU events are always recorded in full, so that what was idle can be matched with what the
host did: ``GpuEvents.on`` is chosen at the end of recorded steps only.
"""

from __future__ import annotations

import os

from . import quiet
from .state import S, append, now
from .words import CODE_BITS, UNRECORDED

#: Parts of the overhead budget. They add up to two thirds: the rest is reserve for what no part can
#: measure of itself. Beside an H200 a recorded step was 150 us longer, events in one of six
#: included, where the parts counted 100 (A/B by single steps, 2026-11-29, benchmarks/results).
PHASES_SHARE = 0.20
READS_SHARE = 0.10
EVENTS_SHARE = 0.18
HELPER_SHARE = 0.18
#: Without a GPU there are neither reads nor events to pay for.
PHASES_ONLY_SHARE = 0.30

FULL_STEP_SPANS = 16  # fewer records than this in a step are never worth sampling
#: Timed inside a record; entering and leaving the wrapper is taken to cost as much again [D].
WRAPPER_FACTOR = 2.0
MAX_EVERY = 256
#: Longer than this is a wait for the interpreter lock, which the script's next line would have met.
RECORD_MAX_NS = 20_000
_TIMED = 16  # one record in so many is timed

#: Optimizer calls recorded in a row, for each optimizer there is: whole steps of a GAN fit in.
RUN_CALLS = 8
MAX_RUN_CALLS = 64
#: Everything is recorded until the loop has shown its shape this often.
FIRST_CALLS = 64
#: At most this long nothing but ticks: a change in the loop shows within it.
MAX_QUIET_NS = 1_000_000_000
#: What the hooks of an unrecorded step cost, as a part of a recorded one's
#: (benchmarks/results/overhead_h200.md).
QUIET_PART = 0.15
#: Of the budget, for all that samples, where steps are so short that their hooks alone fill it [D].
LEAST_LEFT = 0.4
#: The hooks' own time as they can take it misses the way in and out and the caches they cool: an
#: A/B reading finds 1.75 times that with warm caches, 3.4 times in place (docs/contracts.md).
HOOKS_FACTOR = 3.4
HOOKS_MAX_NS = 200_000  # of one step; more is a wait for the interpreter lock
#: From here on a wait for data is told in an unrecorded step too (docs/wire-format.md: the reader
#: relies on it). Steps that long can pay for the words.
LONG_WAIT_NS = 2_000_000


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

    def step_end(self, gpu_events_next: bool, unrecorded: int = 0) -> None:
        """After a recorded step: whether the next recorded one has its reads told.

        Args:
            gpu_events_next: Whether it carries GPU events.
            unrecorded: Steps of which nothing will have been recorded in between.
        """
        if self.open and self._timed:
            self._choose(self.recorded)
        self.recorded = self.skipped = 0
        self._closed += unrecorded
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
            wanted = 1 + int(self._mean_cost_ns / (budget() * READS_SHARE * self.mean_step_ns))
            self.every = min(wanted, MAX_EVERY)


class Duty:
    """Decides which steps have their phases recorded.

    A step here is an outermost optimizer call. With c the cost of a recorded step's hooks, q that
    of an unrecorded one's, T the mean step and b this part's share of the budget, a run of R
    recorded steps is followed by unrecorded ones for ``R (c - b T) / (b - q / T)``, varied by half
    at random so that it locks onto no period of the loop. Time, not a number of steps: a loop that
    becomes slower is recorded in full from its next step on.

    Attributes:
        recorded: Steps recorded in detail.
        hook_ns: Mean cost of a recorded step's hooks; 0 before the first was timed.
    """

    def __init__(self) -> None:
        self._random = (os.getpid() * 2654435761) & 0x7FFFFFFF  # our own: never the script's RNG
        self.reset()

    def reset(self) -> None:
        """At the start, and after a fork: whatever trains here is looked at anew."""
        _record_again()
        S.timing = False
        self.recorded = 0
        self.hook_ns = 0.0
        self.every = 1.0
        self._run = self._left = RUN_CALLS
        self._run_began_ns = 0
        self._quiet_from = 0
        self._owed = 0
        self._step_ns = 0.0

    def recorded_end(self, end_ns: int, keep: bool) -> None:
        """A recorded step ended.

        Args:
            end_ns: When.
            keep: The next step is to be recorded in any case (GPU events, a profiler burst).
        """
        self.recorded += 1
        if S.timing:
            self._learn()
        left = self._left = self._left - 1
        S.timing = left & 7 == 3
        if left <= 0 and not keep:
            self._run_ends(end_ns)

    def stands_for(self) -> int:
        """Unrecorded steps that the recorded one about to begin stands for besides itself."""
        share = -(-self._owed // max(1, self._left))
        self._owed -= share
        return share

    def _learn(self) -> None:
        took = HOOKS_FACTOR * min(S.hook_ns, HOOKS_MAX_NS)
        S.hook_ns = 0
        mean = self.hook_ns
        # Clipped: a preemption inside a hook would have come without us as well.
        self.hook_ns = took if not mean else mean + 0.1 * (min(took, 2 * mean) - mean)

    def _run_ends(self, end_ns: int) -> None:
        calls = self._run - self._left
        if self._run_began_ns:
            self._step_ns = max(1.0, (end_ns - self._run_began_ns) / calls)
            mean = gate.mean_step_ns
            gate.mean_step_ns = min(self._step_ns, 4 * mean) if mean else self._step_ns
        self._run = self._left = min(RUN_CALLS * max(1, len(S.optimizers)), MAX_RUN_CALLS)
        self._run_began_ns = end_ns
        quiet_ns = self._quiet_ns() if S.steps >= FIRST_CALLS else 0.0
        if quiet_ns <= self._step_ns:
            self.every = 1.0
            return
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        S.quiet_until_ns = end_ns + int(quiet_ns * (0.5 + self._random / 0x7FFFFFFF))
        S.detail = S.whole = S.timing = gate.open = False
        quiet.take_out()
        self._quiet_from = S.steps

    def _quiet_ns(self) -> float:
        """How long nothing but ticks, to keep within this part of the budget."""
        share = budget() * (PHASES_SHARE if S.gpu is not None else PHASES_ONLY_SHARE)
        excess = self._run * (self.hook_ns - share * self._step_ns)
        if excess <= 0 or not self._step_ns:
            return 0.0
        spare = share - QUIET_PART * self.hook_ns / self._step_ns
        return min(excess / spare, MAX_QUIET_NS) if spare > 0 else MAX_QUIET_NS

    def wake(self) -> None:
        """On the helper thread: the thread that trained has ended while nothing was recorded.

        Nobody would tick the quiet time away, and a second trainer would not be seen.
        """
        _record_again()

    def quiet_ends(self, end_ns: int) -> int:
        """The time without records is over; how many steps it took."""
        _record_again()
        steps = S.steps - self._quiet_from
        self._owed = steps
        self.every = 1.0 + steps / self._run
        self._run_began_ns = end_ns
        return steps

    def left(self) -> float:
        """Part of the whole budget that the hooks of unrecorded steps leave to the others."""
        quiet_ns = QUIET_PART * self.hook_ns
        if not quiet_ns or not self._step_ns:
            return 1.0
        return max(LEAST_LEFT, 1.0 - quiet_ns / (budget() * self._step_ns))

    @property
    def cost_ns(self) -> int | None:
        """What the phase hooks cost so far; None where no step of theirs was timed."""
        if not self.hook_ns:
            return None
        return int(self.hook_ns * (self.recorded + QUIET_PART * (S.steps - self.recorded)))

    def report(self) -> dict[str, object]:
        """For the snapshot: one step in how many is recorded of late, and counts since arming."""
        return {"every": round(self.every, 2), "recorded": self.recorded, "steps": S.steps}


def _record_again() -> None:
    """Every hook in place, and all that it sees recorded."""
    quiet.put_back()
    S.detail = S.whole = gate.open = True


def budget() -> float:
    """The whole overhead budget as a share of the step (0.01 = 1%)."""
    return max(float(S.config.get("overhead_budget", 0.01)), 1e-6)


gate = SpanGate()
duty = Duty()
