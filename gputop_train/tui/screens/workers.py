"""The workers page: the loaders, one of them with its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs, Row
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.workers_page import workers_page_rows


class WorkersBody(Panel):
    """See `workers_page_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The page at this size."""
        return workers_page_rows(snapshot, width, height, self.glyphs)


class WorkersPage(Page):
    """See the module."""

    NAME = "workers"
    KEYS = (("up/down", "loader"),)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "choose(1)", "next loader", show=False),
        Binding("up,k", "choose(-1)", "previous loader", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._rows = WorkersBody(classes="page")

    def compose_body(self) -> ComposeResult:
        """One panel."""
        yield self._rows

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the loaders."""
        self._rows.show(snapshot)

    def action_choose(self, by: int) -> None:
        """Show another loader's processes."""
        view = self.snapshot.workers_page if self.snapshot is not None else None
        if view is None or len(view.loaders) < 2:
            self.say("There is one loader." if view and view.loaders else "There is no loader.")
            return
        self.ask(loader=(view.chosen + by) % len(view.loaders))
