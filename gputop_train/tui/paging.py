"""The pages: which one is in front, and what is asked for while it is.

Each page is a mode of Textual's: whatever is opened over one lies on top of it and closes back to
it. Only the page in front is read for and painted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from gputop_train.tui import pages
from gputop_train.tui.changing import ChangingApp
from gputop_train.tui.doors import Doors
from gputop_train.tui.messages import ViewAsked
from gputop_train.tui.page import Page
from gputop_train.tui.snapshot import Snapshot, View


class PagedApp(ChangingApp):
    """An app of pages.

    Args:
        doors: What can be started from here.
        ascii: Draw with plain ASCII.
    """

    DEFAULT_MODE = "overview"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(pages.key_of(n), f"page('{n}')", n, show=False) for n in pages.names()),
        Binding("escape", "page('overview')", "overview", show=False),
        Binding("g", "verdict_line", "the verdict's line", show=False),
    ]

    def __init__(self, doors: Doors | None, *, ascii: bool = False) -> None:
        super().__init__(doors, ascii=ascii)
        self._pages: dict[str, Page] = {}
        self._arguments: dict[str, Any] = {}
        self._frozen: dict[str, Snapshot] | None = None
        self._standing = ""
        for name in pages.names():
            self.add_mode(name, partial(self._page, name))
        self._front = self._page("overview")

    @property
    def page_names(self) -> Sequence[tuple[str, str]]:
        """Key and name of each page that can be opened."""
        return tuple((pages.key_of(name), name) for name in pages.names())

    @property
    def front(self) -> Page:
        """The page in front, though something may lie over it."""
        return self._front

    def _page(self, name: str) -> Page:
        if name not in self._pages:
            self._pages[name] = pages.page(name)(self.glyphs, self.inks)
        return self._pages[name]

    # Turning pages

    def action_page(self, name: str) -> None:
        """Bring a page to the front, with the newest there is to show."""
        if name == self._front.NAME or name not in pages.names():
            return
        page = self._front = self._page(name)
        self.switch_mode(name)
        page.restyle(self.glyphs, self.inks)
        page.standing(self._standing)
        if self._newest is not None:
            page.show(self._shown(self._newest), frozen=self._frozen is not None)
        self.look()

    def action_turn(self, by: int) -> None:
        """Bring the next page to the front, or the previous one."""
        names = pages.names()
        self.action_page(names[(names.index(self._front.NAME) + by) % len(names)])

    def action_verdict_line(self) -> None:
        """Bring the lines to the front, at the one the verdict points at first."""
        from gputop_train.tui.screens.lines import LinesPage

        self.action_page(LinesPage.NAME)
        if isinstance(self._front, LinesPage):
            self._front.to_verdict()

    def to_findings(self) -> None:
        """Bring the findings to the front, at what stands."""
        from gputop_train.tui.screens.findings import FindingsPage

        self.action_page(FindingsPage.NAME)
        if isinstance(self._front, FindingsPage):
            self._front.newest()

    def action_search_log(self) -> None:
        """Bring the log to the front, waiting for what to search for."""
        from gputop_train.tui.screens.log import LogPage

        self.action_page(LogPage.NAME)
        if isinstance(self._front, LogPage):
            self._front.action_search()

    # What is asked for

    def view(self, window_s: float, columns: int, log_lines: int) -> View:
        """What the page in front needs."""
        view = View(window_s, columns, log_lines, page=self._front.NAME)
        return replace(view, **self._arguments)

    def look(self) -> None:
        """Ask for what the page in front needs."""
        raise NotImplementedError

    def on_view_asked(self, message: ViewAsked) -> None:
        """Keep what a page asked for, also for when it comes to the front again."""
        self._arguments |= message.arguments
        self.look()

    # What is shown

    def freeze(self, on: bool) -> None:
        """Hold every page at what it shows now, or at what it shows first; or let go."""
        self._frozen = {} if on else None

    def _shown(self, snapshot: Snapshot) -> Snapshot:
        """What a page may show of it: while frozen, how the run stands and nothing else new."""
        if self._frozen is None:
            return snapshot
        held = self._frozen.setdefault(snapshot.page, snapshot)
        return replace(
            held,
            state=snapshot.state,
            exit_code=snapshot.exit_code,
            exit_text=snapshot.exit_text,
        )

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Show it on the page in front and in open settings; gives what is shown of it."""
        self._newest = shown = self._shown(snapshot)
        self._front.show(shown, frozen=self._frozen is not None)
        self.show_settings(shown)
        return shown

    def standing(self, text: str) -> None:
        """Say something above the keys until it is replaced."""
        self._standing = text
        self._front.standing(text)
