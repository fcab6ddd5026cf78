"""Small changes of a text by offsets, and the two that keyword arguments need."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gputop_train.edits.errors import EditError
from gputop_train.edits.syntax import Argument, Call, Source

#: A line that would grow beyond this is broken instead.
MAX_COLUMNS = 99
_BEHIND_LAST = re.compile(r"(?P<comma>\s*,)?(?:\s|#[^\r\n]*)*")


@dataclass(frozen=True, slots=True)
class Splice:
    """Put ``text`` in the place of what stands from ``start`` to ``end``."""

    start: int
    end: int
    text: str


def apply(source: Source, splices: Iterable[Splice]) -> str:
    """The text with every splice made, checked to be Python again.

    Raises:
        EditError: Two of them touch the same place, or the result would not be Python.
    """
    text, last = source.text, len(source.text)
    for splice in sorted(splices, key=lambda s: (s.start, s.end), reverse=True):
        if splice.end > last:
            raise EditError("Two changes touch the same place: make them one after the other.")
        text = text[: splice.start] + splice.text + text[splice.end :]
        last = splice.start
    check(text)
    return text


def check(text: str) -> None:
    """See to it that a changed text is still Python.

    Raises:
        EditError: It is not.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<edit>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as failure:
        raise EditError(f"The change would not be valid Python there: {failure}.") from None


def set_value(argument: Argument, value: Any) -> Splice:
    """Another value in the place of an argument's."""
    return Splice(argument.start, argument.end, literal(value))


def literal(value: Any) -> str:
    """A value as it is written in code."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def add_keywords(source: Source, call: Call, keywords: dict[str, Any]) -> list[Splice]:
    """Keywords behind the last argument of a call, in the way its arguments are laid out.

    Raises:
        EditError: The call's layout is not understood.
    """
    words = [f"{key}={literal(value)}" for key, value in keywords.items()]
    close = call.end - 1
    if not call.arguments:
        inside = source.text.rindex("(", call.start, close) + 1
        if source.text[inside:close].strip():
            raise EditError("The call holds nothing but a comment: change it by hand.")
        return [Splice(inside, inside, ", ".join(words))]
    last = call.arguments[-1]
    found = _BEHIND_LAST.fullmatch(source.text, last.stop, close)
    if found is None:
        raise EditError("What follows the call's last argument is not understood.")
    line_end = max(source.text.rfind(end, last.stop, close) for end in "\r\n")
    if line_end < 0:
        return [Splice(last.stop, last.stop, _behind(source, call, words))]
    # The parenthesis stands on a line of its own: so do the keywords.
    if source.text[line_end - 1 : line_end + 1] == "\r\n":
        line_end -= 1
    indent = _indent(source, call, last)
    newline = source.newline()
    if found["comma"]:
        lines = "".join(f"{newline}{indent}{word}," for word in words)
        return [Splice(line_end, line_end, lines)]
    lines = ",".join(f"{newline}{indent}{word}" for word in words)
    if line_end == last.stop:
        return [Splice(last.stop, last.stop, "," + lines)]
    return [Splice(last.stop, last.stop, ","), Splice(line_end, line_end, lines)]


def _behind(source: Source, call: Call, words: list[str]) -> str:
    """``, a=1`` behind the last argument; on a line of its own where that would be too long."""
    line = source.line_of(call.arguments[-1].stop)
    added = "".join(f", {word}" for word in words)
    if len(source.line_text(line)) + len(added) <= MAX_COLUMNS:
        return added
    first = call.arguments[0]
    begin = first.start - len(f"{first.keyword}=") if first.keyword else first.start
    before = source.text[source.line_start(source.line_of(begin)) : begin]
    return "," + source.newline() + re.sub(r"[^\t]", " ", before) + ", ".join(words)


def _indent(source: Source, call: Call, last: Argument) -> str:
    line = source.line_of(last.start)
    text = source.line_text(line)
    space = text[: len(text) - len(text.lstrip())]
    return space + "    " if line == call.line else space
