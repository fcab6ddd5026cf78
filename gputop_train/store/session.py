"""A guarded read-only connection: whatever a file holds, a call ends soon with data or a reason."""

from __future__ import annotations

import re
import resource
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gputop_train.store import files, retention
from gputop_train.store.codec import Codecs
from gputop_train.store.errors import StoreBusy, StoreError

T = TypeVar("T")

#: No call takes longer; a store made to hang its readers ends there.
TIME_LIMIT_S = 10.0
#: What one call may add to the process's memory, beside a multiple of the file's size: a step of 60
#: bytes becomes 700 of objects. Many values of a file may share their pages, so that its size alone
#: bounds nothing.
MEMORY_LIMIT_KIB, MEMORY_PER_SIZE = 1 << 20, 8
#: Rows one query may give, a few times what the largest store in bounds holds.
MAX_ROWS = 1_000_000
#: Largest store copied aside to be read (see ``_open_aside``).
MAX_COPY_BYTES = 2 << 30
#: What a lock held for a moment (a writer that opens or closes the store) costs a reader.
_BUSY_TRIES, _BUSY_PAUSE_S = 10, 0.05
#: Between two looks at clock and memory; a row takes a few dozen, and each may hold a large value.
_OPS_BETWEEN_CHECKS = 1_000


class Session:
    """One connection, its lock, its time limit and its translation of errors.

    Raises:
        StoreError: If the file cannot be read, with what happened and what to do.
    """

    def __init__(self, path: Path, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.path = path
        self._memory = _memory()
        self._time_limit_s = time_limit_s
        self._deadline = 0.0
        self._most_kib = 0
        self._lock = threading.RLock()
        self._depth = 0
        self._aside: tempfile.TemporaryDirectory[str] | None = None
        if files.check_readable(path) == 0:
            raise StoreError(f"The store {path} is still empty. Try again in a moment.")
        self._db = self._open()
        try:
            self.codecs = self.guard(self._check_content)
        except BaseException:
            self.close()
            raise

    def guard(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in one read transaction, under the time limit.

        Raises:
            StoreError: If the store is damaged, busy, or takes too long.
        """
        with self._lock:
            if self._depth:
                return self._run(work)
            return self._attempt(work, _BUSY_TRIES)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside sees one state of the store. Keep it short."""
        with self._lock:
            if self._depth == 0:
                self._run(lambda: self._db.execute("BEGIN"))
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")

    def rows(self, query: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, at most ``MAX_ROWS``. Only inside ``guard``."""
        if self._late():  # many short queries never reach the handler below
            raise sqlite3.OperationalError("interrupted")
        return self._db.execute(f"{query} LIMIT {MAX_ROWS}", args).fetchall()

    def ranks(self, table: str) -> list[int]:
        """The ranks with rows in a table. Only inside ``guard``."""
        return retention.ranks(self._db, table)

    def backup(self, target: sqlite3.Connection) -> None:
        """Copies the whole store into another database."""
        with self._lock:
            self._run(lambda: self._db.backup(target))

    def close(self) -> None:
        """Closes the connection. Safe to call again."""
        with self._lock, suppress(sqlite3.Error):
            self._db.close()
        if self._aside is not None:
            self._aside.cleanup()

    def _attempt(self, work: Callable[[], T], tries: int) -> T:
        try:
            with self.snapshot():
                return self._run(work)
        except _Busy:
            if tries == 1:
                raise
        time.sleep(_BUSY_PAUSE_S)
        return self._attempt(work, tries - 1)

    def _run(self, work: Callable[[], T]) -> T:
        self._set_limits()
        try:
            return work()
        except files.DAMAGE as error:
            raise _explain(error, self.path) from error

    def _set_limits(self) -> None:
        self._deadline = time.monotonic() + self._time_limit_s
        honest_kib = MEMORY_PER_SIZE * (_size(self.path) >> 10)
        self._most_kib = self._memory() + MEMORY_LIMIT_KIB + honest_kib

    def _late(self) -> int:
        return int(time.monotonic() > self._deadline or self._memory() > self._most_kib)

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect(self.path, "mode=ro")
        except sqlite3.OperationalError as error:
            # In a directory that cannot be written, SQLite cannot set up what it needs to share
            # the store with a writer.
            if "unable to open" not in str(error) and "readonly" not in str(error):
                raise _explain(error, self.path) from error
        except files.DAMAGE as error:
            raise _explain(error, self.path) from error
        try:
            return self._open_aside()
        except files.DAMAGE as error:
            raise _explain(error, self.path) from error
        except OSError as error:
            raise StoreError(
                f"The store {self.path} cannot be read ({error.strerror}). "
                "Check its permissions, or copy the run to a directory of your own."
            ) from error

    def _open_aside(self) -> sqlite3.Connection:
        log = self.path.with_name(self.path.name + "-wal")
        if not log.exists() or log.stat().st_size == 0:
            return self._connect(self.path, "mode=ro&immutable=1")
        # Newest data is still in the log, which SQLite leaves out of an immutable database.
        if self.path.stat().st_size + log.stat().st_size > MAX_COPY_BYTES:
            raise StoreError(
                f"The store {self.path} is too large to be copied out of a read-only directory. "
                "Copy the run to a directory of your own and read it there."
            )
        self._aside = tempfile.TemporaryDirectory(prefix="gputop-train-")
        copy = Path(self._aside.name) / self.path.name
        shutil.copyfile(log, copy.with_name(log.name))
        shutil.copyfile(self.path, copy)
        return self._connect(copy, "mode=ro")

    def _connect(self, path: Path, options: str) -> sqlite3.Connection:
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}",
            uri=True,
            timeout=0.2,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._set_limits()
            db.set_progress_handler(self._late, _OPS_BETWEEN_CHECKS)
            files.harden(db)
            for pragma in ("cell_size_check = ON", "query_only = ON"):
                db.execute(f"PRAGMA {pragma}").fetchall()
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            db.close()
            raise
        return db

    def _check_content(self) -> Codecs:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != files.APPLICATION_ID:
            raise StoreError(
                f"{self.path} is not a store of gputop-train. Give the directory of a run."
            )
        if version > files.SCHEMA_VERSION:
            raise StoreError(
                f"The store {self.path} was written by a newer gputop-train (schema {version}). "
                "Upgrade gputop-train to read it."
            )
        files.refuse_foreign_schema(self._db)
        kept = {name for (name,) in self.rows("SELECT name FROM sqlite_master")}
        for table in files.schema_tables():
            if table not in kept:
                raise ValueError(f"table {table} is missing")
        found = self.rows("SELECT value FROM meta WHERE key = 'layout'")
        if not found:
            raise StoreError(f"The store {self.path} is still empty. Try again in a moment.")
        return Codecs.from_json(found[0][0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed while it is read
        return 0


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _held_kib() -> int:
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return 0  # no limit rather than no store
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.M) or ("0",)
    return int(kib)


def _memory() -> Callable[[], int]:
    """What tells memory taken: the peak, which is cheap, unless it is another program's.

    A process that was started by a larger one has that one's peak until its own is higher.
    """
    return _held_kib if _peak_kib() > 1.5 * _held_kib() else _peak_kib


class _Busy(StoreBusy):
    """Locked for the moment."""


def _explain(error: BaseException, path: Path) -> StoreError:
    text = files.reason(error)
    if "locked" in text or "busy" in text:
        return _Busy(f"The store {path} is busy. Try again in a moment.")
    if "interrupted" in text:
        return StoreError(
            f"Reading the store {path} took too long or too much memory, so it was given up. "
            "Read a shorter span, or copy the run to a local disk."
        )
    if "not a database" in text:
        return StoreError(f"{path} is not a store of gputop-train. Give the directory of a run.")
    if "unable to open" in text:
        return StoreError(
            f"The store {path} cannot be opened. "
            "Check its permissions, or copy the run to a directory of your own."
        )
    return StoreError(
        f"The store {path} is damaged ({text}). "
        "The run's output.log and report.json beside it are still good to read."
    )
