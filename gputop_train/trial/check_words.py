"""A check as text for a terminal, as Markdown for a CI's summary, and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from gputop_train.report import format as fmt
from gputop_train.report.compare_text import escaped, value
from gputop_train.trial.check_record import Check, Gate, Side, Timing
from gputop_train.trial.store import plain

SCHEMA = 1
MAX_WIDTH, MIN_WIDTH = 110, 40
_KEY = 9
_MARKS = {True: "ok", False: "worse", None: "not judged"}


def lines(check: Check, width: int, *, ascii_only: bool = False) -> list[str]:
    """The result for a terminal; lines never exceed ``width``, nor ``MAX_WIDTH``."""
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    found = ["── gputop-train check ".ljust(room, "─")]
    against = f" against {fmt.printable(check.baseline)}" if check.baseline else ""
    found += fmt.row("result", f"{check.result}{against}", room, key_width=_KEY)
    for n, reason in enumerate(check.reasons):
        found += fmt.row("" if n else "why", fmt.printable(reason), room, key_width=_KEY)
    if check.where:
        found += fmt.row("where", check.where, room, key_width=_KEY)
    found += [_line(*cells, room) for cells in _table(check)]
    for n, note in enumerate(check.notes):
        found += fmt.row("" if n else "mind", fmt.printable(note), room, key_width=_KEY)
    if check.trial is not None:
        found += fmt.row("legs", fmt.printable(check.trial), room, key_width=_KEY)
    return [fmt.to_ascii(line)[:room] if ascii_only else line for line in found]


def _line(label: str, before: str, now: str, allowed: str, mark: str, room: int) -> str:
    cells = f" {'':<{_KEY}}{label:<20}{before:>12}{now:>12}{allowed:>12}  {mark}"
    return cells.rstrip()[:room].rstrip()


def _table(check: Check) -> list[tuple[str, str, str, str, str]]:
    """What was measured on both sides: in words, before, now, at most, and whether it holds."""
    older, newer = check.older, check.newer
    if older is None or newer is None:
        return []
    rows = [("", "before", "now", "at most", "")]
    for label, unit, of in _TIMES:
        was, is_ = of(older), of(newer)
        if was is not None or is_ is not None:
            rows.append((label, value(was, unit), value(is_, unit), "", ""))
    if check.timing is not None and check.timing.ratio is not None:
        bound = f"{1 + check.limits.slowdown:.3g}x" if check.limits.time else ""
        rows.append(("time ratio", "1x", f"{check.timing.ratio:.3f}x", bound, _mark(check.timing)))
    rows += [_gate(gate) for gate in check.gates]
    return rows if len(rows) > 1 else []


_TIMES: tuple[tuple[str, str, Any], ...] = (
    ("step, mean", "ms", lambda side: side.step_mean_ms),
    ("time a sample", "us", lambda side: side.time_per_sample_us),
)


def _mark(timing: Timing) -> str:
    words = {"pass": "ok", "regression": "worse", "inconclusive": "not clear", None: "not judged"}
    return words[timing.verdict]


def _gate(gate: Gate) -> tuple[str, str, str, str, str]:
    cells = (value(gate.before, gate.unit), value(gate.now, gate.unit))
    return gate.label, *cells, value(gate.allowed, gate.unit), _MARKS[gate.ok]


def markdown(check: Check) -> str:
    """The result as GitHub's Markdown, such as for ``$GITHUB_STEP_SUMMARY``."""
    against = f" against {escaped(check.baseline)}" if check.baseline else ""
    out = [f"### gputop-train check: {check.result}{against}", ""]
    out += [f"- {escaped(reason)}" for reason in check.reasons]
    if check.where:
        out.append(f"- Where it came from: {escaped(check.where)}")
    out += [f"- Mind: {escaped(note)}" for note in check.notes]
    rows = _table(check)
    if rows:
        out += ["", "| " + " | ".join(rows[0]) + " |", "| --- | ---: | ---: | ---: | --- |"]
        out += ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows[1:]]
    return "\n".join([*out, ""])


def as_json(check: Check) -> dict[str, Any]:
    """The result as plain data, schema 1; ``None`` = not measured."""
    timing = check.timing
    peak = next((gate for gate in check.gates if gate.name == "peak_allocated"), None)
    found = {
        "schema": SCHEMA,
        "result": check.result,
        "step_ratio": None if timing is None else timing.ratio,
        "interval": None if timing is None or timing.interval is None else list(timing.interval),
        "memory_ratio": None if peak is None else peak.ratio,
        "invariants": {
            gate.name: {
                "baseline": gate.before,
                "now": gate.now,
                "ratio": gate.ratio,
                "allowed": gate.allowed,
                "ok": gate.ok,
            }
            for gate in check.gates
        },
        "baseline": check.baseline,
        "reasons": list(check.reasons),
        "where": check.where,
        "notes": list(check.notes),
        "limits": {
            "max_slowdown": check.limits.slowdown if check.limits.time else None,
            "max_memory": check.limits.memory,
        },
        "pairs": None if timing is None else timing.pairs,
        "older": _side(check.older),
        "now": _side(check.newer),
        "trial": check.trial,
    }
    told: dict[str, Any] = plain(found)
    return told


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "step_mean_ms": side.step_mean_ms,
        "time_per_sample_us": side.time_per_sample_us,
        "peak_allocated": side.peak_allocated,
        "peak_reserved": side.peak_reserved,
        "steps": side.steps,
        "legs_run": len(side.step_ms),
        "phases_ms": dict(side.phases_ms),
    }
