"""Watches a trial: reads its record in a thread, and asks before it stops anything."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from gputop_train import paths
from gputop_train.launch import identity
from gputop_train.launch.options import Setting
from gputop_train.trial import store
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.screens.ask import Answer, Ask
from gputop_train.tui.trial_page import TrialPage, page
from gputop_train.tui.widgets.trial import TrialTable, table_text

_PERIOD_S = 0.5
#: A trial that was just started has no record yet; after so many looks nobody will write one.
_LOOKS = 40


class PageReady(Message):
    """The record was read."""

    def __init__(self, shown: TrialPage) -> None:
        super().__init__()
        self.shown = shown


class Trial(Screen[tuple[Setting, ...] | None]):
    """Shows a trial until it is left; gives the settings it proved where they are to be kept.

    Args:
        trial_dir: The trial's directory.
        rerun: Whether keeping what was proved starts a run.
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave_trial", "leave"),
        Binding("r", "keep", "rerun"),
    ]

    def __init__(self, trial_dir: Path, *, rerun: bool = False) -> None:
        super().__init__()
        self._dir = trial_dir
        self._table = TrialTable(id="trial")
        self._table.rerun = rerun
        self._asked = False
        self._done = threading.Event()
        self._taken = threading.Event()
        self._taken.set()

    def compose(self) -> ComposeResult:
        """One table that fills the terminal."""
        yield self._table

    def on_mount(self) -> None:
        """Begin reading."""
        threading.Thread(target=self._read, name="gputop-trial", daemon=True).start()

    def on_unmount(self) -> None:
        """Stop reading."""
        self._done.set()

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._table.restyle(glyphs, inks)

    def say(self, message: str) -> None:
        """Answer a key press."""
        self._table.say(message)

    def to_copy(self) -> Copy | None:
        """The table and what it came to, as text."""
        shown = self.page
        text = table_text(shown) if shown is not None and shown.rows else ""
        return Copy("Table", text, "trial.txt") if text else None

    def _read(self) -> None:
        """Look at the record twice a second; never ahead of the screen."""
        looks = 0
        while not self._done.is_set():
            body = store.read(self._dir)
            looks += 1
            alive = looks < _LOOKS if body is None else store.is_running(body)
            self._taken.clear()
            self.post_message(PageReady(page(self._dir.name, body, alive=alive)))
            while not (self._taken.wait(_PERIOD_S) or self._done.is_set()):
                pass  # a terminal that takes no output holds up the event loop, and so us
            self._done.wait(_PERIOD_S)

    def on_page_ready(self, message: PageReady) -> None:
        """Show it."""
        if message.shown.over and self._asked:
            self._asked = False
            self._table.say("")
        self._table.show(message.shown)
        self._taken.set()

    @property
    def page(self) -> TrialPage | None:
        """What is shown now."""
        return self._table.page

    def action_keep(self) -> None:
        """Keep what was proved."""
        shown = self.page
        if shown is None or not shown.over:
            self.say("The trial still runs: what it proves is known at its end.")
        elif shown.best is None:
            self.say("Nothing here was proved to be faster.")
        else:
            self.dismiss(shown.best.settings)

    def action_leave_trial(self) -> None:
        """Close it; while it runs, ask whether to stop it."""
        shown = self.page
        if shown is not None and shown.over:
            self.dismiss(None)
            return
        back = paths.come_back("attach", self._dir, root=self._dir.parent.parent)
        self.app.push_screen(
            Ask(
                ["The trial is still running."],
                [
                    Answer("l", "leave it running", f"come back with: {back}"),
                    Answer("s", "stop it", "it ends its leg, cleans up and keeps what it knows"),
                    Answer("c", "cancel", "stay here"),
                ],
            ),
            self._left,
        )

    def _left(self, answer: str | None) -> None:
        if answer == "leave it running":
            self.dismiss(None)
        elif answer == "stop it":
            body = store.read(self._dir) or {}
            who = store.owner(body)
            if who is not None and store.is_running(body) and identity.send(who, signal.SIGINT):
                self._asked = True
                self.say("Asked the trial to stop; waiting for it to clean up.")
            else:
                self.say("The trial's process is not there any more.")
