"""Step phases under the chart, on the same time axis: one lane per label of host time.

A lane's place and its name carry the meaning, its height the share of each bin that went there;
colour only repeats it.
"""

from __future__ import annotations

from gputop_train.model import LABELS
from gputop_train.tui.paint import Glyphs, Row, fit, level
from gputop_train.tui.snapshot import Lane, Snapshot
from gputop_train.tui.text import label_word, percent
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER, plot_columns


def ribbon_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The largest lanes that fit, in the order in which a step passes through them."""
    if not snap.lanes:
        return [(("no steps in this window".rjust(GUTTER + 22), "faint"),)]
    return [_row(lane, width, glyphs) for lane in largest(snap.lanes, height)]


def largest(lanes: tuple[Lane, ...], height: int) -> list[Lane]:
    """At most ``height`` lanes by share, in the order of `model.LABELS`."""
    kept = sorted(lanes, key=lambda lane: -lane.share)[:height]
    order = {label: position for position, label in enumerate(LABELS)}
    return sorted(kept, key=lambda lane: order.get(lane.label, len(order)))


def _row(lane: Lane, width: int, glyphs: Glyphs) -> Row:
    columns = plot_columns(width)
    values = lane.values[-columns:]
    cells = " " * (columns - len(values)) + "".join(
        " " if value is None else level(value, glyphs.lane) for value in values
    )
    name = f" {label_word(lane.label):<11}"
    return fit(
        [
            (name, lane.label),
            (f"{percent(lane.share):>5}", "text"),
            (glyphs.edge, "muted"),
            (cells, lane.label),
        ],
        width,
        glyphs,
    )


class PhaseRibbon(Panel):
    """See `ribbon_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """The lanes that fit."""
        return ribbon_rows(snapshot, width, height, self.glyphs)
