"""The bottom row: the keys that work now."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    ("y", "copy"),
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
    ("y", "copy"),
    ("+/-", "window"),
    ("s", "screenshot"),
)


def keys_row(
    width: int,
    glyphs: Glyphs,
    *,
    replay: bool = False,
    copies: str = "advice",
    own: Sequence[tuple[str, str]] = (),
    pages: Sequence[tuple[str, str]] = (),
    without: Collection[str] = (),
) -> Row:
    """Keys with their meaning, whole pairs only.

    Args:
        width: Cells.
        glyphs: The alphabet.
        replay: Whether this is a replay.
        copies: What is copied.
        own: Keys of the page in front; they come before those that work everywhere.
        pages: Key and name of each page.
        without: Keys that do nothing here.
    """
    known = REPLAY if replay else LIVE
    everywhere = [
        (key, f"{meaning} {copies}" if key == "y" else meaning)
        for key, meaning in known
        if key not in without
    ]
    turn = ((f"{pages[0][0]}-{pages[-1][0]}", "pages"),) if len(pages) > 1 else ()
    spans: list[Span] = []
    room = width + 1  # no blank is needed after the last
    for key, meaning in (*everywhere[:2], *own, *turn, *everywhere[2:]):
        need = len(key) + len(meaning) + 3
        if need > room:
            break
        room -= need
        spans += [(f" {key}", "key"), (f" {meaning} ", "muted")]
    if spans:
        spans[-1] = (spans[-1][0].rstrip(), "muted")
    return fit(spans, width, glyphs)


class Keys(Panel):
    """See `keys_row`."""

    own: Sequence[tuple[str, str]] = ()
    pages: Sequence[tuple[str, str]] = ()
    without: Collection[str] = ()
    replay = False
    copies = "advice"

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """One row."""
        return [self._row(width, replay=snapshot.replay is not None)]

    def early_rows(self, width: int, height: int) -> list[Row]:
        """The keys work from the beginning."""
        return [self._row(width, replay=self.replay)]

    def _row(self, width: int, *, replay: bool) -> Row:
        return keys_row(
            width,
            self.glyphs,
            replay=replay,
            copies=self.copies,
            own=self.own,
            pages=self.pages,
            without=self.without,
        )
