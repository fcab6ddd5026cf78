"""The keys that lead from a verdict to its proof: settings, rerun, trial, compare.

Whatever is started or stopped is asked for first, and none of it lives in the event loop: a rerun
is done by whoever opened the screen, a trial by a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.binding import Binding, BindingType

from gputop_train.launch import again
from gputop_train.launch.options import Setting
from gputop_train.trial import store
from gputop_train.tui import next_run
from gputop_train.tui.base import BaseApp
from gputop_train.tui.doors import Doors, StartError
from gputop_train.tui.files import write_private
from gputop_train.tui.messages import ChoicesMade, RerunAsked, TrialAsked, TrialChosen, TrialStarted
from gputop_train.tui.next_run import Choices
from gputop_train.tui.result import TuiResult
from gputop_train.tui.screens.ask import Answer, Ask
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import run_title

if TYPE_CHECKING:
    from gputop_train.tui.screens.settings import Settings

OVER = ("ended", "lost")


@dataclass(frozen=True, slots=True)
class Next:
    """What follows once the run has ended."""

    kind: Literal["rerun", "trial"]
    settings: tuple[Setting, ...]


class ChangingApp(BaseApp):
    """An app that shows a run and knows what can follow it.

    Args:
        doors: What can be started from here.
        ascii: Draw with plain ASCII.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "settings", "settings"),
        Binding("r", "rerun", "rerun"),
        Binding("p", "trial", "trial"),
        Binding("c", "compare", "compare"),
    ]

    def __init__(self, doors: Doors | None, *, ascii: bool = False) -> None:
        super().__init__(ascii=ascii)
        self.doors = doors or Doors()
        self.choices: Choices = {}
        self._newest: Snapshot | None = None
        self._settings: Settings | None = None
        self._next: Next | None = None
        self._starting = False
        self._trial_dir: Path | None = None

    @property
    def run_title(self) -> str:
        """What the run is called before anything of it was read."""
        return run_title(self.doors.run)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The pages' keys mean nothing while another screen lies over it."""
        if len(self.screen_stack) > 1 and action in _OF_PAGES:
            return False
        return super().check_action(action, parameters)

    def stop_run(self) -> bool:
        """Ask for the script to be stopped; whether anybody can be asked."""
        raise NotImplementedError

    # Settings

    def action_settings(self) -> None:
        """Open the settings the run really has."""
        from gputop_train.tui.screens.settings import Settings

        screen = self._settings = Settings(self.choices, self.doors.command)
        self.push_screen(screen)
        screen.restyle(self.glyphs, self.inks)
        if self._newest is not None:
            screen.show(self._newest)

    def show_settings(self, snapshot: Snapshot) -> None:
        """Keep open settings up to date."""
        if self._settings is not None and self._settings in self.screen_stack:
            self._settings.show(snapshot)

    def on_choices_made(self, message: ChoicesMade) -> None:
        """Keep them, whatever screen is open."""
        self.choices = message.choices

    def _chosen(self) -> tuple[Setting, ...]:
        groups = self._newest.settings if self._newest is not None else ()
        return next_run.settings(groups, self.choices)

    # Rerun

    def on_rerun_asked(self, _message: RerunAsked) -> None:
        """From the settings: the same as the key on the overview."""
        self.action_rerun()

    def action_rerun(self) -> None:
        """Ask, then run the script again with what was chosen."""
        self._ask(Next("rerun", self._chosen()))

    # Trial

    def on_trial_asked(self, _message: TrialAsked) -> None:
        """From the settings: the same as the key on the overview."""
        self.action_trial()

    def action_trial(self) -> None:
        """Ask, then prove what was chosen, or what is advised where nothing was."""
        if self._starting:
            self.say("A trial is being started.")
            return
        if (running := self._running_trial()) is not None:
            self.watch_trial(running)  # one at a time: two would measure each other
            return
        groups = self._newest.settings if self._newest is not None else ()
        chosen = self._chosen() or next_run.settings(groups, next_run.advised(groups))
        if not chosen:
            self.say("Nothing is chosen and nothing is advised: choose a setting with t.")
            return
        self._ask(Next("trial", chosen))

    def on_trial_chosen(self, message: TrialChosen) -> None:
        """From the list of trials: look at one."""
        self.watch_trial(message.trial_dir)

    def on_trial_started(self, message: TrialStarted) -> None:
        """Watch it, or say why there is none."""
        self._starting = False
        self._trial_dir = message.trial_dir
        if message.trial_dir is None:
            self.say(message.error)
        else:
            self.watch_trial(message.trial_dir)

    def _running_trial(self) -> Path | None:
        """The trial that was started from here and still runs."""
        place = self._trial_dir
        return place if place is not None and store.is_running(store.read(place) or {}) else None

    def watch_trial(self, trial_dir: Path) -> None:
        """Open the screen of a trial."""
        from gputop_train.tui.screens.trial import Trial

        screen = Trial(trial_dir, rerun=self.doors.rerun)
        self.push_screen(screen, self._after_trial)
        screen.restyle(self.glyphs, self.inks)

    def _after_trial(self, proven: tuple[Setting, ...] | None) -> None:
        if proven:
            self._ask(Next("rerun", proven))

    # Both

    def _ask(self, wish: Next) -> None:
        able = self.doors.rerun if wish.kind == "rerun" else self.doors.start_trial is not None
        if not able:
            self._show_command(wish)
            return
        over = self._newest is not None and self._newest.state in OVER
        self.push_screen(
            Ask(
                _question(wish, beside=self._running_trial() is not None),
                _answers(wish, over=over),
            ),
            lambda answer: self._answered(wish, answer),
        )

    def _answered(self, wish: Next, answer: str | None) -> None:
        if answer in (None, "cancel"):
            return
        self._next = wish
        self._to_page()
        if answer == "when it ends":
            what = "Runs again" if wish.kind == "rerun" else "Starts the trial"
            self.standing(f"{what} when this run ends: {_words(wish.settings)}.")
        elif answer == "stop it" and not self.stop_run():
            self._next = None
        # A run that has ended meanwhile, or had before the question, is gone on from at once.
        if self._newest is not None and self._newest.state in OVER:
            self.go_on(self._newest)

    def _to_page(self) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def standing(self, text: str) -> None:
        """Say something above the keys until it is replaced."""
        raise NotImplementedError

    def lost_when_left(self) -> str:
        """What was to follow the run's end and does not once this screen is left."""
        if self._next is None:
            return ""
        what = "rerun" if self._next.kind == "rerun" else "trial"
        return f"The {what} that was to follow does not happen once you leave."

    def forget(self) -> None:
        """What was to follow the run's end does not."""
        self._next = None
        self.standing("")

    def go_on(self, snapshot: Snapshot) -> bool:
        """Do what was to follow the run's end; whether there was anything."""
        wish, self._next = self._next, None
        if wish is None:
            return False
        self.standing("")
        if wish.kind == "rerun":
            self.exit(TuiResult("rerun", snapshot.exit_code, settings=wish.settings))
        else:
            self._starting = True
            self.say("Starting the trial.")
            threading.Thread(target=self._start_trial, args=(wish,), daemon=True).start()
        return True

    def _start_trial(self, wish: Next) -> None:
        start = self.doors.start_trial
        if start is None:
            return
        try:
            started = start(again.candidates(wish.settings, again.recorded(self.doors.run)))
        except StartError as problem:
            self.post_message(TrialStarted(None, str(problem)))
        except Exception as error:  # a fault of ours must not take the screen with it
            text = f"The trial could not be started ({type(error).__name__}: {error})."
            self.post_message(TrialStarted(None, text))
        else:
            self.post_message(TrialStarted(started))

    def _show_command(self, wish: Next) -> None:
        line = self.doors.command(wish.settings, "trial" if wish.kind == "trial" else "")
        if not line:
            self.say(self.doors.why_not)
            return
        self.copy_to_clipboard(line)
        where = write_private(self._run_dir, "next-run.txt", f"{line}\n")
        kept = f"It is on the clipboard and in {where}." if where else "It is on the clipboard."
        what = "starts it" if wish.kind == "rerun" else "starts the trial"
        self.push_screen(
            Ask(
                [f"{self.doors.why_not} This command {what}:", line, kept],
                [Answer("c", "close", "back to the screen")],
            )
        )

    # Compare

    def action_compare(self) -> None:
        """Choose a run to put this one beside."""
        root = self.doors.root
        if root is None:
            self.say("There are no other runs here to compare with.")
            return
        from gputop_train.tui.screens.compare import Picker

        picker = Picker(root, self.doors.run)
        self.push_screen(picker, lambda picked: self._compare(root, picked))
        picker.restyle(self.glyphs, self.inks)

    def _compare(self, root: Path, picked: tuple[str, ...] | None) -> None:
        if picked:
            from gputop_train.tui.screens.compare import Compare

            screen = Compare(root, picked)
            self.push_screen(screen)
            screen.restyle(self.glyphs, self.inks)


#: Actions of the pages.
_OF_PAGES = {
    "page",
    "turn",
    "search_log",
    "settings",
    "rerun",
    "trial",
    "compare",
    "evidence",
    "verdict_line",
    "space",
    "window",
    "seek",
    "speed",
}


def _words(chosen: Sequence[Setting]) -> str:
    return ", ".join(map(again.typed, chosen)) or "the same settings"


def _question(wish: Next, *, beside: bool) -> list[str]:
    words = _words(wish.settings)
    changing = next_run.changing_results(wish.settings)
    if wish.kind == "rerun":
        lines = [f"Run the script again with {words}?"]
        if changing:
            lines.append(f"Results change with {', '.join(changing)}: losses will not repeat.")
        if beside:
            lines.append("A trial still runs: the two would slow each other and measure that.")
        if not wish.settings:
            lines.append("Nothing was changed: t opens the settings.")
        return lines
    return [
        f"Prove {words} in a trial?",
        "The script runs a few dozen steps at a time, as it is and changed, in turns. No file that "
        "exists is changed. It takes ten minutes at most and can be stopped at any time.",
    ]


def _answers(wish: Next, *, over: bool) -> list[Answer]:
    rerun = wish.kind == "rerun"
    cancel = Answer("c", "cancel", "stay here")
    if over:
        return [
            Answer("r", "run it", "a new run; this one stays to compare with")
            if rerun
            else Answer("p", "start", "the trial's own screen opens"),
            cancel,
        ]
    alone = "" if rerun else "; the trial needs the machine to itself"
    return [
        Answer("w", "when it ends", f"let this run finish first{alone}"),
        Answer("s", "stop it", "SIGINT first, later SIGTERM, then SIGKILL; then start at once"),
        cancel,
    ]
