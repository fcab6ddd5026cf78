"""What q and Ctrl-C ask while the script runs: detach, stop, or stay."""

from __future__ import annotations

from typing import ClassVar, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

Choice = Literal["detach", "stop", "cancel"]
_CHOICES: tuple[Choice, ...] = ("detach", "stop", "cancel")


class Leave(ModalScreen[Choice]):
    """A small dialog; detaching is the answer that can do no harm, so Enter means it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("d", "choose('detach')", "detach"),
        ("s", "choose('stop')", "stop"),
        ("c,escape,q", "choose('cancel')", "cancel"),
        ("up,left,k,shift+tab", "move(-1)", "previous"),
        ("down,right,j,tab", "move(1)", "next"),
        ("enter", "take", "take"),
    ]

    def __init__(self, come_back: str) -> None:
        super().__init__()
        self._come_back = come_back
        self._at = 0

    def compose(self) -> ComposeResult:
        """A question and three answers."""
        with Vertical(classes="dialog"):
            yield Static(self._text(), id="choices")

    def _text(self) -> RenderableType:
        means = {
            "detach": f"training goes on; come back with: {self._come_back}",
            "stop": "end the script: SIGINT first, later SIGTERM, then SIGKILL",
            "cancel": "stay here",
        }
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for position, choice in enumerate(_CHOICES):
            chosen = position == self._at
            name = Text(f" {choice} ", "bold reverse" if chosen else "bold")
            grid.add_row(f"{'>' if chosen else ' '} {choice[0]}", name, means[choice])
        return Group("The script is still running.", "", grid, "")

    def action_move(self, by: int) -> None:
        """Select another answer."""
        self._at = (self._at + by) % len(_CHOICES)
        self.query_one("#choices", Static).update(self._text())

    def action_take(self) -> None:
        """Give the selected answer."""
        self.dismiss(_CHOICES[self._at])

    def action_choose(self, choice: Choice) -> None:
        """Give an answer by its letter."""
        self.dismiss(choice)
