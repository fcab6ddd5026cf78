"""The memory page."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.app import ComposeResult

from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs, Row
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.memory_page import memory_page_rows
from gputop_train.tui.widgets.panel import Panel


class MemoryBody(Panel):
    """See `memory_page_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The page at this size."""
        return memory_page_rows(snapshot, width, height, self.glyphs)


class MemoryPage(Page):
    """Memory of the device and of the host: over time, who holds it, whether it grows."""

    NAME = "memory"

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._rows = MemoryBody(classes="page")

    def compose_body(self) -> ComposeResult:
        """One panel."""
        yield self._rows

    def show_body(self, snapshot: Snapshot) -> None:
        """Show what is held."""
        self._rows.show(snapshot)
