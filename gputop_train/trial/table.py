"""The table of a trial: every change beside what it came to. Pure but for the width given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from gputop_train.report.format import milliseconds, percent, printable, size, to_ascii
from gputop_train.trial import words

Row = Mapping[str, Any]
#: From this width on every number has a column; below, two that belong together share one.
WIDE = 110


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: Callable[[Row], str]
    needs: tuple[str, ...]
    right: bool = True


def table(rows: Sequence[Row], *, width: int, ascii_only: bool = False) -> Table:
    """The rows of ``trial.json`` as a Rich table.

    A column appears where at least one row has it measured.

    Args:
        rows: ``table`` of ``trial.json``.
        width: Columns there are.
        ascii_only: Draw with ASCII characters only.
    """
    drawn = Table(
        box=box.ASCII if ascii_only else box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1) if width >= WIDE else (0, 0, 0, 1),
        expand=False,
        show_lines=False,
    )
    columns = [c for c in _columns(width >= WIDE) if _is_measured(c, rows)]
    for column in columns:
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
        )
    for row in rows:
        cells = [column.cell(row) for column in columns]
        drawn.add_row(*(Text(to_ascii(cell) if ascii_only else cell) for cell in cells))
    return drawn


def _is_measured(column: _Column, rows: Sequence[Row]) -> bool:
    return not column.needs or any(row.get(key) is not None for row in rows for key in column.needs)


def _columns(wide: bool) -> list[_Column]:
    step, sample = _number("step_ms", milliseconds), _number("time_per_sample_us", words.per_sample)
    rate = _number(
        "samples_per_s", lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    )
    peak, busy = _number("peak_memory", size), _number("gpu_busy", percent)
    cost = _number("cost_per_million", lambda value: f"{value:.3g}")
    change = _Column("change", _change, (), right=False)
    against = _Column("vs baseline" if wide else "vs base", _against, ("speedup",))
    forecast = _Column("predicted", _forecast, ("predicted",))
    verdict = _Column("verdict", _verdict, ("verdict",), right=False)
    price = _Column("cost per 1M samples" if wide else "cost/1M", cost, ("cost_per_million",))
    if wide:
        return [
            change,
            _Column("step", step, ("step_ms",)),
            _Column("per sample", sample, ("time_per_sample_us",)),
            _Column("samples/s", rate, ("samples_per_s",)),
            _Column("peak memory", peak, ("peak_memory",)),
            _Column("GPU busy", busy, ("gpu_busy",)),
            against,
            forecast,
            verdict,
            price,
        ]
    return [
        change,
        _Column("step\nsample", _stacked(step, sample), ("step_ms",)),
        _Column("samples/s", rate, ("samples_per_s",)),
        _Column("memory\nGPU busy", _stacked(peak, busy), ("peak_memory", "gpu_busy")),
        against,
        forecast,
        verdict,
        price,
    ]


def _number(key: str, shown: Callable[[float], str]) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.get(key)
        return shown(float(value)) if isinstance(value, (int, float)) else "-"

    return cell


def _stacked(first: Callable[[Row], str], second: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: f"{first(row)}\n{second(row)}"


def _change(row: Row) -> str:
    found = printable(str(row.get("change")))
    told = ", ".join(str(mark) for mark in row.get("marks") or ())
    return f"{found}\n({told})" if told else found


def _against(row: Row) -> str:
    speedup, interval = row.get("speedup"), row.get("interval")
    if speedup is None:
        return "-"
    text = words.factor(speedup)
    return f"{text}\n{words.between((interval[0], interval[1]))}" if interval else text


def _forecast(row: Row) -> str:
    value, interval = row.get("predicted"), row.get("predicted_interval")
    if value is None:
        return "-"
    if not interval:
        return f"to {words.factor(value)}"
    return f"{words.factor(value)}\n{words.between((interval[0], interval[1]))}"


def _verdict(row: Row) -> str:
    return str(row.get("verdict") or "")
