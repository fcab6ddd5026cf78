"""The findings page: every verdict of this run with its grounds, and what was ruled out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui.clipboard import Copy
from gputop_train.tui.page import Page
from gputop_train.tui.paint import UNICODE, Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.views.findings import FindingsView
from gputop_train.tui.widgets.finding_words import grounds
from gputop_train.tui.widgets.findings import FindingsBoard, Looking, place_of

#: Of a finding that is pasted.
_TEXT_COLUMNS = 100


class FindingsPage(Page):
    """Shows a `FindingsView`; which claim is looked at lives here."""

    NAME = "findings"
    COPIES = "finding"
    KEYS = (
        ("up/down", "verdict"),
        ("pgup/pgdn", "scroll"),
        ("g", "its line"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "claim(1)", "later verdict", show=False),
        Binding("down,j", "claim(-1)", "earlier verdict", show=False),
        Binding("pageup", "scroll_grounds(-1)", "up", show=False),
        Binding("pagedown", "scroll_grounds(1)", "down", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._board = FindingsBoard(id="findings")
        self._looking = Looking()

    def compose_body(self) -> ComposeResult:
        """One board."""
        yield self._board

    @property
    def looking(self) -> Looking:
        """Where the reader is."""
        return self._looking

    @property
    def _view(self) -> FindingsView | None:
        return self.snapshot.findings if self.snapshot is not None else None

    def show_body(self, snapshot: Snapshot) -> None:
        """Show what was found."""
        if snapshot.findings is not None:
            self._board.show(snapshot.findings, self._looking)

    def newest(self) -> None:
        """Look at the claim that stands, whichever that becomes."""
        self._look(Looking())

    def _look(self, looking: Looking) -> None:
        self._looking = looking
        if (view := self._view) is not None:
            self._board.show(view, looking)

    def to_copy(self) -> Copy | None:
        """The finding that is looked at, with its grounds, as text."""
        view = self._view
        claim = view.claims[place_of(view, self._looking)] if view and view.claims else None
        if claim is None or claim.diagnosis is None:
            return None
        rows = grounds(claim.diagnosis, _TEXT_COLUMNS, UNICODE)
        lines = ("".join(text for text, _ in row).rstrip() for row in rows)
        return Copy("Finding", "\n".join(lines).strip("\n") + "\n", "finding.txt")

    # Keys

    def action_claim(self, by: int) -> None:
        """Look at a later or an earlier claim."""
        view = self._view
        if view is None or not view.claims:
            return
        last = len(view.claims) - 1
        place = max(0, min(last, place_of(view, self._looking) + by))
        begin = None if place == last else view.claims[place].begin_s
        self._look(Looking(begin))

    def action_scroll_grounds(self, by: int) -> None:
        """Move through the grounds by most of what fits."""
        step = max(1, self._board.size.height // 2)
        self._look(replace(self._looking, top=max(0, self._board.top + by * step)))
