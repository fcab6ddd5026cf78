"""A run as one small file that can be shown anywhere: ``demo --replay`` and bug reports.

A recording is a zip of a few known members. Private parts are masked on the way out; on the way in
everything is bounded and nothing but the known members is ever written.
"""

from __future__ import annotations

import dataclasses
import os
import pwd
import shutil
import sqlite3
import stat
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import msgspec

from gputop_train import __version__
from gputop_train.store import retention
from gputop_train.store.codec import Codecs
from gputop_train.store.errors import RecordingError, StoreError
from gputop_train.store.masking import Mask
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import SECOND_NS

RECORDING_VERSION = 1
#: Detail a recording keeps by default; all of a demo, the newest of a longer run.
DETAIL_NS = 120 * SECOND_NS
DETAIL_STEPS = 5_000
LOG_BYTES = 256 << 10

#: Largest archive that is opened, and largest size of each member once unpacked.
MAX_ARCHIVE_BYTES = 128 << 20
_MEMBERS = {
    "recording.json": 64 << 10,
    "run.json": 4 << 20,
    "exit.json": 64 << 10,
    "report.json": 16 << 20,
    "output.log": 64 << 20,
    "run.sqlite": 512 << 20,
}
_REQUIRED = {"recording.json", "run.json", "run.sqlite"}
_MAX_DIRECTORY_BYTES = 16 << 10
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


def export_recording(
    run_dir: Path,
    target: Path,
    *,
    store: Path | None = None,
    detail_ns: int = DETAIL_NS,
    detail_steps: int = DETAIL_STEPS,
    log_bytes: int = LOG_BYTES,
) -> Path:
    """Writes a run, live or finished, as one file.

    Args:
        run_dir: The run's directory.
        target: The file to make; it must not exist.
        store: The run's store, if it is neither in the directory nor where ``run.json`` says.
        detail_ns: How much of the newest time is kept in full; rollups are kept of all.
        detail_steps: At most so many steps a rank are kept one by one.
        log_bytes: How much of the end of the output is kept; 0 leaves it out.

    Returns:
        ``target``.

    Raises:
        RecordingError: If the run cannot be read or the file cannot be written.
    """
    if target.exists() or target.is_symlink():
        raise RecordingError(f"{target} exists already. Choose another name or remove it first.")
    run = _read_object(run_dir / "run.json")
    if run is None:
        raise RecordingError(
            f"{run_dir} is not a run. `gputop-train runs` lists the runs there are."
        )
    mask = Mask(run, str(run_dir.absolute()), _login(run.get("uid")))
    try:
        with tempfile.TemporaryDirectory(prefix="gputop-train-") as scratch:
            parts = Path(scratch)
            _compact(
                store or run_dir / "run.sqlite", parts / "run.sqlite", mask, detail_ns, detail_steps
            )
            _write_object(parts / "run.json", _anonymous(mask.value(run)))
            for name in ("exit.json", "report.json"):
                body = _read_object(run_dir / name)
                if body is not None:
                    _write_object(parts / name, mask.value(body))
            tail = mask.text(_tail(run_dir / "output.log", log_bytes)) if log_bytes else ""
            (parts / "output.log").write_text(tail, encoding="utf-8")
            _write_object(
                parts / "recording.json", {"recording": RECORDING_VERSION, "version": __version__}
            )
            _pack(parts, target)
    except OSError as error:
        raise RecordingError(
            f"The recording {target} cannot be written ({error.strerror}). "
            "Check the directory and the free space."
        ) from error
    return target


def import_recording(archive: Path, run_dir: Path) -> Path:
    """Unpacks a recording into a run directory that ``replay`` and ``report`` can read.

    Args:
        archive: The recording; may come from anyone.
        run_dir: The directory to make, private; it must not exist.

    Returns:
        ``run_dir``.

    Raises:
        RecordingError: If the archive is not a recording, is damaged or too large, or holds
            anything a recording does not.
    """
    if run_dir.exists() or run_dir.is_symlink():
        raise RecordingError(f"{run_dir} exists already. Choose another place or remove it first.")
    scratch: Path | None = None
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = Path(tempfile.mkdtemp(prefix=f".{run_dir.name}-", dir=run_dir.parent))
        _unpack(archive, scratch)
        _check(scratch, archive)
        scratch.rename(run_dir)
    except _BROKEN as error:
        raise _refusal(archive, f"is damaged ({error})") from error
    except StoreError as error:
        if isinstance(error, RecordingError):
            raise
        raise _refusal(archive, "holds a store that cannot be read") from error
    except OSError as error:
        raise RecordingError(
            f"The recording {archive} cannot be opened ({error.strerror or error}). "
            "Check the file, the target directory and the free space."
        ) from error
    finally:
        if scratch is not None and scratch.exists():
            shutil.rmtree(scratch, ignore_errors=True)
    return run_dir


def _compact(source: Path, target: Path, mask: Mask, detail_ns: int, detail_steps: int) -> None:
    """Copies a store with its newest detail only, masked, as one small plain file."""
    with RunReader(source) as reader:
        db = sqlite3.connect(target, isolation_level=None)
        try:
            reader.copy_to(db)
            span, codecs = reader.span(), reader.codecs
            db.execute("PRAGMA journal_mode = DELETE").fetchall()
            db.execute("BEGIN")
            if span is not None:
                for rank in retention.ranks(db, "step"):
                    retention.prune_steps(db, rank, detail_ns, detail_steps)
                retention.prune_series(db, codecs, span[1], detail_ns)
            _mask_store(db, mask, codecs)
            db.execute("COMMIT")
            db.execute("VACUUM")
        except sqlite3.Error as error:
            raise RecordingError(
                f"The store {source} cannot be copied ({error}). Check the free space in /tmp."
            ) from error
        finally:
            db.close()


def _mask_store(db: sqlite3.Connection, mask: Mask, codecs: Codecs) -> None:
    for number, uuid in db.execute("SELECT id, uuid FROM device ORDER BY id").fetchall():
        db.execute("UPDATE device SET uuid = ? WHERE id = ?", (mask.text(uuid), number))
    keys = {"meta": "key", "probe_state": "rank", "finding": "t_ns", "note": "id"}
    for table, key in keys.items():
        column = "value" if table == "meta" else "body"
        for row_id, text in db.execute(f"SELECT {key}, {column} FROM {table}").fetchall():
            body = msgspec.json.decode(text)
            if (table, row_id) == ("meta", "run"):
                body = _anonymous(body)
            masked = msgspec.json.encode(mask.value(body)).decode()
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (masked, row_id))
    for table in ("site", "loader"):
        for rank, number, body in db.execute(f"SELECT rank, id, body FROM {table}").fetchall():
            masked_body = msgspec.msgpack.encode(mask.value(msgspec.msgpack.decode(body)))
            db.execute(
                f"UPDATE {table} SET body = ? WHERE rank = ? AND id = ?",
                (masked_body, rank, number),
            )
    # What other people ran on the card is theirs: how many there were is all that is passed on.
    for dev, t_ns, body in db.execute("SELECT dev, t_ns, body FROM gpu").fetchall():
        reading = codecs.gpu.decode(body, t_ns=t_ns, uuid="")
        if reading.foreign:
            unnamed = codecs.gpu.encode(dataclasses.replace(reading, foreign=()))
            where = "WHERE dev = ? AND t_ns = ?"
            db.execute(f"UPDATE gpu SET body = ? {where}", (unnamed, dev, t_ns))


def _anonymous(run: dict[str, Any]) -> dict[str, Any]:
    """``run.json`` without what only means something on the machine it came from."""
    gone = dict.fromkeys(
        ("shim", "child", "ring_dir", "control_socket", "store", "boot_id", "uid"), None
    )
    return {**run, **gone, "host": "host", "recording": RECORDING_VERSION}


def _login(uid: object) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name if isinstance(uid, int) else None
    except (KeyError, OverflowError):
        return None


def _tail(path: Path, size: int) -> str:
    """The end of a file, from the beginning of a line."""
    try:
        if not path.is_file():  # opening a FIFO would wait for ever
            return ""
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, end - size))
            data = file.read(size)
    except FileNotFoundError:
        return ""
    return (data.partition(b"\n")[2] if begin else data).decode("utf-8", "replace")


def _pack(parts: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in _MEMBERS:
                if (parts / name).exists():
                    entry = zipfile.ZipInfo(name)  # a fixed date: the same run, the same file
                    entry.external_attr = (stat.S_IFREG | 0o600) << 16
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, (parts / name).read_bytes())
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def _unpack(archive: Path, target: Path) -> None:
    # Without O_NONBLOCK a named pipe of that name would hold us for ever.
    fd = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _refusal(archive, "is not a regular file")
        _check_frame(file, archive)
        with zipfile.ZipFile(file) as packed:
            entries = packed.infolist()
            names = [entry.filename for entry in entries]
            if len(set(names)) != len(names) or not _REQUIRED <= set(names) <= set(_MEMBERS):
                raise _refusal(archive, "does not hold the parts of a recording and only those")
            for entry in entries:
                _unpack_member(packed, entry, target, archive)


def _check_frame(file: Any, archive: Path) -> None:
    """Looks at the end of the file before zipfile does, which would read any number of entries."""
    size = file.seek(0, os.SEEK_END)
    if size > MAX_ARCHIVE_BYTES:
        raise _refusal(archive, f"is larger than {MAX_ARCHIVE_BYTES >> 20} MB")
    file.seek(max(0, size - 42))
    end = file.read(42)
    if len(end) < 42 or end[20:24] != b"PK\x05\x06" or end[:4] == b"PK\x06\x07":
        raise _refusal(archive, "is not a zip file as gputop-train writes them")
    (directory_bytes,) = struct.unpack("<L", end[32:36])
    if directory_bytes > _MAX_DIRECTORY_BYTES:
        raise _refusal(archive, "lists too many parts")
    file.seek(0)


def _unpack_member(
    packed: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, archive: Path
) -> None:
    mode = entry.external_attr >> 16
    if entry.flag_bits & 1 or (stat.S_IFMT(mode) not in (0, stat.S_IFREG)):
        raise _refusal(archive, "holds something that is not a plain file")
    left = _MEMBERS[entry.filename]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        packed.open(entry) as source,
        os.fdopen(os.open(target / entry.filename, flags, 0o600), "wb") as sink,
    ):
        while chunk := source.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                raise _refusal(archive, f"unpacks to a {entry.filename} that is too large")
            sink.write(chunk)


def _check(run_dir: Path, archive: Path) -> None:
    about = _read_object(run_dir / "recording.json") or {}
    version = about.get("recording")
    if isinstance(version, int) and version > RECORDING_VERSION:
        raise RecordingError(
            f"{archive} was made by a newer gputop-train ({version}). Upgrade to replay it."
        )
    run = _read_object(run_dir / "run.json")
    if version != RECORDING_VERSION or run is None:
        raise _refusal(archive, "is not a recording of gputop-train")
    # Whatever it says, no process, socket or file of this machine belongs to a recording.
    _write_object(run_dir / "run.json", _anonymous(run))
    with RunReader(run_dir) as reader:
        reader.span()
    for suffix in ("-wal", "-shm"):
        (run_dir / f"run.sqlite{suffix}").unlink(missing_ok=True)


def _refusal(archive: Path, why: str) -> RecordingError:
    return RecordingError(f"{archive} {why}. Ask for it again, or record the run anew.")


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            data = file.read(_MEMBERS[path.name] + 1)
        if len(data) > _MEMBERS[path.name]:
            return None
        return msgspec.json.decode(data, type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return None


def _write_object(path: Path, body: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n")
