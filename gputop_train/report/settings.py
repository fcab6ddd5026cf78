"""What became of each ``--set`` and what-if: applied, refused and why, or without effect. Pure.

They are applied inside the script: to a loader, an optimizer, a module. Asking for one proves
nothing, so a report says what the probe saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from gputop_train.model import Loader
from gputop_train.report import schema

APPLIED, REFUSED, NO_EFFECT = "applied", "refused", "no effect"
#: A what-if that went wrong on the way: the leg proves nothing.
INCONCLUSIVE = "inconclusive"
_ORDER = (INCONCLUSIVE, APPLIED, REFUSED, NO_EFFECT)
_UNKNOWN = "the probe did not say"
#: Why a setting met nothing, by what it looks for.
_NOT_MET = {
    "non_blocking": "no batch was copied from pinned memory to a GPU",
    "tf32": "no training forward of a module was seen",
    "bf16": "no training forward of a module was seen",
    "cudnn_benchmark": "no training forward of a module was seen",
    "compile": "no training forward of a module was seen",
    "fused": "no optimizer of torch was built",
    "expandable_segments": "no GPU was used",
    "omp_threads": "torch was not imported",
    "replay_batch": "nothing was met that could be replayed",
    "sync_every": "no read of a GPU value was seen",
    "skip_checkpoint": "nothing was saved",
    "no_eval": "no evaluation was seen",
}
_NO_LOADER = "no DataLoader that it concerns was built"
MAX_PLACES = 4


def outcomes(
    run: Mapping[str, Any],
    states: Iterable[Mapping[str, Any]],
    loaders: Iterable[Loader] = (),
) -> list[dict[str, Any]]:
    """What became of every setting of a run, then of every what-if, in the order given.

    Args:
        run: ``run.json``.
        states: The probe's newest state of each rank.
        loaders: Those the script built, to name their lines where none was the one meant.

    Returns:
        One dict a setting: ``setting`` as typed (``what_if:`` in front of a what-if), ``value``,
        ``status`` (``applied``, ``refused``, ``no effect``, ``inconclusive`` for a what-if, or
        ``None`` = the probe did not say), ``where`` it was applied or refused (``FILE:LINE``),
        ``why`` for all but an applied one, where it is a remark or ``None``, ``changes_results``.
    """
    known = list(states)
    changing = set(run.get("changes_results") or ())
    built = _distinct(f"{PurePath(loader.file).name}:{loader.line}" for loader in loaders)
    rows = _rows(known, "overrides")
    found = [
        _outcome(str(label), value, rows, label in changing, built)
        for label, value in (run.get("overrides") or {}).items()
    ]
    tried = _rows(known, "what_if")
    for label in run.get("what_if") or ():
        key, given, value = str(label).partition("=")
        number: Any = int(value) if value.isdigit() else True if not given else value
        outcome = _outcome(key, number, tried, True, built)
        if outcome["status"] == APPLIED and (apart := _apart(tried or [], key, number)):
            outcome["why"] = "; ".join(filter(None, [outcome["why"], apart]))
        found.append({**outcome, "setting": f"what_if:{key}"})
    return found


def is_one(outcome: object) -> bool:
    """Whether something from a report's file is an outcome as `outcomes` makes them."""
    return isinstance(outcome, Mapping) and not schema.damaged(outcome, schema.SETTING)


def words(outcome: Mapping[str, Any]) -> str:
    """A setting and what became of it, for a line of text."""
    shown = f"{outcome['setting']}={outcome['value']}"
    at = f" at {', '.join(outcome['where'])}" if outcome["where"] else ""
    status, why = outcome["status"], outcome["why"]
    if status == APPLIED:
        parts = [f"applied{at}" + (f": {why}" if why else "")]
    elif status is None:
        parts = [f"not confirmed: {why}"]
    else:
        parts = [f"{status}{at if status != NO_EFFECT else ''}: {why}"]
    if outcome["changes_results"]:
        parts.append("changes results")
    return f"{shown} ({', '.join(parts)})"


def mark(outcome: Mapping[str, Any]) -> str:
    """The same for a title, where there is room for a word."""
    status = outcome["status"]
    note = status if status in (REFUSED, NO_EFFECT, INCONCLUSIVE) else ""
    note = note or ("changes results" if outcome["changes_results"] else "")
    return f"{outcome['setting']}={outcome['value']}" + (f" ({note})" if note else "")


def _rows(states: Iterable[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]] | None:
    told = [state[name] for state in states if isinstance(state.get(name), list)]
    return [row for rows in told for row in rows if isinstance(row, Mapping)] if told else None


def _outcome(
    label: str,
    value: Any,
    rows: list[Mapping[str, Any]] | None,
    changing: bool,
    built: list[str],
) -> dict[str, Any]:
    found = {"setting": label, "value": value, "changes_results": changing}
    if rows is None:
        return {**found, "status": None, "where": [], "why": _UNKNOWN}
    mine = [row for row in rows if _concerns(label, value, row)]
    for status in _ORDER:
        of_status = [row for row in mine if row.get("status") == status]
        if of_status:
            break
    else:
        why = _not_met(label, built)
        return {
            **found, "status": NO_EFFECT, "where": [], "why": why, "changes_results": False
        }  # fmt: skip
    reasons = _distinct(row.get("why") for row in of_status)
    return {
        **found,
        "status": status,
        "where": _distinct(row.get("loader") or row.get("place") for row in of_status),
        "why": "; ".join(reasons) or (None if status == APPLIED else _UNKNOWN),
        "changes_results": changing and status in (APPLIED, INCONCLUSIVE),
    }


def _apart(rows: list[Mapping[str, Any]], key: str, value: Any) -> str:
    """Where a what-if that was applied at some places was refused at others, and why."""
    mine = [row for row in rows if _concerns(key, value, row) and row.get("status") == REFUSED]
    told = _distinct(f"at {row['place']}: {row.get('why')}" for row in mine if row.get("place"))
    more = [f"and at {len(told) - MAX_PLACES} more"] if len(told) > MAX_PLACES else []
    return "; ".join(["not " + told[0], *told[1:MAX_PLACES], *more]) if told else ""


def _not_met(label: str, built: list[str]) -> str:
    key, _, place = label.partition("@")
    if key in _NOT_MET:
        return _NOT_MET[key]
    if not built:
        return _NO_LOADER
    lines = ", ".join(built[:MAX_PLACES]) + (" and others" if len(built) > MAX_PLACES else "")
    if place:
        return f"no DataLoader was built at {place}, but at {lines}"
    return f"{_NO_LOADER}: those of {lines} were not read for training"


def _concerns(label: str, value: Any, row: Mapping[str, Any]) -> bool:
    """Whether a row is of this setting: by the place as typed, where the probe tells it."""
    key, _, place = label.partition("@")
    if row.get("key") != key or row.get("value") != value:
        return False
    if "named" in row:
        return bool(row["named"] == (place or None))
    return not place or row.get("loader") == PurePath(place).name


def _distinct(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values if value))
