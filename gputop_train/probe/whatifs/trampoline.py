"""A function of the script made to ask us first, wherever it is called from.

Its code object is exchanged, not a name for it: a global, a local of ``main()``, an import into
another file, a method and a reference in a list all lead to the same function object, which stays
the one it is (its identity, its name, what pickle says of it). Undone, nothing is left.
"""

from __future__ import annotations

import os
import types
from typing import Any, Callable

from ..hooks import WRAPPER_FILE, hide_from_dynamo

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

_ASK, _STRIP = "gputop-train: ask", "gputop-train: strip"
#: Functions as they were, by the code that stands in for theirs.
_originals: dict[int, Any] = {}
_SOURCE = """
def around({free}):
    def function(*args, **kwargs):
        if False:
            ({uses})
        try:
            return {ask!r}.__call__(*args, **kwargs)
        except BaseException as error:
            {strip!r}.__call__(error)
            raise
    return function
"""


def turn_to(function: Any, ask: Callable[..., Any]) -> Any:
    """Have calls of a function go to ``ask``.

    Args:
        function: A plain Python function.
        ask: Called in its place with its arguments, from a frame between it and the caller.

    Returns:
        A function that does what it did.

    Raises:
        ValueError: Its code cannot be exchanged.
    """
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    hide(ask)
    function.__code__ = _code(code, ask)
    _originals[id(function.__code__)] = original
    hide_from_dynamo(function)
    return original


def turn_back(function: Any, original: Any) -> None:
    """Undo ``turn_to``."""
    _originals.pop(id(function.__code__), None)
    function.__code__ = original.__code__


def as_it_was(function: Any) -> Any:
    """A function that can be read: what a watched one was."""
    return _originals.get(id(function.__code__), function)


def hide(function: Any) -> None:
    """Make frames of ours between a script and its function look like those of other wrappers."""
    function.__code__ = function.__code__.replace(co_filename=WRAPPER_FILE)


def strip(error: BaseException) -> None:
    """Take our frames out of the top of a traceback."""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name != WRAPPER_FILE and not name.startswith(_HERE):
            break
        trace = trace.tb_next
    error.__traceback__ = trace


def _code(like: Any, ask: Any) -> Any:
    free = like.co_freevars
    uses = "".join("%s, " % name for name in free) or "None"
    text = _SOURCE.format(free=", ".join(free), uses=uses, ask=_ASK, strip=_STRIP)
    names: dict[str, Any] = {}
    exec(compile(text, WRAPPER_FILE, "exec"), names)  # no text of the script's: names alone
    made = names["around"](*free).__code__
    parts = {_ASK: ask, _STRIP: strip}
    consts = tuple(parts.get(one, one) if type(one) is str else one for one in made.co_consts)
    return made.replace(co_consts=consts, co_name=like.co_name, co_firstlineno=like.co_firstlineno)
