"""The devices page: GPUs a line each, Enter looks at one closely; the machine without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs, Row
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.devices import devices_rows
from gputop_train.tui.widgets.panel import Panel


class DevicesTable(Panel):
    """See `devices_rows`.

    Attributes:
        cursor: The GPU the keys act on.
    """

    cursor = 0

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The page at this size."""
        return devices_rows(snapshot, self.cursor, width, height, self.glyphs)


class DevicesPage(Page):
    """See the module."""

    NAME = "devices"
    KEYS = (("up/down", "choose"), ("enter", "closely / all"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "choose(1)", "next GPU", show=False),
        Binding("up,k", "choose(-1)", "previous GPU", show=False),
        Binding("enter", "zoom", "closely / all", show=False),
        Binding("escape", "back", "back", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._table = DevicesTable(classes="page")
        self._zoom: int | None = None

    def compose_body(self) -> ComposeResult:
        """One table."""
        yield self._table

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the devices."""
        self._table.cursor = max(0, min(self._table.cursor, self._count(snapshot) - 1))
        self._table.show(snapshot)

    def action_choose(self, by: int) -> None:
        """Go to another GPU; looked at closely, its charts follow."""
        count = self._count(self.snapshot)
        if count < 2:
            return
        self._table.cursor = (self._table.cursor + by) % count
        if self._zoom is not None:
            self._look(self._table.cursor)
        self._table.paint()

    def action_zoom(self) -> None:
        """Look at one GPU closely, or at all of them again."""
        count = self._count(self.snapshot)
        if count < 2:
            self.say("There is one GPU." if count else "There is no GPU here.")
            return
        self._look(self._table.cursor if self._zoom is None else None)

    def action_back(self) -> None:
        """From one GPU to all of them, from there to the overview."""
        if self._zoom is not None:
            self._look(None)
        else:
            self.app.run_worker(self.app.run_action("page('overview')"))

    def _look(self, device: int | None) -> None:
        self._zoom = device
        self.ask(device=device)

    @staticmethod
    def _count(snapshot: Snapshot | None) -> int:
        view = snapshot.devices if snapshot is not None else None
        return len(view.gpus) if view is not None else 0
