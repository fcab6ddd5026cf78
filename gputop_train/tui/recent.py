"""What was read of a store already: rows that never change are not read again as time goes on.

A screen looks at the same minutes once a second, of which one second is new. A look back in time,
or at more of it, is read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from gputop_train.model import GpuSample, MemorySample, ProcSample, Step
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup, UtilRollup
from gputop_train.tui.series import Samples

T = TypeVar("T")
_NS = 1_000_000_000
#: What several devices or processes are read of at about the same time may be stored in any order.
TOGETHER_NS = 5 * _NS


class Moving(Generic[T]):
    """A stretch of one series, by time.

    Args:
        time: When a row is of.
        margin_ns: So long before the newest row others may still be stored.
    """

    def __init__(self, time: Callable[[T], int], margin_ns: int = 0) -> None:
        self._time = time
        self._margin_ns = margin_ns
        self._span: tuple[int, int] | None = None
        self._rows: list[T] = []

    def read(self, fetch: Callable[[int, int], Sequence[T]], t0: int, t1: int) -> list[T]:
        """The rows from ``t0`` to ``t1``, both included, by time.

        Args:
            fetch: Reads such a stretch from the store.
            t0: Begin.
            t1: End.
        """
        time, rows = self._time, self._rows
        goes_on = self._span is not None and self._span[0] <= t0 <= self._span[1] <= t1
        if goes_on and rows:
            since = time(rows[-1]) - self._margin_ns
            kept = [row for row in rows if t0 <= time(row) <= since]
            self._rows = [*kept, *fetch(max(t0, since + 1), t1)]
        else:
            self._rows = list(fetch(t0, t1))
        self._span = t0, t1
        return self._rows


class Recent:
    """The series of one store that are looked at again and again."""

    def __init__(self) -> None:
        self._steps: dict[int, Moving[Step]] = {}
        self._ending: dict[int, dict[int, Step]] = {}
        self._step_rollups: dict[int, Moving[StepRollup]] = {}
        self._gpu = Moving[GpuSample](lambda sample: sample.t_ns, TOGETHER_NS)
        self._procs = Moving[ProcSample](lambda sample: sample.t_ns, TOGETHER_NS)
        self._memory: dict[int | None, Moving[MemorySample]] = {}
        self._rollups = Moving[UtilRollup](lambda row: row.sec, 2)
        self._util = _Columns()
        self._gpm = _Columns()

    def steps(self, reader: RunReader, rank: int, t0: int, t1: int) -> list[Step]:
        """Steps of a rank that ended in the window, by end time."""
        moving = self._steps.setdefault(rank, Moving(lambda step: step.t1_ns, 2 * _NS))
        return moving.read(lambda a, b: reader.steps(a, b, rank=rank), t0, t1)

    def ending(self, reader: RunReader, rank: int, ends: Sequence[int]) -> dict[int, Step]:
        """The steps of a rank that ended at these very times, by that time; as far as kept."""
        known = self._ending.get(rank, {})
        found = {t1: known[t1] for t1 in ends if t1 in known}
        missing = [t1 for t1 in ends if t1 not in found]
        found |= {step.t1_ns: step for step in reader.steps_ending(missing, rank)}
        self._ending[rank] = found
        return found

    def step_rollups(self, reader: RunReader, rank: int, t0: int, t1: int) -> list[StepRollup]:
        """Seconds of a rank whose last step ended in the window."""
        # The newest second is stored anew while steps of it end.
        fresh = Moving[StepRollup](lambda row: row.t1_ns, 2 * _NS)
        moving = self._step_rollups.setdefault(rank, fresh)
        return moving.read(lambda a, b: reader.step_rollups(a, b, rank=rank), t0, t1)

    def gpu(self, reader: RunReader, t0: int, t1: int) -> list[GpuSample]:
        """Slow readings of every card."""
        return self._gpu.read(reader.gpu, t0, t1)

    def procs(self, reader: RunReader, t0: int, t1: int) -> list[ProcSample]:
        """Readings of the run's processes."""
        return self._procs.read(reader.procs, t0, t1)

    def memory(self, reader: RunReader, rank: int | None, t0: int, t1: int) -> list[MemorySample]:
        """Memory of a rank."""
        moving = self._memory.setdefault(rank, Moving(lambda sample: sample.t_ns, 2 * _NS))
        return moving.read(lambda a, b: reader.memory(a, b, rank=rank), t0, t1)

    def util(self, reader: RunReader, t0: int, t1: int) -> dict[str, Samples]:
        """The driver's samples in percent, by card."""
        return self._util.read(reader.util_after, t0, t1)

    def gpm(self, reader: RunReader, t0: int, t1: int) -> dict[str, Samples]:
        """SM activity in percent, by card."""
        return self._gpm.read(reader.sm_after, t0, t1)

    def util_rollups(self, reader: RunReader, t0: int, t1: int) -> list[UtilRollup]:
        """Utilisation by second, of seconds in the window."""

        def fetch(first: int, last: int) -> list[UtilRollup]:
            return reader.util_rollups(first * _NS, last * _NS)

        return self._rollups.read(fetch, t0 // _NS, t1 // _NS)


class _Columns:
    """Samples of every card as arrays: tens of thousands of them, of which a few are new."""

    def __init__(self) -> None:
        self._span: tuple[int, int] | None = None
        self._known: dict[str, Samples] = {}

    def read(
        self,
        fetch: Callable[[dict[str, int], int, int], dict[str, list[tuple[int, float]]]],
        t0: int,
        t1: int,
    ) -> dict[str, Samples]:
        """The samples from ``t0`` to ``t1``.

        Args:
            fetch: Reads by card what is later than the time given for it.
            t0: Begin.
            t1: End.
        """
        if self._span is None or not self._span[0] <= t0 <= self._span[1] <= t1:
            self._known = {}
        self._span = t0, t1
        last = {card: int(known.times[-1]) for card, known in self._known.items()}
        new = fetch(last, t0, t1)
        joined: dict[str, Samples] = {}
        for card in (*self._known, *(card for card in new if card not in self._known)):
            known, rows = self._known.get(card), new.get(card, [])
            times = np.fromiter((t for t, _ in rows), dtype=np.int64, count=len(rows))
            values = np.fromiter((value for _, value in rows), dtype=np.float64, count=len(rows))
            if known is not None:
                first = int(np.searchsorted(known.times, t0))
                times = np.concatenate((known.times[first:], times))
                values = np.concatenate((known.values[first:], values))
            if len(times):
                joined[card] = Samples(times, values)
        self._known = joined
        return joined
