"""Curves one above the other on the time axis of the overview: same gutter, same columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, level
from gputop_train.tui.plot import Plot, newest
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.views.devices import Quantity, Values
from gputop_train.tui.widgets.timechart import GUTTER, axis_row, past, plot_columns

#: Rows of a curve from which on it is a chart with a scale.
TALL = 3


def strips(
    snap: Snapshot, curves: Sequence[Quantity], width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """As many curves as fit, the first one taller, and the time axis under them.

    Args:
        snap: Whose axis it is.
        curves: Most important first.
        width: Cells.
        height: Rows in all.
        glyphs: The alphabet.
    """
    if height < 2 or not curves:
        return []
    shown = curves[: height - 1]
    rows: list[Row] = []
    for curve, size in zip(shown, _share(len(shown), height - 1), strict=True):
        rows += strip(curve, width, size, glyphs)
    return [*rows, time_axis(snap, width, glyphs)]


def time_axis(snap: Snapshot, width: int, glyphs: Glyphs) -> Row:
    """The time axis all panels share."""
    return axis_row(Plot("", snap.axis, (), marks=snap.marks, now_s=past(snap)), width, glyphs)


def _share(count: int, rows: int) -> list[int]:
    """Rows of each: the first is a chart of up to twelve, the others get two where there is room.

    A quantity is read from its shape and its number; more rows of fill would only be louder.
    """
    others = 2 if rows >= 6 + 2 * (count - 1) else 1
    first = max(1, min(rows - others * (count - 1), 12))
    return [first, *[others] * (count - 1)]


def strip(curve: Quantity, width: int, rows: int, glyphs: Glyphs) -> list[Row]:
    """One curve: its name, its newest value and, where it is tall, its scale."""
    columns = plot_columns(width)
    values = newest(curve.values, columns)
    out: list[Row] = []
    for y in range(rows):
        floor = rows - 1 - y
        cells = "".join(_cell(value, curve.top, floor, rows, glyphs) for value in values)
        head = _gutter(curve, y, rows, glyphs)
        out.append(fit([*head, (cells, curve.ink)], width, glyphs))
    return out


def _gutter(curve: Quantity, y: int, rows: int, glyphs: Glyphs) -> list[Span]:
    room = GUTTER - 1
    edge: Span = (glyphs.edge, "muted")
    if rows < TALL and y == 0:
        now = curve.now
        if cell_len(curve.name) + cell_len(now) + 2 > room:
            now = now.replace(" ", "")
        name = clip(f" {curve.name}", room - cell_len(now) - 1, glyphs)
        gap = " " * (room - cell_len(name) - cell_len(now))
        return [(name + gap, "muted"), (now, "text"), edge]
    if rows < TALL:
        return [(" " * room, "text"), edge]
    if y == 0:
        name = clip(f" {curve.name}", room, glyphs)
        scale = curve.scale if cell_len(name) + cell_len(curve.scale) < room else ""
        gap = " " * (room - cell_len(name) - cell_len(scale))
        return [(name, curve.ink), (gap + scale, "muted"), edge]
    if y == 1:
        text = clip(f" {curve.now}", room, glyphs)
        return [(text.ljust(room), "text"), edge]
    return [(f"{'0' if y == rows - 1 else '':>{room}}", "muted"), edge]


def _cell(value: float | None, top: float, floor: int, rows: int, glyphs: Glyphs) -> str:
    if value is None or not math.isfinite(value) or top <= 0:
        return " "
    filled = min(1.0, value / top) * rows - floor
    if filled > 1 / 16:
        # Not quite full at the top, so that a strip stays apart from the one above it.
        levels = glyphs.levels[:-1] if floor == rows - 1 else glyphs.levels
        return level(min(1.0, filled), levels)
    # Measured and (nearly) nothing is not the same as not measured.
    return glyphs.levels[1] if floor == 0 else " "


def lane(values: Values, top: float, width: int, glyphs: Glyphs) -> str:
    """The newest ``width`` values in one row."""
    return "".join(_cell(value, top, 0, 1, glyphs) for value in newest(values, width))
