"""What one step consists of: a bar cut in proportion, with milliseconds."""

from __future__ import annotations

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, fit
from gputop_train.tui.snapshot import Snapshot, StepView
from gputop_train.tui.text import compact_ms, label_word, milliseconds
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER, MARGIN


def step_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """A bar of the mean step and, under it, its parts by name; one row names the parts only."""
    step = snap.step
    if step.median_ms is None or not step.parts:
        return [fit([(" step", "muted"), ("  not measured yet", "faint")], width, glyphs)]
    # One cell shorter than the gutter even at "99.9 ms", so that it stays apart from the bar.
    mean = f" avg step {milliseconds(sum(ms for _, ms in step.parts))}"
    room = width - GUTTER - MARGIN
    if height < 2:
        names = "  ".join(_words(label, ms, short=True) for label, ms in _by_size(step))
        return [fit([(mean.ljust(GUTTER), "text"), (names, "muted")], width, glyphs)]
    middle = f" p50 {compact_ms(step.median_ms)}"
    middle += f" p95 {compact_ms(step.p95_ms)}" if step.p95_ms is not None else " ms"
    cells = _cells(step, room)
    bar: list[Span] = [(mean.ljust(GUTTER), "text")]
    for (label, _), size in zip(step.parts, cells, strict=True):
        if size:
            bar += (
                [(glyphs.bar * (size - 1), label), (" ", "text")]
                if size > 1
                else [(glyphs.edge, label)]
            )
    names_row: list[Span] = [(middle.ljust(GUTTER), "muted"), *_names(step, cells, room)]
    return [fit(bar, width, glyphs), fit(names_row, width, glyphs)]


def _by_size(step: StepView) -> list[tuple[str, float]]:
    return sorted(step.parts, key=lambda part: -part[1])


def _words(label: str, ms: float, *, short: bool) -> str:
    return f"{label_word(label, short=short)} {milliseconds(ms)}"


def _cells(step: StepView, room: int) -> list[int]:
    """Cells of each part, largest remainders first, so that they add up to ``room``."""
    total = sum(ms for _, ms in step.parts)
    exact = [ms / total * room for _, ms in step.parts]
    cells = [int(size) for size in exact]
    order = sorted(range(len(exact)), key=lambda index: cells[index] - exact[index])
    for index in order[: room - sum(cells)]:
        cells[index] += 1
    return cells


def _names(step: StepView, cells: list[int], room: int) -> list[Span]:
    """Names as near under their parts as their length allows, in order.

    Where they do not all fit, short names are tried, and then the smallest parts go unnamed.
    """
    total = sum(ms for _, ms in step.parts)
    wanted = [label for label, ms in _by_size(step) if ms >= 0.004 * total]
    while wanted:
        for short in (False, True):
            words = [
                (at, _words(label, ms, short=short), label)
                for at, (label, ms) in zip(_starts(cells), step.parts, strict=True)
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
