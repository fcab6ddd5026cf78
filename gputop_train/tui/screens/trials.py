"""The trials page: what was tried on this script, and what it brought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui.messages import TrialChosen
from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.trials import TrialsBoard, TrialsState


class TrialsPage(Page):
    """A list; the selected trial stays selected when others come."""

    NAME = "trials"
    KEYS = (("enter", "open"), ("a", "all scripts"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", "up", show=False),
        Binding("pagedown", "move(10)", "down", show=False),
        Binding("home,g", "move(-1000)", "newest", show=False),
        Binding("end,G", "move(1000)", "oldest", show=False),
        Binding("enter", "open", "open the trial", show=False),
        Binding("a", "all_scripts", "trials of all scripts", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._board = TrialsBoard(id="trials")
        self._state = TrialsState()

    def compose_body(self) -> ComposeResult:
        """One board that fills the body."""
        yield self._board

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the list as it is now, the same trial selected."""
        old = self._state.selected
        state = replace(self._state, view=snapshot.trials, script=snapshot.run.script)
        ids = [trial.id for trial in state.shown]
        if old is not None and old.id in ids:
            state = replace(state, cursor=ids.index(old.id))
        self._turn(state)

    def _turn(self, state: TrialsState) -> None:
        self._state = state
        self._board.show(state)

    def action_move(self, by: int) -> None:
        """Select another one."""
        last = max(0, len(self._state.shown) - 1)
        at = min(self._state.cursor, last)
        self._turn(replace(self._state, cursor=max(0, min(last, at + by))))

    def action_all_scripts(self) -> None:
        """Show the trials of all scripts, or of this one again."""
        old = self._state.selected
        state = replace(self._state, all_scripts=not self._state.all_scripts)
        ids = [trial.id for trial in state.shown]
        cursor = ids.index(old.id) if old is not None and old.id in ids else 0
        self._turn(replace(state, cursor=cursor))

    def action_open(self) -> None:
        """Open the screen of the selected one."""
        selected = self._state.selected
        if selected is not None:
            self.post_message(TrialChosen(Path(selected.place)))
