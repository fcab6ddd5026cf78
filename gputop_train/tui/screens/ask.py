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

#: Below this, a dialog names its answers without what they mean.
_SMALL_ROWS, _SMALL_COLUMNS = 20, 60


#: Letters that answers may have.
LETTERS = "cdlprsw"


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
        # Bindings, since keys typed ahead of a new screen reach nothing else.
        *((letter, f"letter('{letter}')", letter) for letter in LETTERS),
    ]

    def __init__(self, question: Sequence[str], answers: Sequence[Answer]) -> None:
        super().__init__()
        self._question = tuple(question)
        self._answers = tuple(answers)
        self._at = 0
        self._small = False

    def compose(self) -> ComposeResult:
        """The question and its answers."""
        with VerticalScroll(classes="dialog", can_focus=False):
            yield Static(self._text(), id="choices")

    def on_resize(self, event: events.Resize) -> None:
        """Where there is little room, the answers matter more than what they mean."""
        self._small = event.size.height < _SMALL_ROWS or event.size.width < _SMALL_COLUMNS
        self.query_one(".dialog").set_class(self._small, "-small")
        self._show()

    def _show(self) -> None:
        self.query_one("#choices", Static).update(self._text())

    def _text(self) -> RenderableType:
        if self._small:
            first, *more = (Text(text) for text in self._question)
            return Group(first, *map(self._short, range(len(self._answers))), *more)
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for position, answer in enumerate(self._answers):
            chosen = position == self._at
            name = Text(f" {answer.name} ", "bold reverse" if chosen else "bold")
            grid.add_row(f"{'>' if chosen else ' '} {answer.letter}", name, Text(answer.means))
        return Group(*(part for text in self._question for part in (Text(text), "")), grid, "")

    def _short(self, position: int) -> Text:
        answer, chosen = self._answers[position], position == self._at
        name = (f" {answer.name} ", "bold reverse" if chosen else "bold")
        return Text.assemble(f"{'>' if chosen else ' '} {answer.letter}  ", name)

    def action_move(self, by: int) -> None:
        """Select another answer."""
        self._at = (self._at + by) % len(self._answers)
        self._show()

    def action_take(self) -> None:
        """Give the selected answer."""
        self.dismiss(self._answers[self._at].name)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(self._answers[-1].name)

    def action_letter(self, letter: str) -> None:
        """Give an answer by its letter."""
        for answer in self._answers:
            if answer.letter == letter:
                self.dismiss(answer.name)
                return


def leaving(come_back: str, lost: str = "") -> Ask:
    """What q and Ctrl-C ask while the script runs; detaching can do no harm, so Enter means it.

    Args:
        come_back: The command that opens the screen again.
        lost: What will not happen when it is left now; empty = nothing.
    """
    return Ask(
        ["The script is still running.", *filter(None, [lost])],
        [
            Answer("d", "detach", f"training goes on; come back with: {come_back}"),
            Answer("s", "stop", "end the script: SIGINT first, later SIGTERM, then SIGKILL"),
            Answer("c", "cancel", "stay here"),
        ],
    )
