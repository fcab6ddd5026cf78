"""Backward, below the public API: ``.backward()`` and ``autograd.grad`` keep their identity."""

from __future__ import annotations

from typing import Any

from .. import words as W
from ..state import S, append, ident, now
from . import dress, leave_no_frame

_BEGIN, _END = W.BACKWARD * 2, W.BACKWARD * 2 + 1


def place(torch: Any) -> None:
    """Hook the autograd engine's entry (torch >= 2.3), else ``torch.autograd.backward``."""
    from .. import arming

    autograd = torch.autograd
    name = "_engine_run_backward" if hasattr(autograd, "_engine_run_backward") else "backward"
    original = getattr(autograd, name)
    state = S

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        watched = True
        if ident() != state.thread_id or not state.armed:
            watched = arming.training_seen("backward")
        elif not state.loop_known:
            arming.note_loop("backward")
        gpu = state.gpu if watched else None
        if watched:
            append(now() << 6 | _BEGIN)
            state.optimizer_depth = 0  # a step that raised never told of its end
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
                append(now() << 6 | _END)
            if gpu is not None:
                gpu.mark(_END)

    setattr(autograd, name, dress(run_backward, original))
    S.hooks["backward"] = True
