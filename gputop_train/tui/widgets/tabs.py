"""The names of the pages with their keys, the one in front in brackets."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_train.tui.paint import Glyphs, Row, Span, fit
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.panel import Panel

#: Where every cell counts.
_SHORT = {"overview": "main"}


def tabs_row(pages: Sequence[tuple[str, str]], current: str, width: int, glyphs: Glyphs) -> Row:
    """One row: roomy, dense, or the keys alone with the name of the page in front.

    Args:
        pages: Key and name of each.
        current: The name of the one in front.
        width: Cells.
        glyphs: The alphabet.
    """
    words = [f"{key} {name}" for key, name in pages]
    if sum(len(word) + 2 for word in words) + 1 <= width:
        spans: list[Span] = []
        for word, (_, name) in zip(words, pages, strict=True):
            here = name == current
            spans += [
                ("[" if here else " ", "muted"),
                (word, "strong" if here else "muted"),
                ("]" if here else " ", "muted"),
            ]
        return fit(spans, width, glyphs)
    words = [f"{key} {_SHORT.get(name, name)}" for key, name in pages]
    if sum(len(word) + 1 for word in words) + 1 > width:
        words = [f"{key} {name}" if name == current else key for key, name in pages]
    at = next((i for i, (_, name) in enumerate(pages) if name == current), -1)
    spans = []
    for position, word in enumerate(words):
        here = position == at
        edge = "[" if here else "]" if position == at + 1 and at >= 0 else " "
        spans += [(edge, "muted"), (word, "strong" if here else "muted")]
    spans.append(("]" if at == len(words) - 1 else " ", "muted"))
    return fit(spans, width, glyphs)


class Tabs(Panel):
    """See `tabs_row`."""

    pages: Sequence[tuple[str, str]] = ()
    current = ""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """One row, blank while there is but one page."""
        return self.early_rows(width, height)

    def early_rows(self, width: int, height: int) -> list[Row]:
        """The names are known from the beginning."""
        if len(self.pages) < 2:
            return []
        return [tabs_row(self.pages, self.current, width, self.glyphs)]
