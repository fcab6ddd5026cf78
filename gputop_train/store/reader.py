"""Reads a run's store: live, finished, copied, cut short or damaged.

A call gives data or raises ``StoreError``; it never blocks the writer. All times are inclusive and
``None`` leaves a side open.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    UtilSample,
)
from gputop_train.store import counters, retention
from gputop_train.store.codec import Codecs, RecordCodec
from gputop_train.store.errors import StoreError
from gputop_train.store.rollup import (
    SECOND_NS,
    LoaderDepth,
    StoredFinding,
    StoredNote,
    UtilRollup,
    second,
)
from gputop_train.store.session import TIME_LIMIT_S, Session
from gputop_train.store.step_reader import MAX_NS, MIN_NS, Row, StepReader

__all__ = ["RunReader", "StoreError"]

T = TypeVar("T")
_Object = dict[str, Any]


class RunReader(StepReader):
    """A run as its store tells it.

    Args:
        path: The ``run.sqlite`` file, or the run directory it lies in.
        time_limit_s: Longest time one call may take.

    Raises:
        StoreError: If it cannot be read, with what happened and what to do.
    """

    def __init__(self, path: Path | str, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        path = Path(path)
        self._session = Session(
            path / "run.sqlite" if path.is_dir() else path, time_limit_s=time_limit_s
        )
        self._until_ns = MAX_NS

    @property
    def path(self) -> Path:
        """The store's file."""
        return self._session.path

    def as_of(self, t_ns: int) -> RunReader:
        """The same run as it stood at a time: nothing later is seen.

        The view shares this reader's connection; closing either closes both. Probe states and
        ``meta`` are kept for the newest time only and come as they are.
        """
        view = RunReader.__new__(RunReader)
        view._session = self._session
        view._until_ns = min(t_ns, self._until_ns)
        return view

    @contextmanager
    def snapshot(self) -> Iterator[RunReader]:
        """Several calls on one state of the store. Keep it short: the writer's log grows meanwhile.

        Raises:
            StoreError: As any call.
        """
        with self._session.snapshot():
            yield self

    @property
    def codecs(self) -> Codecs:
        """How this store's bodies are written."""
        return self._session.codecs

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copies the whole store, as it stands now, into an empty database."""
        self._session.backup(target)

    def close(self) -> None:
        """Closes the store."""
        self._session.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def ranks(self) -> list[int]:
        """Ranks that have made steps."""
        return self._session.guard(lambda: self._session.ranks("step_rollup"))

    def intervals(
        self, t0_ns: int | None = None, t1_ns: int | None = None, label: str | None = None
    ) -> list[Interval]:
        """Interruptions that overlap the window, by begin."""
        lo = MIN_NS if t0_ns is None else t0_ns
        hi = self._window(None, t1_ns)[1]
        query = (
            "SELECT rank, label, t0_ns, t1_ns, site_id, bytes FROM interval WHERE t1_ns >= ? "
            "AND t0_ns <= ? AND t1_ns <= ? AND (? IS NULL OR label = ?) ORDER BY t0_ns, rank"
        )
        return self._all(query, (lo, hi, self._until_ns, label, label), _maker(Interval))

    def sites(self, rank: int | None = None) -> list[Site]:
        """Places in the user's code with their counters since arming."""
        until_ns = None if self._until_ns == MAX_NS else self._until_ns
        return self._session.guard(lambda: counters.standing(self._session, rank, until_ns))

    def sites_between(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int | None = None
    ) -> list[Site]:
        """Places seen in the window, with the counters of just that window.

        Counters are kept each second for the newest minutes, each 10 s up to an hour and each
        minute beyond; a window's edges count as the last one kept before them.
        """
        hi = self._window(None, t1_ns)[1]
        return self._session.guard(lambda: counters.between(self._session, rank, t0_ns, hi))

    def loaders(self, rank: int | None = None) -> list[Loader]:
        """DataLoaders, with their queue as last seen."""
        until_ns = None if self._until_ns == MAX_NS else self._until_ns
        return self._session.guard(lambda: counters.loaders(self._session, rank, until_ns))

    def loader_depths(
        self, t0_ns: int | None = None, t1_ns: int | None = None
    ) -> list[LoaderDepth]:
        """How many batches stood ready in each loader's queue, by time."""
        query = (
            "SELECT t_ns, rank, id, ready FROM loader_at WHERE t_ns BETWEEN ? AND ? "
            "ORDER BY t_ns, rank, id"
        )
        convert = msgspec.convert
        return self._all(query, self._window(t0_ns, t1_ns), lambda row: convert(row, LoaderDepth))

    def probe_states(self) -> dict[int, _Object]:
        """The newest snapshot of each rank's probe, as ``docs/wire-format.md`` has it."""
        query = "SELECT rank, t_ns, body FROM probe_state ORDER BY rank"
        found = self._all(query, (), lambda row: (row[0], {"t_ns": row[1]} | _object(row[2])))
        return dict(found)

    def memory(
        self, t0_ns: int | None = None, t1_ns: int | None = None, rank: int | None = None
    ) -> list[MemorySample]:
        """Memory readings by time; beyond the newest minutes the lowest of each 10 s."""
        query = (
            "SELECT rank, t_ns, allocated, body FROM memory "
            "WHERE rank = ? AND t_ns BETWEEN ? AND ? ORDER BY t_ns"
        )
        decode = self._session.codecs.memory.decode

        def make(row: Row) -> MemorySample:
            return decode(row[3], rank=row[0], t_ns=row[1], allocated=row[2])

        found = self._by_rank("memory", rank, query, self._window(t0_ns, t1_ns), make)
        return sorted(found, key=attrgetter("t_ns"))

    def util(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[UtilSample]:
        """The driver's utilisation samples of the newest minutes, by time."""
        make = _maker(UtilSample)
        found = self._by_device(
            "SELECT t_ns, util FROM util WHERE dev = ? AND t_ns BETWEEN ? AND ?",
            self._window(t0_ns, t1_ns),
            lambda uuid, row: make((row[0], uuid, row[1])),
        )
        return sorted(found, key=attrgetter("t_ns", "uuid"))

    def util_after(
        self, last_ns: Mapping[str, int], t0_ns: int, t1_ns: int
    ) -> dict[str, list[tuple[int, float]]]:
        """Time and percent of each device's samples in the window, by time, as plain rows.

        Args:
            last_ns: By UUID, a time up to which they are known already.
            t0_ns: Begin of the window.
            t1_ns: Its end.
        """
        return self._later("util", "util", last_ns, (t0_ns, t1_ns), lambda value: value)

    def sm_after(
        self, last_ns: Mapping[str, int], t0_ns: int, t1_ns: int
    ) -> dict[str, list[tuple[int, float]]]:
        """Time and percent of SM activity by GPM, as `util_after`; what lacks it is left out."""
        decode = self._session.codecs.gpm.decode
        return self._later(
            "gpm", "body", last_ns, (t0_ns, t1_ns), lambda body: decode(body, t_ns=0, uuid="").sm
        )

    def _later(
        self,
        table: str,
        column: str,
        last_ns: Mapping[str, int],
        window: tuple[int, int],
        value: Callable[[Any], float | None],
    ) -> dict[str, list[tuple[int, float]]]:
        query = (
            f"SELECT t_ns, {column} FROM {table} WHERE dev = ? AND t_ns > ? AND t_ns <= ? "
            "ORDER BY t_ns"
        )
        lo, hi = self._window(*window)

        def read() -> dict[str, list[tuple[int, float]]]:
            found = {}
            for dev, uuid in self._devices().items():
                since = max(lo - 1, last_ns.get(uuid, MIN_NS))
                rows = self._session.rows(query, (dev, since, hi))
                known = [(t, got) for t, raw in rows if (got := value(raw)) is not None]
                found[uuid] = msgspec.convert(known, list[tuple[int, float]])
            return found

        return self._session.guard(read)

    def util_rollups(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[UtilRollup]:
        """Utilisation by second, for the whole run, for seconds that lie in the window.

        Old seconds are summed up in longer buckets; what lies in the window then is their end.
        """
        query = "SELECT value FROM meta WHERE key = 'thinned_to_ns'"
        told = self._all(query, (), lambda row: msgspec.json.decode(row[0], type=dict[str, int]))
        marks = told[0] if told else {}
        convert = msgspec.convert

        def make(uuid: str, row: Row) -> UtilRollup:
            sec, n, mean, lo, hi = convert(row, tuple[int, int, float, float, float])
            return UtilRollup(uuid, sec, n, mean, lo, hi, retention.bucket_s(marks, sec))

        since, until = self._window(t0_ns, t1_ns)
        last = second(until) if self._until_ns == MAX_NS else second(min(until, self._until_ns)) - 1
        found = self._by_device(
            "SELECT sec, n, mean, lo, hi FROM util_rollup WHERE dev = ? AND sec BETWEEN ? AND ?",
            (second(since), last),
            make,
        )
        return sorted(found, key=attrgetter("sec", "uuid"))

    def gpu(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[GpuSample]:
        """Slow NVML readings by time."""
        return self._device_series("gpu", self._session.codecs.gpu, self._window(t0_ns, t1_ns))

    def gpm(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[GpmSample]:
        """GPM readings by time; beyond the newest minutes the mean of each 10 s."""
        return self._device_series("gpm", self._session.codecs.gpm, self._window(t0_ns, t1_ns))

    def host(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[HostSample]:
        """Readings of the machine by time."""
        decode = self._session.codecs.host.decode
        query = "SELECT t_ns, body FROM host WHERE t_ns BETWEEN ? AND ? ORDER BY t_ns"
        return self._all(query, self._window(t0_ns, t1_ns), lambda row: decode(row[1], t_ns=row[0]))

    def procs(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[ProcSample]:
        """Readings of the run's processes by time and process id."""
        decode = self._session.codecs.proc.decode
        query = "SELECT t_ns, pid, body FROM proc WHERE t_ns BETWEEN ? AND ? ORDER BY t_ns, pid"
        return self._all(
            query,
            self._window(t0_ns, t1_ns),
            lambda row: decode(row[2], t_ns=row[0], pid=row[1]),
        )

    def findings(self, t0_ns: int | None = None, t1_ns: int | None = None) -> list[StoredFinding]:
        """Diagnoses by time, one whenever it changed; of old ones the last of each minute."""
        query = "SELECT t_ns, body FROM finding WHERE t_ns BETWEEN ? AND ? ORDER BY t_ns"
        window = self._window(t0_ns, t1_ns)
        return self._all(query, window, lambda row: StoredFinding(row[0], _object(row[1])))

    def latest_finding(self) -> StoredFinding | None:
        """The diagnosis that stands."""
        query = (
            "SELECT * FROM (SELECT t_ns, body FROM finding WHERE t_ns <= ? "
            "ORDER BY t_ns DESC LIMIT 1)"
        )
        found = self._all(
            query, (self._until_ns,), lambda row: StoredFinding(row[0], _object(row[1]))
        )
        return found[0] if found else None

    def notes(self, kind: str | None = None) -> list[StoredNote]:
        """One-off facts about the watching, in the order they were added."""
        query = (
            "SELECT t_ns, kind, body FROM note WHERE t_ns <= ? AND (? IS NULL OR kind = ?) "
            "ORDER BY id"
        )
        return self._all(
            query,
            (self._until_ns, kind, kind),
            lambda row: StoredNote(row[0], row[1], _object(row[2])),
        )

    def meta(self, key: str, default: Any = None) -> Any:
        """A value of the run as a whole."""
        query = "SELECT value FROM meta WHERE key = ?"
        found = self._all(query, (key,), lambda row: msgspec.json.decode(row[0]))
        return found[0] if found else default

    def span(self) -> tuple[int, int] | None:
        """First and last time anything was measured; ``None`` when nothing was."""

        def read() -> tuple[int, int] | None:
            edges = []
            for query, group in self._edge_queries():
                edges += self._session.rows(query, (group,) * query.count("?"))
            times = [msgspec.convert(edge, tuple[int, int]) for edge in edges if None not in edge]
            start = min((first for first, _ in times), default=None)
            if start is None or start > self._until_ns:
                return None
            return start, min(max(last for _, last in times), self._until_ns)

        return self._session.guard(read)

    def _edge_queries(self) -> Iterator[tuple[str, int]]:
        # SQLite finds one end of a key without a scan, and not both in one go.
        for table in ("host", "proc"):
            ends = f"SELECT (SELECT min(t_ns) FROM {table}), (SELECT max(t_ns) FROM {table})"
            yield f"{ends} WHERE ? = 0", 0
        yield "SELECT min(t0_ns), max(t1_ns) FROM interval WHERE ? = 0", 0
        for rank in self._session.ranks("step_rollup"):
            one = "FROM step_rollup WHERE rank = ? ORDER BY sec"
            yield f"SELECT (SELECT t0_ns {one} LIMIT 1), (SELECT t1_ns {one} DESC LIMIT 1)", rank
        for rank in self._session.ranks("memory"):
            one = "FROM memory WHERE rank = ?"
            yield f"SELECT (SELECT min(t_ns) {one}), (SELECT max(t_ns) {one})", rank
        for dev in self._devices():
            one = "FROM util_rollup WHERE dev = ?"
            first, last = f"(SELECT min(sec) {one})", f"(SELECT max(sec) {one})"
            yield f"SELECT {first} * {SECOND_NS}, ({last} + 1) * {SECOND_NS} - 1", dev

    def _by_device(self, query: str, args: Sequence[Any], make: Callable[[str, Row], T]) -> list[T]:
        return self._session.guard(
            lambda: [
                make(uuid, row)
                for dev, uuid in self._devices().items()
                for row in self._session.rows(query, (dev, *args))
            ]
        )

    def _device_series(self, table: str, codec: RecordCodec[T], window: tuple[int, int]) -> list[T]:
        found = self._by_device(
            f"SELECT t_ns, body FROM {table} WHERE dev = ? AND t_ns BETWEEN ? AND ?",
            window,
            lambda uuid, row: codec.decode(row[1], t_ns=row[0], uuid=uuid),
        )
        return sorted(found, key=attrgetter("t_ns", "uuid"))

    def _devices(self) -> dict[int, str]:
        found = self._session.rows("SELECT id, uuid FROM device ORDER BY id")
        return {number: uuid for number, uuid in found}


def _maker(model: type[T]) -> Callable[[Row], T]:
    """Makes records of rows whose columns are the record's fields, in their order."""
    names = [field.name for field in dataclasses.fields(cast("type[Any]", model))]
    return lambda row: msgspec.convert(dict(zip(names, row, strict=True)), model)


def _object(text: str) -> _Object:
    return msgspec.json.decode(text, type=_Object)
