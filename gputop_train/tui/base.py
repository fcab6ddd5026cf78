"""What every app of ours shares: colours, alphabet, and how it leaves when something fails."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.style import Style
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.errors import NoWidget
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.filter import LineFilter, NoColor
from textual.screen import ModalScreen, Screen

from gputop_train.tui import clicks, clipboard, commands, terminal
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.files import write_private
from gputop_train.tui.messages import LeaveNow, PaintAll
from gputop_train.tui.paint import ASCII, UNICODE
from gputop_train.tui.palette import palette
from gputop_train.tui.picture import portable
from gputop_train.tui.result import TuiResult
from gputop_train.tui.themes import THEMES
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.tabs import Tabs

#: Seconds an answer to a key press stays.
SAY_S = 5.0
#: Rows for each notch of the wheel.
_WHEEL_ROWS = 3


class BaseApp(App[TuiResult]):
    """An app of ours.

    Args:
        ascii: Draw with plain ASCII.
    """

    CSS_PATH: ClassVar[list[str | PurePath]] = ["app.tcss", "themes.tcss"]
    TITLE = "gputop-train"
    #: Keys of the bottom row that do nothing in this app.
    keys_without: ClassVar[tuple[str, ...]] = ()
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit"),
        Binding("ctrl+c", "leave", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", "suspend", priority=True),
        Binding("s", "picture", "screenshot"),
        Binding("y", "copy", "copy"),
    ]

    def __init__(self, *, ascii: bool = False) -> None:
        super().__init__()
        self.animation_level = "none"
        self.glyphs = ASCII if ascii else UNICODE
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.crash: BaseException | None = None
        self._plain = [NoColor()] if self.no_color else []
        self._says = 0
        self._leaving = False
        self._pictures_dir: Path | None = None
        self._run_dir: Path | None = None
        #: Whether this is a terminal whose mouse was taken.
        self.takes_mouse = False

    @property
    def inks(self) -> Mapping[str, Style]:
        """Colours by ink, of the theme in use."""
        return palette(self.theme)

    def get_line_filters(self) -> Iterable[LineFilter]:  # type: ignore[override]
        """With NO_COLOR nothing is coloured at all; Textual alone would draw in greys."""
        return [*super().get_line_filters(), *self._plain]

    def on_mount(self) -> None:
        """Dress the screens, now and with every other theme."""
        self.set_class(self.glyphs.ascii, "-ascii")
        self._quiet_mouse()
        self.app_resume_signal.subscribe(self, lambda _app: self._quiet_mouse())
        if not self.is_headless:
            terminal.resume_only_when_suspended(lambda: self.post_message(PaintAll()))
        self.theme_changed_signal.subscribe(self, lambda _theme: self._restyle())

    def _quiet_mouse(self) -> None:
        """Have clicks and the wheel told, and not every move, which Textual asks for.

        Nothing here follows the pointer; over SSH each move would be traffic, and after a lost
        connection garbage in the shell. Some terminals keep one mode of the mouse, others one flag
        each; this leaves presses (1000) alone in both.
        """
        if self.takes_mouse and self._driver is not None:
            self._driver.write("\x1b[?1003l\x1b[?1000h")

    def _restyle(self) -> None:
        for screen in self.screen_stack:
            restyle = getattr(screen, "restyle", None)
            if restyle is not None:
                restyle(self.glyphs, self.inks)

    def _fatal_error(self) -> None:
        """Leave without Textual's traceback, which shows local variables."""
        self.crash = self._exception
        self._close_messages_no_wait()

    def panic(self, *renderables: Any) -> None:
        """As `_fatal_error`, for faults outside the event loop, such as a vanished terminal."""
        self.crash = self._exception or sys.exc_info()[1] or OSError("the terminal went away")
        self._close_messages_no_wait()

    def exit(
        self,
        result: TuiResult | None = None,
        return_code: int = 0,
        message: RenderableType | None = None,
    ) -> None:
        """Leave; what still arrives is not shown any more."""
        self._leaving = True
        super().exit(result, return_code, message)

    def on_leave_now(self, message: LeaveNow) -> None:
        """Go, leaving whatever is watched alone."""
        self.exit(None, return_code=message.code)

    def on_paint_all(self, _message: PaintAll) -> None:
        """Somebody else may have drawn over the screen."""
        self.screen.refresh(layout=True)

    async def action_quit(self) -> None:
        """Textual's own way out asks as well."""
        self.action_leave()

    def action_leave(self) -> None:
        """What q and Ctrl-C do."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Answer a key press, on the screen in front, for a few seconds."""
        if self._leaving:
            return
        self._says += 1
        mine = self._says
        self._tell(text)
        self.set_timer(SAY_S, lambda: self._tell("") if self._says == mine else None)

    def _tell(self, text: str) -> None:
        for screen in self.screen_stack:
            tell = getattr(screen, "say", None)
            if tell is not None:
                tell(text)

    def on_click(self, event: Click) -> None:
        """A click on the name of a key is that key."""
        x, y = int(event.screen_x), int(event.screen_y)
        with contextlib.suppress(NoWidget):
            board, region = self.screen.get_widget_at(x, y)
            if isinstance(board, Board):
                self._click(board, x - region.x, y - region.y)

    def _click(self, board: Board, x: int, y: int) -> None:
        find = clicks.page_at if isinstance(board, Tabs) else clicks.key_at
        key = find(board.row(y), x)
        if key is not None:
            self.simulate_key(key)

    def on_mouse_scroll_down(self, _event: MouseScrollDown) -> None:
        """The wheel moves as the arrows do, wherever nothing else scrolls."""
        self._turn_wheel("down")

    def on_mouse_scroll_up(self, _event: MouseScrollUp) -> None:
        """Likewise."""
        self._turn_wheel("up")

    def _turn_wheel(self, key: str) -> None:
        if not isinstance(self.screen, ModalScreen):
            for _ in range(_WHEEL_ROWS):
                self.simulate_key(key)

    def action_command_palette(self) -> None:
        """As Textual's, with a hint that every terminal can show."""
        if not isinstance(self.screen, CommandPalette):
            hint = "Search for commands, pages, themes"
            self.push_screen(CommandPalette(placeholder=hint, id="--command-palette"))

    def may(self, action: str) -> bool:
        """Whether an action is this app's to offer."""
        return bool(action)

    def action_theme(self, name: str) -> None:
        """Other colours."""
        self.theme = name

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette's commands; Textual's own would write files and quit without asking."""
        return commands.commands(self, screen, replay=False)

    def to_copy(self, screen: Screen[Any]) -> Copy | None:
        """What a screen has to copy; ``None`` = nothing."""
        given = getattr(screen, "to_copy", None)
        found = given() if given is not None else None
        return found if isinstance(found, Copy) else None

    def action_copy(self) -> None:
        """Put what is in front on the clipboard (OSC 52) and into a file."""
        copy = self.to_copy(self.screen)
        if copy is None:
            self.say("There is nothing to copy here yet.")
            return
        copy = copy._replace(text=clipboard.harmless(copy.text))
        where = write_private(self._run_dir, copy.name, copy.text)
        if len(copy.text.encode()) > clipboard.MOST_BYTES:
            kept = f" It is in {where}" if where else ""
            self.say(f"{copy.what} not copied: too long for a clipboard.{kept}")
            return
        self.copy_to_clipboard(copy.text)
        self.say(f"{copy.what} copied; also in {where}" if where else f"{copy.what} copied.")

    def copy_to_clipboard(self, text: str) -> None:
        """As Textual, and through tmux and GNU screen; nothing that acts where it is pasted."""
        text = clipboard.harmless(text)
        super().copy_to_clipboard(text)
        if self._driver is not None and (wrapped := clipboard.wrapped(text)):
            self._driver.write(wrapped)

    def action_picture(self) -> None:
        """Save the screen as SVG."""
        taken = {path.name for path in self._pictures()}
        name = next(n for n in (f"screen-{i}.svg" for i in range(1, 10_000)) if n not in taken)
        picture = portable(self.export_screenshot())
        where = write_private(self._pictures_dir, name, picture, replace=False)
        saved = f"Picture saved: {where.name} in {where.parent}" if where else ""
        self.say(saved or "The picture could not be saved.")

    def _pictures(self) -> list[Path]:
        folder = self._pictures_dir
        return list(folder.glob("screen-*.svg")) if folder is not None else []
