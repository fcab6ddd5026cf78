"""How a store is asked for steps, one by one or by the second, and what all questions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec

from gputop_train.model import Step
from gputop_train.store.rollup import StepRollup, second
from gputop_train.store.rows import read_rollup, read_step
from gputop_train.store.session import Session

T = TypeVar("T")
Row = tuple[Any, ...]

MIN_NS, MAX_NS = -(2**62), 2**62
#: Variables SQLite takes in one query, of any version still in use.
_VARIABLES = 900


class StepReader:
    """The part of `reader.RunReader` that reads steps."""

    _session: Session
    _until_ns: int

    def steps(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int | None = None
    ) -> list[Step]:
        """Steps that ended in the window and are still kept one by one, by end time."""
        query = "SELECT * FROM step WHERE rank = ? AND t1_ns BETWEEN ? AND ? ORDER BY t1_ns"
        found = self._by_rank("step", rank, query, self._window(t0_ns, t1_ns), self._step)
        return sorted(found, key=attrgetter("t1_ns"))

    def steps_tail(self, n: int, rank: int | None = None) -> list[Step]:
        """The newest ``n`` steps of a rank, or of each, by end time."""
        query = (
            "SELECT * FROM (SELECT * FROM step WHERE rank = ? AND t1_ns <= ? "
            f"ORDER BY t1_ns DESC LIMIT {max(n, 0):d}) ORDER BY t1_ns"
        )
        found = self._by_rank("step", rank, query, (self._until_ns,), self._step)
        return sorted(found, key=attrgetter("t1_ns"))

    def step_times(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int = 0, *, most: int
    ) -> list[tuple[int, int]]:
        """Begin and end of the newest ``most`` steps that ended in the window, by end time.

        A tenth of the cost of `steps`.
        """
        query = (
            "SELECT * FROM (SELECT t0_ns, t1_ns FROM step WHERE rank = ? AND t1_ns BETWEEN ? AND ? "
            f"ORDER BY t1_ns DESC LIMIT {max(most, 0):d})"
        )
        args = (rank, *self._window(t0_ns, t1_ns))
        rows = self._session.rows
        found = self._session.guard(
            lambda: msgspec.convert(rows(query, args), list[tuple[int, int]])
        )
        found.sort(key=itemgetter(1))
        return found

    def steps_ending(self, ends_ns: Sequence[int], rank: int = 0) -> list[Step]:
        """The steps that ended at these very times, as far as they are kept, by end time."""
        wanted = sorted({end for end in ends_ns if end <= self._until_ns})
        found: list[Step] = []
        for first in range(0, len(wanted), _VARIABLES):
            part = wanted[first : first + _VARIABLES]
            query = (
                f"SELECT * FROM step WHERE rank = ? AND t1_ns IN ({', '.join('?' * len(part))}) "
                "ORDER BY t1_ns"
            )
            found += self._all(query, (rank, *part), self._step)
        return found

    def step_rollups(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int | None = None
    ) -> list[StepRollup]:
        """Seconds whose last step ended in the window, for the whole run, by second and rank."""
        lo, hi = self._window(t0_ns, t1_ns)
        query = (
            "SELECT * FROM step_rollup WHERE rank = ? AND sec BETWEEN ? AND ? "
            "AND t1_ns BETWEEN ? AND ? ORDER BY sec"
        )
        args = (second(lo), second(hi), lo, hi)
        found = self._by_rank("step_rollup", rank, query, args, self._rollup)
        return sorted(found, key=attrgetter("sec", "rank"))

    def first_rollups(self, n: int, rank: int) -> list[StepRollup]:
        """The first ``n`` seconds in which a rank ended a step."""
        query = (
            "SELECT * FROM (SELECT * FROM step_rollup WHERE rank = ? AND t1_ns <= ? "
            f"ORDER BY sec LIMIT {max(n, 0):d})"
        )
        return self._all(query, (rank, self._until_ns), self._rollup)

    def steps_counted(self, rank: int, t1_ns: int | None = None) -> int:
        """Steps of a rank in all seconds whose last step ended by then, counted by the second."""
        query = "SELECT total(n) FROM step_rollup WHERE rank = ? AND t1_ns <= ?"
        return self._all(query, (rank, self._window(None, t1_ns)[1]), lambda row: int(row[0]))[0]

    def _window(self, t0_ns: int | None, t1_ns: int | None) -> tuple[int, int]:
        lo = MIN_NS if t0_ns is None else t0_ns
        return lo, self._until_ns if t1_ns is None else min(t1_ns, self._until_ns)

    def _step(self, row: Row) -> Step:
        return read_step(row, self._session.codecs)

    def _rollup(self, row: Row) -> StepRollup:
        return read_rollup(row, self._session.codecs)

    def _all(self, query: str, args: Sequence[Any], make: Callable[[Row], T]) -> list[T]:
        return self._session.guard(lambda: [make(row) for row in self._session.rows(query, args)])

    def _by_rank(
        self,
        table: str,
        rank: int | None,
        query: str,
        args: Sequence[Any],
        make: Callable[[Row], T],
    ) -> list[T]:
        """Rank by rank, so that the key of the table serves the window in time."""

        def read() -> list[T]:
            wanted = self._session.ranks(table) if rank is None else [rank]
            return [make(row) for one in wanted for row in self._session.rows(query, (one, *args))]

        return self._session.guard(read)
