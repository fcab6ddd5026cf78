"""Puts two runs side by side: a list to choose from, then the comparison."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from gputop_train.report import compare_text
from gputop_train.report.compare import Comparison
from gputop_train.tui import other_runs
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.other_runs import CompareError, OtherRun
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.widgets.compare import CompareTable
from gputop_train.tui.widgets.picker import PickerList, PickerPage


class RunsRead(Message):
    """The runs there are."""

    def __init__(self, rows: Sequence[OtherRun], error: str = "") -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.error = error


class Compared(Message):
    """The comparison was made, or ``error`` says why not."""

    def __init__(self, found: Comparison | None, error: str = "") -> None:
        super().__init__()
        self.found = found
        self.error = error


class Picker(Screen[tuple[str, ...] | None]):
    """Gives the ids of the runs to compare, the reference first.

    Args:
        root: The run root.
        run: ``run.json`` of the run on the screen.
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up"),
        Binding("down,j", "move(1)", "down"),
        Binding("pageup", "move(-10)", "up"),
        Binding("pagedown", "move(10)", "down"),
        Binding("home", "move(-10000)", "first"),
        Binding("end", "move(10000)", "last"),
        Binding("enter", "take", "compare"),
        Binding("space", "mark", "mark"),
        Binding("a", "all", "all scripts"),
        Binding("escape,c,q", "close", "close"),
    ]

    def __init__(self, root: Path, run: Mapping[str, Any]) -> None:
        super().__init__()
        self._root, self._run = root, run
        self._page = PickerPage(str(run.get("id", "")), now_ns=time.time_ns())
        self._list = PickerList(id="picker")

    def compose(self) -> ComposeResult:
        """One list that fills the terminal."""
        yield self._list

    def on_mount(self) -> None:
        """Read the runs: a slow disk must not hold up the screen."""
        self._turn()
        threading.Thread(target=self._read, name="gputop-runs", daemon=True).start()

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._list.restyle(glyphs, inks)

    def say(self, message: str) -> None:
        """Answer a key press."""
        self._turn(message=message)

    def _read(self) -> None:
        try:
            message = RunsRead(other_runs.others(self._root, self._run))
        except Exception as error:  # a fault of ours must not take the screen with it
            message = RunsRead((), f"The runs could not be read ({type(error).__name__}: {error}).")
        self.post_message(message)

    def on_runs_read(self, message: RunsRead) -> None:
        """Show them, the run this one repeats first in line."""
        self._turn(rows=message.rows, message=message.error)
        before = self._run.get("compared_with")
        for number, row in enumerate(self._page.shown):
            if row.id == before:
                self._turn(cursor=number)

    def _turn(self, **changes: Any) -> None:
        page = replace(self._page, **changes)
        last = max(0, len(page.shown) - 1)
        self._page = replace(page, cursor=max(0, min(last, page.cursor)))
        self._list.show(self._page)

    def action_move(self, by: int) -> None:
        """Go to another run."""
        self._turn(cursor=self._page.cursor + by, message="")

    def action_all(self) -> None:
        """Show the runs of all scripts, or of this one alone."""
        self._turn(all_scripts=not self._page.all_scripts, cursor=0)

    def action_mark(self) -> None:
        """Mark a run: two marked ones are compared with each other."""
        if not self._page.shown:
            return
        here = self._page.shown[self._page.cursor].id
        marked = [one for one in self._page.marked if one != here]
        if here not in self._page.marked:
            marked = [*marked[-1:], here]
        self._turn(marked=tuple(marked))

    def action_take(self) -> None:
        """Compare: two marked runs, or the one under the cursor with the run on the screen."""
        if len(self._page.marked) == 2:
            self.dismiss(self._page.marked)
        elif self._page.shown:
            # The older one is the reference: it is what was changed.
            self.dismiss((self._page.shown[self._page.cursor].id, self._page.run_id))

    def action_close(self) -> None:
        """Compare nothing."""
        self.dismiss(None)


class Compare(Screen[None]):
    """Shows a comparison.

    Args:
        root: The run root.
        ids: Two runs; the first is the reference.
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll(-1)", "up"),
        Binding("down,j", "scroll(1)", "down"),
        Binding("pageup", "scroll(-10)", "up"),
        Binding("pagedown,space", "scroll(10)", "down"),
        Binding("home", "scroll(-10000)", "top"),
        Binding("end", "scroll(10000)", "bottom"),
        Binding("x", "swap", "swap"),
        Binding("escape,c,q,enter", "close", "close"),
    ]

    def __init__(self, root: Path, ids: Sequence[str]) -> None:
        super().__init__()
        self._root, self._ids = root, tuple(ids)
        self._table = CompareTable(id="compare")

    def compose(self) -> ComposeResult:
        """One table that fills the terminal."""
        yield self._table

    def on_mount(self) -> None:
        """Begin to compare."""
        self._begin()

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._table.restyle(glyphs, inks)

    def say(self, message: str) -> None:
        """Answer a key press."""
        self._table.show(self._table.found, message)

    def to_copy(self) -> Copy | None:
        """The comparison as Markdown, as ``compare --markdown`` gives it."""
        found = self._table.found
        if found is None:
            return None
        return Copy("Comparison", compare_text.markdown(found), "compare.md")

    def _begin(self) -> None:
        threading.Thread(target=self._make, name="gputop-compare", daemon=True).start()

    def _make(self) -> None:
        try:
            message = Compared(other_runs.comparison(self._root, self._ids))
        except CompareError as problem:
            message = Compared(None, str(problem))
        except Exception as error:  # a fault of ours must not take the screen with it
            text = f"The runs could not be compared ({type(error).__name__}: {error})."
            message = Compared(None, text)
        self.post_message(message)

    def on_compared(self, message: Compared) -> None:
        """Show it."""
        self._table.show(message.found, message.error)

    def action_scroll(self, by: int) -> None:
        """Move by rows."""
        self._table.scroll_rows(by)

    def action_swap(self) -> None:
        """The other run as the reference."""
        self._ids = self._ids[::-1]
        self._begin()

    def action_close(self) -> None:
        """Back to the overview."""
        self.dismiss()
