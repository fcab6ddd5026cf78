"""Checkpoint writers: torch.save, safetensors, distributed checkpoints, Accelerate's save_state."""

from __future__ import annotations

import io
import os
import time
from typing import Any

from .. import sites
from .. import words as W
from ..state import S, append, ident, now
from . import dress, leave_no_frame

_BEGIN, _END = W.SAVE * 2, W.SAVE * 2 + 1
#: Files looked at in a directory that was written; a checkpoint in more pieces has no size.
MAX_FILES = 512
#: Clocks of file systems run behind by a tick or two.
_CLOCK_SLACK_S = 2.0
_depth = [0]


def place(torch: Any) -> None:
    """Hook torch.save (both names it is known by)."""
    wrapper = wrap(torch.serialization, "save", target=("f", 1))
    if wrapper is not None:
        torch.save = wrapper
        S.hooks["save"] = True


def wrap(owner: Any, name: str, target: tuple[str, int] | None = None) -> Any:
    """Wrap one writer; nested writers count as one save.

    Args:
        owner: Module or class.
        name: Of the writer in it.
        target: Name and position of the argument that says where it writes to.
    """
    original = getattr(owner, name, None)
    if original is None:
        return None
    state, depth = S, _depth

    def save(*args: Any, **kwargs: Any) -> Any:
        watched = ident() == state.thread_id and not depth[0]
        gpu = None
        start = 0
        if watched:
            depth[0] = 1
            try:
                start = now()
                append(start << 6 | _BEGIN)
                if state.gpu is not None and state.gpu.on:
                    gpu = state.gpu
                    gpu.mark(_BEGIN)
            except Exception as error:
                gpu = None
                state.failed("save", error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if watched:
                depth[0] = 0
                try:
                    end = now()
                    append(end << 6 | _END)
                    if gpu is not None:
                        gpu.mark(_END)
                    _count(args, kwargs, start, end, target)
                except Exception as error:
                    state.failed("save", error)

    wrapper = dress(save, original)
    setattr(owner, name, wrapper)
    return wrapper


def _count(args: Any, kwargs: Any, start: int, end: int, target: tuple[str, int] | None) -> None:
    try:
        size = 0
        if target is not None:
            name, position = target
            where = kwargs.get(name, args[position] if len(args) > position else None)
            size = _size(where, (end - start) / 1e9)
        site = sites.caller("save", depth=3)
        if site:
            sites.count(site, end - start, size)
        append((min(size, 1 << 41) << 16 | site) << 6 | W.ARG_SITE)
    except Exception:
        pass


def _size(where: Any, took_s: float) -> int:
    """Bytes written to a file, a stream of the io module, or a directory; 0 = not known."""
    if isinstance(where, (str, os.PathLike)):
        path = os.fspath(where)
        if os.path.isdir(path):
            return _directory_size(path, time.time() - took_s - _CLOCK_SLACK_S)
        return os.stat(path).st_size
    # Only streams we know: a class of the script may count what is asked of it.
    if type(where).__module__ in ("io", "_io") and isinstance(where, io.IOBase):
        return int(where.tell())
    return 0


def _directory_size(path: str, since_s: float) -> int:
    """Bytes of the files written since then, two levels deep; 0 when there are too many."""
    total = seen = 0
    waiting = [(path, 0)]
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > MAX_FILES:
                    return 0
                if entry.is_dir(follow_symlinks=False):
                    if depth < 2:
                        waiting.append((entry.path, depth + 1))
                else:
                    info = entry.stat(follow_symlinks=False)
                    if info.st_mtime >= since_s:
                        total += info.st_size
    return total
