"""Checkpoint writers: torch.save, safetensors, distributed checkpoints, Accelerate's save_state."""

from __future__ import annotations

import os
from typing import Any

from .. import sites
from .. import words as W
from ..state import S, append, ident, now
from . import dress, leave_no_frame

_BEGIN, _END = W.SAVE * 2, W.SAVE * 2 + 1
_depth = [0]


def place(torch: Any) -> None:
    """Hook torch.save (both names it is known by)."""
    wrapper = wrap(torch.serialization, "save", "torch.save(...)", file_argument=1)
    if wrapper is not None:
        torch.save = wrapper
        S.hooks["save"] = True


def wrap(owner: Any, name: str, call: str, file_argument: int | None = None) -> Any:
    """Wrap one writer; nested writers count as one save."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    state, depth = S, _depth

    def save(*args: Any, **kwargs: Any) -> Any:
        watched = ident() == state.thread_id and not depth[0]
        gpu = state.gpu if watched else None
        start = 0
        if watched:
            depth[0] = 1
            start = now()
            append(start << 6 | _BEGIN)
        if gpu is not None and gpu.on:
            gpu.mark(_BEGIN)
        else:
            gpu = None
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if watched:
                end = now()
                depth[0] = 0
                append(end << 6 | _END)
                if gpu is not None:
                    gpu.mark(_END)
                _count(args, kwargs, start, end, file_argument)

    wrapper = dress(save, original)
    setattr(owner, name, wrapper)
    return wrapper


def _count(args: Any, kwargs: Any, start: int, end: int, file_argument: int | None) -> None:
    try:
        size = 0
        if file_argument is not None:
            target = kwargs.get("f", args[file_argument] if len(args) > file_argument else None)
            if isinstance(target, (str, os.PathLike)):
                size = os.stat(target).st_size
            elif hasattr(target, "tell"):
                size = int(target.tell())
        site = sites.caller("save", depth=3)
        if site:
            sites.count(site, end - start, size)
        append((min(size, 1 << 41) << 16 | site) << 6 | W.ARG_SITE)
    except Exception:
        pass
