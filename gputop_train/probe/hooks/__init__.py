"""Hooks on PyTorch, one file per place; one that cannot be placed is named, not fatal."""

from __future__ import annotations

import functools
from typing import Any, Callable

from ..state import S

#: File name of every wrapper's code. The two words make ``warnings`` skip such frames when it
#: counts ``stacklevel``, so a warning still names the script's line and not ours.
WRAPPER_FILE = "<gputop-train importlib _bootstrap>"


def hide_from_dynamo(function: Any) -> Any:
    """Tell torch.compile never to trace this wrapper's frame (a flag on the code object)."""
    try:
        S.torch._C._dynamo.eval_frame.skip_code(function.__code__)
    except Exception:
        pass
    return function


def dress(wrapper: Any, original: Any) -> Any:
    """Make a wrapper look like what it wraps."""
    try:
        wrapper.__code__ = wrapper.__code__.replace(co_filename=WRAPPER_FILE)
        functools.update_wrapper(wrapper, original)
    except Exception:
        pass
    return hide_from_dynamo(wrapper)


def leave_no_frame(error: BaseException) -> None:
    """Take the wrapper's own frame out of a traceback, so that it reads as without us.

    Works from Python 3.11 on, where a re-raise keeps the exception's own ``__traceback__``.
    """
    trace = error.__traceback__
    if trace is not None and trace.tb_frame.f_code.co_filename == WRAPPER_FILE:
        error.__traceback__ = trace.tb_next


def wrap_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Replace ``owner.name`` by ``make(original)``; None where there is no such name."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    wrapper = dress(make(original), original)
    setattr(owner, name, wrapper)
    return wrapper
