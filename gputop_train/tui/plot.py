"""Quantities over time as rows of cells: filled areas of blocks, lines of braille or ASCII. Pure.

The scale is fixed by whoever draws, never by the values of the moment: a quantity that rests must
not look like a saw. A bin nothing was measured in stays blank. Several lines are told apart by
their ink, by how they are dotted, and by a letter at their newest point that the title explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gputop_train.tui.paint import Glyphs, Span, level
from gputop_train.tui.snapshot import Axis, Mark
from gputop_train.tui.text import size

Values = tuple[float | None, ...]

#: Dots of a braille cell, by column and by row from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
#: Lines after the first leave dot columns out, so that they differ without colour.
_KEPT = ((True,), (True, False), (True, True, False), (True, False, False))
_ASCII_LINES = "*o+x"


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity.

    Attributes:
        name: As the title names it.
        values: A value per bin in the plot's unit, or two per bin; the newest is the last.
        ink: Its colour.
        kind: ``area`` is filled down to 0, one to a plot; a ``line`` lies over it. Under lines an
            area is shaded and outlined instead of solid, so that they stay legible.
        peak: Each bin's largest sample, drawn as a band above an area; empty = none.
        average: The mean to name, where it is not that of ``values``.
    """

    name: str
    values: Values
    ink: str
    kind: Literal["area", "line"] = "line"
    peak: Values = ()
    average: float | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart at one instant.

    Attributes:
        title: Names the quantity and the device, in ``ink``.
        axis: The bins.
        curves: What is drawn, the most important first.
        top: The value at the upper edge; the lower one is 0.
        unit: ``%``, ``bytes`` (drawn as GiB and the like), or a word put behind numbers.
        facts: Short readings for the right of the title, most important first.
        marks: Saves and evaluations, on the time axis.
        limit: A value to draw a line at, such as the device's memory; ``None`` = none.
        now_s: Seconds since the run's start at the newest bin, for a view of the past;
            ``None`` = live, where times are said as "ago".
        ink: Colour of the title.
        lane: A further quantity in percent, drawn in a row of its own where there is room.
    """

    title: str
    axis: Axis
    curves: tuple[Curve, ...]
    top: float = 100.0
    unit: str = "%"
    facts: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    limit: float | None = None
    now_s: float | None = None
    ink: str = "text"
    lane: Curve | None = None


def nice_top(largest: float | None, unit: str = "") -> float:
    """A round upper edge that holds ``largest`` and seldom changes: 1, 2 or 5 times a power.

    Args:
        largest: The largest value to hold; ``None`` or 0 gives 1.
        unit: With ``bytes`` powers are of two.
    """
    if largest is None or not math.isfinite(largest) or largest <= 0:
        return 1.0
    if unit == "bytes":
        return float(2 ** math.ceil(math.log2(largest)))
    power = 10.0 ** math.floor(math.log10(largest))
    return next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= largest * (1 - 1e-9))


def scale_label(value: float, unit: str) -> str:
    """A value on the scale: ``100%``, ``64.0 GiB``, ``250 ms``."""
    if unit == "bytes":
        return "0" if value == 0 else size(value)
    number = f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
    return f"{number}%" if unit == "%" else "0" if value == 0 else f"{number} {unit}".rstrip()


def newest(values: Values, count: int) -> Values:
    """The newest ``count`` values, padded with gaps on the left."""
    kept = values[-count:]
    return (None,) * (count - len(kept)) + kept


class Canvas:
    """Cells of a plot: characters with inks, drawn over each other.

    Args:
        columns: Cells of a row.
        rows: Rows.
        top: The value at the upper edge.
        glyphs: The alphabet.
        first_bin: Number of the first bin since the clock's beginning: dotted lines move with it.
    """

    def __init__(
        self, columns: int, rows: int, top: float, glyphs: Glyphs, *, first_bin: int = 0
    ) -> None:
        self.columns, self.rows, self._top, self._glyphs = columns, rows, top, glyphs
        self._first_dot = 2 * first_bin
        self._cells = [[" "] * columns for _ in range(rows)]
        self._inks = [["text"] * columns for _ in range(rows)]
        self._dots = [[0] * columns for _ in range(rows)]

    def put(self, row: int, column: int, char: str, ink: str) -> None:
        """One cell."""
        self._cells[row][column], self._inks[row][column] = char, ink

    def area(self, curve: Curve) -> None:
        """Fill a curve down to 0, with a band up to each bin's largest sample."""
        means = newest(_by_bin(curve.values, self.columns), self.columns)
        peaks = newest(curve.peak, self.columns)
        for row in range(self.rows):
            floor = self.rows - 1 - row
            for column, (mean, peak) in enumerate(zip(means, peaks, strict=True)):
                cell = self._block(mean, peak, floor)
                if cell != " ":
                    band = cell == self._glyphs.band
                    self.put(row, column, cell, _band_ink(curve.ink) if band else curve.ink)

    def _block(self, mean: float | None, peak: float | None, floor: int) -> str:
        if mean is None or not math.isfinite(mean):
            return " "
        filled = mean / self._top * self.rows - floor
        if filled > 1 / 16:
            return level(min(1.0, filled), self._glyphs.levels)
        if floor == 0:
            return self._glyphs.levels[1]  # measured and (nearly) zero: not the same as unmeasured
        if peak is not None and peak / self._top * self.rows - floor > 0.5:
            return self._glyphs.band
        return " "

    def shade(self, curve: Curve) -> None:
        """Fill a curve down to 0 lightly, under an outline."""
        for column, value in enumerate(newest(_by_bin(curve.values, self.columns), self.columns)):
            if value is not None and math.isfinite(value):
                for row in range(self.row_of(value), self.rows):
                    self.put(row, column, self._glyphs.band, _band_ink(curve.ink))
        if not self._glyphs.ascii:
            self.line(curve, 0)

    def rule(self, value: float) -> None:
        """A thin line across at a value, under everything else."""
        row = self._at(value, 1)
        for column in range(self.columns):
            if self._cells[row][column] == " ":
                self.put(row, column, self._glyphs.axis, "faint")

    def line(self, curve: Curve, position: int) -> None:
        """Draw a curve over what is there; ``position`` among the lines gives how it is dotted."""
        if self._glyphs.ascii:
            self._ascii_line(curve, _ASCII_LINES[position % len(_ASCII_LINES)])
            return
        kept = _KEPT[position % len(_KEPT)]
        values = newest(_by_half_bin(curve.values, self.columns), 2 * self.columns)
        before: int | None = None
        for x, value in enumerate(values):
            if value is None or not math.isfinite(value):
                before = None
                continue
            y = self._at(value, 4)
            if kept[(self._first_dot + x) % len(kept)]:
                reach = range(y, y + 1) if before is None else _between(before, y)
                for dot in reach:
                    self._dot(x, dot, curve.ink)
            before = y

    def _dot(self, x: int, y: int, ink: str) -> None:
        row, column = y // 4, x // 2
        self._dots[row][column] |= _DOTS[x % 2][y % 4]
        self.put(row, column, chr(0x2800 + self._dots[row][column]), ink)

    def _ascii_line(self, curve: Curve, char: str) -> None:
        before: int | None = None
        for column, value in enumerate(newest(_by_bin(curve.values, self.columns), self.columns)):
            if value is None or not math.isfinite(value):
                before = None
                continue
            row = self._at(value, 1)
            for reached in range(row, row + 1) if before is None else _between(before, row):
                self.put(reached, column, char, curve.ink)
            before = row

    def _at(self, value: float, dots: int) -> int:
        """The dot row of a value, from the top, with ``dots`` to a row of cells."""
        count = self.rows * dots
        share = min(1.0, max(0.0, value / self._top))
        return min(count - 1, count - 1 - min(count - 1, int(share * count)))

    def row_of(self, value: float) -> int:
        """The row of cells a value lies in."""
        return self._at(value, 1)

    def spans(self, row: int) -> list[Span]:
        """A row as runs of equal ink."""
        out: list[Span] = []
        for cell, ink in zip(self._cells[row], self._inks[row], strict=True):
            if out and (out[-1][1] == ink or cell == " "):
                out[-1] = (out[-1][0] + cell, out[-1][1])
            else:
                out.append((cell, ink))
        return out


def _band_ink(ink: str) -> str:
    return f"{ink}_band" if ink in ("gpu", "cpu") else "faint"


def _between(before: int, at: int) -> range:
    """From the neighbour's row, exclusive, to this one: an unbroken line."""
    if before == at:
        return range(at, at + 1)
    return range(before + 1, at + 1) if before < at else range(at, before)


def _by_bin(values: Values, columns: int) -> Values:
    """One value a bin, of values that may come two a bin."""
    if len(values) <= columns:
        return values
    pairs = zip(values[-2 * columns :: 2], values[1 - 2 * columns :: 2], strict=False)
    return tuple(b if a is None else a if b is None else (a + b) / 2 for a, b in pairs)


def _by_half_bin(values: Values, columns: int) -> Values:
    """Two values a bin."""
    if len(values) > columns:
        return values
    return tuple(value for value in values for _ in range(2))


def letters(names: Sequence[str]) -> list[str]:
    """A letter for each name, its first that is still free; digits where names have run out."""
    taken: list[str] = []
    for name in names:
        wanted = [*filter(str.isalnum, name.lower()), *"123456789"]
        taken.append(next((char for char in wanted if char not in taken), "?"))
    return taken


def latest(values: Sequence[float | None]) -> float | None:
    """The newest measured value."""
    return next((value for value in reversed(values) if value is not None), None)


def average(values: Sequence[float | None]) -> float | None:
    """Mean of the measured values."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
