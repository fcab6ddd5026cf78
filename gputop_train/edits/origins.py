"""Where a value comes from that is written as a name: a constant, or a flag's default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gputop_train.edits.errors import EditError
from gputop_train.edits.splice import Splice, literal, set_value
from gputop_train.edits.syntax import Call, Source


def at_its_origin(
    source: Source, key: str, expression: str, value: Any, command: Sequence[str]
) -> Splice:
    """Change the constant or the flag's default an argument comes from.

    Raises:
        EditError: It comes from further away; the message says what to set.
    """
    wanted = literal(value)
    attribute = re.fullmatch(r"[A-Za-z_]\w*\.([A-Za-z_]\w*)", expression)
    if attribute is not None:
        return _flag_default(source, key, expression, attribute[1], value, command)
    if re.fullmatch(r"[A-Za-z_]\w*", expression) and source.bound[expression] == 1:
        found = [a for a in source.assignments if a.name == expression]
        if len(found) == 1:
            origin = found[0]
            reads = source.used[expression] - 1
            where = f"{expression} at line {origin.line} (now {_short(origin.value)})"
            if origin.literal and reads == 1:
                return Splice(origin.start, origin.end, wanted)
            more = f", which is read in {reads} places" if reads > 1 else ""
            raise EditError(f"{key} is {where}{more}: set it to {wanted}.")
    raise EditError(
        f"{key} is `{_short(expression)}` there: make that {wanted} where it comes from."
    )


def _flag_default(
    source: Source, key: str, expression: str, name: str, value: Any, command: Sequence[str]
) -> Splice:
    wanted = literal(value)
    flags = [c for c in source.calls if c.name == "add_argument" and _destination(c) == name]
    if len(flags) != 1:
        raise EditError(f"{key} is `{expression}` there: set {name} to {wanted} where it is set.")
    call = flags[0]
    option = _option(call) or f"--{name}"
    if any(_gives(word, each) for word in command for each in (option, *_options(call))):
        raise EditError(
            f"{key} is `{expression}`, given on the command line: run it with {option} {wanted}."
        )
    default = call.argument("default")
    if default is None or not default.literal or call.argument("action") is not None:
        how = option if value is True else f"{option} {wanted}"
        raise EditError(f"{key} is `{expression}` (line {call.line}): run it with {how}.")
    return set_value(default, value)


def _destination(call: Call) -> str:
    named = call.argument("dest")
    if named is not None:
        return named.value.strip("\"'")
    return (_option(call) or "").lstrip("-").replace("-", "_")


def _gives(word: str, option: str) -> bool:
    """Whether a word of a command line may be this option: ``--workers=4``, ``--work``, ``-j4``."""
    if option.startswith("--"):
        return word.startswith("--") and len(word) > 2 and option.startswith(word.partition("=")[0])
    return word.startswith(option)


def _options(call: Call) -> list[str]:
    return [a.value.strip("\"'") for a in call.arguments if a.keyword is None and a.literal]


def _option(call: Call) -> str | None:
    """The first long option of an ``add_argument``, as argparse names its result by."""
    words = _options(call)
    return next((w for w in words if w.startswith("--")), words[0] if words else None)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:37] + "..."
