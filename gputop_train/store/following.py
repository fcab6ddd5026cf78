"""A reader for who asks for the newest minute again and again: what was read once is kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    MemorySample,
    ProcSample,
    Step,
    UtilSample,
)
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import SECOND_NS, LoaderDepth

T = TypeVar("T")

#: Rows of a series may come a little out of order (two threads, several cards): so much of what is
#: known is read anew.
OVERLAP_NS = 5 * SECOND_NS
#: Old rows are thinned in the store; what is kept of them here is given up this often.
FORGET_NS = 300 * SECOND_NS

_time = attrgetter("t_ns")


@dataclass(slots=True)
class _Kept:
    rows: list[Any]
    from_ns: int
    until_ns: int
    loaded_ns: int


class FollowingReader(RunReader):
    """A run that is being written, read again every few seconds.

    The writer adds the steps of a rank in order of time and changes none, so only those after the
    newest one known need be read; of the other series the newest seconds. Views of it (`as_of`)
    and windows without an end or a begin read everything.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tails: dict[int, tuple[int, list[Step]]] = {}
        self._series: dict[object, _Kept] = {}

    def steps_tail(self, n: int, rank: int | None = None) -> list[Step]:
        """The newest ``n`` steps of a rank, or of each, by end time."""
        if rank is None:
            return super().steps_tail(n, rank)
        asked, steps = self._tails.get(rank, (0, []))
        if asked < n or not steps:
            steps = super().steps_tail(n, rank)
        else:
            query = (
                "SELECT * FROM (SELECT * FROM step WHERE rank = ? AND t1_ns > ? "
                f"ORDER BY t1_ns DESC LIMIT {n:d}) ORDER BY t1_ns"
            )
            fresh = self._all(query, (rank, steps[-1].t1_ns), self._step)
            steps = [*steps, *fresh][-n:] if fresh else steps[-n:]
        self._tails[rank] = (n, steps)
        return steps

    def loader_depths(
        self, t0_ns: int | None = None, t1_ns: int | None = None
    ) -> list[LoaderDepth]:
        """As `RunReader.loader_depths`."""
        return self._follow("depths", super().loader_depths, t0_ns, t1_ns)

    def memory(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int | None = None
    ) -> list[MemorySample]:
        """As `RunReader.memory`."""
        read = super().memory
        return self._follow(("memory", rank), lambda t0, t1: read(t0, t1, rank), t0_ns, t1_ns)

    def util(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[UtilSample]:
        """As `RunReader.util`."""
        return self._follow("util", super().util, t0_ns, t1_ns)

    def gpu(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[GpuSample]:
        """As `RunReader.gpu`."""
        return self._follow("gpu", super().gpu, t0_ns, t1_ns)

    def gpm(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[GpmSample]:
        """As `RunReader.gpm`."""
        return self._follow("gpm", super().gpm, t0_ns, t1_ns)

    def host(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[HostSample]:
        """As `RunReader.host`."""
        return self._follow("host", super().host, t0_ns, t1_ns)

    def procs(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[ProcSample]:
        """As `RunReader.procs`."""
        return self._follow("procs", super().procs, t0_ns, t1_ns)

    def _follow(
        self,
        name: object,
        read: Callable[[int | None, int | None], list[T]],
        t0_ns: int | None,
        t1_ns: int | None,
    ) -> list[T]:
        if t0_ns is None or t1_ns is None:
            return read(t0_ns, t1_ns)
        kept = self._series.get(name)
        if (
            kept is None
            or not kept.from_ns <= t0_ns
            or not kept.until_ns <= t1_ns <= kept.loaded_ns + FORGET_NS
        ):
            kept = self._series[name] = _Kept(read(t0_ns, t1_ns), t0_ns, t1_ns, t1_ns)
            return list(kept.rows)
        anew_ns = max(t0_ns, kept.until_ns - OVERLAP_NS)
        begin, end = _place(kept.rows, t0_ns), _place(kept.rows, anew_ns)
        kept.rows = [*kept.rows[begin:end], *read(anew_ns, t1_ns)]
        kept.from_ns, kept.until_ns = t0_ns, t1_ns
        return list(kept.rows)


def _place(rows: Sequence[Any], t_ns: int) -> int:
    return bisect_left(rows, t_ns, key=_time)
