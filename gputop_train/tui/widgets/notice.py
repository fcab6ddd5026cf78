"""One row above the keys: how the run ended, where a replay stands, or what is not measured."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, Span, fit, wrap
from gputop_train.tui.snapshot import ReplayView, Snapshot
from gputop_train.tui.text import duration
from gputop_train.tui.widgets.panel import Panel


def notice_rows(snap: Snapshot, width: int, glyphs: Glyphs, *, message: str = "") -> list[Row]:
    """The most pressing thing to say, or nothing."""
    if message:
        return [fit([(f" {message}", "info")], width, glyphs)]
    if snap.replay is not None:
        return [_replay(snap.replay, width, glyphs)]
    if snap.state == "ended":
        after = f" after {duration(snap.elapsed_s)}" if snap.elapsed_s is not None else ""
        how = snap.exit_text or f"exit code {snap.exit_code}"
        ink = "good" if snap.exit_code == 0 else "critical"
        text = f" The script ended{after}: {how}. q closes this screen."
        return [fit([(text, ink)], width, glyphs)]
    if snap.state == "stopping":
        return [fit([(" Asked the script to stop; waiting for it to end.", "warn")], width, glyphs)]
    if snap.state == "lost":
        text = " The script is gone and left no exit code: its watcher was killed."
        return [fit([(text, "warn")], width, glyphs)]
    if snap.warning:
        return [fit([(f" {snap.warning}", "warn")], width, glyphs)]
    if snap.notes:
        return [fit([(f" {glyphs.sep.join(snap.notes)}", "muted")], width, glyphs)]
    return []


def _replay(replay: ReplayView, width: int, glyphs: Glyphs) -> Row:
    sign = glyphs.play if replay.playing else glyphs.frozen
    speed = f"{replay.speed:g}x"
    over = "space: again  " if replay.position_s >= replay.length_s else ""
    words = f"{over}{duration(replay.position_s)} of {duration(replay.length_s)}  {speed} "
    head = f" {sign} "
    room = max(4, width - len(head) - len(words) - 2)
    share = replay.position_s / replay.length_s if replay.length_s > 0 else 1.0
    at = max(0, min(room - 1, round(share * (room - 1))))
    spans: list[Span] = [
        (head, "info"),
        (glyphs.rule * at, "info"),
        (glyphs.knob, "strong"),
        (glyphs.rule * (room - 1 - at), "faint"),
        (f"  {words}", "text"),
    ]
    return fit(spans, width, glyphs)


class Notice(Panel):
    """See `notice_rows`; ``message`` is a passing answer to a key press, ``lasting`` stays."""

    message = ""
    lasting = ""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """At most one row."""
        return notice_rows(snapshot, width, self.glyphs, message=self.message or self.lasting)

    def early_rows(self, width: int, height: int) -> list[Row]:
        """A message, such as why nothing can be read."""
        said = wrap(self.message or self.lasting, width - 2, height, self.glyphs)
        return [fit([(f" {text}", "info")], width, self.glyphs) for text in said]

    def say(self, message: str) -> None:
        """Show a message instead, until `say` is called with nothing."""
        self.message = message
        self.paint()

    def stand(self, message: str) -> None:
        """Show a message wherever no passing one is shown, until `stand` is called with nothing."""
        self.lasting = message
        self.paint()
