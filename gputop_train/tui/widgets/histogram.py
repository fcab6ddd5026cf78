"""How step times are spread: bars over a fitted axis, with the median and the 95th percentile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop_train.tui.paint import Glyphs, Row, Span, fit
from gputop_train.tui.text import count, milliseconds
from gputop_train.tui.views.steps import Histogram
from gputop_train.tui.widgets.timechart import GUTTER, plot_columns

#: Ticks of the axis there may be at most.
TICKS = 7


def histogram_rows(
    seen: Histogram,
    marks: Sequence[tuple[str, float]],
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Row]:
    """Names of the marks, bars, and an axis of round numbers.

    Args:
        seen: The bins.
        marks: Names and milliseconds of the values to point at.
        width: Cells.
        height: Rows, 4 or more.
        glyphs: The alphabet.
    """
    columns = plot_columns(width)
    cell_of = _Scale(seen, columns)
    bins = [min(len(seen.counts) - 1, cell_of.bin_at(cell)) for cell in range(columns)]
    most = max(seen.counts, default=0) or 1
    at = {cell_of.cell(ms): name for name, ms in marks}
    rows = [_marks_row(marks, cell_of, width, glyphs)]
    plot = height - 2
    for y in range(plot):
        floor = plot - 1 - y
        head = f"{count(most)} steps" if y == 0 else "0" if floor == 0 else ""
        spans: list[Span] = [(f"{head:>{GUTTER - 1}}{glyphs.edge}", "muted")]
        for cell, number in enumerate(bins):
            glyph = _bar(seen.counts[number] / most * plot, floor, glyphs)
            ink = "info"
            if glyph == " " and cell in at:
                glyph, ink = glyphs.edge, "muted"
            if spans[-1][1] == ink:
                spans[-1] = (spans[-1][0] + glyph, ink)
            else:
                spans.append((glyph, ink))
        rows.append(fit(spans, width, glyphs))
    rows.append(_axis_row(seen, cell_of, columns, width, glyphs))
    return rows


class _Scale:
    """Milliseconds to cells of the plot."""

    def __init__(self, seen: Histogram, columns: int) -> None:
        self._log = seen.log
        self._low, self._high = seen.edges[0], seen.edges[-1]
        self._columns = columns
        self._bins = len(seen.counts)

    def share(self, ms: float) -> float:
        """Where a value lies, 0 at the left end and 1 at the right one."""
        if self._log:
            return math.log(ms / self._low) / math.log(self._high / self._low)
        return (ms - self._low) / (self._high - self._low)

    def cell(self, ms: float) -> int:
        """The cell of a value within the bins."""
        return max(0, min(self._columns - 1, int(self.share(ms) * self._columns)))

    def bin_at(self, cell: int) -> int:
        """The bin that a cell shows."""
        return int((cell + 0.5) / self._columns * self._bins)


def _bar(filled: float, floor: int, glyphs: Glyphs) -> str:
    """One cell of a bar; a single step among thousands is still seen."""
    if filled <= 0:
        return " "
    rest = filled - floor
    if rest <= 0:
        return " "
    steps = len(glyphs.levels) - 1
    wanted = round(min(1.0, rest) * steps)
    return glyphs.levels[max(1, wanted)] if floor == 0 or wanted else " "


def _marks_row(
    marks: Sequence[tuple[str, float]], scale: _Scale, width: int, glyphs: Glyphs
) -> Row:
    """Each mark's name from its cell on, or up to it where the right edge is near."""
    columns = plot_columns(width)
    words: list[tuple[int, str]] = []
    for name, ms in marks:
        start, text = scale.cell(ms), f"{name} {milliseconds(ms)}"
        if words and start <= words[-1][0] + len(words[-1][1]):
            # Too near for a pointer of its own.
            words[-1] = (words[-1][0], f"{words[-1][1]}, {text}")
        else:
            words.append((start, f"{glyphs.edge}{text}"))
    cells = [" "] * columns
    for start, text in words:
        if start + len(text) > columns:
            text = f"{text.removeprefix(glyphs.edge)}{glyphs.edge}"
            start -= len(text) - 1
        if start > 0 and start + len(text) <= columns and cells[start - 1] == " ":
            cells[start : start + len(text)] = text
    return fit([(" " * GUTTER, "text"), ("".join(cells), "text")], width, glyphs)


def _axis_row(seen: Histogram, scale: _Scale, columns: int, width: int, glyphs: Glyphs) -> Row:
    cells = [glyphs.axis] * columns
    used = -1
    for ms in ticks(seen.edges[0], seen.edges[-1], log=seen.log):
        text = f"{glyphs.edge}{tick_text(ms)} "
        start = scale.cell(ms)
        if start > used and start + len(text) <= columns:
            cells[start : start + len(text)] = text
            used = start + len(text)
    name = "log scale" if seen.log else ""
    head = f"{name:>{GUTTER - 2}} " + ("+" if glyphs.ascii else "└")
    return fit([(head, "muted"), ("".join(cells), "muted")], width, glyphs)


def ticks(low: float, high: float, *, log: bool) -> list[float]:
    """Round numbers from ``low`` to ``high``: 1, 2, 5 of each decade, or equal steps of such."""
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [m * 10.0**d for d in decades for m in (1, 2, 5) if low <= m * 10.0**d <= high]
        if len(found) > TICKS:
            found = [ms for ms in found if round(math.log10(ms), 6).is_integer()] or found
        return found
    span = high - low
    if span <= 0:
        return []
    rough = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(rough * m for m in (1, 2, 5, 10) if span / (rough * m) <= TICKS)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def tick_text(ms: float) -> str:
    """A round number of the axis: ``0.5 ms``, ``20 ms``, ``2 s``."""
    return f"{ms / 1000:.6g} s" if ms >= 1000 else f"{ms:.6g} ms"
