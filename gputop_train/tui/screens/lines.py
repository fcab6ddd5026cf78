"""The lines page: the person's source with what each line costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.report.format import printable
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.views.lines import LinesView
from gputop_train.tui.widgets.folding import entries
from gputop_train.tui.widgets.listing import Listing, Looking, by_cost, cursor_of, file_of


class LinesPage(Page):
    """Shows a `LinesView`; where the reader is lives here and nowhere else."""

    NAME = "lines"
    COPIES = "place"
    KEYS = (
        ("n/N", "next costliest"),
        ("g", "verdict's line"),
        ("[/]", "file"),
        ("f", "fold"),
        ("up/down", "move"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "costliest(1)", "next costliest line", show=False),
        Binding("N", "costliest(-1)", "costlier line", show=False),
        Binding("left_square_bracket", "file(-1)", "previous file", show=False),
        Binding("right_square_bracket", "file(1)", "next file", show=False),
        Binding("f", "fold", "fold", show=False),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "leap(-1)", "a page up", show=False),
        Binding("pagedown", "leap(1)", "a page down", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._listing = Listing(id="listing")
        self._looking = Looking()
        self._wanted = False

    def compose_body(self) -> ComposeResult:
        """The listing alone."""
        yield self._listing

    @property
    def looking(self) -> Looking:
        """Where the reader is."""
        return self._looking

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the lines, at the verdict's if that was asked for before they were read."""
        if snapshot.lines is None:
            return
        if self._wanted:
            self._answer(snapshot.lines)
        file = file_of(snapshot.lines, self._looking)
        if file is not None and not self._looking.file:
            # Where the reader began stays: the order of costs and the verdict move meanwhile.
            at = cursor_of(snapshot.lines, file, self._looking)
            self._looking = replace(self._looking, file=file.path, at=at)
        self._paint(snapshot.lines)

    def _paint(self, view: LinesView) -> None:
        self._looking = replace(self._looking, top=self._listing.top)
        self._listing.show(view, self._looking)

    @property
    def _view(self) -> LinesView | None:
        return self.snapshot.lines if self.snapshot is not None else None

    def _go(self, file: str, at: int) -> None:
        view = self._view
        if view is None:
            return
        top = self._listing.top if file == self._looking.file else 0
        self._looking = replace(self._looking, file=file, at=at, top=top)
        self._paint(view)

    def to_copy(self) -> Copy | None:
        """The place of the line under the cursor, as editors take it."""
        view = self._view
        file = file_of(view, self._looking) if view is not None else None
        if view is None or file is None:
            return None
        return Copy(
            "Place",
            f"{printable(file.path)}:{abs(cursor_of(view, file, self._looking))}",
            "line.txt",
        )

    # Keys

    def action_costliest(self, by: int) -> None:
        """Go to the next line in the order of what they cost, in whatever file it is."""
        view = self._view
        file = file_of(view, self._looking) if view is not None else None
        if view is None or file is None:
            return
        order = by_cost(view)
        here = (file.path, cursor_of(view, file, self._looking))
        place = (order.index(here) + by) % len(order) if here in order else 0
        self._go(*order[place])
        self.say_here(f"{place + 1} of {len(order)} lines, the costliest first")

    def action_file(self, by: int) -> None:
        """Go to another file's costliest line."""
        view = self._view
        file = file_of(view, self._looking) if view is not None else None
        if view is None or file is None:
            return
        if len(view.files) == 1:
            self.say_here("No other file of yours was seen to cost anything.")
            return
        paths = [one.path for one in view.files]
        self._go(paths[(paths.index(file.path) + by) % len(paths)], 0)

    def action_fold(self) -> None:
        """Show all lines, or fold those without costs."""
        if (view := self._view) is not None:
            self._looking = replace(self._looking, unfolded=not self._looking.unfolded)
            self._paint(view)

    def action_move(self, by: int) -> None:
        """Move over the rows that are shown."""
        view = self._view
        file = file_of(view, self._looking) if view is not None else None
        if view is None or file is None:
            return
        rows = entries(file, unfolded=self._looking.unfolded)
        numbers = [entry.number for entry in rows if entry.number and not entry.folded]
        at = cursor_of(view, file, self._looking)
        if at in numbers:
            here = numbers.index(at)
        else:  # folded away since
            here = sum(0 < number < at for number in numbers) - (by > 0)
        self._go(file.path, numbers[max(0, min(len(numbers) - 1, here + by))])

    def action_leap(self, by: int) -> None:
        """Move by most of what fits."""
        self.action_move(by * max(1, self._listing.size.height - 8))

    def to_verdict(self) -> None:
        """Go to the line the verdict points at first, as soon as that is read."""
        self._wanted = True
        if (view := self._view) is not None:
            self._answer(view)
            self._paint(view)

    def _answer(self, view: LinesView) -> None:
        self._wanted = False
        known = self._go_to_verdict(view)
        self.say_here("" if known else "The verdict points at no line.")

    def _go_to_verdict(self, view: LinesView) -> bool:
        if view.verdict is None:
            return False
        file, at = view.verdict
        self._looking = replace(self._looking, file=file, at=at)
        return True

    def say_here(self, text: str) -> None:
        """Answer a key press for a few seconds."""
        say = getattr(self.app, "say", self.say)
        say(text)
