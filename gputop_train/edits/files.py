"""The user's files: read with care, changed only by ``gputop-train apply``, never without a backup.

A file is left alone when it is not plainly what the run saw: changed since, a link, somebody
else's, no UTF-8. Links are not followed: who edits through one may not know what else reads the
file. Links among the directories above it are fine (home directories often are).
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import io
import os
import secrets
import shutil
import stat
import tokenize
from dataclasses import dataclass
from pathlib import Path

from gputop_train.edits.errors import EditError

#: Larger sources are generated, and take seconds to parse.
MAX_BYTES = 1 << 20
BACKUP = ".gputop-train.bak"
_FOREIGN = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Original:
    """A file as it was read.

    Attributes:
        path: Absolute.
        text: Decoded, line ends as they are, without a byte-order mark.
        mark: Whether there was one.
        digest: SHA-256 of the bytes.
        mtime_ns: When it was last changed.
    """

    path: Path
    text: str
    mark: bool
    digest: str
    mtime_ns: int

    def encode(self, text: str) -> bytes:
        """Another text as the bytes of this file."""
        return (codecs.BOM_UTF8 if self.mark else b"") + text.encode("utf-8")

    def digest_of(self, text: str) -> str:
        """What ``digest`` becomes with another text."""
        return hashlib.sha256(self.encode(text)).hexdigest()


def locate(file: str, cwd: str | None) -> Path:
    """A recorded path as an absolute one.

    Raises:
        EditError: It names no file: a cell, a string, or a relative path of an unknown place.
    """
    if not file or file.startswith("<"):
        raise EditError(f"{file or 'The code'} is not a file that could be changed.")
    if any(not c.isprintable() or c in '"\\' for c in file):
        raise EditError("Its name holds characters that a diff cannot carry.")
    path = Path(file)
    if not path.is_absolute():
        if cwd is None:
            raise EditError(f"{file} is recorded without its directory.")
        path = Path(cwd) / path
    return Path(os.path.normpath(path))


def foreign(path: Path) -> bool:
    """Whether a file belongs to an installed package or the standard library."""
    parts = path.parts
    if any(part in _FOREIGN for part in parts):
        return True
    return any(
        part.startswith("python3") and parts[n - 1] in ("lib", "lib64")
        for n, part in enumerate(parts)
    )


def read(path: Path) -> Original:
    """Read a source file.

    Raises:
        EditError: It is not a file of the user's own that can be changed safely.
    """
    if foreign(path):
        raise EditError(f"{path} belongs to an installed package, not to your code.")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise EditError(f"{path} is not on this machine.") from None
    except OSError as failure:
        if path.is_symlink():
            raise EditError(f"{path} is a symbolic link: change what it points at.") from None
        raise EditError(f"{path} cannot be read ({failure.strerror or failure}).") from None
    try:
        info = os.fstat(fd)
        _accept(path, info)
        with open(fd, "rb", closefd=False) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as failure:
        raise EditError(f"{path} cannot be read ({failure.strerror or failure}).") from None
    finally:
        os.close(fd)
    return _decoded(path, content, info.st_mtime_ns)


def _accept(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise EditError(f"{path} is not a regular file.")
    if info.st_nlink > 1:
        raise EditError(
            f"{path.name} has {info.st_nlink} hard links: changing it would split them."
        )
    if info.st_size > MAX_BYTES:
        raise EditError(f"{path.name} is larger than {MAX_BYTES >> 20} MB.")


def _decoded(path: Path, content: bytes, mtime_ns: int) -> Original:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError:
        encoding = "unknown"
    if encoding not in ("utf-8", "utf-8-sig"):
        raise EditError(f"{path.name} is not in UTF-8 (it says {encoding}).")
    mark = content.startswith(codecs.BOM_UTF8)
    try:
        text = content[3 if mark else 0 :].decode("utf-8")
    except UnicodeDecodeError:
        raise EditError(f"{path.name} is not in UTF-8.") from None
    return Original(path, text, mark, hashlib.sha256(content).hexdigest(), mtime_ns)


def write(original: Original, text: str) -> Path:
    """Put another text in a file's place, atomically, and keep the old one beside it.

    Mode, owner, group and extended attributes stay. Nothing is followed or overwritten but the
    file itself, and that only while it still is what was read.

    Returns:
        The backup.

    Raises:
        EditError: It could not be done; the file is as it was.
    """
    path = original.path
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    backup: Path | None = None
    try:
        before = os.lstat(path)
        if not os.access(path, os.W_OK):
            raise EditError(f"{path} may not be written by this user.")
        _write_new(temporary, original.encode(text))
        _dress(temporary, path, before)
        os.utime(temporary)
        backup = _keep(original, before)
        if read(path).digest != original.digest:
            raise EditError(f"{path.name} was changed just now: look at the diff again.")
        os.replace(temporary, path)  # noqa: PTH105 - the same call as everywhere a swap matters
        _sync(path.parent)
    except OSError as failure:
        _discard(backup)
        why = failure.strerror or failure
        raise EditError(f"{path} could not be written ({why}); it is as it was.") from None
    except EditError:
        _discard(backup)
        raise
    finally:
        _discard(temporary)  # also where the person breaks it off; a backup then stays
    return backup


def _dress(made: Path, path: Path, before: os.stat_result) -> None:
    """Give a new file the mode, times, attributes and owner of ``path``."""
    shutil.copystat(path, made, follow_symlinks=False)
    info = os.lstat(made)
    if (info.st_uid, info.st_gid) != (before.st_uid, before.st_gid):
        os.chown(made, before.st_uid, before.st_gid)


def _keep(original: Original, before: os.stat_result) -> Path:
    """The old content beside the file, under the first name that is free."""
    path = original.path
    for number in range(1000):
        name = path.name + BACKUP + (f".{number}" if number else "")
        backup = path.with_name(name)
        try:
            _write_new(backup, original.encode(original.text))
        except FileExistsError:
            continue
        try:
            _dress(backup, path, before)
        except OSError:
            _discard(backup)
            raise
        return backup
    raise EditError(f"There are 1,000 backups of {path.name}: remove some.")


def _write_new(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _discard(*files: Path | None) -> None:
    for file in files:
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink()


def _sync(directory: Path) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
