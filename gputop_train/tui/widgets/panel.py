"""The base of every widget of the overview: shows one part of a snapshot."""

from __future__ import annotations

from typing import Any

from gputop_train.tui.paint import Row
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.board import Board


class Panel(Board):
    """Shows one part of a `Snapshot`.

    Subclasses give `rows`, a pure function of the snapshot and the size.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._snapshot: Snapshot | None = None

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The panel's content; missing rows are blank, surplus ones are dropped."""
        raise NotImplementedError

    def content(self, width: int, height: int) -> list[Row] | None:
        """What `rows` gives, once there is a snapshot."""
        if self._snapshot is None:
            return self.early_rows(width, height)
        return self.rows(self._snapshot, width, height)

    def early_rows(self, width: int, height: int) -> list[Row] | None:
        """What is shown before the first snapshot; ``None`` = nothing."""
        return None

    @property
    def snapshot(self) -> Snapshot | None:
        """What is shown now."""
        return self._snapshot

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot, repainting the rows that differ."""
        self._snapshot = snapshot
        self.paint()
