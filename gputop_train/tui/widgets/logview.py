"""The whole log on a page of its own: a title, the lines, and what is searched for."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.tui.paint import Glyphs, Row, Span, fit, plain
from gputop_train.tui.text import percent, size
from gputop_train.tui.widgets.board import Board


@dataclass(frozen=True, slots=True)
class LogView:
    """What the page shows.

    Attributes:
        lines: From the top, at most as many as there is room for.
        hit: Which of them was found; ``None`` = none.
        share: How far into the log the page ends, 0..1; ``None`` = it follows the newest line.
        size: Bytes of the log; ``None`` = not known.
        pattern: What was searched for; empty = nothing.
        typing: What is being typed to search for; ``None`` = nothing.
        left: Characters of each line that lie to the left.
        note: A lasting remark for the title.
    """

    lines: tuple[str, ...] = ()
    hit: int | None = None
    share: float | None = None
    size: int | None = None
    pattern: str = ""
    typing: str | None = None
    left: int = 0
    note: str = ""


def log_view_rows(view: LogView, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """Title, lines, and the prompt while something is typed."""
    prompt: list[Row] = []
    if view.typing is not None:
        text: list[Span] = [(" /", "key"), (view.typing, "strong"), (glyphs.levels[-1], "muted")]
        prompt = [fit(text, width, glyphs)]
    room = max(0, height - 1 - len(prompt))
    rows = [_title(view, width, glyphs)]
    lines = view.lines[-room:] if view.share is None and room else view.lines[:room]
    hit = view.hit if view.share is not None else None
    for number, line in enumerate(lines):
        here = number == hit
        text = [(">" if here else " ", "key"), *_line(line[view.left :], view.pattern)]
        rows.append(fit(text, width, glyphs))
    if not lines and room:
        rows.append(fit([(" nothing printed yet", "faint")], width, glyphs))
    blank: Row = ()
    return [*rows, *[blank] * (height - len(rows) - len(prompt)), *prompt][-height:]


def _title(view: LogView, width: int, glyphs: Glyphs) -> Row:
    words = [f"column {view.left + 1}"] if view.left else []
    words += [f"/{view.pattern}"] if view.pattern else []
    if view.share is None:
        words += [size(view.size)] if view.size is not None else []
        words += ["following"]
    else:
        words += [f"{percent(view.share)} of {size(view.size or 0)}"]
        words += ["end: follow"] if width >= 60 else []
    head = f"{glyphs.rule} log "
    tail = f" {glyphs.sep.join(words)} {glyphs.rule}"
    note = f"{glyphs.rule} {view.note} " if view.note else ""
    if len(head) + len(note) + len(tail) > width:
        note = ""
    fill = glyphs.rule * max(0, width - len(head) - len(note) - len(plain(tail, glyphs)))
    spans: list[Span] = [(head, "muted"), (note + fill, "faint"), (tail[:-1], "muted")]
    return fit([*spans, (glyphs.rule, "faint")], width, glyphs)


def _line(text: str, pattern: str) -> list[Span]:
    """A line with what was searched for brought out."""
    if not pattern:
        return [(text, "text")]
    inside = text.lower() if pattern == pattern.lower() else text
    spans: list[Span] = []
    at = 0
    while (found := inside.find(pattern, at)) >= 0:
        spans += [(text[at:found], "text"), (text[found : found + len(pattern)], "key")]
        at = found + len(pattern)
    return [*spans, (text[at:], "text")]


class LogBoard(Board):
    """See `log_view_rows`."""

    view: LogView | None = None

    def show(self, view: LogView) -> None:
        """Show a view, repainting the rows that differ."""
        self.view = view
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The page at this size."""
        if self.view is None:
            return None
        return log_view_rows(self.view, width, height, self.glyphs)
