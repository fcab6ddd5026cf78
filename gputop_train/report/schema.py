"""The report's schema 1, as data: which key holds what. ``docs/the-report.md`` says it in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gputop_train.model import EXPOSED_LABELS, LABELS

SCHEMA = 1

NUMBER = "number"
INTEGER = "integer"
TEXT = "text"
FLAG = "true or false"
OBJECT = "object"


class Maybe:
    """A value that is ``null`` when it was not measured."""

    def __init__(self, of: Any) -> None:
        self.of = of


class Each:
    """A list of values of one kind."""

    def __init__(self, of: Any) -> None:
        self.of = of


class OneOf:
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words


_GAIN = {
    "ceiling": Maybe(NUMBER),
    "expected": Maybe(Each(NUMBER)),
    "basis": TEXT,
    "at_least": FLAG,
}
_FINDING = {
    "id": TEXT,
    "refined": Maybe(TEXT),
    "severity": OneOf("info", "warn", "critical"),
    "confidence": OneOf("low", "medium", "high"),
    "summary": TEXT,
    "lost_share": NUMBER,
    "evidence": Each({"what": TEXT, "value": Maybe((NUMBER, TEXT)), "unit": TEXT}),
    "where": Maybe(Each({"file": TEXT, "line": INTEGER, "what": TEXT})),
    "where_missing": Maybe(TEXT),
    "advice": Each({"text": TEXT, "setting": Maybe(OBJECT)}),
    "gain": Maybe(_GAIN),
}
#: What became of a setting that was asked for.
SETTING = {
    "setting": TEXT,
    "value": (NUMBER, TEXT, FLAG),
    "status": Maybe(OneOf("applied", "refused", "no effect", "inconclusive")),
    "where": Each(TEXT),
    "why": Maybe(TEXT),
    "changes_results": FLAG,
}
#: What a report is. Keys beyond these are allowed: a newer version may say more.
REPORT: dict[str, Any] = {
    "schema": INTEGER,
    "run": {
        "id": TEXT,
        "command": Each(TEXT),
        "started": Maybe(TEXT),
        "duration_s": Maybe(NUMBER),
        "exit_code": Maybe(INTEGER),
        "exit_reason": Maybe(TEXT),
        "stopped_by": Maybe(TEXT),
        "attempts": INTEGER,
        "host": Maybe(TEXT),
        "torch": Maybe(TEXT),
        "python": Maybe(TEXT),
        "gpus": Each({"uuid": TEXT, "name": Maybe(TEXT), "util_mean": Maybe(NUMBER)}),
        "signals_missing": Each(TEXT),
        "overrides": OBJECT,
        "settings": Each(SETTING),
        "changes_results": Each(TEXT),
    },
    "status": OneOf("verdict", "healthy", "abstained", "too-early", "no-steps"),
    "healthy": Maybe(FLAG),
    "note": TEXT,
    "abstained": Each({"id": TEXT, "missing": TEXT}),
    "steps": {
        "count": Maybe(INTEGER),
        "warmup_excluded": Maybe(INTEGER),
        "median_ms": Maybe(NUMBER),
        "p95_ms": Maybe(NUMBER),
        "samples_per_s": Maybe(NUMBER),
    },
    "time": {
        "wall_s": Maybe(NUMBER),
        "training_s": Maybe(NUMBER),
        "shares": dict.fromkeys(LABELS, Maybe(NUMBER)),
        "coverage": Maybe(NUMBER),
        "eval_shares": Maybe(OBJECT),
    },
    "gpu": {
        "util_mean": Maybe(NUMBER),
        "util_shape": OneOf("saturated", "periodic", "erratic", "flat-low", "idle", "unknown"),
        "busy_share": Maybe(NUMBER),
        "exposed": dict.fromkeys(EXPOSED_LABELS, Maybe(NUMBER)),
    },
    "memory": {
        "peak_allocated": Maybe(INTEGER),
        "peak_reserved": Maybe(INTEGER),
        "device_total": Maybe(INTEGER),
        "alloc_retries": Maybe(INTEGER),
        "growth_bytes_per_step": Maybe(NUMBER),
        "basis": TEXT,
    },
    "verdict": Maybe(_FINDING),
    "also": Each(_FINDING),
    "ranks": Each(
        {
            "rank": INTEGER,
            "host": Maybe(TEXT),
            "gpu_uuid": Maybe(TEXT),
            "step_median_ms": Maybe(NUMBER),
            "shares": dict.fromkeys(LABELS, Maybe(NUMBER)),
        }
    ),
    "overhead": {
        "probe_us_per_step": Maybe(NUMBER),
        "share": Maybe(NUMBER),
        "supervisor_cpu_share": Maybe(NUMBER),
    },
    "data_lost": Each({"what": TEXT, "count": INTEGER, "text": TEXT}),
}


def validate(report: object) -> list[str]:
    """Say what is wrong with a report.

    Returns:
        One sentence a problem, with the path of the key; empty for a valid report.
    """
    problems = _check(report, REPORT, "report")
    if not problems and isinstance(report, Mapping):
        problems = _agree(report)
    return problems


#: Keys that older releases of schema 1 did not write.
_LATER = {"report.data_lost", "report.run.settings"}


def damaged(report: object, form: Any = REPORT) -> str | None:
    """Why something cannot be read as a report of any release of schema 1; ``None`` if it can.

    Args:
        report: What was in a file.
        form: What it should be; a part of ``REPORT`` for a part of a report.
    """
    for problem in _check(report, form, "report"):
        path, _, what = problem.partition(" ")
        if what != "is absent." or path not in _LATER:
            return problem
    return None


def _check(value: Any, kind: Any, path: str) -> list[str]:
    if isinstance(kind, Maybe):
        return [] if value is None else _check(value, kind.of, path)
    if isinstance(kind, OneOf):
        expected = ", ".join(kind.words)
        return [] if value in kind.words else [f"{path} is {value!r}, not one of {expected}."]
    if isinstance(kind, Each):
        if not isinstance(value, (list, tuple)):
            return [f"{path} is {value!r}, not a list."]
        return [p for i, item in enumerate(value) for p in _check(item, kind.of, f"{path}[{i}]")]
    if isinstance(kind, Mapping):
        if not isinstance(value, Mapping):
            return [f"{path} is {value!r}, not an object."]
        absent = [f"{path}.{key} is absent." for key in kind if key not in value]
        return absent + [
            p for k, sub in kind.items() if k in value for p in _check(value[k], sub, f"{path}.{k}")
        ]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if any(_is(value, one) for one in kinds):
        return []
    return [f"{path} is {value!r}, not {' or '.join(kinds)}."]


def _is(value: Any, kind: str) -> bool:
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == INTEGER:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    if kind == NUMBER:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    if kind == TEXT:
        return isinstance(value, str)
    return isinstance(value, Mapping)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _agree(report: Mapping[str, Any]) -> list[str]:
    """Statements that must not contradict one another."""
    problems = []
    if report["schema"] != SCHEMA:
        problems.append(f"report.schema is {report['schema']}, not {SCHEMA}.")
    if (report["status"] == "verdict") != (report["verdict"] is not None):
        problems.append("report.verdict must be there exactly when report.status is verdict.")
    healthy = {"healthy": True, "verdict": False}.get(report["status"])
    if report["healthy"] is not healthy:
        problems.append(f"report.healthy is {report['healthy']} with status {report['status']}.")
    shares = report["time"]["shares"].values()
    if None not in shares and abs(sum(shares) - 1) > 0.01:
        problems.append(f"report.time.shares add up to {sum(shares):.3f}, not 1.")
    findings = [f for f in (report["verdict"], *report["also"]) if f is not None]
    problems.extend(
        f"{finding['id']} has neither a line nor the reason why, or both."
        for finding in findings
        if (finding["where"] is None) != bool(finding["where_missing"])
    )
    return problems
