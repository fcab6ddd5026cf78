"""The log page: all the script printed, by pages read on a thread of their own, and a search.

At the newest line it follows what the overview's log shows, progress bars alive; moved away from
it, it stays where it is however much is printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Paste, Resize
from textual.message import Message

from gputop_train.tui.base import BaseApp
from gputop_train.tui.logreader import LogReader, LogShown, Request, Scroll, Search, Top
from gputop_train.tui.page import Page
from gputop_train.tui.paint import Glyphs
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.logview import LogBoard, LogView

#: Characters one key moves sideways.
_SIDE = 20


class LogRead(Message):
    """A page of the log was read, by this reader."""

    def __init__(self, shown: LogShown, reader: LogReader) -> None:
        super().__init__()
        self.shown = shown
        self.reader = reader


class LogPage(Page):
    """Follows the newest line until it is moved."""

    NAME = "log"
    KEYS = (("/", "search"), ("n/N", "next/previous"), ("g", "beginning"), ("end", "follow"))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "older", show=False),
        Binding("down,j", "move(1)", "newer", show=False),
        Binding("pageup", "turn_over(-1)", "a page older", show=False),
        Binding("pagedown", "turn_over(1)", "a page newer", show=False),
        Binding("home,g", "beginning", "beginning", show=False),
        Binding("end,G,f", "follow", "follow the newest line", show=False),
        Binding("left,h", f"aside(-{_SIDE})", "left", show=False),
        Binding("right,l", f"aside({_SIDE})", "right", show=False),
        Binding("slash", "search", "search", show=False),
        Binding("n", "again(False)", "next match", show=False),
        Binding("N", "again(True)", "previous match", show=False),
    ]

    def __init__(self, glyphs: Glyphs, inks: Mapping[str, Style]) -> None:
        super().__init__(glyphs, inks)
        self._board = LogBoard(id="whole-log")
        self._view = LogView()
        self._reader: LogReader | None = None
        self._path = ""

    def compose_body(self) -> ComposeResult:
        """One board that fills the body."""
        yield self._board

    def on_unmount(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()

    def show(self, snapshot: Snapshot, *, frozen: bool = False) -> None:
        """Show a snapshot; where the log is, any snapshot says."""
        self._path = snapshot.log_path
        super().show(snapshot, frozen=frozen)

    def show_body(self, snapshot: Snapshot) -> None:
        """Show the newest lines, unless others are being looked at."""
        if self.following:
            self._turn(lines=snapshot.log, size=snapshot.log_size, note=snapshot.log_note)

    @property
    def following(self) -> bool:
        """Whether the newest line is followed."""
        return self._view.share is None

    @property
    def view(self) -> LogView:
        """What is shown now."""
        return self._view

    def _turn(self, **changes: object) -> None:
        self._view = replace(self._view, **changes)  # type: ignore[arg-type]
        self._board.show(self._view)

    def on_resize(self, event: Resize) -> None:
        """Fill another height."""
        super().on_resize(event)
        if not self.following:
            self.call_after_refresh(self._read, Scroll(0))

    # Reading

    def _read(self, request: Request) -> None:
        if not self._path:
            return
        if self._reader is None:
            self._reader = LogReader(Path(self._path), self._ready)
        self._reader.ask(request, self._board.size.height - 1)

    def _ready(self, shown: LogShown, reader: LogReader) -> None:
        self.post_message(LogRead(shown, reader))

    def on_log_read(self, message: LogRead) -> None:
        """Show what was read, unless the page has gone back to following since."""
        shown, reader = message.shown, self._reader
        if reader is None or message.reader is not reader:
            return
        reader.took()
        if shown.note:
            self._tell(shown.note)
        if shown.follow:
            self._to_newest()
            return
        at = [line.start for line in shown.lines]
        self._turn(
            lines=tuple(line.text for line in shown.lines),
            hit=at.index(shown.hit) if shown.hit in at else None,
            share=shown.share,
            size=shown.size,
            note="",
        )

    def _tell(self, text: str) -> None:
        if isinstance(self.app, BaseApp):
            self.app.say(text)

    def _to_newest(self) -> None:
        newest = self.snapshot
        lines = newest.log if newest is not None else ()
        size = newest.log_size if newest is not None else None
        self._turn(share=None, hit=None, lines=lines, size=size)

    # Keys

    def action_move(self, lines: int) -> None:
        """Move by lines."""
        if lines < 0 or not self.following:
            self._read(Scroll(lines))

    def action_turn_over(self, by: int) -> None:
        """Move by pages, keeping a line of the last one."""
        self.action_move(by * max(1, self._board.size.height - 2))

    def action_beginning(self) -> None:
        """Go to the oldest output."""
        self._read(Top())

    def action_follow(self) -> None:
        """Follow the newest line again."""
        if self._reader is not None:  # it reads from another place next time
            self._reader.close()
            self._reader = None
        self._to_newest()

    def action_aside(self, characters: int) -> None:
        """Move sideways in long lines."""
        longest = max(map(len, self._view.lines), default=0)
        left = max(0, min(longest - 1, self._view.left + characters))
        self._turn(left=left)

    def action_search(self) -> None:
        """Begin to type what to search for."""
        self._turn(typing="")

    def action_again(self, back: bool) -> None:
        """Go to the next line that shows it, or to the previous one."""
        if not self._view.pattern:
            self._tell("Nothing was searched for yet: / begins.")
            return
        self._read(Search(self._view.pattern, back=back))

    def on_key(self, event: Key) -> None:
        """While something is typed, keys are its letters."""
        typed = self._view.typing
        if typed is None:
            return
        event.stop()
        event.prevent_default()
        if event.key == "enter":
            self._turn(typing=None, pattern=typed)
            if typed:
                # From the newest line there is only older output to search.
                self._read(Search(typed, back=self.following))
        elif event.key == "escape":
            self._turn(typing=None)
        elif event.key in ("backspace", "ctrl+h"):
            self._turn(typing=typed[:-1] if typed else None)
        elif event.key == "ctrl+u":
            self._turn(typing="")
        elif event.character and event.is_printable:
            self._turn(typing=typed + event.character)

    def on_paste(self, event: Paste) -> None:
        """The first line of what is pasted is typed."""
        if self._view.typing is not None:
            event.stop()
            self._turn(typing=self._view.typing + (event.text.splitlines() or [""])[0])
