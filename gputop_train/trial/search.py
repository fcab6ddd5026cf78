"""What a search knows and answers, and the search for the number of workers. Pure.

A search holds what it was told at the start and no more: what to try next follows from what was
tried, so the same history always has the same answer. ``trial.search_batch`` and
``trial.search_advice`` hold the other two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gputop_train.launch.options import Setting
from gputop_train.trial.record import Arm
from gputop_train.trial.stats import NEGLIGIBLE

Status = Literal["measured", "refused", "failed", "inconclusive", "stopped"]

#: Where the search for workers starts (the articles' rule: start at 4, double while the time per
#: sample falls; catalogue section 2: "while >= 3%").
START_WORKERS = 4
#: Changes in a row that bring less than 3% end every search (the articles' rule).
IN_A_ROW = 3
#: The host's cores are as good as busy from here on: more workers only take turns (catalogue,
#: ``cpu-oversubscription``: 90%).
SATURATED = 0.90


@dataclass(frozen=True, slots=True)
class Tried:
    """One arm after its legs.

    Attributes:
        speedup: Baseline's time per sample over the arm's; ``None`` = not measured.
        status: Other than ``measured``: it could not run, or did not count.
        why: Then, one sentence.
        cpu_busy: Share (0..1) of the usable cores that was busy while it ran.
        step_ms: Mean step.
        peak_bytes: Peak of reserved device memory.
    """

    arm: Arm
    speedup: float | None
    status: Status = "measured"
    why: str = ""
    cpu_busy: float | None = None
    step_ms: float | None = None
    peak_bytes: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it was measured."""
        return self.status == "measured" and self.speedup is not None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a search.

    Attributes:
        reason: Why nothing more is tried, one sentence.
        best: What to take; ``None`` = leave it as it is.
        notes: Sentences to go with it.
    """

    reason: str
    best: Arm | None = None
    notes: tuple[str, ...] = ()


Proposal = tuple[Arm, ...] | Done


class Search(Protocol):
    """Proposes arms until it is done."""

    def propose(self, history: Sequence[Tried]) -> Proposal:
        """What to try next, given everything tried so far in order."""


def is_better(speedup: float, than: float) -> bool:
    """Whether a speed-up is worth having over another: the time falls by 3% at least.

    A speed-up of exactly 3% counts: a hair is given for what rounding leaves of it.
    """
    return speedup >= than * (1 + NEGLIGIBLE) - 1e-9


def idle_tail(history: Sequence[Tried]) -> int:
    """How many of the newest tries in a row brought less than 3% over the best before them."""
    best, idle = 1.0, 0
    for one in history:
        if one.counts and is_better(one.speedup or 0.0, best):
            best, idle = one.speedup or best, 0
        else:
            idle += 1
    return idle


def stop_hint(history: Sequence[Tried]) -> str | None:
    """The stop rule in words, once it holds: three changes in a row under 3%."""
    if idle_tail(history) < IN_A_ROW:
        return None
    return f"Three changes in a row brought under {NEGLIGIBLE:.0%}: stop tuning this."


def frugal(speeds: dict[int, float]) -> int:
    """The smallest number whose speed-up is within 3% of the best.

    Fewer workers need less memory, and a smaller batch leaves the learning rate alone: what is not
    worth having over a smaller number is not taken.
    """
    top = max(speeds.values())
    return min(n for n, speed in speeds.items() if not is_better(top, speed))


@dataclass(frozen=True, slots=True)
class WorkerSearch:
    """Start at 4, double while the time per sample falls by 3%, refine between the neighbours.

    Attributes:
        current: Workers the script has now, which the baseline measures.
        cores: Usable by one rank: affinity, cgroup quota, over the ranks of this host.
        loader: ``FILE:LINE`` of the loader meant; ``None`` = the one that feeds training.
    """

    current: int
    cores: float
    loader: str | None = None

    @property
    def most(self) -> int:
        """Workers beyond which the articles' rule stops: one for each usable core."""
        return max(1, math.floor(self.cores + 1e-9))

    def arm(self, workers: int) -> Arm:
        """The arm with so many workers."""
        setting = Setting("num_workers", workers, self.loader)
        return Arm(f"{setting.label}={workers}", (setting,))

    def propose(self, history: Sequence[Tried]) -> Proposal:
        """What to try next, given everything tried so far in order."""
        tried = {count: one for count, one in _by_workers(history) if count != self.current}
        speeds = {n: one.speedup or 0.0 for n, one in tried.items() if one.counts}
        if tried and not speeds:
            only = next(iter(tried.values()))
            if all(one.status == "refused" for one in tried.values()):
                return Done(f"The number of workers cannot be changed. {only.why}".strip())
        speeds[self.current] = 1.0
        wanted = self._first(tried)
        if wanted:
            return tuple(self.arm(n) for n in wanted)
        if idle_tail(history) >= IN_A_ROW:
            return self._done(speeds, stop_hint(history) or "", tried)
        wanted_up, reason = self._up(speeds, tried)
        if wanted_up is not None:
            return (self.arm(wanted_up),)
        between = self._between(speeds, tried)
        if between is not None:
            return (self.arm(between),)
        return self._done(speeds, reason, tried)

    def _first(self, tried: dict[int, Tried]) -> list[int]:
        start = min(START_WORKERS, self.most)
        wanted = [start]
        if self.current in (0, 1):
            # Loading in the training process against one worker beside it: small in-memory data
            # is fastest without any.
            wanted.append(1 - self.current)
        elif self.current == start:
            wanted = [start // 2]
        return [n for n in dict.fromkeys(wanted) if n != self.current and n not in tried]

    def _up(self, speeds: dict[int, float], tried: dict[int, Tried]) -> tuple[int | None, str]:
        """The next doubling, or why there is none."""
        top = max(speeds)
        below = [speed for n, speed in speeds.items() if n < top]
        busy = tried[top].cpu_busy if top in tried else None
        if below and not is_better(speeds[top], max(below)):
            return None, f"With {_workers(top)} the time falls by under {NEGLIGIBLE:.0%} more."
        if busy is not None and busy >= SATURATED:
            return None, f"With {_workers(top)} the usable cores are {busy:.0%} busy."
        ahead = min(max(2 * top, 1), self.most)
        if ahead <= top:
            cores = "is 1 usable core" if self.most == 1 else f"are {self.most} usable cores"
            return None, f"There {cores}.{self._waits(busy)}"
        lost = [one for n, one in tried.items() if not one.counts and top < n <= ahead]
        if lost:
            return None, f"More could not be measured. {lost[0].why}".strip()
        return ahead, ""

    def _waits(self, busy: float | None) -> str:
        """What to try by hand where the rule ends before the cores do."""
        if busy is None or busy >= 0.5:
            return ""
        return (
            f" They were {busy:.0%} busy: workers that wait for storage may be more than cores, "
            f"try --set num_workers={2 * self.most}."
        )

    def _between(self, speeds: dict[int, float], tried: dict[int, Tried]) -> int | None:
        """The middle of the wider gap beside the best: the rule of three in a row ends it."""
        best = max(speeds, key=lambda n: (speeds[n], -n))
        order = sorted(speeds)
        at = order.index(best)
        gaps = [(order[at - 1], best)] if at else []
        gaps += [(best, order[at + 1])] if at + 1 < len(order) else []
        for low, high in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
            middle = min((low + high) // 2, self.most)
            if low < middle < high and middle not in tried:
                return middle
        return None

    def _done(self, speeds: dict[int, float], reason: str, tried: dict[int, Tried]) -> Done:
        best = frugal(speeds)
        notes = tuple(
            f"{self.arm(n).name}: {one.why}"
            for n, one in tried.items()
            if not one.counts and one.why
        )
        if best == self.current:
            return Done(f"{reason} num_workers={best}, as it is, is best.".strip(), None, notes)
        arm = self.arm(best)
        return Done(f"{reason} {arm.name} is best: {speeds[best]:.2f}x.".strip(), arm, notes)


def _by_workers(history: Sequence[Tried]) -> Iterator[tuple[int, Tried]]:
    for one in history:
        for setting in one.arm.settings:
            if setting.key == "num_workers" and isinstance(setting.value, int):
                yield setting.value, one


def _workers(n: int) -> str:
    return {0: "no worker", 1: "one worker"}.get(n, f"{n} workers")
