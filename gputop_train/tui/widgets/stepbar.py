"""What one step consists of: a bar cut in proportion, with milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, fit
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import compact_ms, label_word, milliseconds
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER, MARGIN

#: Label of host time with its milliseconds.
Part = tuple[str, float]


def step_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """A bar of the mean step and, under it, its parts by name; one row names the parts only."""
    step = snap.step
    if step.median_ms is None or not step.parts:
        return [fit([(" step", "muted"), ("  not measured yet", "faint")], width, glyphs)]
    # One cell shorter than the gutter even at "99.9 ms", so that it stays apart from the bar.
    mean = f" avg step {milliseconds(sum(ms for _, ms in step.parts))}"
    room = width - GUTTER - MARGIN
    if height < 2:
        names = "  ".join(_words(label, ms, short=True) for label, ms in _by_size(step.parts))
        return [fit([(mean.ljust(GUTTER), "text"), (names, "muted")], width, glyphs)]
    middle = f" p50 {compact_ms(step.median_ms)}"
    middle += f" p95 {compact_ms(step.p95_ms)}" if step.p95_ms is not None else " ms"
    cells = cells_of(step.parts, room)
    bar: list[Span] = [(mean.ljust(GUTTER), "text"), *bar_of(step.parts, cells, glyphs)]
    names_row: list[Span] = [(middle.ljust(GUTTER), "muted"), *names_under(step.parts, cells, room)]
    return [fit(bar, width, glyphs), fit(names_row, width, glyphs)]


def bar_of(parts: Sequence[Part], cells: Sequence[int], glyphs: Glyphs) -> list[Span]:
    """The parts one after the other, a seam after each so that they are told apart uncoloured."""
    spans: list[Span] = []
    for (label, _), size in zip(parts, cells, strict=True):
        if size > 1:
            spans += [(glyphs.bar * (size - 1), label), (" ", "text")]
        elif size:
            spans.append((glyphs.edge, label))
    return spans


def _by_size(parts: Sequence[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: -part[1])


def _words(label: str, ms: float, *, short: bool) -> str:
    return f"{label_word(label, short=short)} {milliseconds(ms)}"


def cells_of(parts: Sequence[Part], room: int) -> list[int]:
    """Cells of each part, largest remainders first, so that they add up to ``room``."""
    total = sum(ms for _, ms in parts)
    exact = [ms / total * room for _, ms in parts]
    cells = [int(size) for size in exact]
    order = sorted(range(len(exact)), key=lambda index: cells[index] - exact[index])
    for index in order[: room - sum(cells)]:
        cells[index] += 1
    return cells


def names_under(parts: Sequence[Part], cells: list[int], room: int) -> list[Span]:
    """Names as near under their parts as their length allows, in order.

    Where they do not all fit, short names are tried, and then the smallest parts go unnamed.
    """
    total = sum(ms for _, ms in parts)
    wanted = [label for label, ms in _by_size(parts) if ms >= 0.004 * total]
    while wanted:
        for short in (False, True):
            words = [
                (at, _words(label, ms, short=short), label)
                for at, (label, ms) in zip(_starts(cells), parts, strict=True)
                if label in wanted
            ]
            if sum(cell_len(text) + 2 for _, text, _ in words) - 2 <= room:
                return _placed(words, room)
        wanted.pop()
    return []


def _starts(cells: list[int]) -> list[int]:
    return [sum(cells[:index]) for index in range(len(cells))]


def _placed(words: list[tuple[int, str, str]], room: int) -> list[Span]:
    """Each word where its part begins, moved only as far as its neighbours and the edge force."""
    latest = room + 2
    limits = []
    for _, text, _ in reversed(words):
        latest -= cell_len(text) + 2
        limits.append(latest)
    spans: list[Span] = []
    used = 0
    for (at, text, label), limit in zip(words, reversed(limits), strict=True):
        start = min(limit, max(at, used + (2 if spans else 0)))
        spans += [(" " * (start - used), "text"), (text, label)]
        used = start + cell_len(text)
    return spans


class StepBar(Panel):
    """See `step_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Bar and names, or names only."""
        return step_rows(snapshot, width, height, self.glyphs)
