"""Backward, below the public API: ``.backward()`` and ``autograd.grad`` keep their identity."""

from __future__ import annotations

from typing import Any

from .. import quiet
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
        if not state.detail:
            state.backward_ran = True
            state.optimizer_depth = 0  # a step that raised never told of its end
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
        watched = True
        gpu = None
        try:
            if ident() != state.thread_id or not state.armed:
                watched = arming.training_seen("backward")
            elif not state.loop_known:
                arming.note_loop("backward")
            if watched:
                start = now()
                append(start << 6 | _BEGIN)
                state.backward_ran = True
                state.optimizer_depth = 0
                if state.timing:
                    state.hook_ns += now() - start
                if state.gpu is not None and state.gpu.on:
                    gpu = state.gpu
                    gpu.mark(_BEGIN)
        except Exception as error:
            watched, gpu = False, None
            state.failed("backward", error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            try:
                if watched:
                    end = now()
                    append(end << 6 | _END)
                    if state.timing:
                        state.hook_ns += now() - end
                if gpu is not None:
                    gpu.mark(_END)
            except Exception as error:
                state.failed("backward", error)

    setattr(autograd, name, dress(run_backward, original))
    if name == "_engine_run_backward":
        quiet.add(vars(autograd), name, run_backward, original)
    S.hooks["backward"] = True
