"""Try, inside a leg's world, what scripts do with files; say what does not work there.

Run as a file by ``python -I -S`` in the script's directory, through ``enter.py``: what it makes
goes where everything of that world goes. A kernel may grant the overlay and still refuse to copy a
file into it, for example one that belongs to a group which the user namespace does not know.
"""

from __future__ import annotations

import errno
import os
import sys

#: Entries of the directory that are tried, and the largest file that is copied for it.
MAX_TRIED = 50
MAX_BYTES = 1 << 20


def main(name: str) -> str | None:
    """Return what does not work, ``None`` when all of it does."""
    if not os.access(".", os.W_OK):
        return None
    what = "a new file"
    try:
        _write(name)
        what = "replacing a file"
        _write(f"{name}.new")
        os.replace(f"{name}.new", name)  # noqa: PTH105
        os.unlink(name)  # noqa: PTH108
        what = "removing a directory"
        for _ in range(2):
            os.mkdir(name)  # noqa: PTH102
            _write(f"{name}/file")
            os.unlink(f"{name}/file")  # noqa: PTH108
            os.rmdir(name)  # noqa: PTH106
        for entry in sorted(os.scandir("."), key=lambda entry: entry.name)[:MAX_TRIED]:
            what = f"a change to {entry.name}"
            _try_to_change(entry, name)
    except OSError as error:
        return f"{what} fails in an overlay ({error.strerror})"
    return None


def _try_to_change(entry: os.DirEntry[str], name: str) -> None:
    try:
        _change(entry, name)
    except OSError as error:
        # Anything else (read-only, gone, a device) a script would meet without an overlay as well.
        if error.errno in (errno.EOVERFLOW, errno.EIO, errno.EINVAL, errno.EXDEV):
            raise


def _change(entry: os.DirEntry[str], name: str) -> None:
    if entry.is_symlink() or os.path.ismount(entry.path) or not os.access(entry.path, os.W_OK):
        return
    if entry.is_dir():
        if os.access(entry.path, os.X_OK):
            _write(f"{entry.path}/{name}")
            os.unlink(f"{entry.path}/{name}")  # noqa: PTH108
    elif entry.is_file() and entry.stat().st_size <= MAX_BYTES:
        os.close(os.open(entry.path, os.O_RDWR))


def _write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


if __name__ == "__main__":
    problem = main(sys.argv[1])
    if problem is not None:
        sys.stdout.write(problem)
    sys.stdout.flush()
    os._exit(0 if problem is None else 1)
