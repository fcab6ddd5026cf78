"""Python files through libcst, which knows where everything stands.

The changes themselves are made in the text, so that nothing else of a file can move. libcst is
imported when the first file is parsed.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gputop_train.edits.errors import EditError
from gputop_train.edits.syntax import (
    NEWLINE,
    Argument,
    Assignment,
    Call,
    Guard,
    Increase,
    Source,
    Statement,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: libcst's parser recurses on the C stack and ends the process where that is full; Python's own
#: says no instead. Code that people write stays far below (measured: libcst reads 1,000).
MAX_DEPTH = 400
_LITERALS = frozenset({"Integer", "Float", "SimpleString"})


def parse(text: str) -> Source:
    """Parse a file's text.

    Raises:
        EditError: It is no Python that libcst can read and give back unchanged.
    """
    _check(text)
    try:
        import libcst as cst
        from libcst.metadata import MetadataWrapper, PositionProvider
    except ImportError as failure:
        raise EditError(f"Changing code needs the package libcst ({failure}).") from None
    try:
        module = cst.parse_module(text)
        if module.code != text:
            raise EditError("It could not be read without changing it.")
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        places = wrapper.resolve(PositionProvider)
        source = Source(text, starts=[0, *(m.end() for m in NEWLINE.finditer(text))])
        _Reader(source, places).read(wrapper.module)
    except cst.ParserSyntaxError as problem:
        raise EditError(f"It is not valid Python (line {problem.raw_line}).") from None
    except RecursionError:
        raise EditError("Its expressions are nested too deeply to be read.") from None
    return source


def _check(text: str) -> None:
    """See to it that libcst is only given what it can read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as problem:
        raise EditError(
            f"It is not valid for the Python that runs gputop-train (line {problem.lineno})."
        ) from None
    except (ValueError, RecursionError, MemoryError) as failure:
        raise EditError(f"It cannot be read ({type(failure).__name__}).") from None
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise EditError("Its expressions are nested too deeply to be read.")


@dataclass(frozen=True, slots=True)
class _Around:
    """Where the reader is."""

    function: int = -1
    loops: tuple[int, ...] = ()
    statement: Statement | None = None
    managed: bool = False
    top: bool = True


class _Reader:
    """Walks a tree once. Methods are named after libcst's nodes, as its visitors are."""

    def __init__(self, source: Source, places: Mapping[Any, Any]) -> None:
        self._source = source
        self._places = places
        self._statements: dict[int, Statement] = {}

    def read(self, node: Any, around: _Around | None = None) -> None:
        """Read a node and all below it."""
        handler = getattr(self, f"_{type(node).__name__}", None)
        inner = handler(node, around or _Around()) if handler else around or _Around()
        for child in node.children:
            self.read(child, inner)

    def _span(self, node: Any) -> tuple[int, int]:
        place = self._places[node]
        start = self._source.line_start(place.start.line) + place.start.column
        return start, self._source.line_start(place.end.line) + place.end.column

    def _text(self, node: Any) -> str:
        start, end = self._span(node)
        return self._source.text[start:end]

    def _FunctionDef(self, node: Any, around: _Around) -> _Around:
        start, end = self._span(node)
        lines = (self._source.line_of(start), self._source.line_of(end - 1))
        self._source.functions.append((node.name.value, *lines))
        return _Around(function=start, top=False)

    def _Lambda(self, node: Any, around: _Around) -> _Around:
        return _Around(function=self._span(node)[0], top=False)

    def _ClassDef(self, node: Any, around: _Around) -> _Around:
        return _Around(function=around.function, loops=around.loops, top=False)

    def _For(self, node: Any, around: _Around) -> _Around:
        self._bind(getattr(node, "target", None))
        return _Around(around.function, (*around.loops, self._span(node)[0]), top=False)

    _While = _For

    def _Param(self, node: Any, around: _Around) -> _Around:
        self._bind(node.name)
        return around

    def _NamedExpr(self, node: Any, around: _Around) -> _Around:
        self._bind(node.target)
        return _plain(around)

    def _AsName(self, node: Any, around: _Around) -> _Around:
        self._bind(node.name)
        return around

    def _bind(self, target: Any) -> None:
        if target is None:
            return
        if type(target).__name__ == "Name":
            self._source.bound[target.value] += 1
        for element in getattr(target, "elements", ()):
            self._bind(element.value)

    def _Name(self, node: Any, around: _Around) -> _Around:
        self._source.used[node.value] += 1
        return around

    def _IndentedBlock(self, node: Any, around: _Around) -> _Around:
        return self._block(node, around)

    _Module = _IndentedBlock

    def _block(self, node: Any, around: _Around) -> _Around:
        # Lines and small statements are read here, since only the block knows its length.
        for line in node.body:
            if type(line).__name__ != "SimpleStatementLine":
                continue
            for small in line.body:
                if type(small).__name__ == "Expr" and type(small.value).__name__ == "Call":
                    start, end = self._span(small)
                    whole = len(line.body) == 1
                    self._statements[start] = Statement(start, end, whole, len(node.body) == 1)
        return around

    def _Expr(self, node: Any, around: _Around) -> _Around:
        if type(node.value).__name__ != "Call":
            return _plain(around)  # ``clear(), check()`` is no call alone: the rest must stay
        start, end = self._span(node)
        alone = self._statements.get(start) or Statement(start, end, False, True)
        return _Around(around.function, around.loops, alone, top=around.top)

    def _WithItem(self, node: Any, around: _Around) -> _Around:
        return _Around(around.function, around.loops, managed=True, top=False)

    def _Assign(self, node: Any, around: _Around) -> _Around:
        for target in node.targets:
            self._bind(target.target)
        if len(node.targets) == 1:
            self._assigned(node.targets[0].target, node.value, around)
        return _plain(around)

    def _AnnAssign(self, node: Any, around: _Around) -> _Around:
        self._bind(node.target)
        if node.value is not None:
            self._assigned(node.target, node.value, around)
        return _plain(around)

    def _assigned(self, target: Any, value: Any, around: _Around) -> None:
        if type(target).__name__ != "Name":
            return
        start, end = self._span(value)
        line = self._source.line_of(start)
        self._source.assignments.append(
            Assignment(
                target.value,
                self._source.text[start:end],
                start,
                end,
                line,
                _is_literal(value),
                around.function == -1,
            )
        )

    def _AugAssign(self, node: Any, around: _Around) -> _Around:
        self._bind(node.target)
        if type(node.operator).__name__ == "AddAssign":
            start, end = self._span(node.value)
            self._source.increases.append(
                Increase(
                    self._text(node.target),
                    self._source.text[start:end],
                    start,
                    end,
                    self._source.line_of(start),
                    around.loops,
                    around.function,
                )
            )
        return _plain(around)

    def _Import(self, node: Any, around: _Around) -> _Around:
        for alias in node.names:
            full = self._text(alias.name)
            if alias.asname is not None:
                self._imported(alias.asname.name.value, full, node, around)
            else:
                first = full.partition(".")[0]
                self._imported(first, first, node, around)
        return _plain(around)

    def _ImportFrom(self, node: Any, around: _Around) -> _Around:
        if node.module is None or node.relative or type(node.names).__name__ == "ImportStar":
            return _plain(around)
        module = self._text(node.module)
        for alias in node.names:
            name = self._text(alias.name)
            local = alias.asname.name.value if alias.asname is not None else name
            self._imported(local, f"{module}.{name}", node, around)
        return _plain(around)

    def _imported(self, local: str, full: str, node: Any, around: _Around) -> None:
        self._source.imports[local] = full
        if around.top:
            start, end = self._span(node)
            lines = (self._source.line_of(start), self._source.line_of(end - 1))
            self._source.import_lines[local] = lines

    def _If(self, node: Any, around: _Around) -> _Around:
        remainders = _remainders(node.test)
        if len(remainders) == 1:
            by = remainders[0].right
            start, end = self._span(by)
            body, below = self._span(node.body)
            self._source.guards.append(
                Guard(
                    self._source.line_of(body),
                    self._source.line_of(below - 1),
                    self._source.text[start:end],
                    start,
                    end,
                    _is_literal(by),
                )
            )
        return self._inside(node, around)

    def _inside(self, node: Any, around: _Around) -> _Around:
        return _Around(around.function, around.loops, top=False)

    _Try = _TryStar = _With = _Match = _inside

    def _Call(self, node: Any, around: _Around) -> _Around:
        start, end = self._span(node)
        source = self._source
        if source.text[end - 1 : end] == ")":
            source.calls.append(
                Call(
                    re.sub(r"\s", "", self._text(node.func)),
                    start,
                    end,
                    source.line_of(start),
                    source.line_of(end - 1),
                    tuple(self._argument(a) for a in node.args),
                    around.loops,
                    around.function,
                    around.statement,
                    around.managed,
                )
            )
        return _plain(around)

    def _argument(self, node: Any) -> Argument:
        start, end = self._span(node.value)
        keyword = node.keyword.value if node.keyword is not None else None
        stop = end
        for _ in node.value.rpar if hasattr(node.value, "rpar") else ():
            stop = self._source.text.index(")", stop) + 1
        return Argument(
            keyword,
            node.star,
            self._source.text[start:end],
            start,
            end,
            _is_literal(node.value),
            stop,
        )


def _plain(around: _Around) -> _Around:
    """Inside an expression: no call below is a statement or a context manager itself."""
    return _Around(around.function, around.loops, top=around.top)


def _remainders(node: Any) -> list[Any]:
    found = [n for child in node.children for n in _remainders(child)]
    if type(node).__name__ == "BinaryOperation" and type(node.operator).__name__ == "Modulo":
        found.append(node)
    return found


def _is_literal(node: Any) -> bool:
    kind = type(node).__name__
    return kind in _LITERALS or (kind == "Name" and node.value in ("True", "False", "None"))
