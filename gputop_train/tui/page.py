"""The base of every page: a view that fills the terminal, one of which is in front.

A page has the run's header, the names of the pages, a body, a notice and the keys. A subclass
names itself, gives the body's widgets and shows snapshots in them::

    class StepsPage(Page):
        NAME = "steps"
        KEYS = (("o", "slowest first"),)
        BINDINGS = [Binding("o", "order", "slowest first")]

        def compose_body(self) -> ComposeResult:
            yield self._table

        def show_body(self, snapshot: Snapshot) -> None:
            self._table.show(snapshot)

and is entered in `pages.PAGES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.screen import Screen

from gputop_train.tui.messages import ViewAsked
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.header import Header
from gputop_train.tui.widgets.keys import Keys
from gputop_train.tui.widgets.notice import Notice
from gputop_train.tui.widgets.tabs import Tabs

#: Below this many rows the names of the pages give way to the body.
TABS_ROWS = 20


class Page(Screen[None]):
    """See the module.

    Attributes:
        NAME: As in `pages.PAGES` and `View.page`.
        KEYS: The page's own keys with their meanings, for the bottom row.
        COPIES: What `to_copy` of the page gives, in a word.
    """

    AUTO_FOCUS = ""
    NAME: ClassVar[str] = ""
    KEYS: ClassVar[tuple[tuple[str, str], ...]] = ()
    COPIES: ClassVar[str] = "advice"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.turn(1)", "next page", show=False),
        Binding("shift+tab", "app.turn(-1)", "previous page", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._inks = inks
        self._snapshot: Snapshot | None = None
        # Held by reference: a snapshot may still arrive while the screen is being taken down.
        self._header = Header(id="header")
        self._tabs = Tabs(id="tabs")
        self._notice = Notice(id="notice")
        self._keys = Keys(id="keys")
        self._tabs.current = self.NAME
        self._keys.own, self._keys.copies = self.KEYS, self.COPIES

    def compose(self) -> ComposeResult:
        """Header, names of the pages, body, notice, keys."""
        yield self._header
        yield self._tabs
        with Vertical(id="body"):
            yield from self.compose_body()
        yield self._notice
        yield self._keys

    def compose_body(self) -> ComposeResult:
        """The page's own widgets."""
        raise NotImplementedError

    def show_body(self, snapshot: Snapshot) -> None:
        """Show a snapshot that was made for this page."""
        raise NotImplementedError

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot that was made for this page."""
        return self._snapshot

    def on_mount(self) -> None:
        """Dress the widgets."""
        self._tabs.pages = self._keys.pages = getattr(self.app, "page_names", ())
        self._keys.without = getattr(self.app, "keys_without", ())
        self._keys.replay = getattr(self.app, "is_replay", False)
        self._header.title = getattr(self.app, "run_title", "")
        # The theme may have been chosen since this was made.
        self.restyle(self._glyphs, getattr(self.app, "inks", self._inks))

    def on_resize(self, event: Resize) -> None:
        """Give the names of the pages a row where there is room."""
        self._tabs.display = event.size.height >= TABS_ROWS

    def restyle(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        """Use another alphabet or other colours."""
        self._glyphs, self._inks = glyphs, inks
        for board in self.query(Board):
            board.restyle(glyphs, inks)

    def show(self, snapshot: Snapshot, *, frozen: bool = False) -> None:
        """Show a snapshot: how the run stands, and the body if it was read for this page."""
        self._header.frozen = frozen
        with self.app.batch_update():
            for row in (self._header, self._tabs, self._notice, self._keys):
                row.show(snapshot)
            if snapshot.page == self.NAME:
                self._snapshot = snapshot
                self.show_body(snapshot)

    def ask(self, **arguments: Any) -> None:
        """Have other values in the page's own fields of the `View` from now on; read at once."""
        self.post_message(ViewAsked(arguments))

    def say(self, message: str) -> None:
        """Answer a key press in the notice row."""
        self._notice.say(message)

    def standing(self, message: str) -> None:
        """Say what is to come, until it is replaced."""
        self._notice.stand(message)
