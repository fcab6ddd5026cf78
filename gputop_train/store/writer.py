"""The one writer of a run's store.

``add_*`` only buffer; ``commit`` writes everything in one transaction, so what a reader sees is
always consistent: the rollup of a second is made from that second's steps in the same transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    Loader,
    MemorySample,
    ProcSample,
    Site,
    Step,
    UtilSample,
)
from gputop_train.store import files, retention, rows
from gputop_train.store.codec import Codecs, to_json
from gputop_train.store.rollup import SECOND_NS, second
from gputop_train.store.seconds import Seconds

#: Cadence of the counters kept for ``sites_between``; they are thinned to 10 s when old.
SITE_AT_NS = SECOND_NS
#: Rows that wait for a disk that takes none; beyond it the oldest are given up, and counted.
MAX_BACKLOG_ROWS = 200_000
#: A reader that holds an old snapshot (a stopped process) keeps the log from being reused. Above
#: the first size the writer commits only twice a minute, above the second not at all.
WAL_SOFT_BYTES = 64 << 20
WAL_HARD_BYTES = 256 << 20
_SPARSE_NS = 30 * SECOND_NS

#: Tables that hold one state of a thing, with the length of its key.
_STATES = {"site": 2, "loader": 2, "probe_state": 1, "meta": 1}
#: Given up last: small, and each row tells something no other row does.
_PRECIOUS = {*_STATES, "device", "interval", "finding", "note"}


class RunWriter:
    """Writes one run's store. Not thread-safe: one owner, one thread.

    Args:
        path: The file; created private, with its schema, when it is not there. An existing store
            is continued (a new supervisor takes over a live run).
        now_ns: The clock, for records that carry no time of their own.
        keep_ns: Age up to which everything is kept in full.
        keep_steps: Steps a rank kept in full, whatever their age.

    Raises:
        StoreError: If the file is a link, another user's, not a store, or of a newer version.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        keep_ns: int = retention.KEEP_NS,
        keep_steps: int = retention.KEEP_STEPS,
    ) -> None:
        self._path = Path(path)
        self._now_ns = now_ns
        self._keep_ns = keep_ns
        self._keep_steps = keep_steps
        self._pending: dict[str, list[tuple[Any, ...]]] = {}
        self._site_bodies: dict[tuple[int, int], bytes] = {}
        self._loader_bodies: dict[tuple[int, int], bytes] = {}
        self._site_marks: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._last_finding: str | None = None
        self._last_commit_ns: int | None = None
        self._last_prune_ns: int | None = None
        #: Rows given up: the disk took none for too long, or SQLite cannot hold them.
        self.dropped_rows = 0
        self._unreported_rows = 0
        self._db = files.open_writer(self._path)
        try:
            self._codecs = self._load_codecs()
            self._devices: dict[str, int] = {
                uuid: number for number, uuid in self._db.execute("SELECT id, uuid FROM device")
            }
            self._floor_sec, newest_sec = self._load_floors()
            self._seconds = Seconds(newest_sec)
            self._load_marks()
        except files.DAMAGE as error:
            self._db.close()
            raise files.explain(error, self._path) from error

    def add_steps(self, steps: Iterable[Step]) -> None:
        """Adds steps; one already there (same rank and end time) is left as it is."""
        good = [step for step in steps if rows.is_sane(step)]
        self._seconds.add(good)
        self._buffer("step").extend(rows.step_row(step, self._codecs) for step in good)

    def add_intervals(self, intervals: Iterable[Interval]) -> None:
        """Adds interruptions; one with the same rank, label and begin replaces the earlier."""
        self._buffer("interval").extend(
            (i.rank, i.label, i.t0_ns, i.t1_ns, i.site_id, i.bytes) for i in intervals
        )

    def put_sites(self, sites: Iterable[Site], t_ns: int | None = None) -> None:
        """Puts the newest state of sites, whose counters are cumulative.

        Args:
            sites: All sites of a rank, or some.
            t_ns: When the counters stood so; now, if not given.
        """
        t_ns = self._now_ns() if t_ns is None else t_ns
        for site in sites:
            key = (site.rank, site.id)
            body = self._codecs.site.encode(site)
            if self._site_bodies.get(key) == body:
                continue
            self._site_bodies[key] = body
            self._buffer("site").append((*key, body))
            at_ns, count, total_ns = self._site_marks.get(key, (t_ns - SITE_AT_NS, -1, -1))
            if t_ns - at_ns >= SITE_AT_NS and (count, total_ns) != (site.count, site.total_ns):
                self._site_marks[key] = (t_ns, site.count, site.total_ns)
                self._buffer("site_at").append(
                    (*key, t_ns, site.count, site.total_ns, site.bytes, site.unpinned_bytes)
                )

    def put_loaders(self, loaders: Iterable[Loader], t_ns: int | None = None) -> None:
        """Puts the newest state of loaders, and a point in the series of their queue's depth."""
        t_ns = self._now_ns() if t_ns is None else t_ns
        for loader in loaders:
            key = (loader.rank, loader.id)
            body = self._codecs.loader.encode(loader)
            if self._loader_bodies.get(key) != body:
                self._loader_bodies[key] = body
                self._buffer("loader").append((*key, body))
            self._buffer("loader_at").append(
                (*key, t_ns, loader.ready, loader.batches, loader.wait_ns)
            )

    def put_probe_state(self, rank: int, state: Mapping[str, Any], t_ns: int | None = None) -> None:
        """Puts the newest snapshot of a rank's probe; its sites and loaders are left out here."""
        t_ns = self._now_ns() if t_ns is None else t_ns
        leave = ("sites", "site_stats", "loaders")
        body = {key: value for key, value in state.items() if key not in leave}
        self._buffer("probe_state").append((rank, t_ns, to_json(body)))

    def add_memory(self, samples: Iterable[MemorySample]) -> None:
        """Adds allocator readings; one of the same rank and time replaces the earlier."""
        encode = self._codecs.memory.encode
        self._buffer("memory").extend((s.rank, s.t_ns, s.allocated, encode(s)) for s in samples)

    def add_util(self, samples: Iterable[UtilSample]) -> None:
        """Adds the driver's utilisation samples; one already there is left as it is."""
        self._buffer("util").extend((self._device(s.uuid), s.t_ns, s.util) for s in samples)

    def add_gpu(self, samples: Iterable[GpuSample]) -> None:
        """Adds slow NVML readings."""
        encode = self._codecs.gpu.encode
        self._buffer("gpu").extend((self._device(s.uuid), s.t_ns, encode(s)) for s in samples)

    def add_gpm(self, samples: Iterable[GpmSample]) -> None:
        """Adds GPM readings."""
        encode = self._codecs.gpm.encode
        self._buffer("gpm").extend((self._device(s.uuid), s.t_ns, encode(s)) for s in samples)

    def add_host(self, samples: Iterable[HostSample] | HostSample) -> None:
        """Adds readings of the machine."""
        samples = (samples,) if isinstance(samples, HostSample) else samples
        self._buffer("host").extend((s.t_ns, self._codecs.host.encode(s)) for s in samples)

    def add_procs(self, samples: Iterable[ProcSample]) -> None:
        """Adds readings of the run's processes."""
        encode = self._codecs.proc.encode
        self._buffer("proc").extend((s.t_ns, s.pid, encode(s)) for s in samples)

    def add_finding(self, t_ns: int, body: Mapping[str, Any]) -> None:
        """Adds a diagnosis; one equal to the one before is not stored again."""
        text = to_json(body)
        if text != self._last_finding:
            self._last_finding = text
            self._buffer("finding").append((t_ns, text))

    def add_note(self, t_ns: int, kind: str, body: Mapping[str, Any]) -> None:
        """Adds a one-off fact about the watching."""
        self._buffer("note").append((t_ns, kind, to_json(body)))

    def set_meta(self, key: str, value: object) -> None:
        """Sets a value of the run as a whole; anything JSON can hold."""
        self._buffer("meta").append((key, to_json(value)))

    def commit(self) -> None:
        """Makes everything added so far visible to readers.

        Raises:
            StoreFull: If the disk takes no more. What was added stays, within a bound, for the
                next commit.
            StoreError: If the store cannot be written for another reason, such as a lock.
        """
        now_ns = self._now_ns()
        if not any(self._pending.values()) or not self._log_has_room(now_ns):
            return
        self._transact(self._write_pending)
        self._pending.clear()
        self._seconds.committed()
        self._unreported_rows = 0
        self._last_commit_ns = now_ns

    @property
    def waiting_rows(self) -> int:
        """Rows added and not committed yet."""
        return sum(map(len, self._pending.values()))

    def prune(self, now_ns: int) -> None:
        """Bounds the store: thins what is no longer among the newest minutes.

        May be called as often as one likes; it works when 10 s have gone by since the last time.

        Raises:
            StoreError: As ``commit``.
        """
        last_ns = self._last_prune_ns
        if last_ns is not None and now_ns // retention.BUCKET_NS == last_ns // retention.BUCKET_NS:
            return
        self._transact(lambda: self._prune(now_ns))
        self._last_prune_ns = now_ns

    def close(self) -> None:
        """Commits, and leaves a single plain file where no reader is in the way.

        Raises:
            StoreError: As ``commit``; the store is closed all the same.
        """
        try:
            self.commit()
        finally:
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                # A finished run needs no log beside it: it can be copied and read anywhere. Fails
                # harmlessly while a reader is connected.
                self._db.execute("PRAGMA busy_timeout = 0")
                self._db.execute("PRAGMA journal_mode = DELETE").fetchall()
            except sqlite3.Error:
                pass
            finally:
                self._db.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _buffer(self, table: str) -> list[tuple[Any, ...]]:
        return self._pending.setdefault(table, [])

    def _device(self, uuid: str) -> int:
        number = self._devices.get(uuid)
        if number is None:
            number = self._devices[uuid] = len(self._devices) + 1
            self._buffer("device").append((number, uuid))
        return number

    def _write_pending(self) -> None:
        steps = self._pending.get("step", [])
        if any(row[1] < self._floor_sec.get(row[0], 0) * SECOND_NS for row in steps):
            steps = [row for row in steps if self._is_current(row[0], row[1])]
        utils = [row for row in self._pending.get("util", ()) if row[1] >= self._util_floor_ns]
        for table, waiting in self._pending.items():
            kept = steps if table == "step" else utils if table == "util" else waiting
            if not self._insert(table, kept):
                self._seconds.uncertain()
        for (rank, sec), ends in Seconds.group(steps).items():
            known = self._seconds.complete(rank, sec, ends)
            rows.refresh_step_rollup(self._db, self._codecs, rank, sec, known)
        for dev, sec in sorted({(row[0], second(row[1])) for row in utils}):
            rows.refresh_util_rollup(self._db, dev, sec)

        if self._unreported_rows:
            lost = to_json(rows.lost_body(self._unreported_rows))
            self._insert("note", [(self._now_ns(), "store-rows-dropped", lost)])

    def _insert(self, table: str, kept: list[tuple[Any, ...]]) -> bool:
        """Inserts rows; one that SQLite cannot hold is dropped, or it would bar all others.

        Tells whether it took them all.
        """
        dropped = self.dropped_rows
        bad = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)
        self._db.execute("SAVEPOINT rows")
        try:
            self._db.executemany(rows.INSERT[table], kept)
        except (*bad, OverflowError):
            self._db.execute("ROLLBACK TO rows")
            for row in kept:
                try:
                    self._db.execute(rows.INSERT[table], row)
                except (*bad, OverflowError):  # noqa: PERF203
                    self.dropped_rows += 1
                    self._unreported_rows += 1
        self._db.execute("RELEASE rows")
        return self.dropped_rows == dropped

    def _is_current(self, rank: int, t1_ns: int) -> bool:
        """False for a step of a second whose steps are gone: its rollup is final."""
        query, sec = "SELECT 1 FROM step_rollup WHERE rank = ? AND sec = ?", second(t1_ns)
        gone, summed = sec < self._floor_sec.get(rank, 0), t1_ns < self._merged_ns
        known = gone and (summed or self._db.execute(query, (rank, sec)).fetchone() is not None)
        return not known

    def _prune(self, now_ns: int) -> None:
        for rank in retention.ranks(self._db, "step"):
            self._floor_sec[rank] = retention.prune_steps(
                self._db, rank, self._keep_ns, self._keep_steps
            )
        retention.prune_series(self._db, self._codecs, now_ns, self._keep_ns)
        self._load_marks()

    def _load_marks(self) -> None:
        marks = retention.load_marks(self._db)
        names = ("util/10s", "step_rollup/10s")
        self._util_floor_ns, self._merged_ns = (marks.get(name, -(2**62)) for name in names)

    def _transact(self, work: Callable[[], None]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            work()
            self._db.execute("COMMIT")
        except files.DAMAGE as error:
            self._roll_back()
            self._trim_backlog()
            raise files.explain(error, self._path) from error
        except BaseException:  # such as a KeyboardInterrupt
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        self._seconds.uncertain()
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error:
            pass  # a full disk rolls back by itself

    def _trim_backlog(self) -> None:
        """Bounds what waits in memory: old states of the same thing first, then the oldest rows."""
        for table, keys in _STATES.items():
            newest = {row[:keys]: row for row in self._pending.get(table, ())}
            if newest:
                self._pending[table] = list(newest.values())
        for table in sorted(self._pending, key=lambda name: name in _PRECIOUS):
            over = sum(map(len, self._pending.values())) - MAX_BACKLOG_ROWS
            if over <= 0:
                return
            waiting = self._pending[table]
            gone = min(len(waiting), over + MAX_BACKLOG_ROWS // 10)
            del waiting[:gone]
            if table == "step":
                self._seconds.keep(waiting)
            self.dropped_rows += gone
            self._unreported_rows += gone

    def _log_has_room(self, now_ns: int) -> bool:
        try:
            size = self._path.with_name(self._path.name + "-wal").stat().st_size
        except OSError:
            return True
        if size <= WAL_SOFT_BYTES:
            return True
        try:
            _, frames, done = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error:
            return True  # the commit itself will tell
        if frames == done:
            return True
        last_ns = self._last_commit_ns
        if size <= WAL_HARD_BYTES and (last_ns is None or now_ns - last_ns >= _SPARSE_NS):
            return True
        self._trim_backlog()
        return False

    def _load_codecs(self) -> Codecs:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone()
        return Codecs.from_json(row[0])

    def _load_floors(self) -> tuple[dict[int, int], dict[int, int]]:
        """The oldest second of each rank with steps, and the newest with a rollup."""
        floors, newest = {}, {}
        for rank in retention.ranks(self._db, "step_rollup"):
            (oldest_ns,) = self._db.execute(
                "SELECT min(t1_ns) FROM step WHERE rank = ?", (rank,)
            ).fetchone()
            (newest[rank],) = self._db.execute(
                "SELECT max(sec) FROM step_rollup WHERE rank = ?", (rank,)
            ).fetchone()
            floors[rank] = newest[rank] + 1 if oldest_ns is None else second(oldest_ns)
        return floors, newest
