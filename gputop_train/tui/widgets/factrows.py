"""A name with facts beside it, on as few rows as they need. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_train.tui.paint import Glyphs, Row, Span, fit, width_of
from gputop_train.tui.widgets.timechart import GUTTER

#: Below this width the charts' gutter would leave no room for words.
NARROW, NARROW_GUTTER = 60, 11


def gutter(width: int) -> int:
    """Cells left of the facts."""
    return NARROW_GUTTER if width < NARROW else GUTTER


def fact_rows(
    name: str, parts: Sequence[Sequence[Span]], width: int, glyphs: Glyphs, *, lines: int = 2
) -> list[Row]:
    """Whole parts in order, on at most ``lines`` rows; what does not fit is left out."""
    rows: list[list[Span]] = []
    for part in parts:
        if rows and width_of(rows[-1]) + width_of(part) + len(glyphs.sep) <= width:
            rows[-1] += [(glyphs.sep, "faint"), *part]
        elif len(rows) < lines:
            lead = (f" {name}" if not rows else "").ljust(gutter(width))
            rows.append([(lead, "muted"), *part])
        else:
            break
    return [fit(row, width, glyphs) for row in rows]
