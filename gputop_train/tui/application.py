"""The live screen: an app that shows snapshots and answers keys, and nothing else.

Nothing here may touch training: the screen reads files, and its single request to the outside, to
stop the script, goes to the supervisor's socket after a question.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import Screen

from gputop_train.look import WINDOWS
from gputop_train.tui import commands, terminal
from gputop_train.tui.clipboard import Copy
from gputop_train.tui.doors import Doors
from gputop_train.tui.feed import Feed, Source
from gputop_train.tui.loading import load_rest
from gputop_train.tui.messages import ReadFailed, SnapshotReady, StopAnswered
from gputop_train.tui.page import Page
from gputop_train.tui.paging import PagedApp
from gputop_train.tui.playback import ReplayControls
from gputop_train.tui.result import TuiResult
from gputop_train.tui.screens.ask import leaving
from gputop_train.tui.text import duration
from gputop_train.tui.widgets.timechart import plot_columns
from gputop_train.tui.widgets.verdict import advice_block

LOG_LINES = 400


class GputopApp(PagedApp):
    """Shows what a source gives.

    Args:
        source: Where snapshots come from.
        run_dir: Where advice, pictures and a crash report are written.
        pictures: Where screenshots go instead, for a run directory that is only on loan; then
            nothing but screenshots is written.
        replay: Controls of a replay; ``None`` for a live run.
        ascii: Draw with plain ASCII.
        hz: Snapshots a second.
        window_s: Width of the time axis at first, one of `WINDOWS`.
        stop: Asks for the script to be stopped; gives why that failed, or ``None``.
        come_back: The command that opens this screen again after detaching.
        doors: What else can be started from here.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help"),
        Binding("space", "space", "freeze"),
        Binding("plus,equals_sign", "window(1)", "longer window"),
        Binding("minus", "window(-1)", "shorter window"),
        Binding("e", "evidence", "evidence"),
        Binding("left", "seek(-10)", "back"),
        Binding("right", "seek(10)", "forth"),
        Binding("home", "seek(-1e12)", "beginning"),
        Binding("end", "seek(1e12)", "end"),
        Binding("less_than_sign,comma", "speed(-1)", "slower"),
        Binding("greater_than_sign,full_stop", "speed(1)", "faster"),
    ]

    def __init__(
        self,
        source: Source,
        *,
        run_dir: Path | None = None,
        pictures: Path | None = None,
        replay: ReplayControls | None = None,
        ascii: bool = False,
        hz: float = terminal.LOCAL_HZ,
        window_s: int = 60,
        stop: Callable[[], str | None] | None = None,
        come_back: str = "gputop-train attach",
        doors: Doors | None = None,
    ) -> None:
        super().__init__(doors, ascii=ascii)
        self._run_dir = run_dir if pictures is None else None
        self._pictures_dir = pictures if pictures is not None else run_dir
        self._replay = replay
        self._stop = stop
        self._come_back = come_back
        self._stopping = False
        self._window = WINDOWS.index(window_s)
        self._width = 0
        self._feed = Feed(
            source,
            period_s=1 / hz,
            ready=lambda snapshot: self.post_message(SnapshotReady(snapshot)),
            failed=lambda text: self.post_message(ReadFailed(text)),
            afterwards=load_rest,
        )

    @property
    def is_replay(self) -> bool:
        """Whether a recording is played back."""
        return self._replay is not None

    # Textual's life cycle

    def on_mount(self) -> None:
        """Start reading."""
        super().on_mount()
        self.look()
        self._feed.start()

    def on_unmount(self) -> None:
        """Stop reading."""
        self._leaving = True
        self._feed.stop()

    def on_resize(self, event: Resize) -> None:
        """Ask for as many bins as there are columns."""
        self._width = event.size.width  # the app's own size is still the old one here
        self.look()

    # Snapshots

    def look(self) -> None:
        """Ask for what the page in front needs, in as many bins as there are columns."""
        columns = plot_columns(max(1, self._width or self.size.width))
        self._feed.look_at(self.view(WINDOWS[self._window], columns, LOG_LINES))

    def on_snapshot_ready(self, message: SnapshotReady) -> None:
        """Show it, unless the view is frozen; how the run stands is shown even then."""
        self._feed.took()
        if self._leaving:
            return
        snapshot = message.snapshot
        if self._stopping and snapshot.state in ("starting", "live"):
            snapshot = replace(snapshot, state="stopping")
        snapshot = self.show(snapshot)
        if snapshot.state not in ("ended", "lost"):
            return
        if self.go_on(snapshot):
            self._stopping = False
        elif self._stopping:
            self.exit(TuiResult("stopped", snapshot.exit_code))

    def on_read_failed(self, message: ReadFailed) -> None:
        """Keep the last picture and say why it is old."""
        self.say(message.text)

    # Keys

    def action_leave(self) -> None:
        """Ask what to do with a script that still runs; leave at once when none does."""
        leave = getattr(self.screen, "action_leave_trial", None)
        if leave is not None:
            leave()
            return
        if len(self.screen_stack) > 1:
            self.pop_screen()
            return
        snapshot = self._newest
        if self._replay is not None:
            self.exit(TuiResult("ended", 0))
        elif snapshot is not None and snapshot.state in ("ended", "lost"):
            self.exit(TuiResult("ended", snapshot.exit_code))
        else:
            self.push_screen(leaving(self._come_back, self.lost_when_left()), self._left)

    def _left(self, choice: str | None) -> None:
        if choice == "detach":
            self.exit(TuiResult("detached", 0))
        elif choice == "stop":
            self.forget()
            self.stop_run()

    def stop_run(self) -> bool:
        """Ask for the script to be stopped; whether anybody can be asked."""
        if self._stop is None:
            self.say("This run cannot be stopped from here.")
            return False
        self._stopping = True
        threading.Thread(target=self._ask_stop, args=(self._stop,), daemon=True).start()
        return True

    def _ask_stop(self, stop: Callable[[], str | None]) -> None:
        self.post_message(StopAnswered(stop()))

    def on_stop_answered(self, message: StopAnswered) -> None:
        """Go back to watching when the request did not get through."""
        if message.error is not None:
            self._stopping = False
            self.forget()
            self.say(message.error)
        self._feed.now()

    def action_help(self) -> None:
        """Keys and how to read the screen."""
        from gputop_train.tui.screens.reading import Reading
        from gputop_train.tui.screens.texts import help_page, laid_out

        page = help_page(
            self.glyphs,
            page=self.front.NAME,
            own=self.front.KEYS,
            pages=self.page_names,
            without=self.keys_without,
            replay=self.is_replay,
        )
        self.push_screen(Reading(laid_out(page, self.glyphs)))

    def action_evidence(self) -> None:
        """What the verdict rests on, and what was ruled out."""
        self.to_findings()

    def action_space(self) -> None:
        """Freeze the view or let it go; in a replay, pause or play."""
        if self._replay is not None:
            self._replay.toggle()
        else:
            self.freeze(self._frozen is None)
            if self._newest is not None:
                self.show(self._newest)
        self._feed.now()

    def action_window(self, by: int) -> None:
        """Another width of the time axis."""
        self._window = max(0, min(len(WINDOWS) - 1, self._window + by))
        self.look()
        span = WINDOWS[self._window]
        run_s = self._newest.elapsed_s if self._newest is not None else None
        young = run_s is not None and run_s < span
        later = ", once the run is that old" if young and by > 0 else ""
        self.say(f"time window {duration(span)}{later}")

    def action_seek(self, seconds: float) -> None:
        """Move through a replay."""
        if self._replay is not None:
            self._replay.seek(seconds)
            self._feed.now()

    def action_speed(self, by: int) -> None:
        """Play a replay faster or slower."""
        if self._replay is not None:
            self._replay.change_speed(by)
            self._feed.now()

    def to_copy(self, screen: Screen[Any]) -> Copy | None:
        """What a screen has to copy; a page that has nothing of its own, the advice."""
        found = super().to_copy(screen)
        if found is None and isinstance(screen, Page) and self._newest is not None:
            text = advice_block(self._newest)
            found = Copy("Advice", text, "advice.txt") if text else None
        return found

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette's commands: every key by name, the pages, the themes."""
        return commands.commands(self, screen, replay=self.is_replay)
