"""The screen of a run for one browser: it shows, and starts, stops and writes nothing."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual.command import CommandPalette

from gputop_train.launch import runs
from gputop_train.launch.runfile import read_json
from gputop_train.look import WINDOWS
from gputop_train.tui import themes
from gputop_train.tui.application import GputopApp
from gputop_train.tui.doors import Doors
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.result import TuiResult
from gputop_train.tui.screens.reading import Reading
from gputop_train.tui.source import LiveSource

READ_ONLY = "This view is read-only: use the terminal for that."
#: What may lie over a page: texts and the commands' names. All else asks, starts or stops.
_MAY_OPEN = (Reading, CommandPalette)
#: Actions of the app that only show.
_SHOWS = frozenset(
    (
        "leave",
        "quit",
        "help_quit",
        "command_palette",
        "help",
        "evidence",
        "page",
        "turn",
        "verdict_line",
        "search_log",
        "space",
        "window",
        "seek",
        "speed",
        "theme",
        "copy",
        "focus_next",
        "focus_previous",
        "focus",
    )
)
_PR_SET_PDEATHSIG = 1


class ServedApp(GputopApp):
    """A `GputopApp` behind glass.

    Three doors are shut, each enough by itself: no action besides those that show, nothing opened
    over a page that could ask for more, and nobody behind that could start, stop or write.
    """

    keys_without: ClassVar[tuple[str, ...]] = ("t", "r", "p", "c", "s")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what shows."""
        if action not in _SHOWS:
            return False
        return super().check_action(action, parameters)

    def push_screen(self, screen: Any, *args: Any, **kwargs: Any) -> Any:
        """Open what only shows."""
        if not isinstance(screen, _MAY_OPEN):
            self.say(READ_ONLY)
            return None
        return super().push_screen(screen, *args, **kwargs)

    def may(self, action: str) -> bool:
        """Likewise for the palette."""
        return action in _SHOWS

    def action_leave(self) -> None:
        """Close what lies over a page, then the view; the run is none of its business."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        else:
            self.exit(TuiResult("detached", 0))


def app_for(run_dir: Path, options: argparse.Namespace) -> ServedApp:
    """The screen of a run: live while it runs, else played back."""
    run = read_json(run_dir / "run.json") or {}
    state = runs.run_state(run_dir, run, read_json(run_dir / "exit.json"))
    replay = ReplaySource(run_dir) if state in ("finished", "lost") else None
    app = ServedApp(
        replay or LiveSource(run_dir),
        replay=replay.playback if replay is not None else None,
        ascii=options.ascii,
        hz=options.hz,
        window_s=options.window,
        doors=Doors(why_not=READ_ONLY),
    )
    app.theme = themes.chosen(options.theme, {"COLORTERM": "truecolor"})
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Show a run through Textual's web driver; ends with whoever serves it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--theme", default="auto")
    parser.add_argument("--hz", type=float, default=2.0)
    parser.add_argument("--window", type=int, default=60, choices=WINDOWS)
    options = parser.parse_args(arguments)
    server = os.getppid()
    # A server that is killed can tell nobody.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != server:
        return
    app_for(options.run_dir, options).run()
