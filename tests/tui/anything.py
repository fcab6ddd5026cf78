"""Records with every field drawn, defaults or not: what a store may hold, odd numbers too."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from hypothesis import strategies as st


def records_of(model: type[Any]) -> st.SearchStrategy[Any]:
    """Any record of a dataclass, the records within it likewise."""
    hints = typing.get_type_hints(model)
    fields = {field.name: of(hints[field.name]) for field in dataclasses.fields(model)}
    return st.builds(model, **fields)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type as our records have them."""
    if dataclasses.is_dataclass(hint):
        return records_of(typing.cast("type[Any]", hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(of, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of(arguments[0]), max_size=6).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, arguments))
    if hint is int:
        return st.integers(0, 1 << 50)
    if hint is str:
        return st.text(max_size=30)
    return st.from_type(hint)
