"""`TimeChart`, the one chart of quantities over time, and the time axis all panels share.

A page says what to draw as a `plot.Plot`, made from the snapshot by a pure function::

    def held(snapshot: Snapshot) -> Plot | None:
        page = snapshot.memory_page
        if page is None:
            return None
        return Plot(
            "GPU memory", snapshot.axis,
            (Curve("reserved", page.reserved, "gpu", kind="area"),
             Curve("allocated", page.allocated, "info")),
            top=page.total, unit="bytes", limit=page.total,
            facts=("peak 61.3 GiB",), marks=snapshot.marks, now_s=past(snapshot),
        )

    chart = TimeChart(held, id="held")   # a Panel: chart.show(snapshot), chart.restyle(...)

``values`` hold one value per bin of the snapshot's axis (or two: braille has two dots a cell), the
newest last, ``None`` where nothing was measured; `plot_columns` says how many bins a width has.
At 4 rows or more there are a title, the plot and the time axis; below that the title and, with 2
or 3 rows, a strip of the first curve. `plot_rows` is the same without a widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gputop_train.tui.paint import Glyphs, Row, Span, fit, level, spread, width_of
from gputop_train.tui.plot import (
    Canvas,
    Curve,
    Plot,
    Values,
    average,
    latest,
    letters,
    newest,
    scale_label,
)
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import duration
from gputop_train.tui.widgets.panel import Panel

#: Cells left of the first bin, in the chart and in the lanes under it: one time axis for both.
GUTTER = 18
#: Cells right of the last bin; the letters of lines stand there.
MARGIN = 1
#: Distances of the labels on the time axis, in seconds, and the cells a label wants for itself.
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
LABEL_CELLS = 18


def plot_columns(width: int) -> int:
    """Bins that fit a panel of this width."""
    return max(1, width - GUTTER - MARGIN)


def past(snap: Snapshot) -> float | None:
    """`Plot.now_s` of a snapshot: ``None`` while the run is live."""
    live = snap.state in ("starting", "live", "stopping") or snap.elapsed_s is None
    return None if live else snap.elapsed_s


# The chart


def plot_rows(plot: Plot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """Title, plot, a lane where there is room, and the time axis with its marks."""
    rows = [_title(plot, width, glyphs)]
    if height < 4:
        return [*rows, *_strip(plot, width, glyphs)] if height > 1 and plot.curves else rows
    lane = [lane_row(plot.lane, width, glyphs)] if plot.lane is not None and height >= 8 else []
    return [
        *rows,
        *_body(plot, width, height - 2 - len(lane), glyphs),
        *lane,
        axis_row(plot, width, glyphs),
    ]


def _title(plot: Plot, width: int, glyphs: Glyphs) -> Row:
    left: list[Span] = [(f" {plot.title}", plot.ink)]
    lines = [curve for curve in plot.curves if curve.kind == "line"]
    if len(plot.curves) > 1:
        for letter, curve in zip(letters([c.name for c in lines]), lines, strict=True):
            left += [(f"   {letter} ", "strong"), (curve.name, curve.ink)]
        areas = [curve for curve in plot.curves if curve.kind == "area"]
        left += [(f"   {glyphs.band} {curve.name}", curve.ink) for curve in areas]
    facts: list[Span] = []
    room = width - width_of(left) - 3
    for position, fact in enumerate(plot.facts):
        text = (glyphs.sep if position else "") + fact
        if len(text) > room:
            break
        room -= len(text)
        facts.append((text, "text" if position == 0 else "muted"))
    return spread(left, [*facts, (" ", "text")], width, glyphs)


def _strip(plot: Plot, width: int, glyphs: Glyphs) -> list[Row]:
    curve = plot.curves[0]
    share = tuple(None if v is None else 100 * v / plot.top for v in curve.values)
    return [_cells_row("", curve.ink, "", share, width, glyphs)]


def _body(plot: Plot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    canvas = Canvas(
        plot_columns(width),
        height,
        plot.top,
        glyphs,
        first_bin=int(plot.axis.t1_ns / plot.axis.bin_ns) - plot_columns(width),
    )
    if plot.limit is not None:
        canvas.rule(plot.limit)
    lines = [curve for curve in plot.curves if curve.kind == "line"]
    for curve in plot.curves:
        if curve.kind == "area":
            (canvas.shade if lines else canvas.area)(curve)
    for position, curve in reversed(list(enumerate(lines))):  # the first lies on top
        canvas.line(curve, position)
    ends = _ends(plot, lines, canvas) if len(plot.curves) > 1 else {}
    rows = []
    for y in range(height):
        head = f"{_scale(plot, y, height):>{GUTTER - 1}}" + glyphs.edge
        rows.append(fit([(head, "muted"), *canvas.spans(y), *ends.get(y, ())], width, glyphs))
    return rows


def _ends(plot: Plot, lines: Sequence[Curve], canvas: Canvas) -> dict[int, list[Span]]:
    """Each line's letter beside its newest point, or as near to it as there is room."""
    out: dict[int, list[Span]] = {}
    for letter, curve in zip(letters([c.name for c in lines]), lines, strict=True):
        value = latest(curve.values)
        if value is None or not math.isfinite(value):
            continue
        at = canvas.row_of(value)
        near = sorted(range(canvas.rows), key=lambda row: abs(row - at))
        free = next((row for row in near if row not in out), None)
        if free is not None:
            out[free] = [(letter, curve.ink)]
    return out


def _scale(plot: Plot, y: int, height: int) -> str:
    if y == 0:
        return scale_label(plot.top, plot.unit)
    if height >= 5 and y == height // 2:
        return scale_label(plot.top / 2, plot.unit) if height % 2 else ""
    return scale_label(0, plot.unit) if y == height - 1 else ""


# One row of levels


def lane_row(curve: Curve, width: int, glyphs: Glyphs) -> Row:
    """A quantity in percent in one row, on the same time axis, with its mean."""
    mean = curve.average if curve.average is not None else average(curve.values)
    words = f"{mean:.0f}%" if mean is not None else ""
    return _cells_row(curve.name, curve.ink, words, curve.values, width, glyphs)


def _cells_row(name: str, ink: str, words: str, values: Values, width: int, glyphs: Glyphs) -> Row:
    cells = "".join(
        " " if value is None else level(value / 100, glyphs.lane)
        for value in newest(values, plot_columns(width))
    )
    head: list[Span] = [(f" {name:<11}", ink), (f"{words:>5}", "text"), (glyphs.edge, "muted")]
    return fit([*head, (cells, ink)], width, glyphs)


# The time axis


def axis_row(plot: Plot, width: int, glyphs: Glyphs) -> Row:
    """The time axis: how long ago (live) or since the start (the past), and what happened."""
    columns = plot_columns(width)
    cells = [glyphs.axis] * columns
    inks = ["faint"] * columns
    shift = columns - plot.axis.columns
    taken = {mark.column + shift: mark for mark in plot.marks}
    free = 0
    for column, text in _ticks(plot, columns):
        reach = range(column, column + len(text))
        # What happened matters more than when; and half a label is worse than none.
        if column >= free and reach.stop <= columns and taken.keys().isdisjoint(reach):
            cells[column : reach.stop] = text
            inks[column : reach.stop] = ["muted"] * len(text)
            free = reach.stop
    for column, mark in taken.items():
        if 0 <= column < columns:
            cells[column] = glyphs.save if mark.kind == "checkpoint" else glyphs.evaluation
            inks[column] = mark.kind
    head = f"{_legend(plot, glyphs):>{GUTTER - 2}} " + ("+" if glyphs.ascii else "└")
    spans: list[Span] = [(head, "muted")]
    for cell, ink in zip(cells, inks, strict=True):
        if spans[-1][1] == ink:
            spans[-1] = (spans[-1][0] + cell, ink)
        else:
            spans.append((cell, ink))
    return fit(spans, width, glyphs)


def _legend(plot: Plot, glyphs: Glyphs) -> str:
    kinds = {mark.kind for mark in plot.marks}
    words = []
    if "checkpoint" in kinds:
        words.append(f"{glyphs.save} save")
    if "eval" in kinds:
        words.append(f"{glyphs.evaluation} eval")
    return " ".join(words)


def _ticks(plot: Plot, columns: int) -> list[tuple[int, str]]:
    """Labels of the axis at round times, each at the cell it begins in.

    The first cell and the last have theirs in any case: they say what the axis spans.
    """
    window_s = plot.axis.bin_ns * columns / 1e9
    now_s = plot.now_s

    def words(ago: float) -> str:
        when = f"{duration(round(ago))} ago" if now_s is None else duration(round(now_s - ago))
        return f"{when} "

    step = next((s for s in STEPS_S if s * columns / window_s >= LABEL_CELLS), STEPS_S[-1])
    end = " now" if now_s is None else f" {duration(now_s)}"
    # The newest label's cells are kept free by leaving out what would reach into them.
    last = columns - len(end)
    ticks: list[tuple[int, str]] = []
    if now_s is None or now_s >= window_s:
        ticks.append((0, words(window_s)))
    offset = 0.0 if now_s is None else now_s % step
    count = int((window_s - offset) / step)
    for number in range(count, -1, -1):
        ago = offset + number * step
        column = round(columns * (1 - ago / window_s))
        if (now_s is None or now_s >= ago) and column + len(words(ago)) <= last:
            ticks.append((column, words(ago)))
    return [*ticks, (last, end)]


# The overview's chart


def device_plot(snap: Snapshot) -> Plot | None:
    """The device over time: GPU utilisation, or CPU cores busy where there is no GPU."""
    chart = snap.chart
    if chart is None:
        return None
    area, line = chart.area, chart.line
    return Plot(
        chart.title,
        snap.axis,
        (Curve(area.name, area.mean, chart.device, "area", area.peak),),
        facts=chart.facts,
        marks=snap.marks,
        now_s=past(snap),
        ink=chart.device,
        lane=Curve(line.name, line.mean, "gpu", average=line.average) if line else None,
    )


def chart_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """`device_plot` drawn."""
    plot = device_plot(snap)
    if plot is None:
        return [((" no device readings yet", "muted"),)]
    return plot_rows(plot, width, height, glyphs)


class TimeChart(Panel):
    """Draws what ``plot`` makes of a snapshot; see the module.

    Args:
        plot: What to draw; its ``None`` leaves ``nothing`` said instead.
        nothing: Words for when there is nothing to draw.
    """

    def __init__(
        self,
        plot: Callable[[Snapshot], Plot | None] = device_plot,
        *,
        nothing: str = "no device readings yet",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._plot = plot
        self._nothing = nothing

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The chart at this size."""
        plot = self._plot(snapshot)
        if plot is None:
            return [((f" {self._nothing}", "muted"),)]
        return plot_rows(plot, width, height, self.glyphs)
