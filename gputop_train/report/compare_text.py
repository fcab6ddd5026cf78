"""A comparison as text for a terminal, as Markdown and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gputop_train.report import format as fmt
from gputop_train.report.compare import Comparison, Difference, Part, Phase, Row, RunSide
from gputop_train.report.compare_difference import signed, time_a_sample

MAX_WIDTH, MIN_WIDTH = 110, 40
#: Columns of the words at the left, and the least for each run.
_LABEL, _CELL = 21, 12
#: A phase is worth a line where it takes this share of any run's step.
_WORTH = 0.001
#: From this ratio on a growth is a factor, not a percentage.
MANY = 10
_MISSING = "-"
SCHEMA = 1


def lines(comparison: Comparison, width: int, *, ascii_only: bool = False) -> list[str]:
    """The comparison for a terminal.

    Args:
        comparison: What to show.
        width: Columns of the terminal; lines never exceed it, nor ``MAX_WIDTH``.
        ascii_only: Use no character beyond ASCII.

    Returns:
        Lines without line ends.
    """
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    found = ["── gputop-train compare ".ljust(room, "─")]
    for n, run in enumerate(comparison.runs):
        found += fmt.row(_tail(_title(run), 12), _about(run, first=n == 0), room, key_width=13)
    for block in _blocks(comparison, room):
        found.append("")
        found += _table(comparison, block, room)
    found.append("")
    for one in comparison.differences:
        found += fmt.row(
            _tail(_title(comparison.runs[one.index]), 12), one.sentence, room, key_width=13
        )
        if one.why != one.sentence:
            found += fmt.row("", fmt.printable(one.why), room, key_width=13)
    for n, warning in enumerate(comparison.warnings):
        found += fmt.row("" if n else "mind", fmt.printable(warning), room, key_width=13)
    found += fmt.row("note", comparison.note, room, key_width=13)
    # One character for one, or columns would shift.
    return [fmt.to_ascii(line.replace("…", "~"))[:room] if ascii_only else line for line in found]


def _title(run: RunSide) -> str:
    return fmt.printable(run.title)


def _clip(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _tail(text: str, room: int) -> str:
    """The end of a name: that is where names of runs differ."""
    return text if len(text) <= room else f"…{text[1 - room :]}"


def _about(run: RunSide, *, first: bool) -> str:
    parts = ["reference"] if first else []
    if run.title != run.id:
        parts.append(run.id)
    parts += [part for part in (run.verdict, *run.settings) if part]
    parts += [f"what-if {label}" for label in run.what_if]
    return fmt.printable(" · ".join(parts))


def _blocks(comparison: Comparison, room: int) -> Iterator[list[int]]:
    """Runs that fit side by side; every block begins with the reference."""
    fit = max(2, (room - _LABEL) // (_CELL + 1))
    others = list(range(1, len(comparison.runs)))
    for at in range(0, len(others), fit - 1):
        yield [0, *others[at : at + fit - 1]]


def _table(comparison: Comparison, block: Sequence[int], room: int) -> list[str]:
    two = len(block) == 2 and room >= _LABEL + 3 * (_CELL + 1)
    cell = min(_CELL, (room - _LABEL) // 2 - 1)

    def line(label: str, cells: Sequence[str], change: str = "") -> str:
        cells = [*cells, change] if two else cells
        body = " ".join(f"{_tail(text, cell):>{cell}}" for text in cells)
        return f" {_clip(label, _LABEL - 1):<{_LABEL - 1}}{body}".rstrip()

    found = [line("", [_title(comparison.runs[i]) for i in block], "change")]
    for row in comparison.rows:
        values = [row.values[i] for i in block]
        found.append(
            line(
                row.label,
                [value(v, row.unit) for v in values],
                _change(values, "steps" if row.key == "steps" else row.unit),
            )
        )
    sections = [("a step", "ms")]
    if any(p.us[0] is not None for p in comparison.phases) and comparison.unit == "sample":
        sections.append(("a sample", "us"))
    for heading, unit in sections:
        found.append(line(f"host time {heading}", [""] * len(block)))
        for phase in _worth(comparison):
            values = [_of(phase, unit)[i] for i in block]
            found.append(
                line(
                    f"  {fmt.label(phase.label)}",
                    [value(v, unit) for v in values],
                    _delta(values, unit),
                )
            )
    if idle := _worth_idle(comparison):
        found.append(line("GPU idle a step", [""] * len(block)))
        for row in idle:
            values = [row.values[i] for i in block]
            found.append(
                line(f"  {row.label}", [value(v, "ms") for v in values], _delta(values, "ms"))
            )
    return found


def _of(phase: Phase, unit: str) -> tuple[float | None, ...]:
    return phase.ms if unit == "ms" else phase.us


def value(number: float | None, unit: str) -> str:
    """One cell of a row (``Row.unit``); ``-`` where it was not measured."""
    if number is None:
        return _MISSING
    if unit == "ms":
        return fmt.milliseconds(number)
    if unit == "us":
        return time_a_sample(number)
    if unit == "bytes":
        return fmt.size(number)
    if unit == "share":
        return fmt.percent(number)
    if unit == "percent":
        return f"{number:.0f}%"
    if unit == "price":
        return f"{number:,.4g}"
    whole = unit == "count" and float(number).is_integer()
    return fmt.number(int(number) if whole else float(number))


def _change(values: Sequence[float | None], unit: str) -> str:
    """From the first of two values to the second; empty where that says nothing."""
    if len(values) != 2 or values[0] is None or values[1] is None or unit == "steps":
        return ""
    before, after = values[0], values[1]
    if unit in ("share", "percent"):
        points = (after - before) * (100 if unit == "share" else 1)
        return f"{points:+.0f} points"
    if before <= 0 or after < 0:
        return ""
    ratio = after / before
    if abs(ratio - 1) < 0.0005:
        return "same"
    if ratio >= MANY:
        return f"{ratio:,.0f}x"
    change = (ratio - 1) * 100
    return f"{change:+.1f}%" if abs(change) < 9.95 else f"{change:+.0f}%"


def _delta(values: Sequence[float | None], unit: str) -> str:
    if len(values) != 2 or values[0] is None or values[1] is None:
        return ""
    delta = values[1] - values[0]
    return signed("step" if unit == "ms" else "sample", delta) if delta else "same"


def _worth(comparison: Comparison) -> list[Phase]:
    return [p for p in comparison.phases if any(s and s >= _WORTH for s in p.shares)]


def _worth_idle(comparison: Comparison) -> list[Row]:
    steps = [comparison.times(i) for i in range(len(comparison.runs))]
    return [
        row
        for row in comparison.exposed
        if any(v and t and v >= _WORTH * t.step_ms for v, t in zip(row.values, steps, strict=True))
    ]


def markdown(comparison: Comparison) -> str:
    """The comparison as GitHub's Markdown."""
    titles = [escaped(run.title) for run in comparison.runs]
    out = [_md_row(["", *titles]), _md_row(["---", *["---:"] * len(titles)])]
    out += [_md_row([r.label, *(value(v, r.unit) for v in r.values)]) for r in comparison.rows]
    for phase in _worth(comparison):
        out.append(
            _md_row([f"{fmt.label(phase.label)}, a step", *(value(v, "ms") for v in phase.ms)])
        )
    if any(p.us[0] is not None for p in comparison.phases) and comparison.unit == "sample":
        for phase in _worth(comparison):
            cells = [value(v, "us") for v in phase.us]
            out.append(_md_row([f"{fmt.label(phase.label)}, a sample", *cells]))
    for row in _worth_idle(comparison):
        cells = [value(v, "ms") for v in row.values]
        out.append(_md_row([f"GPU idle a step: {row.label}", *cells]))
    out.append(_md_row(["verdict", *(escaped(run.verdict) for run in comparison.runs)]))
    if any(run.settings for run in comparison.runs):
        out.append(
            _md_row(["settings", *(escaped("; ".join(r.settings)) for r in comparison.runs)])
        )
    out.append("")
    for one in comparison.differences:
        why = "" if one.why == one.sentence else f" {escaped(one.why)}"
        out.append(f"- **{titles[one.index]}** against {titles[0]}: {escaped(one.sentence)}.{why}")
    out += [f"- Mind: {escaped(warning)}" for warning in comparison.warnings]
    return "\n".join([*out, "", f"_{comparison.note}_", ""])


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escaped(text: str) -> str:
    """Text from a script, so that it can be no markup of ours."""
    plain = fmt.printable(text)
    for char in "\\|`*_<>[]":
        plain = plain.replace(char, f"\\{char}")
    return plain


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data, schema 1; ``None`` = not measured."""
    return {
        "schema": SCHEMA,
        "basis": comparison.basis,
        "unit": comparison.unit,
        "runs": [_run(run) for run in comparison.runs],
        "numbers": {row.key: list(row.values) for row in comparison.rows},
        "phases": [
            {
                "label": p.label,
                "ms_per_step": list(p.ms),
                "us_per_sample": list(p.us),
                "shares": list(p.shares),
            }
            for p in comparison.phases
        ],
        "exposed_ms_per_step": {row.key: list(row.values) for row in comparison.exposed},
        "differences": [_difference(comparison, one) for one in comparison.differences],
        "warnings": list(comparison.warnings),
        "note": comparison.note,
    }


def _run(run: RunSide) -> dict[str, Any]:
    return {
        "id": run.id,
        "title": run.title,
        "command": list(run.command),
        "started": run.started,
        "host": run.host,
        "torch": run.torch,
        "python": run.python,
        "gpus": list(run.gpus),
        "exit_code": run.exit_code,
        "verdict": run.verdict,
        "settings": list(run.settings),
        "changes_results": list(run.changes_results),
        "what_if": list(run.what_if),
    }


def _difference(comparison: Comparison, one: Difference) -> dict[str, Any]:
    def part(of: Part) -> dict[str, Any]:
        return {"label": of.label, "delta": of.delta, "share": of.share}

    return {
        "run": comparison.runs[one.index].id,
        "against": comparison.runs[0].id,
        "unit": "ms per step" if one.unit == "step" else "us per sample",
        "before": one.before,
        "after": one.after,
        "speedup": one.speedup,
        "parts": [part(p) for p in one.parts],
        "apart": one.apart,
        "why": one.why,
        "sentence": one.sentence,
    }


__all__ = ["Row", "as_json", "escaped", "lines", "markdown", "value"]
