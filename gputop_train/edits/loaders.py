"""DataLoader keywords at the line that builds it, or the flag or constant they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.edits.errors import EditError
from gputop_train.edits.origins import at_its_origin
from gputop_train.edits.splice import Splice, add_keywords, literal, set_value
from gputop_train.edits.syntax import Argument, Call, Source

#: Positional parameters of ``torch.utils.data.DataLoader`` (torch 2.1 to 2.13); the rest are
#: keywords only.
POSITIONAL = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
)
KEYS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size")
#: What torch refuses without workers, and the value that says "off".
_NEEDS_WORKERS: Mapping[str, Any] = {"persistent_workers": False, "prefetch_factor": None}


def construction(source: Source, line: int) -> Call:
    """The call that builds a DataLoader at a line.

    Raises:
        EditError: There is none there, or more than one.
    """
    at = [c for c in source.calls_at(line) if _is_loader(source, c)]
    begun = [c for c in at if c.line == line] or at
    if not begun:
        raise EditError(f"No DataLoader(...) is written at line {line}: change what builds it.")
    if len(begun) > 1:
        raise EditError(f"Line {line} builds {len(begun)} loaders: change the right one by hand.")
    return begun[0]


def _is_loader(source: Source, call: Call) -> bool:
    return source.full_name(call.func).rpartition(".")[2] in ("DataLoader", "StatefulDataLoader")


def change(
    source: Source,
    line: int,
    settings: Mapping[str, Any],
    command: Sequence[str] = (),
    *,
    workers: int | None = None,
) -> list[Splice]:
    """Give a loader's keywords these values.

    Args:
        source: The file that builds it.
        line: Where.
        settings: Keyword to value, keys of ``KEYS``.
        command: The run's command line: a flag given there beats its default in the file.
        workers: What an expression for ``num_workers`` comes to; ``None`` = unknown.

    Raises:
        EditError: Some value comes from elsewhere, or would be refused by torch.
    """
    call = construction(source, line)
    splices: list[Splice] = []
    absent: dict[str, Any] = {}
    for key, value in _consistent(call, settings, workers).items():
        given = _given(call, key)
        if given is None:
            absent[key] = value
        elif given.literal:
            if given.value != literal(value):
                splices.append(set_value(given, value))
        else:
            splices.append(at_its_origin(source, key, given.value, value, command))
    if absent:
        starred = next((a for a in call.arguments if a.star), None)
        if starred is not None:
            names = ", ".join(f"{key}={literal(value)}" for key, value in absent.items())
            raise EditError(
                f"The loader takes its arguments from {starred.star}{starred.value}: "
                f"set {names} there."
            )
        splices += add_keywords(source, call, absent)
    if not splices:
        raise EditError(f"Line {line} says so already.")
    return splices


def _given(call: Call, key: str) -> Argument | None:
    """The argument that sets a keyword, by name or by place.

    Raises:
        EditError: A starred argument hides which one it is.
    """
    named = call.argument(key)
    if named is not None or key not in POSITIONAL:
        return named
    place = POSITIONAL.index(key)
    positional = [a for a in call.arguments if a.keyword is None and a.star != "**"]
    if any(a.star for a in positional):
        raise EditError("The loader is built with *arguments: change what they hold.")
    return positional[place] if place < len(positional) else None


def _consistent(call: Call, settings: Mapping[str, Any], known: int | None) -> dict[str, Any]:
    """Settings with what must change along with them.

    Raises:
        EditError: torch would refuse them without workers.
    """
    wanted = dict(settings)
    workers = wanted.get("num_workers")
    if workers == 0:
        for key, off in _NEEDS_WORKERS.items():
            if call.argument(key) is not None:
                wanted.setdefault(key, off)
        return wanted
    given = _given(call, "num_workers")
    without = given is None or (given.value == "0" if given.literal else not known)
    for key, off in _NEEDS_WORKERS.items():
        if wanted.get(key, off) != off and workers is None and without:
            raise EditError(f"{key} needs num_workers of at least 1, and this loader has none.")
    return wanted
