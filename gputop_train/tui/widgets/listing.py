"""The annotated listing: a file's lines with what each costs, stretches without costs folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, meter, plain, spread, wrap
from gputop_train.tui.text import count, milliseconds, percent
from gputop_train.tui.views.lines import WORKERS, File, Line, LinesView
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.folding import Entry, depth_of, entries
from gputop_train.tui.widgets.line_words import (
    NOT_TOLD,
    calls_text,
    kind_ink,
    kind_word,
    kinds_text,
    moved_text,
    part_text,
    rate_text,
    share_text,
    time_text,
)

#: Columns of numbers: name, cells, from which width on.
_COLUMNS = (
    ("bar", 8, 100),
    ("of wall", 8, 0),
    ("a step", 10, 60),
    ("calls", 10, 130),
    ("each", 10, 160),
    ("moved", 9, 140),
    ("rate", 11, 150),
    ("kind", 20, 90),
)
SHORT_KIND = 10


@dataclass(frozen=True, slots=True)
class Looking:
    """Where the reader is.

    Attributes:
        file: Path as recorded; empty = the one the verdict points at, else the costliest.
        at: Line the cursor is on; 0 = the file's line that the verdict points at, else its
            costliest.
        unfolded: Whether all lines are shown.
        top: First row shown.
    """

    file: str = ""
    at: int = 0
    unfolded: bool = False
    top: int = 0


def file_of(view: LinesView, looking: Looking) -> File | None:
    """The file that is looked at."""
    wanted = looking.file or (view.verdict[0] if view.verdict is not None else "")
    named = next((file for file in view.files if file.path == wanted), None)
    return named or (view.files[0] if view.files else None)


def cursor_of(view: LinesView, file: File, looking: Looking) -> int:
    """The number of the line the cursor is on."""
    if looking.at and looking.file == file.path:
        return looking.at
    if view.verdict is not None and view.verdict[0] == file.path:
        return view.verdict[1]
    return max(file.lines, key=lambda line: line.share or 0.0).number


def by_cost(view: LinesView) -> list[tuple[str, int]]:
    """All lines with costs of their own or a mark, the costliest first."""
    lines = [(file, line) for file in view.files for line in file.lines]
    order = sorted(lines, key=lambda pair: (-(pair[1].share or 0.0), pair[1].number))
    return [(file.path, line.number) for file, line in order]


def listing_rows(
    view: LinesView, looking: Looking, width: int, height: int, glyphs: Glyphs
) -> tuple[list[Row], int]:
    """The page's body.

    Args:
        view: What there is.
        looking: Where the reader is.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.

    Returns:
        Rows, and the first row of the listing shown.
    """
    file = file_of(view, looking)
    if file is None:
        text = view.why or "No line of yours was seen to cost anything yet."
        return [(), *_said(text, "muted", width, glyphs)], 0
    at = cursor_of(view, file, looking)
    columns = columns_of(file, width)
    top_rows = [_title(view, file, width, glyphs)]
    if file.source.note:
        lines = wrap(file.source.note, width - 2, 2 if height >= 14 else 1, glyphs)
        ink = "muted" if file.source.lines and file.source.same else "warn"
        top_rows += [((f" {line}", ink),) for line in lines]
    if height >= 8:
        top_rows.append(_heads(columns, width, glyphs))
    foot = _about(file, at, width, height, glyphs)
    room = max(1, height - len(top_rows) - len(foot))
    rows = entries(file, unfolded=looking.unfolded)
    most = max((line.share or 0.0 for line in file.lines), default=0.0)
    body = [_row(entry, columns, entry.number == at, most, width, glyphs) for entry in rows]
    here = next((n for n, e in enumerate(rows) if e.number == at and not e.folded), None)
    if here is None:  # folded away since
        here = next((n for n, e in enumerate(rows) if e.number >= at > 0), len(rows) - 1)
    if len(body) + 1 <= room:
        body += _notes(view, width, room - len(body) - 1, glyphs)
    top = first_row(looking.top, here, len(body), room)
    shown = body[top : top + room]
    blank: list[Row] = [()] * (room - len(shown))
    return [*top_rows, *shown, *blank, *foot], top


def first_row(top: int, here: int, total: int, room: int) -> int:
    """Where to begin, so that the cursor has a few rows around it and little moves."""
    margin = min(3, max(0, (room - 1) // 3))
    top = min(top, here - margin)
    top = max(top, here + margin + 1 - room)
    return max(0, min(top, total - room))


def _said(text: str, ink: str, width: int, glyphs: Glyphs) -> list[Row]:
    return [((f" {line}", ink),) for line in wrap(text, width - 2, 4, glyphs)]


def _title(view: LinesView, file: File, width: int, glyphs: Glyphs) -> Row:
    place = next(n for n, one in enumerate(view.files, 1) if one.path == file.path)
    costly = sum(line.share is not None for line in file.lines)
    left: list[Span] = [(f" {file.name}", "strong")]
    if width >= 60:
        lines = f"{costly} line" + ("" if costly == 1 else "s")
        left.append((f"  {percent(file.share)} of wall time in {lines}", "text"))
    else:
        left.append((f" {percent(file.share)}", "text"))
    if len(view.files) > 1:
        left.append((f"  file {place} of {len(view.files)}", "muted"))
    right = ""
    if view.steps and view.wall_s is not None:
        step = milliseconds(view.wall_s * 1e3 / view.steps)
        steps = f"{count(view.steps)} step" + ("" if view.steps == 1 else "s")
        right = f"means of {steps}, {step} each" if width >= 90 else f"step {step}"
        if view.rank and width >= 110:
            right = f"{view.rank}{glyphs.sep}{right}"
    return spread(left, [(right, "muted"), (" ", "text")], width, glyphs)


Columns = Sequence[tuple[str, int]]


def columns_of(file: File, width: int) -> Columns:
    """Names and cells of the columns that fit, without those that would be blank all the way."""
    found = [
        (name, cells)
        for name, cells, enough in _COLUMNS
        if width >= enough and any(_value(name, line) for line in file.lines if line.parts)
    ]
    if 60 <= width < 90:
        found.append(("kind", SHORT_KIND))
    return found


def _heads(columns: Columns, width: int, glyphs: Glyphs) -> Row:
    spans: list[Span] = [("   ", "muted")]
    for name, cells in columns:
        left = name in ("bar", "kind")
        word = {"bar": "", "kind": "goes to"}.get(name, name)
        spans.append((f"  {word}".ljust(cells) if left else word.rjust(cells), "muted"))
    spans.append((" line", "muted"))
    return fit(spans, width, glyphs)


def _row(
    entry: Entry, columns: Columns, here: bool, most: float, width: int, glyphs: Glyphs
) -> Row:
    """One row: the cursor, a mark, the numbers, the line."""
    cells = sum(size for _, size in columns)
    if entry.folded:
        words = f"{glyphs.ellipsis} {entry.folded} lines without costs"
        return fit([(" " * (cells + 10), "text"), (words, "faint")], width, glyphs)
    if not entry.number:
        return fit([(" " * (cells + 10), "text"), (entry.text, "muted")], width, glyphs)
    line = entry.line
    mark = {"verdict": (glyphs.warn, "warn"), "also": (glyphs.warn, "muted")}
    sign = mark.get(line.mark) if line is not None else None
    spans: list[Span] = [
        (glyphs.play if here else " ", "key"),
        (sign or (" ", "text")),
        (" " * (2 - len(sign[0]) if sign else 1), "text"),
    ]
    if line is None or not line.parts:
        spans.append((" " * cells, "text"))
    else:
        for name, size in columns:
            spans.append(_cell(name, size, line, most, glyphs))
    number = f"{abs(entry.number):>5}  "
    ink = "strong" if here else "text" if line is not None else "muted"
    return fit(
        [*spans, (number, "strong" if here else "muted"), (_narrow(entry.text, width), ink)],
        width,
        glyphs,
    )


def _narrow(text: str, width: int) -> str:
    """Half the indentation where every cell counts."""
    if width >= 60:
        return text
    depth = depth_of(text)
    return " " * (depth // 4) + text[depth:]


def _value(name: str, line: Line) -> str:
    """A column's text; what is counted at other lines is in brackets."""
    part = line.parts[0]
    marks = {"estimated": part.estimated, "at_least": part.at_least}
    if name in ("bar", "kind"):
        return name
    if name in ("calls", "each"):
        calls, each = calls_text(part.calls, **marks), time_text(part.each_ms)
        return "" if not part.own else calls if name == "calls" else each
    if name in ("moved", "rate"):
        return moved_text(part) if name == "moved" else rate_text(part)
    if part.own:
        if name == "of wall":
            return share_text(line.share, **marks)
        return time_text(line.ms, at_least=part.at_least)
    if part.kind == WORKERS:
        return ""
    return f"({share_text(part.share) if name == 'of wall' else time_text(part.ms)})"


def _cell(name: str, size: int, line: Line, most: float, glyphs: Glyphs) -> Span:
    part = line.parts[0]
    ink = kind_ink(part.kind)
    if name == "bar":
        share = (line.share or 0.0) / most if most else 0.0
        return " " + meter(share, size - 2, glyphs) + " ", ink
    if name == "kind":
        words = kinds_text(line, size - 3)
        return f"  {words}".ljust(size), ink if part.own else "muted"
    text = plain(_value(name, line), glyphs)
    ink = "faint" if text == NOT_TOLD else "text" if part.own else "muted"
    return clip(text, size - 1, glyphs).rjust(size), ink


def _about(file: File, at: int, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """What is known of the line under the cursor."""
    size = 4 if height >= 18 else 3 if height >= 11 else 2 if height >= 7 else 0
    if not size:
        return []
    line = next((one for one in file.lines if one.number == at), None)
    head: list[Span] = [(f" {file.name}:{abs(at)}", "strong")]
    rows: list[Row] = []
    if line is None:
        head.append(("  no cost was seen here", "muted"))
    else:
        if line.func:
            head.append((f"  in {line.func}", "muted"))
        if line.was:
            was = f"line {line.was} in the run" if at > 0 else "in the run"
            head.append((f"  {was}", "muted"))
        if line.mark:
            points = "the verdict points here" if line.mark == "verdict" else "named beside it"
            head.append((f"  {glyphs.warn} {points}", "warn"))
        wide = 12 if width >= 60 else 0
        for part in line.parts:
            words = kind_word(part.kind, short=not wide)
            name = f" {words}".ljust(wide + 2) if wide else f" {words} "
            lines = wrap(part_text(part), width - len(name) - 1, size - 1 - len(rows), glyphs)
            for n, text in enumerate(lines):
                rows.append(
                    ((name if n == 0 else " " * len(name), kind_ink(part.kind)), (text, "text"))
                )
            if len(rows) >= size - 1:
                break
        if not line.parts:
            rows.append(((" no cost of its own was seen here", "muted"),))
    rule: Row = ((glyphs.rule * width, "faint"),)
    rows = rows[: size - 1]
    return [rule, fit(head, width, glyphs), *rows, *[()] * (size - 1 - len(rows))]


def _notes(view: LinesView, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """What could not be measured, under the end of the listing."""
    rows: list[Row] = [()]
    for note in view.notes:
        rows += _said(note, "muted", width, glyphs)
    return rows if 1 < len(rows) <= room else []


class Listing(Board):
    """See `listing_rows`."""

    view: LinesView | None = None
    looking = Looking()
    top = 0

    def show(self, view: LinesView, looking: Looking) -> None:
        """Show this part of it, repainting the rows that differ."""
        self.view, self.looking = view, looking
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The body at this size."""
        if self.view is None:
            return [(), ((" Reading what each line costs.", "muted"),)]
        rows, self.top = listing_rows(self.view, self.looking, width, height, self.glyphs)
        return rows
