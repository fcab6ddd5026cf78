"""The steps page: every step of the window, what set it apart, and one of them taken apart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui.clipboard import Copy
from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.views.steps import StepsView
from gputop_train.tui.widgets.steplanes import step_text
from gputop_train.tui.widgets.steps import StepsBoard, StepsState

_LAST = 1_000_000
#: Seconds between repaints of the newest steps: each changes every row there is, and over SSH
#: every cell is paid for.
PACE_S = 2.0


class StepsPage(Page):
    """Follows the newest step until another one is selected; then the rows are held."""

    NAME = "steps"
    COPIES = "step"
    KEYS = (("o", "order"), ("enter", "detail"), ("home", "follow"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", "up", show=False),
        Binding("pagedown", "move(10)", "down", show=False),
        Binding("home,g", "follow", "follow the newest", show=False),
        Binding("G", f"move({_LAST})", "last", show=False),
        Binding("o", "order", "slowest or newest first", show=False),
        Binding("left_square_bracket", "rank(-1)", "previous rank", show=False),
        Binding("right_square_bracket", "rank(1)", "next rank", show=False),
        Binding("enter", "take_apart", "take a step apart", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._board = StepsBoard(id="steps")
        self._state = StepsState()
        self._span_ns = 0
        self._painted_s = 0.0

    def compose_body(self) -> ComposeResult:
        """One board that fills the body."""
        yield self._board

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the newest steps, unless others are being looked at."""
        view = snapshot.steps
        if view is None:
            return
        span_ns = snapshot.axis.t1_ns - snapshot.axis.t0_ns
        shown, self._span_ns, same = self._state.view, span_ns, span_ns == self._span_ns
        same = same and shown is not None and shown.rank == view.rank
        goes_on = shown is not None and same and _follows(shown, view)
        now = time.monotonic()
        if goes_on and shown is not None and self._state.newer is not None:
            self._turn(newer=_newer(shown, view))
        elif not goes_on or self._header.frozen or now - self._painted_s >= PACE_S:
            self._turn(view=view, newer=None, cursor=0)
            self._painted_s = now

    def _turn(self, **changes: Any) -> None:
        state = replace(self._state, **changes)
        last = max(0, len(state.rows) - 1)
        self._state = replace(state, cursor=max(0, min(last, state.cursor)))
        self._board.show(self._state)

    def action_move(self, by: int) -> None:
        """Select another step; the rows stay as they are from then on."""
        state = self._state
        if len(state.rows) < 2:
            return
        cursor = max(0, min(len(state.rows) - 1, state.cursor + by))
        if cursor == 0 and state.cursor <= 1 and by < 0:
            self._release()
        else:
            self._turn(cursor=cursor, newer=state.newer or 0)

    async def action_follow(self) -> None:
        """Follow the newest step again; in a replay that follows it, go to the run's beginning."""
        if self._state.newer is not None:
            self._release()
        else:
            await self.run_action("app.seek(-1e12)")

    def _release(self) -> None:
        newest = self.snapshot.steps if self.snapshot is not None else None
        self._turn(cursor=0, newer=None, view=newest or self._state.view)

    def to_copy(self) -> Copy | None:
        """The step under the cursor, in words."""
        state = self._state
        if state.view is None or not state.rows:
            return None
        text = step_text(state.rows[state.cursor], state.view, self._glyphs)
        return Copy("Step", text, "step.txt")

    def action_order(self) -> None:
        """Slowest first, or newest first."""
        self._turn(slowest=not self._state.slowest, cursor=0)

    def action_rank(self, by: int) -> None:
        """Another rank's steps."""
        view = self.snapshot.steps if self.snapshot is not None else None
        if view is not None and view.rank in view.ranks:
            place = view.ranks.index(view.rank) + by
            self.ask(rank=view.ranks[place % len(view.ranks)])

    def action_take_apart(self) -> None:
        """Show what the selected step consists of, or leave the room to the table."""
        self._turn(opened=not self._board.taken_apart)


def _follows(held: StepsView, newest: StepsView) -> bool:
    """Whether time went on since: a replay may have been moved back."""
    return bool(held.newest and newest.newest) and newest.newest[0].t1_ns >= held.newest[0].t1_ns


def _newer(held: StepsView, newest: StepsView) -> int:
    """Steps that ended since, as far as the numbers tell (a restarted process counts anew)."""
    return max(0, newest.newest[0].number - held.newest[0].number)
