"""What the reading thread tells the screen."""

from __future__ import annotations

from textual.message import Message

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
