"""A module's output with every tensor in it replaced, in containers like those it came in."""

from __future__ import annotations

from typing import Any, Callable

from ..state import S

MAX_DEPTH = 8


def each_tensor(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """The same structure with ``change`` made to each tensor.

    Goes through lists, tuples, named tuples and dictionaries, those of model outputs included; what
    it does not know stays as it is.
    """
    if isinstance(value, S.torch.Tensor):
        return change(value)
    if depth >= MAX_DEPTH:
        return value
    if type(value) is list:
        return [each_tensor(item, change, depth + 1) for item in value]
    if isinstance(value, tuple):
        items = [each_tensor(item, change, depth + 1) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if type(value) is tuple else value
    if isinstance(value, dict):
        for key, item in list(value.items()):
            changed = each_tensor(item, change, depth + 1)
            if changed is not item:
                # Into the very mapping: a model's output class need not be one that can be built
                # from its items.
                value[key] = changed
        return value
    return value
