"""The steps of each rank's newest second in memory: its rollup is made anew with every commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gputop_train.model import Step
from gputop_train.store.rollup import SECOND_NS


class Seconds:
    """Knows all steps of a second, or says that it does not.

    Args:
        newest: Newest second of each rank that has steps in the store already.
    """

    def __init__(self, newest: Mapping[int, int]) -> None:
        self._newest = dict(newest)
        self._open: dict[int, tuple[int, dict[int, Step]]] = {}
        self._waiting: dict[tuple[int, int], Step] = {}

    def add(self, steps: Iterable[Step]) -> None:
        """Steps that wait for the next commit."""
        self._waiting.update({(step.rank, step.t1_ns): step for step in steps})

    def keep(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Forget waiting steps whose rows (rank, end, ...) are not among these."""
        left = {(row[0], row[1]) for row in rows}
        self._waiting = {key: step for key, step in self._waiting.items() if key in left}

    def complete(self, rank: int, sec: int, ends: Iterable[int]) -> list[Step] | None:
        """All steps of a second, by end time, once those with these end times are stored.

        Returns:
            ``None`` when the store may hold others: they have to be read back.
        """
        known = self._open.get(rank)
        if known is not None and known[0] == sec:
            steps = known[1]
        elif sec > self._newest.get(rank, sec - 1):
            steps = {}
        else:
            return None
        for end in ends:
            step = self._waiting.get((rank, end))
            if step is None:
                self._open.pop(rank, None)
                return None
            steps.setdefault(end, step)
        self._open[rank] = (sec, steps)
        self._newest[rank] = max(sec, self._newest.get(rank, sec))
        return [steps[end] for end in sorted(steps)]

    def committed(self) -> None:
        """Nothing waits any more."""
        self._waiting.clear()

    def uncertain(self) -> None:
        """What was told is perhaps not what is stored: read it back next time."""
        self._open.clear()

    @staticmethod
    def group(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[int, int], list[int]]:
        """End times of rows (rank, end, ...) by rank and second, in that order."""
        found: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            found.setdefault((row[0], row[1] // SECOND_NS), []).append(row[1])
        return dict(sorted(found.items()))
