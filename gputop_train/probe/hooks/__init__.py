"""Hooks on PyTorch, one file per place. Each is placed alone; one that fails is named, not fatal."""

from __future__ import annotations

import functools
from typing import Any, Callable

from ..state import S


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
        functools.update_wrapper(wrapper, original)
    except Exception:
        pass
    return hide_from_dynamo(wrapper)


def wrap_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Replace ``owner.name`` by ``make(original)``; the wrapper, or None where there is no such name."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    wrapper = dress(make(original), original)
    setattr(owner, name, wrapper)
    return wrapper
