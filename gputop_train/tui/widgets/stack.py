"""Bars of steps side by side on one scale, each cut into its parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_train.model import LABELS
from gputop_train.tui.paint import Glyphs, Span


def stack(parts: Mapping[str, float], longest: float, room: int, glyphs: Glyphs) -> list[Span]:
    """One bar; ``longest`` fills ``room`` cells. Parts keep the order of `model.LABELS`.

    Args:
        parts: Milliseconds by label.
        longest: The sum of the longest bar beside it.
        room: Cells.
        glyphs: The alphabet.
    """
    if longest <= 0 or room <= 0:
        return []
    # Not quite a full cell, so that bars one above the other stay apart.
    full = glyphs.levels[-2]
    spans: list[Span] = []
    at, done = 0, 0.0
    ordered = [(label, parts[label]) for label in LABELS if parts.get(label, 0.0) > 0]
    for label, value in ordered:
        done += value
        end = min(room, round(done / longest * room))
        if end > at:
            # The seam between two parts is a cell of its own, so that they are told apart without
            # colour; a part of one cell is an edge.
            size = end - at
            spans.append((full * (size - 1), label) if size > 1 else (glyphs.edge, label))
            if size > 1:
                spans.append((" ", "text"))
            at = end
    return spans
