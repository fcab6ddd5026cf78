"""The screen of a trial by itself, for whoever joins one again."""

from __future__ import annotations

from pathlib import Path

from gputop_train.launch.options import Setting
from gputop_train.tui.base import BaseApp
from gputop_train.tui.result import TuiResult
from gputop_train.tui.screens.trial import Trial


class TrialApp(BaseApp):
    """Shows a trial until it is left; its result names the settings to keep, if any.

    Args:
        trial_dir: The trial's directory.
        ascii: Draw with plain ASCII.
    """

    def __init__(self, trial_dir: Path, *, ascii: bool = False) -> None:
        super().__init__(ascii=ascii)
        self._screen = Trial(trial_dir)
        self._pictures_dir = self._run_dir = trial_dir

    def on_mount(self) -> None:
        """Open the trial over the empty base screen, so that it can be closed like any other."""
        super().on_mount()
        self.push_screen(self._screen, self._left)
        self._screen.restyle(self.glyphs, self.inks)

    def _left(self, proven: tuple[Setting, ...] | None) -> None:
        self.exit(TuiResult("ended", 0, settings=proven or ()))

    def action_leave(self) -> None:
        """Ask, while it runs."""
        if self.screen is self._screen:
            self._screen.action_leave_trial()
        else:
            self.pop_screen()
