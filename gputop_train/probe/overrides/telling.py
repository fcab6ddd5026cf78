"""What became of each setting: rows of the snapshot's ``overrides``."""

from __future__ import annotations

from typing import Any

from ..state import S

MAX_ROWS = 64
MAX_TEXT = 240
APPLIED, REFUSED, NO_EFFECT = "applied", "refused", "no effect"

_rows: dict[tuple[str, Any, Any], dict[str, Any]] = {}


def tell(override: dict[str, Any], status: str, why: str = "", place: str | None = None) -> None:
    """Say what became of a setting, at a loader's ``FILE:LINE`` or for the whole process.

    What was applied stays applied: of two loaders built at one line, one may evaluate.
    """
    _put(override, status, why, place, keep_applied=True)


def withdraw(override: dict[str, Any], why: str, place: str | None = None) -> None:
    """Say that a setting is in force no more."""
    _put(override, REFUSED, why, place, keep_applied=False)


def _put(
    override: dict[str, Any], status: str, why: str, place: str | None, keep_applied: bool
) -> None:
    key = (override["key"], override.get("loader"), place)
    row = _rows.get(key)
    if row is None:
        if len(S.overrides) >= MAX_ROWS:
            return
        # No key comes later: the helper thread walks through rows.
        row = _rows[key] = {
            "key": override["key"],
            "value": override["value"],
            "named": override.get("loader"),
            "loader": place,
            "status": status,
            "why": why[:MAX_TEXT],
        }
        S.overrides.append(row)
    elif status == APPLIED or row["status"] != APPLIED or not keep_applied:
        row["status"], row["why"] = status, why[:MAX_TEXT]


def failure(error: BaseException) -> str:
    """An exception in one line."""
    return ("it failed: %s: %s" % (type(error).__name__, " ".join(str(error).split())))[:MAX_TEXT]
