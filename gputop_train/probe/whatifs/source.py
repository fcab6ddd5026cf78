"""A file of the script's, parsed: where its names, functions and calls stand."""

from __future__ import annotations

import ast
import linecache
import os
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.Lambda, ast.Module)
_known: dict[str, Source] = {}


class Source:
    """One file of the script's, parsed.

    Raises:
        ValueError: It cannot be read or parsed.
    """

    def __init__(self, filename: str, module_globals: Any = None) -> None:
        text = "".join(linecache.getlines(filename, module_globals))
        if not text:
            raise ValueError("the source of %s cannot be read" % os.path.basename(filename))
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            name = os.path.basename(filename)
            raise ValueError("the source of %s cannot be parsed" % name) from None
        self.filename, self.name = filename, os.path.basename(filename)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.calls: list[ast.Call] = []
        self.loads: dict[str, list[ast.expr]] = {}
        self.attributes: dict[str, list[ast.expr]] = {}
        self.functions: dict[str, list[Any]] = {}
        self._values: dict[str, list[tuple[ast.Name, ast.expr]]] = {}
        self._attribute_values: dict[str, list[ast.expr]] = {}
        self._bound: dict[ast.AST, set[str]] = {}
        self._shared: dict[ast.AST, set[str]] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self.loads.setdefault(node.id, []).append(node)
        elif isinstance(node, ast.Name):
            self._bound.setdefault(self.function(node), set()).add(node.id)
        elif isinstance(node, ast.arg):
            self._bound.setdefault(self.function(node), set()).add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self.attributes.setdefault(node.attr, []).append(node)
        elif isinstance(node, FUNCTIONS):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    self._values.setdefault(target.id, []).append((target, node.value))
                elif isinstance(target, ast.Attribute):
                    self._attribute_values.setdefault(target.attr, []).append(node.value)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, FUNCTIONS) and part.name == "__init__":
                    self.functions.setdefault(node.name, []).append(part)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            self._shared.setdefault(self.function(node), set()).update(node.names)

    @classmethod
    def of(cls, filename: str, module_globals: Any = None) -> "Source":
        """The file, parsed once."""
        found = _known.get(filename)
        if found is None:
            found = _known[filename] = cls(filename, module_globals)
        return found

    def function(self, node: ast.AST) -> Any:
        """The function around a node, or the module."""
        around: Any = self.parents.get(node)
        while around is not None and not isinstance(around, _SCOPES):
            around = self.parents.get(around)
        return around or self.tree

    def home(self, node: ast.AST, name: str) -> ast.AST:
        """The function, or the module, whose name a name is where a node stands."""
        scope: ast.AST = self.function(node)
        while scope is not self.tree:
            if name in self._bound.get(scope, ()) and name not in self._shared.get(scope, ()):
                break
            scope = self.function(scope)
        return scope

    def uses(self, name: str, home: ast.AST) -> list[ast.expr]:
        """Where a name of a function or of the module is read."""
        return [use for use in self.loads.get(name, ()) if self.home(use, name) is home]

    def assigned(self, name: str, home: ast.AST) -> list[ast.expr]:
        """What is assigned to a name of a function or of the module."""
        values = self._values.get(name, ())
        return [value for target, value in values if self.home(target, name) is home]

    def set_as_attribute(self, name: str) -> list[ast.expr]:
        """What is assigned to an attribute of this name, whosever it is."""
        return self._attribute_values.get(name, [])

    def calls_at(self, code: Any, last: int, line: int | None, name: str) -> list[ast.Call]:
        """The call that an instruction makes; several where only its line is known.

        Args:
            code: The code object.
            last: Offset of the instruction.
            line: Its line.
            name: What is called there.
        """
        named = [call for call in self.calls if called(call) == name]
        end = end_of(code, last)
        if end is not None:
            return [c for c in named if (c.end_lineno, c.end_col_offset) == end]
        if line is None:
            return []
        return [c for c in named if c.lineno <= line <= (c.end_lineno or c.lineno)]


def end_of(code: Any, last: int) -> tuple[int, int] | None:
    """Where the source of an instruction ends; from Python 3.11 on."""
    # Not where it begins: of a chain of calls over several lines that is moved.
    if not hasattr(code, "co_positions"):
        return None
    for index, (_, line, _, column) in enumerate(code.co_positions()):
        if index * 2 == last:
            return None if line is None or column is None else (line, column)
    return None


def called(call: ast.Call) -> str | None:
    """The last name of what is called."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else None
