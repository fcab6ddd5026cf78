"""The audit hook: every call of Python's that could change a file passes it before it happens.

https://docs.python.org/3/library/audit_events.html. A call on what the leg made itself goes ahead,
what is new is noted, and anything else that was there before ends the leg. What cannot be judged is
refused.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from typing import Any, Callable

from . import programs
from .notes import Notes

#: Devices, the kernel's own files, and the memory loaders hand their batches over in.
FREE_PLACES = ("/dev", "/proc", "/sys")
_WRITES = os.O_WRONLY | os.O_RDWR
_busy = threading.local()


class Watch:
    """Judges calls by what is on the disk now."""

    def __init__(self, scratch: str, free: tuple[str, ...]) -> None:
        self.notes = Notes(scratch)
        self._free = free

    # -- what may happen -------------------------------------------------------------------------

    def changes(self, call: str, path: Any, *, base: Any = -1, follow: bool = True) -> None:
        """Something that is there would be changed or removed."""
        place = self._place(path, base, follow)
        if place is None:
            return
        try:
            os.lstat(place)
        except OSError:
            return  # the call fails by itself
        if not self.notes.made(place) and not self._within_made(place):
            self.notes.refuse(call, place)

    def makes(self, call: str, path: Any, *, base: Any = -1) -> None:
        """Something would be made where nothing may be: the call fails by itself if there is."""
        place = self._place(path, base, False)
        if place is not None and not os.path.lexists(place):
            self.notes.note_new(place)

    def opens_to_write(self, call: str, path: Any, *, exclusive: bool = False) -> None:
        """A file would be made, or one that is there changed."""
        place = self._place(path, -1, True)
        if place is None:
            return
        try:
            seen = os.lstat(place)
        except OSError:
            if os.path.isdir(os.path.dirname(place)):
                self.notes.note_new(place)
            return
        if exclusive or not stat.S_ISREG(seen.st_mode) or self.notes.made(place):
            return
        if seen.st_size == 0 and place.endswith(".lock"):
            # Hubs and data sets lock their caches by files that stay empty; none can be read
            # without. Their times are set back afterwards.
            self.notes.note_touched(place, seen.st_mtime_ns)
            return
        self.notes.refuse(call, place)

    def _within_made(self, place: str) -> bool:
        """A file the leg put into a directory of its own by means that no hook sees."""
        parent = os.path.dirname(place)
        return parent != place and self.notes.made(parent)

    def _place(self, path: Any, base: Any, follow: bool) -> str | None:
        """The absolute path meant, links on the way resolved; ``None`` where all is free."""
        if isinstance(path, int) and not isinstance(path, bool):
            text = os.readlink("/proc/self/fd/%d" % path)
            if not text.startswith("/") or text.endswith(" (deleted)"):
                return None
        else:
            text = os.fsdecode(os.fspath(path))
            if isinstance(base, int) and base >= 0 and not os.path.isabs(text):
                text = os.path.join(os.readlink("/proc/self/fd/%d" % base), text)
        if follow:
            place = os.path.realpath(text)
        else:
            head, tail = os.path.split(os.path.abspath(text))
            place = os.path.join(os.path.realpath(head), tail)
        free = any(place == p or place.startswith(p + "/") for p in self._free)
        return None if free else place

    # -- the calls -------------------------------------------------------------------------------

    def open(self, path: Any, mode: Any, flags: Any) -> None:
        """``open``, ``io.open``, ``os.open``."""
        number = flags if isinstance(flags, int) else 0
        if not (number & (_WRITES | os.O_TRUNC | os.O_CREAT)):
            return
        if isinstance(path, int) or number & getattr(os, "O_TMPFILE", 0) == os.O_TMPFILE:
            return  # an open descriptor was judged when it was opened; O_TMPFILE has no name
        if not number & (_WRITES | os.O_TRUNC) and os.path.exists(path):
            return
        self.opens_to_write("open", path, exclusive=number & _NEW == _NEW)

    def rename(self, source: Any, target: Any, source_base: Any, target_base: Any) -> None:
        """``os.rename`` and ``os.replace``: one name goes, the other may be taken."""
        self.changes("os.replace", target, base=target_base, follow=False)
        self.changes("os.rename", source, base=source_base, follow=False)
        self.makes("os.rename", target, base=target_base)

    def connect(self, database: Any) -> None:
        """``sqlite3.connect``; SQLite writes beside the file as well."""
        try:
            text = os.fsdecode(os.fspath(database))
        except TypeError:
            return
        if text in ("", ":memory:") or "mode=ro" in text or "mode=memory" in text:
            return
        if "immutable=1" in text:
            return
        text = text[5:].split("?")[0] if text.startswith("file:") else text
        self.opens_to_write("sqlite3.connect", text)
        for more in ("-journal", "-wal", "-shm"):
            self.makes("sqlite3.connect", text + more)

    def program(self, call: str, executable: Any, arguments: Any, env: Any, cwd: Any) -> None:
        """Another program would run: what is not known to leave files alone is refused."""
        outputs = programs.judge(executable, arguments, env)
        if outputs is None:
            self.notes.refuse(call, programs.name_of(executable, arguments), program=True)
            return
        for path in outputs:
            where = os.path.join(os.fsdecode(cwd), path) if cwd else path
            self.opens_to_write(call, where)


_NEW = os.O_CREAT | os.O_EXCL


def handlers(watch: Watch) -> dict[str, Callable[..., None]]:
    """Return what is done for which audit event."""
    changes, makes = watch.changes, watch.makes
    return {
        "open": watch.open,
        "os.remove": lambda p, d: changes("os.remove", p, base=d, follow=False),
        "os.rmdir": lambda p, d: changes("os.rmdir", p, base=d, follow=False),
        "os.rename": watch.rename,
        "os.mkdir": lambda p, m, d: makes("os.mkdir", p, base=d),
        "os.link": lambda s, t, sd, td: makes("os.link", t, base=td),
        "os.symlink": lambda s, t, d: makes("os.symlink", t, base=d),
        "os.truncate": lambda p, n: changes("os.truncate", p),
        "os.chmod": lambda p, m, d: changes("os.chmod", p, base=d),
        "os.lchmod": lambda p, m: changes("os.lchmod", p, follow=False),
        "os.chown": lambda p, u, g, d: changes("os.chown", p, base=d),
        "os.lchown": lambda p, u, g: changes("os.lchown", p, follow=False),
        "os.utime": lambda p, t, n, d: changes("os.utime", p, base=d),
        "os.setxattr": lambda p, *_: changes("os.setxattr", p),
        "os.removexattr": lambda p, *_: changes("os.removexattr", p),
        "shutil.rmtree": lambda p, d=None: changes("shutil.rmtree", p, base=d, follow=False),
        "sqlite3.connect": watch.connect,
        "subprocess.Popen": lambda x, a, c, e: watch.program("subprocess.Popen", x, a, e, c),
        "os.system": lambda c: watch.program("os.system", "/bin/sh", ["sh", "-c", c], None, None),
        "os.exec": lambda x, a, e: watch.program("os.exec", x, a, e, None),
        "os.spawn": lambda m, x, a, e: watch.program("os.spawn", x, a, e, None),
        "os.posix_spawn": lambda x, a, e: watch.program("os.posix_spawn", x, a, e, None),
        "pty.spawn": lambda a: watch.program("pty.spawn", a[0], a, None, None),
    }


_watch: Watch | None = None


def install(scratch: str) -> None:
    """Place the hook; it stays for the life of the process and of its forks."""
    global _watch
    run_dir = os.path.realpath(__file__)
    for _ in range(4):
        run_dir = os.path.dirname(run_dir)
    free = (*FREE_PLACES, os.path.realpath(scratch), run_dir, *_ring_dir())
    _watch = watch = Watch(scratch, free)
    known = handlers(watch)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        handler = known.get(event)
        if handler is None or getattr(_busy, "yes", False):
            return
        _busy.yes = True
        try:
            handler(*args)
        except Exception:
            watch.notes.refuse(event, str(args[0])[:400] if args else "")
        finally:
            _busy.yes = False

    sys.addaudithook(hook)


def before_saving(call: str, path: Any) -> None:
    """For savers that no audit event tells of; a file object has been judged already."""
    if _watch is None or getattr(_busy, "yes", False):
        return
    if isinstance(path, (str, bytes, os.PathLike)):
        _busy.yes = True
        try:
            _watch.opens_to_write(call, path)
        except Exception:
            _watch.notes.refuse(call, str(path)[:400])
        finally:
            _busy.yes = False


def _ring_dir() -> tuple[str, ...]:
    from ..state import load_config

    place = load_config().get("ring_dir")
    return (os.path.realpath(place),) if isinstance(place, str) else ()
