"""Text over the overview: the help, and the evidence behind the verdict."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static


class Reading(ModalScreen[None]):
    """Scrollable text; any of the leaving keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,enter,question_mark,e,ctrl+c", "dismiss", "close"),
        ("j", "scroll(2)", "down"),
        ("k", "scroll(-2)", "up"),
    ]

    def __init__(self, content: RenderableType) -> None:
        super().__init__()
        self._content = content

    def compose(self) -> ComposeResult:
        """The text in a box."""
        with VerticalScroll(classes="reading"):
            yield Static(self._content)

    def action_scroll(self, lines: int) -> None:
        """Move by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
