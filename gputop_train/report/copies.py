"""How a script's copies to the GPU are written: whether they wait for the copy. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from gputop_train.model import Site

#: Lines that copy less of all bytes than this are no matter: a mask, a learning rate (proposed).
_SHARE = 0.05
#: Methods that copy, and which positional argument is ``non_blocking``.
_PLACE = {"to": 2, "cuda": 1, "copy_": 1}


def non_blocking(sites: Iterable[Site]) -> bool | None:
    """Whether the lines that copy to the GPU ask for it without waiting.

    Args:
        sites: Lines of the script with their counters; others than copies are left out.

    Returns:
        ``False`` where one waits; ``None`` where nothing was copied, or one does not say.
    """
    copies = [site for site in sites if site.kind == "h2d" and site.count and site.bytes]
    total = sum(site.bytes or 0 for site in copies)
    said = [written(site.call) for site in copies if (site.bytes or 0) >= _SHARE * total]
    if not said:
        return None
    if False in said:
        return False
    return None if None in said else True


def written(call: str) -> bool | None:
    """Whether a call, as written, copies without waiting; ``None`` = it does not say."""
    try:
        tree = ast.parse(call.strip())
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [
        _asks(node, _PLACE[node.func.attr])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _PLACE
    ]
    return found[0] if len(set(found)) == 1 else None


def _asks(call: ast.Call, place: int) -> bool | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in named or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    given = named.get("non_blocking")
    if given is None and len(call.args) > place:
        given = call.args[place]
    elif given is None and len(call.args) == 2:
        # ``x.to(device, True)`` beside ``x.to(device, torch.half)``: a bare name may be either.
        given = None if isinstance(call.args[1], ast.Attribute) else call.args[1]
    if given is None:
        return False
    value = given.value if isinstance(given, ast.Constant) else None
    return value if isinstance(value, bool) else None
