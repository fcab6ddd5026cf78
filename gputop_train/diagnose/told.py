"""What a probe's snapshot says, read as something that may have any form. Pure.

It comes out of a file that the training process writes: a value of the wrong type is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.window import Window


def part(state: object, key: str) -> Mapping[str, Any]:
    """A mapping under a key; empty where there is none."""
    value = state.get(key) if isinstance(state, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def rows(state: object, key: str) -> list[Mapping[str, Any]]:
    """The mappings of a list under a key."""
    value = state.get(key) if isinstance(state, Mapping) else None
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def whole(state: object, key: str) -> int | None:
    """A whole number under a key; a truth value is none."""
    value = state.get(key) if isinstance(state, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def autocast(window: Window) -> list[str] | None:
    """Types autocast was entered with; ``None`` where that is not told."""
    if not isinstance(window.probe.get("amp"), Mapping):
        return None
    blocks = rows(window.probe["amp"], "autocast")
    return [str(b.get("dtype")) for b in blocks if b.get("enabled") and b.get("blocks")]
