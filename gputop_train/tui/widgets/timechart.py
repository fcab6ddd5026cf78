"""The device over time: a filled chart on a fixed 0 to 100 axis, and the shared time axis."""

from __future__ import annotations

import math

from gputop_train.tui import series
from gputop_train.tui.paint import Glyphs, Row, Span, fit, level, spread
from gputop_train.tui.snapshot import Chart, Series, Snapshot
from gputop_train.tui.text import duration
from gputop_train.tui.widgets.panel import Panel

#: Cells left of the first bin, in the chart and in the lanes under it: one time axis for both.
GUTTER = 18
#: Cells right of the last bin.
MARGIN = 1


def plot_columns(width: int) -> int:
    """Bins that fit a panel of this width."""
    return max(1, width - GUTTER - MARGIN)


def chart_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """Title, plot, a second series where there is room, and the time axis with its marks."""
    chart = snap.chart
    if chart is None:
        return [((" no device readings yet", "muted"),)]
    if height < 4:
        return [_title(snap, chart, width, glyphs)]
    line = [lane_row(chart.line, width, glyphs)] if chart.line is not None and height >= 8 else []
    plot = height - 2 - len(line)
    rows = [_title(snap, chart, width, glyphs)]
    rows += _plot(chart, width, plot, glyphs)
    rows += line
    rows.append(axis_row(snap, width, glyphs))
    return rows


def lane_row(line: Series, width: int, glyphs: Glyphs) -> Row:
    """A series of percents in one row, on the same time axis."""
    columns = plot_columns(width)
    cells = "".join(
        " " if value is None else level(value / 100, glyphs.lane)
        for value in _last(line.mean, columns)
    )
    average = line.average if line.average is not None else series.average(line.mean)
    mean = f"{average:.0f}%" if average is not None else ""
    head: list[Span] = [
        (f" {line.name:<11}", "gpu"),
        (f"{mean:>5}", "text"),
        (glyphs.edge, "muted"),
    ]
    return fit([*head, (cells, "gpu")], width, glyphs)


def _title(snap: Snapshot, chart: Chart, width: int, glyphs: Glyphs) -> Row:
    facts: list[Span] = []
    room = width - len(chart.title) - 4
    for position, fact in enumerate(chart.facts):
        text = (glyphs.sep if position else "") + fact
        if len(text) > room:
            break
        room -= len(text)
        facts.append((text, "text" if position == 0 else "muted"))
    return spread([(f" {chart.title}", chart.device)], [*facts, (" ", "text")], width, glyphs)


def _plot(chart: Chart, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    columns = plot_columns(width)
    means = _last(chart.area.mean, columns)
    peaks = _last(chart.area.peak, columns)
    rows: list[Row] = []
    for y in range(height):
        floor = height - 1 - y
        body = _plot_row(means, peaks, floor, height, glyphs, chart.device)
        head = f"{_axis_label(y, height):>{GUTTER - 1}}" + glyphs.edge
        rows.append(fit([(head, "muted"), *body], width, glyphs))
    return rows


def _axis_label(y: int, height: int) -> str:
    if y == 0:
        return "100%"
    if height >= 5 and y == height // 2:
        return "50%" if height % 2 else "  "
    return "0%" if y == height - 1 else ""


def _plot_row(
    means: tuple[float | None, ...],
    peaks: tuple[float | None, ...],
    floor: int,
    height: int,
    glyphs: Glyphs,
    device: str,
) -> list[Span]:
    """One row of the plot: runs of equal ink, joined."""
    spans: list[Span] = []
    for mean, peak in zip(means, peaks, strict=True):
        cell = _cell(mean, peak, floor, height, glyphs)
        ink = f"{device}_band" if cell == glyphs.band else device
        if spans and (spans[-1][1] == ink or cell == " "):
            spans[-1] = (spans[-1][0] + cell, spans[-1][1])
        else:
            spans.append((cell, ink))
    return spans


def _cell(mean: float | None, peak: float | None, floor: int, height: int, glyphs: Glyphs) -> str:
    if mean is None or not math.isfinite(mean):
        return " "
    filled = mean / 100 * height - floor
    if filled > 1 / 16:
        return level(min(1.0, filled), glyphs.levels)
    if floor == 0:
        return glyphs.levels[1]  # measured and (nearly) zero, which is not the same as unmeasured
    if peak is not None and peak / 100 * height - floor > 0.5:
        return glyphs.band
    return " "


def _last(values: tuple[float | None, ...], columns: int) -> tuple[float | None, ...]:
    """The newest ``columns`` values, padded with gaps on the left."""
    kept = values[-columns:]
    return (None,) * (columns - len(kept)) + kept


def axis_row(snap: Snapshot, width: int, glyphs: Glyphs) -> Row:
    """The time axis: how long ago (live) or since the start (replay, ended), and what happened."""
    columns = plot_columns(width)
    cells = [glyphs.axis] * columns
    inks = ["faint"] * columns
    shift = columns - snap.axis.columns
    taken = {mark.column + shift: mark for mark in snap.marks}
    for column, text in _ticks(snap, columns):
        reach = range(column, column + len(text))
        # What happened matters more than when; and half a label is worse than none.
        if column >= 0 and reach.stop <= columns and taken.keys().isdisjoint(reach):
            cells[column : reach.stop] = text
            inks[column : reach.stop] = ["muted"] * len(text)
    for column, mark in taken.items():
        if 0 <= column < columns:
            cells[column] = glyphs.save if mark.kind == "checkpoint" else glyphs.evaluation
            inks[column] = mark.kind
    legend = _legend(snap, glyphs)
    head = f"{legend:>{GUTTER - 2}} " + ("+" if glyphs.ascii else "└")
    spans: list[Span] = [(head, "muted")]
    for cell, ink in zip(cells, inks, strict=True):
        if spans[-1][1] == ink:
            spans[-1] = (spans[-1][0] + cell, ink)
        else:
            spans.append((cell, ink))
    return fit(spans, width, glyphs)


def _legend(snap: Snapshot, glyphs: Glyphs) -> str:
    kinds = {mark.kind for mark in snap.marks}
    words = []
    if "checkpoint" in kinds:
        words.append(f"{glyphs.save} save")
    if "eval" in kinds:
        words.append(f"{glyphs.evaluation} eval")
    return " ".join(words)


def _ticks(snap: Snapshot, columns: int) -> list[tuple[int, str]]:
    """Labels of the axis, each at the cell it begins in; the last ends at the last cell."""
    window_s = snap.axis.bin_ns * columns / 1e9
    live = snap.state in ("starting", "live", "stopping") or snap.elapsed_s is None
    count = 4 if columns >= 88 else 2
    ticks: list[tuple[int, str]] = []
    for position in range(count):
        ago = window_s * (1 - position / count)
        if live:
            text = f"{duration(round(ago))} ago"
        else:
            since = (snap.elapsed_s or 0) - ago
            if since < 0:
                continue
            text = duration(round(since))
        ticks.append((round(columns * position / count), f"{text} "))
    end = "now" if live else duration(snap.elapsed_s or 0)
    ticks.append((columns - len(end) - 1, f" {end}"))
    return ticks


class TimeChart(Panel):
    """See `chart_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The chart at this size."""
        return chart_rows(snapshot, width, height, self.glyphs)
