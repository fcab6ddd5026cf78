"""Settings flipped without an edit of the script, each with word of what became of it.

Imported only where the configuration names settings. One that would break the script or change
which samples it sees is refused in words; one that fails inside leaves the script as it was.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..state import S, note_error
from . import copies, flags, forward, fused, loaders, telling

__all__ = ["on_dynamo", "on_stateful_loader", "place"]

LOADER_KEYS = loaders.KEYS


def place(torch: Any) -> None:
    """Place what the settings asked for need, each apart from the others."""
    wanted: dict[str, dict[str, Any]] = {}
    of_loaders = []
    for override in S.config["overrides"]:
        if override["key"] in LOADER_KEYS:
            of_loaders.append(override)
        else:
            wanted[override["key"]] = override
    if of_loaders:
        _try(of_loaders, loaders.place, torch, of_loaders)
    if "fused" in wanted:
        _try([wanted["fused"]], fused.place, torch, wanted["fused"])
    if "non_blocking" in wanted:
        _try([wanted["non_blocking"]], copies.place, torch, wanted["non_blocking"])
    rest = [wanted[key] for key in flags.KEYS if key in wanted]
    if rest:
        _try(rest, flags.place, torch, rest)
    rest = [wanted[key] for key in forward.KEYS if key in wanted]
    if rest:
        _try(rest, forward.place, torch, rest)


def on_dynamo() -> None:
    """Dynamo was imported: it is to trace neither our frames nor our wrapper of ``__call__``."""
    from .. import overrides_steps

    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:  # torch 2.1 and 2.2
        rules = sys.modules.get("torch._dynamo.skipfiles")
    if rules is not None:
        rules.SKIP_DIRS.append(os.path.dirname(os.path.abspath(__file__)) + os.sep)
        rules._recompile_re()
    overrides_steps.guard()
    forward.watch_dynamo()


def on_stateful_loader(module: Any) -> None:
    """The loader class that does without ``DataLoader``'s constructor was imported."""
    loaders.on_class(module.StatefulDataLoader)


def _try(overrides: list[dict[str, Any]], place: Any, *args: Any) -> None:
    try:
        place(*args)
    except Exception as error:
        note_error("overrides", error)
        for override in overrides:
            telling.tell(override, "refused", telling.failure(error))
