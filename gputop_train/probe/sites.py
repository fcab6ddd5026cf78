"""Places in the user's code: small ids for (code object, line), with counters."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

from .state import S

MAX_SITES = 1024
MAX_DEPTH = 48

_ids: dict[tuple[int, int, str], int] = {}
#: id -> (kind, file, line, func, call, label)
places: list[tuple[str, str, int, str, str, str | None] | None] = [None]
#: id -> [count, total_ns, bytes, unpinned bytes, calls looked at, event pairs, ns between the
#: events of the pairs, bytes of the pairs, idle ns that followed the pairs]
stats: list[list[int]] = [[0] * 9]
_library: dict[int, bool] = {}
# Keys use id(code): hashing a code object walks its constants. Held so that an id is never reused.
_kept: list[Any] = []

_LIBRARY_PARTS = (
    "site-packages",
    "dist-packages",
    "_gputop_probe",
    "gputop_train" + os.sep + "probe",
)
_STDLIB = os.path.dirname(os.__file__) + os.sep


def is_library(code: Any) -> bool:
    """Whether this code belongs to an installed package, the standard library or the probe."""
    key = id(code)
    known = _library.get(key)
    if known is None:
        known = is_library_name(code.co_filename)
        if len(_kept) < 1 << 15:
            _kept.append(code)
            _library[key] = known
    return known


def is_library_name(name: str) -> bool:
    """The same of a file's name."""
    return (
        (
            name[:1] == "<"
            or name.startswith(_STDLIB)
            or any(part in name for part in _LIBRARY_PARTS)
        )
        and not name.startswith("<ipython")
        and name not in ("<string>", "<stdin>")
    )


def source(code: Any, last: int, line: int) -> str:
    """The source text of the call under way: exact from Python 3.11, else the line."""
    try:
        if last >= 0 and hasattr(code, "co_positions"):
            for index, position in enumerate(code.co_positions()):
                if index * 2 == last:
                    first, end, start_column, end_column = position
                    if first and first == end and start_column is not None:
                        raw = linecache.getline(code.co_filename, first).encode()
                        return raw[start_column:end_column].decode("utf-8", "replace")[:160]
                    break
        return linecache.getline(code.co_filename, line).strip()[:160]
    except Exception:
        return ""


def register(
    code: Any,
    line: int | None,
    kind: str,
    call: str | None = None,
    label: str | None = None,
    last: int = -1,
) -> int:
    """Id of this place; 0 when the table is full, or the instruction is of no line (3.11 on)."""
    if line is None:
        return 0
    key = (id(code), line, kind + (label or ""))
    site = _ids.get(key)
    if site is None:
        if len(places) >= MAX_SITES:
            return 0
        site = len(places)
        text = call or source(code, last, line) or code.co_name
        places.append((kind, code.co_filename, line, code.co_name, text, label))
        stats.append([0] * 9)
        _kept.append(code)
        _ids[key] = site
    return site


def caller(kind: str, depth: int = 2, call: str | None = None) -> int:
    """Id of the nearest user frame up the stack, or of the nearest frame at all."""
    evaluator = S.set_eval_frame(None)
    try:
        return _walk(sys._getframe(depth), kind, call)
    finally:
        S.set_eval_frame(evaluator)


def _walk(frame: Any, kind: str, call: str | None) -> int:
    first = None
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if first is None and "gputop" not in code.co_filename:
            first = frame
        if not is_library(code):
            return register(code, frame.f_lineno, kind, call, None, frame.f_lasti)
        frame = frame.f_back
    if first is None:
        return 0
    return register(first.f_code, first.f_lineno, kind, call, None, first.f_lasti)


def count(site: int, ns: int, amount: int = 0, unpinned: int = 0, weight: int = 1) -> None:
    """Add one occurrence at a place; one that was drawn from many stands for ``weight`` of them."""
    row = stats[site]
    row[0] += weight
    row[1] += weight * ns
    row[2] += weight * amount
    row[3] += weight * unpinned
    row[4] += 1


def pair(argument: int, ns: int, after_ns: int = 0) -> None:
    """Two GPU events around one call: the device time between them.

    Args:
        argument: ``bytes << 16 | site``, as an ``ARG_SITE`` word carries it.
        ns: Device time from the event right before the call to the one right after it.
        after_ns: Idle device time from there to the next wait of the host.
    """
    site = argument & 0xFFFF
    if 0 < site < len(stats):
        row = stats[site]
        row[5] += 1
        row[6] += ns
        row[7] += argument >> 16
        row[8] += after_ns


class Lot:
    """Draws one call in ``one_in``, at a random place of each ``one_in`` calls.

    A fixed stride would meet the same line of a loop for ever. The generator is our own: the
    script's random state is never touched.
    """

    def __init__(self, one_in: int, seed: int = 12345) -> None:
        self.one_in = one_in
        self._state = seed
        self._place = 0
        self._left = 0
        self._next(0)

    def drawn(self) -> bool:
        """Whether the call just made stands for its ``one_in``."""
        self._left -= 1
        if self._left:
            return False
        self._next(self.one_in - self._place)
        return True

    def _next(self, rest: int) -> None:
        self._state = (self._state * 1103515245 + 12345) & 0x7FFFFFFF
        self._place = (self._state >> 12) % self.one_in + 1
        self._left = rest + self._place


def clear() -> None:
    """Drop every reference to user code objects (before module teardown, and after a fork)."""
    _ids.clear()
    _library.clear()
    del places[1:]
    del stats[1:]
    _kept.clear()
