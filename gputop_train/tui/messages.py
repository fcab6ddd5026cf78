"""What the reading threads and the screens tell the app."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from textual.message import Message

from gputop_train.tui.next_run import Choices
from gputop_train.tui.snapshot import Snapshot


class SnapshotReady(Message):
    """A new snapshot was built."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class ReadFailed(Message):
    """The store could not be read this time; ``text`` says why. The last snapshot stays."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class ViewAsked(Message):
    """A page wants other values in its own fields of the `View`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


class StopAnswered(Message):
    """The supervisor took the request to stop (``error`` is ``None``) or could not be reached."""

    def __init__(self, error: str | None) -> None:
        super().__init__()
        self.error = error


class LeaveNow(Message):
    """A signal came or the terminal went away: leave with this exit code, ask nothing."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class PaintAll(Message):
    """The terminal may show something else: paint every cell."""


class ChoicesMade(Message):
    """Values were chosen for the next run."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self.choices = choices


class RerunAsked(Message):
    """Run the script again with what was chosen."""


class TrialAsked(Message):
    """Prove in a trial what was chosen."""


class TrialChosen(Message):
    """Open the screen of this trial."""

    def __init__(self, trial_dir: Path) -> None:
        super().__init__()
        self.trial_dir = trial_dir


class TrialStarted(Message):
    """A trial's process was started; ``trial_dir`` is ``None`` and ``error`` says why if not."""

    def __init__(self, trial_dir: Path | None, error: str = "") -> None:
        super().__init__()
        self.trial_dir = trial_dir
        self.error = error
