"""What a change needs to know of a Python file: calls, imports and assignments, with offsets."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

NEWLINE = re.compile(r"\r\n?|\n")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call.

    Attributes:
        keyword: ``None`` for a positional one.
        star: ``*`` or ``**`` before it, else empty.
        value: Its text, from ``start`` to ``end``.
        literal: Whether the value is a number, a string, ``True``, ``False`` or ``None``.
        stop: End of the argument, closing parentheses around the value included.
    """

    keyword: str | None
    star: str
    value: str
    start: int
    end: int
    literal: bool
    stop: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A call that is a statement of its own.

    Attributes:
        whole: Whether it is the only statement of its line, so that the line can go.
        needed: Whether its block would be empty without it.
    """

    start: int
    end: int
    whole: bool
    needed: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        func: What is called, as written without white space: ``torch.optim.AdamW``.
        start, end: From the first character of ``func`` to behind the closing parenthesis.
        loops: Offsets of the loops around it within its function, outermost first.
        function: Offset of the function around it; -1 = the module.
        manages: Whether a ``with`` statement enters what it returns.
    """

    func: str
    start: int
    end: int
    line: int
    end_line: int
    arguments: tuple[Argument, ...]
    loops: tuple[int, ...]
    function: int
    statement: Statement | None
    manages: bool

    @property
    def name(self) -> str:
        """The last part of ``func``."""
        return self.func.rpartition(".")[2]

    @property
    def receiver(self) -> str:
        """What stands before the last dot of ``func``; empty for a plain name."""
        return self.func.rpartition(".")[0]

    def argument(self, keyword: str) -> Argument | None:
        """The argument given by this keyword."""
        return next((a for a in self.arguments if a.keyword == keyword), None)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name = value`` with one plain name."""

    name: str
    value: str
    start: int
    end: int
    line: int
    literal: bool
    module_level: bool


@dataclass(frozen=True, slots=True)
class Increase:
    """``name += value`` within a loop, or outside of any (then ``loops`` is empty)."""

    name: str
    value: str
    start: int
    end: int
    line: int
    loops: tuple[int, ...]
    function: int


@dataclass(frozen=True, slots=True)
class Guard:
    """An ``if`` whose test takes one remainder: ``if step % 30 == 0:``.

    Attributes:
        first, last: Lines of what it guards, from the test's own on.
        value: What the remainder is taken by, from ``start`` to ``end``.
    """

    first: int
    last: int
    value: str
    start: int
    end: int
    literal: bool


@dataclass(slots=True)
class Source:
    """A parsed file.

    Attributes:
        imports: Names that import statements bind, and what each stands for.
        import_lines: Name that a module-level import binds -> its first and last line.
        bound: How often each name is bound, in whatever way.
        used: How often each name is read.
        functions: Name, first and last line of each function.
    """

    text: str
    calls: list[Call] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    increases: list[Increase] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)
    import_lines: dict[str, tuple[int, int]] = field(default_factory=dict)
    bound: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    starts: list[int] = field(default_factory=lambda: [0])

    def line_of(self, offset: int) -> int:
        """Line number, from 1, of an offset."""
        return bisect_right(self.starts, offset)

    def line_start(self, line: int) -> int:
        """Offset of a line's first character; the end of the text behind the last line."""
        return self.starts[line - 1] if line <= len(self.starts) else len(self.text)

    def line_text(self, line: int) -> str:
        """A line without its end."""
        if not 1 <= line <= len(self.starts):
            return ""
        return self.text[self.line_start(line) : self.line_start(line + 1)].rstrip("\r\n")

    def newline(self) -> str:
        """How the file ends its first line."""
        found = NEWLINE.search(self.text)
        return found.group() if found else "\n"

    def full_name(self, func: str) -> str:
        """A called name with imports resolved: ``optim.SGD`` -> ``torch.optim.SGD``."""
        first, dot, rest = func.partition(".")
        return self.imports.get(first, first) + dot + rest

    def calls_at(self, line: int) -> list[Call]:
        """Calls that reach over a line, those that begin there first."""
        found = [c for c in self.calls if c.line <= line <= c.end_line]
        return sorted(found, key=lambda c: (c.line != line, c.start))
