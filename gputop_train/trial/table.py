"""The table of a trial: every change beside what it came to. Pure but for the width given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gputop_train.report.format import milliseconds, percent, printable, safe, size, to_ascii
from gputop_train.trial import words

Row = Mapping[str, Any]
#: Columns a change's name may take; a longer one is folded.
_NAME_LEAST, _NAME_MOST = 18, 40
_ENDLESS = 10_000


@dataclass(frozen=True, slots=True)
class _Number:
    """One kind of number: its title, how a row shows it, and the key that says it was measured."""

    title: str
    cell: Callable[[Row], str]
    key: str


def table(rows: Sequence[Row], *, width: int, ascii_only: bool = False) -> Table:
    """The rows of ``trial.json`` as a Rich table.

    Every number that at least one row has measured is shown: in columns of their own where there is
    room, else one below the other.

    Args:
        rows: ``table`` of ``trial.json``.
        width: Columns there are.
        ascii_only: Draw with ASCII characters only.
    """
    wide = _drawn(rows, [[number] for number in _NUMBERS], ascii_only=ascii_only)
    if Measurement.get(_console(), _console().options, wide).maximum <= width:
        return wide
    step, sample, rate, peak, busy, against, predicted, cost, verdict = _NUMBERS
    groups = [[step, sample, rate], [peak, busy, cost], [against, verdict], [predicted]]
    return _drawn(rows, groups, ascii_only=ascii_only)


def _console() -> Console:
    return Console(width=_ENDLESS)


def _drawn(rows: Sequence[Row], groups: list[list[_Number]], *, ascii_only: bool) -> Table:
    """A table with one column for each group of numbers that stand below each other."""
    drawn = Table(
        box=box.ASCII if ascii_only else box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
        expand=False,
    )
    measured = [[n for n in group if _is_measured(n, rows)] for group in groups]
    columns = [group for group in measured if group]
    drawn.add_column("change", overflow="fold", min_width=_NAME_LEAST, max_width=_NAME_MOST)
    for group in columns:
        drawn.add_column("\n".join(n.title for n in group), justify="right", no_wrap=True)
    for row in rows:
        cells = [_change(row), *("\n".join(n.cell(row) for n in group) for group in columns)]
        drawn.add_row(*(Text(_safe(to_ascii(cell) if ascii_only else cell)) for cell in cells))
    return drawn


def _is_measured(number: _Number, rows: Sequence[Row]) -> bool:
    return any(row.get(number.key) is not None for row in rows)


def _safe(cell: str) -> str:
    return "\n".join(map(safe, cell.split("\n")))


def _change(row: Row) -> str:
    found = printable(str(row.get("change")))
    told = ", ".join(str(mark) for mark in row.get("marks") or ())
    return f"{found}\n({told})" if told else found


def _shown(key: str, as_text: Callable[[float], str]) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(key)
        return as_text(float(value)) if isinstance(value, (int, float)) else "-"

    return cell


def _against(row: Row) -> str:
    speedup, interval = row.get("speedup"), row.get("interval")
    if speedup is None:
        return "-"
    text = words.factor(speedup)
    return f"{text}\n{words.between((interval[0], interval[1]))}" if interval else text


def _predicted(row: Row) -> str:
    value, interval = row.get("predicted"), row.get("predicted_interval")
    if value is None:
        return "-"
    if not interval:
        return f"to {words.factor(value)}{'+' if row.get('predicted_at_least') else ''}"
    return f"{words.factor(value)}\n{words.between((interval[0], interval[1]))}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_NUMBERS = (
    _Number("step", _shown("step_ms", milliseconds), "step_ms"),
    _Number("per sample", _shown("time_per_sample_us", words.per_sample), "time_per_sample_us"),
    _Number("samples/s", _shown("samples_per_s", _rate), "samples_per_s"),
    _Number("memory", _shown("peak_memory", size), "peak_memory"),
    _Number("GPU busy", _shown("gpu_busy", percent), "gpu_busy"),
    _Number("vs baseline", _against, "speedup"),
    _Number("predicted", _predicted, "predicted"),
    _Number("cost/1M", _shown("cost_per_million", lambda v: f"{v:.3g}"), "cost_per_million"),
    _Number("verdict", lambda row: str(row.get("verdict") or ""), "verdict"),
)
