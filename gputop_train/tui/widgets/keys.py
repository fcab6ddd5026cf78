"""The bottom row: the keys that work now."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, Span, fit
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.panel import Panel

LIVE = (
    ("q", "quit"),
    ("?", "help"),
    ("t", "settings"),
    ("r", "rerun"),
    ("p", "trial"),
    ("c", "compare"),
    ("space", "freeze"),
    ("e", "evidence"),
    ("y", "copy advice"),
    ("+/-", "window"),
    ("s", "screenshot"),
    ("ctrl+p", "commands"),
)
REPLAY = (
    ("q", "quit"),
    ("?", "help"),
    ("space", "play/pause"),
    ("left/right", "seek"),
    ("end", "verdict"),
    ("</>", "speed"),
    ("e", "evidence"),
    ("t", "settings"),
    ("c", "compare"),
    ("y", "copy advice"),
    ("+/-", "window"),
    ("s", "screenshot"),
)


def keys_row(snap: Snapshot, width: int, glyphs: Glyphs) -> Row:
    """Keys with their meaning, whole pairs only."""
    spans: list[Span] = []
    room = width - 1
    for key, meaning in REPLAY if snap.replay is not None else LIVE:
        need = len(key) + len(meaning) + 3
        if need > room + 2:
            break
        room -= need
        spans += [(f" {key}", "key"), (f" {meaning} ", "muted")]
    return fit(spans, width, glyphs)


class Keys(Panel):
    """See `keys_row`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """One row."""
        return [keys_row(snapshot, width, self.glyphs)]
