"""How fast this host is just now: a fixed bit of work, timed beside every leg.

A stored baseline was measured at another time, and the same host is faster or slower by then
(neighbours on it, its clock, its temperature). Work that never changes tells by how much.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

#: One reading is the best of so many turns, since whatever disturbs a turn makes it longer.
TURNS = 25
_LOOP = 40_000
_BYTES = 4 << 20


def read() -> dict[str, float]:
    """Time the work, about 0.1 s in all.

    Returns:
        Milliseconds of the best turn: ``interpreter`` (a loop in Python), ``memory`` (copying 4 MB)
        and ``arithmetic`` (a hash of them).
    """
    buffer = bytearray(_BYTES)
    return {
        "interpreter": _best(_loop),
        "memory": _best(lambda: bytes(buffer)),
        "arithmetic": _best(lambda: hashlib.sha256(buffer).digest()),
    }


def ratio(before: dict[str, list[float]], now: dict[str, list[float]]) -> tuple[float, float]:
    """By how much the host is slower now than then: the least and the most that any work says.

    Args:
        before: Readings by kind of work.
        now: The same.

    Returns:
        ``(1.0, 1.0)`` where there is nothing to compare.
    """
    found = [
        _middle(now[kind]) / _middle(before[kind])
        for kind in before
        if before[kind] and now.get(kind) and _middle(before[kind]) > 0
    ]
    return (min(1.0, *found), max(1.0, *found)) if found else (1.0, 1.0)


def _loop() -> int:
    total = 0
    for number in range(_LOOP):
        total += number & 7
    return total


def _best(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(TURNS):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def _middle(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
