"""The base of everything drawn here: rows of cells, of which only those that changed are sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputop_train.tui.paint import UNICODE, Glyphs, Row, fit


class Board(Widget):
    """Paints what `content` gives.

    A terminal over SSH pays for every cell written, so new content is compared with the old row by
    row and unchanged rows are not sent again.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.glyphs: Glyphs = UNICODE
        self.inks: Mapping[str, Style] = {}
        self._rows: list[Row] = []
        self._strips: list[Strip] = []

    def content(self, width: int, height: int) -> list[Row] | None:
        """Rows from the top; missing ones are blank, surplus ones dropped. ``None``: nothing yet.

        Args:
            width: Cells of a row.
            height: Rows there is room for.
        """
        raise NotImplementedError

    def row(self, y: int) -> Row:
        """What is painted in a row; empty where nothing is."""
        return self._rows[y] if 0 <= y < len(self._rows) else ()

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours from now on."""
        self.glyphs, self.inks = glyphs, inks
        self._rows = []
        self.paint()

    def on_resize(self, _event: Resize) -> None:
        """Lay the content out anew."""
        self._rows = []
        self.paint()

    def paint(self) -> None:
        """Draw what has changed."""
        width, height = self.size
        if not width or not height:
            return
        given = self.content(width, height)
        if given is None:
            return
        rows = [fit(row, width, self.glyphs) for row in given[:height]]
        blank = fit((), width, self.glyphs)
        rows.extend(blank for _ in range(height - len(rows)))
        old = self._rows
        full = len(old) != len(rows)
        changed = [y for y, row in enumerate(rows) if full or old[y] != row]
        if full:
            self._strips = [self._strip(row) for row in rows]
        else:
            for y in changed:
                self._strips[y] = self._strip(rows[y])
        self._rows = rows
        if full:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _strip(self, row: Row) -> Strip:
        plain = self.inks.get("text", Style.null())
        return Strip([Segment(text, self.inks.get(ink, plain)) for text, ink in row])

    def render_line(self, y: int) -> Strip:
        """One painted row, on the widget's own background."""
        base = self.rich_style
        if y < len(self._strips):
            return self._strips[y].apply_style(base)
        return Strip.blank(self.size.width, base)
