"""Opening a store's file without being led astray: no link followed, no stranger's file trusted."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import sys
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from gputop_train.store.codec import Codecs
from gputop_train.store.errors import StoreBusy, StoreError, StoreFull

#: Marks the file as ours, "GPTT".
APPLICATION_ID = int.from_bytes(b"GPTT", "big")
SCHEMA_VERSION = 1
#: What stays of the write-ahead log once it could be reused.
LOG_KEPT_BYTES = 16 << 20
#: Largest value that is read or written: ``run.json`` of a command line of two megabytes, escaped.
LARGEST_VALUE_BYTES = 16 << 20
_MOST_OBJECTS = 1000
#: Everything that hostile or damaged content can make SQLite, msgspec or Python say.
DAMAGE = (sqlite3.Error, ValueError, TypeError, KeyError, OverflowError, MemoryError, RuntimeError)


def prepare(path: Path) -> tuple[int, int]:
    """Creates the file if need be, private whatever the umask, and checks whose it is.

    A file that exists is looked at through ``O_PATH``: closing an ordinary descriptor would drop
    the locks SQLite may hold on it elsewhere in this process, as POSIX ties them to the process.

    Returns:
        The file's device and inode, for ``same_file``.

    Raises:
        StoreError: If there is a link, another person's file or something not a file.
    """
    try:
        fd = _create_or_look(path)
    except OSError as error:
        raise StoreError(
            f"The store {path} cannot be opened for writing ({error.strerror}). "
            "Check the directory's owner and free space, or choose another --run-root."
        ) from error
    try:
        status = os.fstat(fd)
        _check_kind(path, status)
        if status.st_uid != os.geteuid():
            raise StoreError(
                f"The store {path} belongs to another user (uid {status.st_uid}). "
                "Choose another --run-root, or run as the user who started the training."
            )
        if status.st_mode & 0o777 != 0o600:
            Path(f"/proc/self/fd/{fd}").chmod(0o600)
        return status.st_dev, status.st_ino
    finally:
        os.close(fd)


def _create_or_look(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
    except FileExistsError:
        return os.open(path, os.O_PATH | flags)


def schema_tables() -> tuple[str, ...]:
    """Names of the tables a store has."""
    return tuple(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", _schema()))


@cache
def _schema() -> str:
    return resources.files("gputop_train.store").joinpath("schema.sql").read_text("utf-8")


@cache
def _known() -> dict[tuple[str, str], str]:
    """SQL of every object a store has, by kind and name."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_schema())
        return {(kind, name): sql for kind, name, sql in _objects(db)}


def _objects(db: sqlite3.Connection) -> Iterator[tuple[str, str, str]]:
    query = f"SELECT type, name, sql FROM sqlite_master LIMIT {_MOST_OBJECTS}"
    for kind, name, sql in db.execute(query).fetchall():
        yield str(kind), str(name), " ".join(re.sub(r"--[^\n]*", "", str(sql)).split())


def refuse_foreign_schema(db: sqlite3.Connection) -> None:
    """Refuse a store that holds more than data.

    A trigger, a view, a virtual table, an index on an expression or a column that is computed runs
    what its author wished as soon as a row is read or written.

    Raises:
        ValueError: It holds such a thing; the message names it.
    """
    for kind, name, sql in _objects(db):
        if _known().get((kind, name)) != sql:
            raise ValueError(f"{kind} {name} is not one of ours")


def same_file(path: Path, identity: tuple[int, int]) -> bool:
    """Whether the path still names the file that was checked."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


def check_readable(path: Path) -> int:
    """Checks a store before it is read, and returns its size.

    The file is not opened here, see ``prepare``. A reader trusts its own files and root's; root
    itself may read anyone's.

    Raises:
        StoreError: If there is none, or it is a link, another person's, or not a file.
    """
    try:
        status = os.lstat(path)
    except OSError as error:
        raise StoreError(
            f"There is no store at {path} ({error.strerror}). "
            "`gputop-train runs` lists the runs there are."
        ) from error
    _check_kind(path, status)
    if status.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        raise StoreError(
            f"The store {path} belongs to another user (uid {status.st_uid}). "
            "Copy the run to a directory of your own and read it there."
        )
    return status.st_size


def _check_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise StoreError(
            f"{path} is a symbolic link, and a store is never opened through one. "
            "Give the path of the run itself."
        )
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file. Give the path of a run's directory.")


def open_writer(path: Path) -> sqlite3.Connection:
    """Opens or creates a store for its one writer.

    Raises:
        StoreError: If the file is a link, another user's, not a store, or of a newer version.
    """
    identity = prepare(path)
    try:
        db = sqlite3.connect(path, timeout=2.0, isolation_level=None)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        harden(db)
        _check_version(db, path)
        refuse_foreign_schema(db)
        # Must come before the first table; lets a store give back room without a full rewrite.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA secure_delete = OFF").fetchall()
        # Before the log is turned on, so that the main file alone is a store already.
        db.executescript(f"BEGIN IMMEDIATE;\n{_schema()}")
        db.execute("INSERT OR IGNORE INTO meta VALUES ('layout', ?)", (Codecs().to_json(),))
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        # A power cut may cost the last commits, never the store; no fsync on the commit path.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 1000")
        db.execute(f"PRAGMA journal_size_limit = {LOG_KEPT_BYTES}").fetchall()
    except DAMAGE as error:
        db.close()
        raise explain(error, path) from error
    except BaseException:
        db.close()
        raise
    if not same_file(path, identity):
        db.close()
        raise StoreError(
            f"The store {path} was exchanged while it was being opened. "
            "Choose a --run-root that only you can write to."
        )
    return db


def harden(db: sqlite3.Connection) -> None:
    """Let a store's content call no function and hold no huge value."""
    db.execute("PRAGMA trusted_schema = OFF").fetchall()
    if sys.version_info >= (3, 11):
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_VALUE_BYTES)


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION_ID:
        raise StoreError(
            f"{path} is a database of something else. Move it aside or choose another --run-root."
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The store {path} was written by a newer gputop-train (schema {version}). "
            "Upgrade gputop-train to go on with this run."
        )


def reason(error: BaseException) -> str:
    """The error in a few printable words: a hostile store chooses some of them."""
    text = str(error) or type(error).__name__
    return "".join(sign if sign.isprintable() else "?" for sign in text[:120])


def explain(error: BaseException, path: Path) -> StoreError:
    """What to tell a person about a failed write."""
    text = reason(error)
    if "full" in text or "disk I/O" in text:
        return StoreFull(
            f"The disk takes no more of the store {path} ({text}). "
            "Free some room: recording goes on by itself, and training is not touched."
        )
    if "locked" in text or "busy" in text:
        return StoreBusy(
            f"Another program holds the store {path} locked. Close it; recording goes on by itself."
        )
    return StoreError(
        f"The store {path} cannot be written ({text}). "
        "Check the file and its directory, or move it aside so that a new one is made."
    )
