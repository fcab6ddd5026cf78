"""A question with a few answers, asked before anything is started or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Answer(NamedTuple):
    """One answer: its letter, its name, and what it does."""

    letter: str
    name: str
    means: str


class Ask(ModalScreen[str]):
    """A small dialog. Gives the name of the answer; leaving it gives the last one's.

    Args:
        question: Paragraphs above the answers.
        answers: The first is what Enter means, the last is to change nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q", "cancel", "cancel"),
        ("up,left,k,shift+tab", "move(-1)", "previous"),
        ("down,right,j,tab", "move(1)", "next"),
        ("enter", "take", "take"),
    ]

    def __init__(self, question: Sequence[str], answers: Sequence[Answer]) -> None:
        super().__init__()
        self._question = tuple(question)
        self._answers = tuple(answers)
        self._at = 0

    def compose(self) -> ComposeResult:
        """The question and its answers."""
        with VerticalScroll(classes="dialog", can_focus=False):
            yield Static(self._text(), id="choices")

    def _text(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for position, answer in enumerate(self._answers):
            chosen = position == self._at
            name = Text(f" {answer.name} ", "bold reverse" if chosen else "bold")
            grid.add_row(f"{'>' if chosen else ' '} {answer.letter}", name, Text(answer.means))
        return Group(*(part for text in self._question for part in (Text(text), "")), grid, "")

    def action_move(self, by: int) -> None:
        """Select another answer."""
        self._at = (self._at + by) % len(self._answers)
        self.query_one("#choices", Static).update(self._text())

    def action_take(self) -> None:
        """Give the selected answer."""
        self.dismiss(self._answers[self._at].name)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(self._answers[-1].name)

    def on_key(self, event: events.Key) -> None:
        """Give an answer by its letter."""
        for answer in self._answers:
            if event.key == answer.letter:
                event.stop()
                self.dismiss(answer.name)
                return


def leaving(come_back: str) -> Ask:
    """What q and Ctrl-C ask while the script runs; detaching can do no harm, so Enter means it."""
    return Ask(
        ["The script is still running."],
        [
            Answer("d", "detach", f"training goes on; come back with: {come_back}"),
            Answer("s", "stop", "end the script: SIGINT first, later SIGTERM, then SIGKILL"),
            Answer("c", "cancel", "stay here"),
        ],
    )
