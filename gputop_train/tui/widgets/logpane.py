"""The script's own output, newest line last, progress bars alive."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, fit
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.panel import Panel


def log_rows(
    snap: Snapshot, width: int, height: int, glyphs: Glyphs, *, back: int = 0
) -> list[Row]:
    """A rule with a title, then the newest lines that fit, ``back`` lines up from the end."""
    title = f"{glyphs.rule} log "
    end = max(0, len(snap.log) - back)
    if back:
        title += f"({back} lines back, end: newest) "
    note = f" {snap.log_note} {glyphs.rule}" if snap.log_note else ""
    fill = glyphs.rule * max(0, width - len(title) - len(note))
    rows = [fit([(title, "muted"), (fill + note, "faint")], width, glyphs)]
    room = height - 1
    lines = snap.log[max(0, end - room) : end]
    if not lines:
        return [*rows, fit([(" nothing printed yet", "faint")], width, glyphs)]
    return rows + [fit([(f" {line}", "text")], width, glyphs) for line in lines]


class LogPane(Panel):
    """See `log_rows`."""

    back = 0

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Title and lines."""
        return log_rows(snapshot, width, height, self.glyphs, back=self.back)

    def scroll_back(self, lines: int) -> None:
        """Move ``lines`` towards older output."""
        if self.snapshot is None:
            return
        limit = max(0, len(self.snapshot.log) - (self.size.height - 1))
        self.back = max(0, min(limit, self.back + lines))
        self.paint()

    def follow(self) -> None:
        """Show the newest output again."""
        self.back = 0
        self.paint()
