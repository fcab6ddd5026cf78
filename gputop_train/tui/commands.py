"""What the palette finds by name: every key's action, the pages, the keys of the page in front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.app import SystemCommand
from textual.binding import Binding
from textual.keys import format_key
from textual.screen import ModalScreen, Screen

from gputop_train.tui import pages, themes
from gputop_train.tui.page import Page
from gputop_train.tui.screens.texts import PAGES

if TYPE_CHECKING:
    from gputop_train.tui.base import BaseApp

#: Keys that move in what is shown; whoever looks for those by name is faster without.
_MOVES = frozenset(
    (
        "up",
        "down",
        "left",
        "right",
        "pageup",
        "pagedown",
        "home",
        "end",
        "tab",
        "shift+tab",
        "escape",
    )
) | frozenset("hjkl")


class Command(NamedTuple):
    """One action by name.

    Attributes:
        action: As Textual writes it.
        replay: Only in a replay, only outside of one; ``None`` = in both.
    """

    title: str
    key: str
    means: str
    action: str
    replay: bool | None = None


#: What works on every page.
EVERYWHERE = (
    Command("Settings", "t", "what the run really has, to be changed for the next", "settings"),
    Command("Rerun", "r", "run the script again with changes", "rerun"),
    Command("Trial", "p", "prove changes, in turns with the script as it is", "trial"),
    Command("Compare", "c", "side by side with another run", "compare"),
    Command("Evidence", "e", "what the verdict rests on", "evidence"),
    Command("Line of the verdict", "g", "your source where the verdict points", "verdict_line"),
    Command("Freeze", "space", "hold the view, or let it go; measuring goes on", "space", False),
    Command("Longer window", "+", "more time on the time axis", "window(1)"),
    Command("Shorter window", "-", "less time on the time axis", "window(-1)"),
    Command("Play or pause", "space", "the replay", "space", True),
    Command("Back", "left", "ten seconds, in the replay", "seek(-10)", True),
    Command("Forth", "right", "ten seconds, in the replay", "seek(10)", True),
    Command("Beginning", "home", "of the replay", "seek(-1e12)", True),
    Command("End", "end", "of the replay: the final verdict", "seek(1e12)", True),
    Command("Slower", "<", "the replay", "speed(-1)", True),
    Command("Faster", ">", "the replay", "speed(1)", True),
    Command("Help", "?", "keys and how to read the screen", "help"),
)


def commands(app: BaseApp, screen: Screen[Any], *, replay: bool) -> Iterator[SystemCommand]:
    """The palette's commands.

    Args:
        app: Does them.
        screen: What the palette was opened over.
        replay: Whether a replay is shown.
    """
    found = [Command("Leave", "q", "this screen; asks first while something runs", "leave")]
    if isinstance(screen, Page):
        found += [c for c in EVERYWHERE if c.replay in (None, replay)]
        found += [
            Command(f"Page: {name}", pages.key_of(name), PAGES[name], f"page('{name}')")
            for name in pages.names()
        ]
    if isinstance(screen, Page) or app.to_copy(screen) is not None:
        found.append(Command("Copy", "y", "what is in front, to the clipboard and a file", "copy"))
    found.append(
        Command(
            "Suspend", "ctrl+z", "to the shell; fg comes back, the run goes on", "suspend_process"
        )
    )
    found.append(Command("Screenshot", "s", "save the screen as an SVG picture", "picture"))
    found += [
        Command(f"Theme: {name}", "", words, f"theme('{name}')")
        for name, words in themes.WORDS.items()
    ]
    for command in found:
        if app.may(command.action.partition("(")[0]):
            yield _made(command, partial(app.run_action, command.action))
    for command in own(screen):
        where, _, action = command.action.partition("(")[0].rpartition(".")
        if where != "app" or app.may(action):
            yield _made(command, partial(app.run_action, command.action, screen))


def _made(command: Command, do: Any) -> SystemCommand:
    key = f"key {command.key}" if command.key else ""
    said = f"{command.means} ({key})" if command.means and key else command.means or key
    return SystemCommand(command.title, said, do)


def own(screen: Screen[Any]) -> Iterable[Command]:
    """The actions that a screen adds, by their names in its bindings."""
    if isinstance(screen, ModalScreen):
        return
    for binding in vars(type(screen)).get("BINDINGS", ()):
        made = binding if isinstance(binding, Binding) else Binding(*binding)
        keys = made.key.split(",")
        moves = _MOVES.issuperset(keys) or made.key.isdigit()
        if made.description and not moves:
            title = made.description[:1].upper() + made.description[1:]
            yield Command(title, " ".join(map(_key, keys)), "", made.action)


def _key(name: str) -> str:
    """A key as keyboards name it; Textual's own sign for Enter is not in every font."""
    shown = format_key(name)
    return shown if shown.isascii() else name
