"""Which function of the script's own a call names, found without running anything of the script's.

Module globals are read as they are. A local name is what the source assigns to it, where that is a
class being called: a frame's locals are not asked for, since the answer would keep them alive.
"""

from __future__ import annotations

import ast
import types
from typing import Any, Callable

from .source import Source

_DEEPEST = 8


class Made:
    """An object that the source shows being made: only its class is known."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class Callees:
    """Looks names of one file up.

    Args:
        source: The file.
        names: Its module's globals.
        is_library: Whether a code object is none of the script's.
        module: ``torch.nn.Module``; what goes into one is not followed.
    """

    def __init__(
        self,
        source: Source,
        names: dict[str, Any],
        is_library: Callable[[Any], bool],
        module: type,
    ) -> None:
        self._source = source
        self._names = names
        self._is_library = is_library
        self._module = module

    def __call__(self, called: ast.expr) -> Any:
        """The code of a function of the script's own; a text = why it cannot be followed."""
        found = self._find(called)
        kind = found.kind if isinstance(found, Made) else type(found)
        if issubclass(kind, self._module):
            return "its value goes into a module"
        if isinstance(found, type):
            found = _static(found, "__init__")
        elif isinstance(found, Made):
            found = _static(found.kind, "__call__")
        elif not isinstance(found, (types.FunctionType, classmethod, staticmethod)):
            found = _static(found, "__call__")
        code = getattr(getattr(found, "__func__", found), "__code__", None)
        return code if isinstance(code, types.CodeType) and not self._is_library(code) else None

    def _find(self, node: ast.AST, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            return None
        if isinstance(node, ast.Name):
            home = self._source.home(node, node.id)
            if home is self._source.tree:
                return self._names.get(node.id)
            found = self._made(self._source.assigned(node.id, home), depth)
            return self._owner(node, home) if found is None else found
        if isinstance(node, ast.Attribute):
            base = self._find(node.value, depth + 1)
            found = None
            if base is not None:
                found = _static(base.kind if isinstance(base, Made) else base, node.attr)
            if found is None and (base is None or isinstance(base, Made)):
                found = self._made(self._source.set_as_attribute(node.attr), depth)
            return found
        return None

    def _made(self, values: list[ast.expr], depth: int) -> Any:
        for value in values:
            kind = self._find(value.func, depth + 1) if isinstance(value, ast.Call) else None
            if isinstance(kind, type):
                return Made(kind)
        return None

    def _owner(self, node: ast.Name, home: Any) -> Any:
        """What ``self`` is in a method."""
        around = self._source.parents.get(home)
        first = home.args.args[:1] if hasattr(home, "args") else []
        if isinstance(around, ast.ClassDef) and first and first[0].arg == node.id:
            kind = self._names.get(around.name)
            return Made(kind) if isinstance(kind, type) else None
        return None


def _static(base: Any, name: str) -> Any:
    """An attribute, without its owner's say in it."""
    if isinstance(base, types.ModuleType):
        return vars(base).get(name)
    if isinstance(base, type):
        classes = base.__mro__
    else:
        classes = type(base).__mro__
        try:
            return object.__getattribute__(base, "__dict__")[name]
        except (AttributeError, KeyError, TypeError):
            pass
    return next((one.__dict__[name] for one in classes if name in one.__dict__), None)
