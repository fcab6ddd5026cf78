"""Modes that slow every step: in how many of the looks anomaly detection or a profiler was on.

Looked at with each stack sample, since a block around a part of the step is on only then. Their
lines are found in the text of the script's own files: a hook on the switch would be one more frame
below the warning it prints.
"""

from __future__ import annotations

import linecache
import re
import sys
from typing import Any

from .. import sites
from ..state import S

MAX_FILES, MAX_LINES, MAX_PLACES = 32, 20_000, 3
#: Files become known while a script runs; after so many searches in vain there is no line.
MAX_SEARCHES = 5
_TEXT = {
    "anomaly": re.compile(
        r"(?:detect_anomaly|set_anomaly_enabled)\s*\((?!\s*(?:mode\s*=\s*)?False)"
        r"|detect_anomaly\s*=\s*True"
    ),
    "profiler": re.compile(r"(?<!def )(?<![A-Za-z_])profile\s*\((?!\s*enabled\s*=\s*False)"),
}

_looked = [0]
#: Mode -> [looks it was on in, number of the newest of them].
_on = {name: [0, 0] for name in _TEXT}
_at: dict[str, list[list[Any]]] = {}
_searches = dict.fromkeys(_TEXT, 0)


def look() -> None:
    """Called by the helper thread with each stack sample; both answers hold for all threads."""
    torch = S.torch
    _looked[0] += 1  # before the answers: a torch without them leaves its modes at "never on"
    for name, on in (
        ("anomaly", torch.is_anomaly_enabled()),
        ("profiler", getattr(torch.autograd.profiler, "_is_profiler_enabled", False)),
    ):
        if on:
            row = _on[name]
            row[0] += 1
            row[1] = _looked[0]


def report() -> dict[str, Any]:
    """For the snapshot: looks, ``[looks on, looks since]`` by mode, and the lines that switch."""
    looked = _looked[0]
    found: dict[str, Any] = {"looked": looked}
    for name, (on, newest) in list(_on.items()):
        found[name] = [on, looked - newest if on else None]
        if on and not _at.get(name) and _searches[name] < MAX_SEARCHES:
            _searches[name] += 1
            _at[name] = _search(_TEXT[name])
    found["at"] = {name: places for name, places in _at.items() if places}
    return found


def _search(pattern: Any) -> list[list[Any]]:
    """``[file, line, text]`` in the script's own files, the script itself first."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    names = [main] if isinstance(main, str) else []
    names += [place[1] for place in list(sites.places) if place is not None]
    found: list[list[Any]] = []
    for name in list(dict.fromkeys(names))[:MAX_FILES]:
        if sites.is_library_name(name):
            continue
        for number, text in enumerate(linecache.getlines(name)[:MAX_LINES], 1):
            if pattern.search(text.split("#", 1)[0]):
                found.append([name, number, text.strip()[:160]])
                if len(found) >= MAX_PLACES:
                    return found
    return found


def reset() -> None:
    """After a fork: nothing was looked at here."""
    _looked[0] = 0
    for row in _on.values():
        row[:] = [0, 0]
