"""What became of each ``--set``: applied, refused and why, or never met by a loader. Pure.

A setting is applied where a ``DataLoader`` is constructed, inside the script. Asking for it proves
nothing, so a report says what the probe saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

APPLIED, REFUSED, NO_EFFECT = "applied", "refused", "no effect"
_NOT_MET = "no DataLoader that it concerns was built"
_UNKNOWN = "the probe did not say"


def outcomes(run: Mapping[str, Any], states: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of every setting of a run, in the order given.

    Args:
        run: ``run.json``.
        states: The probe's newest state of each rank.

    Returns:
        One dict a setting: ``setting`` as typed, ``value``, ``status`` (``applied``, ``refused``,
        ``no effect``, or ``None`` = the probe did not say), ``where`` it was applied or refused
        (``FILE:LINE``), ``why`` for all but an applied one, ``changes_results``.
    """
    told = [state["overrides"] for state in states if isinstance(state.get("overrides"), list)]
    rows = [row for rows in told for row in rows if isinstance(row, Mapping)]
    changing = set(run.get("changes_results") or ())
    return [
        _outcome(str(label), value, rows if told else None, label in changing)
        for label, value in (run.get("overrides") or {}).items()
    ]


def words(outcome: Mapping[str, Any]) -> str:
    """A setting and what became of it, for a line of text."""
    shown = f"{outcome['setting']}={outcome['value']}"
    if outcome["status"] == APPLIED:
        parts = [f"applied at {', '.join(outcome['where'])}"]
    elif outcome["status"] == REFUSED:
        parts = [f"refused at {', '.join(outcome['where'])}: {outcome['why']}"]
    elif outcome["status"] == NO_EFFECT:
        parts = [f"no effect: {outcome['why']}"]
    else:
        parts = [f"not confirmed: {outcome['why']}"]
    if outcome["changes_results"]:
        parts.append("changes results")
    return f"{shown} ({', '.join(parts)})"


def mark(outcome: Mapping[str, Any]) -> str:
    """The same for a title, where there is room for a word."""
    status = outcome["status"]
    note = status if status in (REFUSED, NO_EFFECT) else ""
    note = note or ("changes results" if outcome["changes_results"] else "")
    return f"{outcome['setting']}={outcome['value']}" + (f" ({note})" if note else "")


def _outcome(
    label: str, value: Any, rows: list[Mapping[str, Any]] | None, changing: bool
) -> dict[str, Any]:
    found = {"setting": label, "value": value, "changes_results": changing}
    if rows is None:
        return {**found, "status": None, "where": [], "why": _UNKNOWN}
    mine = [row for row in rows if _concerns(label, value, row)]
    for status in (APPLIED, REFUSED):
        of_status = [row for row in mine if row.get("status") == status]
        if of_status:
            break
    else:
        return {
            **found, "status": NO_EFFECT, "where": [], "why": _NOT_MET, "changes_results": False
        }  # fmt: skip
    refused = status == REFUSED
    return {
        **found,
        "status": status,
        "where": _distinct(row.get("loader") for row in of_status),
        "why": "; ".join(_distinct(row.get("why") for row in of_status)) if refused else None,
        "changes_results": changing and not refused,
    }


def _concerns(label: str, value: Any, row: Mapping[str, Any]) -> bool:
    key, _, place = label.partition("@")
    if row.get("key") != key or row.get("value") != value:
        return False
    return not place or row.get("loader") == PurePath(place).name


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value))
