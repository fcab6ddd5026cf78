"""Whether a value that is read from the GPU steers what the script does: by the script's source.

A read may only be left out where its value is told or computed with. The value is followed from the
call up through its statement, into names, attributes, containers and functions of the same file,
and into the function of another file that it is handed to. Order is not looked at: a name that any
test in the same function uses counts as steered by. What cannot be followed is refused.
"""

from __future__ import annotations

import ast
from typing import Any, Callable, Iterator

from .source import FUNCTIONS, Source, called

#: Calls whose argument decides how often, how much, or what comes next.
_STEERS = frozenset((
    "range", "slice", "islice", "step", "sleep", "exit", "_exit", "eval", "exec", "arange",
    "linspace", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm",
    "new_zeros", "new_ones", "new_empty", "new_full", "view", "reshape", "expand", "narrow",
    "split", "chunk", "repeat", "repeat_interleave", "pad", "select", "index_select", "topk",
    "kthvalue", "unfold", "as_strided", "one_hot", "getattr", "setattr", "pop", "insert", "get",
))  # fmt: skip
#: Calls that tell nothing of a value's amount.
_ENDS = frozenset(("len", "isinstance", "type", "id", "hasattr", "callable", "print"))
#: Methods that leave their argument in what they are called on.
_KEEPS = frozenset((
    "append", "appendleft", "extend", "add", "add_", "update", "push", "put", "put_nowait",
    "setdefault", "copy_", "fill_",
))  # fmt: skip
#: A value's own ways on, after which no gradient is asked of it.
_WITHOUT_GRAD = frozenset(("item", "tolist", "detach"))
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PASSES_ON = (
    ast.BinOp,
    ast.UnaryOp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.Await,
    *_COMPREHENSIONS,
)
_DECIDES = (
    ast.If,
    ast.While,
    ast.IfExp,
    ast.Assert,
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.comprehension,
    *((ast.Match, ast.match_case) if hasattr(ast, "Match") else ()),
)
_CARRIES_NOTHING_ON = (ast.Expr, ast.Raise, ast.Delete)
_MOST_NODES = 2000
_UNCLEAR = "where its value goes is not clear"

#: From the expression that is called, to the function it is, if that is one of the script's.
Lookup = Callable[[ast.expr], Any]


class Steered(Exception):
    """The value may not be replaced; the message says why."""


class Judge:
    """Follows one value.

    Args:
        source: The file its read is in.
        lookup: Finds the function that an expression of that file names.
    """

    def __init__(self, source: Source, lookup: Lookup) -> None:
        self.source = source
        self.lookup = lookup
        self._home = source
        self._seen: set[ast.AST] = set()

    def judge(self, call: ast.Call) -> None:
        """Follow the value of a call.

        Raises:
            Steered: It steers, or cannot be followed.
        """
        try:
            self._flows(call)
        except RecursionError:
            raise Steered(_UNCLEAR) from None

    def _steers(self, node: ast.AST, what: str) -> Steered:
        line = getattr(node, "lineno", None)
        if line is None:
            return Steered(what)
        elsewhere = "" if self.source is self._home else "%s, " % self.source.name
        return Steered("%s in %sline %d" % (what, elsewhere, line))

    def _flows(self, node: ast.AST) -> None:
        if node in self._seen:
            return
        self._seen.add(node)
        if len(self._seen) > _MOST_NODES:
            raise Steered(_UNCLEAR)
        up = self.source.parents.get(node)
        if isinstance(up, ast.keyword):
            node, up = up, self.source.parents[up]
        if isinstance(up, ast.Call):
            self._flows(up) if node is up.func else self._into(up, node)
        elif isinstance(up, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            self._assigned(up, node)
        elif isinstance(up, ast.Return):
            self._returned(up)
        elif isinstance(up, (ast.For, ast.AsyncFor, ast.comprehension)) and node is up.iter:
            self._bind(up.target)
        elif isinstance(up, ast.withitem):
            if up.optional_vars is not None:
                self._bind(up.optional_vars)
        elif not isinstance(up, _CARRIES_NOTHING_ON):
            self._on(up, node)

    def _on(self, up: Any, node: ast.AST) -> None:
        """Into an expression, or into what decides."""
        if isinstance(up, ast.Subscript):
            if node is not up.value:
                raise self._steers(up, "its value is an index")
            if isinstance(up.ctx, ast.Load):
                self._flows(up)
        elif isinstance(up, ast.Slice):
            raise self._steers(up, "its value is an index")
        elif isinstance(up, ast.Dict):
            if node in up.keys:
                raise self._steers(up, "its value is a key")
            self._flows(up)
        elif isinstance(up, ast.IfExp) and node is not up.test:
            self._flows(up)
        elif _is_told(up, node):
            return
        elif isinstance(up, _PASSES_ON) and not isinstance(getattr(up, "op", None), ast.Not):
            if isinstance(up, ast.DictComp) and node is up.key:
                raise self._steers(up, "its value is a key")
            if isinstance(getattr(up, "ctx", None), (ast.Store, ast.Del)):
                return  # an attribute of it is set
            self._flows(up)
        else:
            why = "its value decides a test" if isinstance(up, _DECIDES) else _UNCLEAR
            raise self._steers(up if hasattr(up, "lineno") else node, why)

    def _assigned(self, up: Any, node: ast.AST) -> None:
        if node is not up.value:
            return
        targets = up.targets if isinstance(up, ast.Assign) else [up.target]
        for target in targets:
            self._bind(target)
        if isinstance(up, ast.NamedExpr):
            self._flows(up)

    def _bind(self, target: ast.AST) -> None:
        """Follow all uses of what the value is put into."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._bind(part)
        elif isinstance(target, (ast.Starred, ast.Subscript)):
            self._bind(target.value)
        elif isinstance(target, ast.Name):
            self._uses(target.id, self.source.home(target, target.id))
        elif isinstance(target, ast.Attribute):
            for use in self.source.attributes.get(target.attr, ()):
                self._flows(use)
        elif isinstance(target, ast.Call):
            self._bind(target.func)
        else:
            raise Steered(_UNCLEAR)

    def _uses(self, name: str, home: ast.AST) -> None:
        for use in self.source.uses(name, home):
            self._flows(use)

    def _returned(self, statement: ast.Return) -> None:
        function = self.source.function(statement)
        if not isinstance(function, FUNCTIONS):
            raise Steered(_UNCLEAR)
        name = function.name
        if any(getattr(d, "id", None) == "property" for d in function.decorator_list):
            for use in self.source.attributes.get(name, ()):
                self._flows(use)
            return
        uses = [*self.source.loads.get(name, ()), *self.source.attributes.get(name, ())]
        if not uses:
            raise self._steers(statement, "%s() returns it to another file" % name)
        for use in uses:
            call = self.source.parents.get(use)
            if not isinstance(call, ast.Call) or use is not call.func:
                raise self._steers(use, "%s(), which returns it, is handed on" % name)
            self._flows(call)

    def _into(self, call: ast.Call, argument: ast.AST) -> None:
        """The value is an argument: of a function of the script's own, it is followed there."""
        name = called(call)
        if name is None:
            raise self._steers(call, _UNCLEAR)
        if name in _ENDS:
            return
        if name in _STEERS:
            raise self._steers(call, "its value goes into %s()" % name)
        if name in _KEEPS and isinstance(call.func, ast.Attribute):
            self._bind(call.func.value)
        for source, function in self._functions(call, name):
            before, self.source = self.source, source
            try:
                for parameter in _parameters(source, function, call, argument):
                    self._uses(parameter, function)
            finally:
                self.source = before
        self._flows(call)

    def _functions(self, call: ast.Call, name: str) -> Iterator[tuple[Source, Any]]:
        yield from ((self.source, one) for one in self.source.functions.get(name, ()))
        if self.source is not self._home:
            return  # names there are not known
        found = self.lookup(call.func)
        if isinstance(found, str):
            raise self._steers(call, found)
        if found is None or found.co_filename == self.source.filename:
            return
        try:
            other = Source.of(found.co_filename)
        except ValueError as error:
            raise self._steers(call, "it goes into %s(): %s" % (name, error)) from None
        for functions in other.functions.values():
            for one in functions:
                first = min([one.lineno, *(d.lineno for d in one.decorator_list)])
                if first == found.co_firstlineno:
                    yield other, one


def _is_told(up: ast.AST, node: ast.AST) -> bool:
    """``x is None``, ``"loss" in x``, or the words of an assert: how much it is does not matter."""
    if isinstance(up, ast.Assert):
        return node is up.msg
    if not isinstance(up, ast.Compare):
        return False
    if all(isinstance(op, (ast.Is, ast.IsNot)) for op in up.ops):
        return True
    inside = all(isinstance(op, (ast.In, ast.NotIn)) for op in up.ops)
    return inside and isinstance(up.left, ast.Constant) and node in up.comparators


def _parameters(source: Source, function: Any, call: ast.Call, argument: ast.AST) -> Iterator[str]:
    """Parameters of a function that a call's argument may arrive in."""
    arguments = function.args
    names = [one.arg for one in [*arguments.posonlyargs, *arguments.args]]
    if isinstance(argument, ast.keyword):
        known = [*names, *(one.arg for one in arguments.kwonlyargs)]
        if argument.arg in known:
            yield str(argument.arg)
        elif arguments.kwarg is not None:
            yield arguments.kwarg.arg
        elif argument.arg is None:
            yield from known
        return
    if any(isinstance(one, ast.Starred) for one in call.args) or argument not in call.args:
        yield from names
        return
    bound = isinstance(source.parents.get(function), ast.ClassDef)
    bound = bound and not any(
        getattr(d, "id", None) == "staticmethod" for d in function.decorator_list
    )
    place = call.args.index(argument) + bound
    if place < len(names):
        yield names[place]
    elif arguments.vararg is not None:
        yield arguments.vararg.arg


def needs_no_grad(source: Source, call: ast.Call) -> bool:
    """Whether what the call returns is read at once, so that no gradient is asked of it."""
    up = source.parents.get(call)
    return isinstance(up, ast.Attribute) and up.attr in _WITHOUT_GRAD
