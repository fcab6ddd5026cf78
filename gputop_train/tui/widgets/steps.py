"""The steps page: how step times are spread, a table of steps, and one of them taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, spread
from gputop_train.tui.text import compact_ms, count, duration, factor, milliseconds, moment
from gputop_train.tui.views.steps import Reason, StepRow, StepsView
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.histogram import histogram_rows
from gputop_train.tui.widgets.stack import stack
from gputop_train.tui.widgets.steplanes import HEIGHT, detail_rows, reason_text

#: Below this many rows or cells the table stands alone.
SMALL_ROWS, SMALL_CELLS = 14, 60
#: From this many rows on a step is taken apart without being asked for.
ROOMY_ROWS = 32
#: A step this many times the median stands out.
SLOW = 1.5
#: Of the rows shown, a bar more than this many times the median is broken off.
SCALE = 3.0


@dataclass(frozen=True, slots=True)
class StepsState:
    """The page at one instant.

    Attributes:
        view: The steps; ``None`` while they are read.
        cursor: The row selected.
        slowest: Slowest first instead of newest first.
        opened: Whether a step is taken apart; ``None`` = where there is room.
        newer: Steps that ended since the rows were held; ``None`` = they are not held.
    """

    view: StepsView | None = None
    cursor: int = 0
    slowest: bool = False
    opened: bool | None = None
    newer: int | None = None

    @property
    def rows(self) -> tuple[StepRow, ...]:
        """The rows in the order chosen."""
        if self.view is None:
            return ()
        return self.view.slowest if self.slowest else self.view.newest


@dataclass(frozen=True, slots=True)
class _Columns:
    """Cells of each column; 0 hides it."""

    number: int
    at: int
    wall: int
    ratio: int
    bar: int
    why: int


def steps_rows(state: StepsState, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The whole body."""
    view = state.view
    if view is None or not state.rows:
        text = "Reading the steps." if view is None else "No step has ended yet."
        return [fit([(f" {text}", "muted")], width, glyphs)]
    opened = is_open(state, width, height)
    chosen = state.rows[min(state.cursor, len(state.rows) - 1)]
    if _small(width, height):
        if opened:
            return detail_rows(chosen, view, width, height, glyphs)
        return [_title(state, view, width, glyphs), *_table(state, view, width, height - 1, glyphs)]
    rows = [_title(state, view, width, glyphs)]
    below = detail_rows(chosen, view, width, HEIGHT, glyphs) if opened else []
    spare = height - 1 - len(below)
    tall = 0 if spare < 14 else min(14, max(5, spare // 4))
    if tall and view.histogram is not None:
        rows += histogram_rows(view.histogram, _marks(view), width, tall, glyphs)
        rows.append(())
    room = height - len(rows) - len(below)
    table = _table(state, view, width, room, glyphs)
    return [*rows, *table, *[()] * (room - len(table)), *below]


def _small(width: int, height: int) -> bool:
    return height < SMALL_ROWS or width < SMALL_CELLS


def is_open(state: StepsState, width: int, height: int) -> bool:
    """Whether a step is taken apart: as asked for, else where there is room."""
    if state.opened is not None:
        return state.opened
    return height >= ROOMY_ROWS and not _small(width, height)


def _marks(view: StepsView) -> list[tuple[str, float]]:
    found = [("median", view.median_ms), ("p95", view.p95_ms)]
    return [(name, ms) for name, ms in found if ms is not None]


def _title(state: StepsState, view: StepsView, width: int, glyphs: Glyphs) -> Row:
    order = "slowest first" if state.slowest else "newest first"
    left: list[Span] = [(f" steps, {order}", "strong")]
    if state.newer is not None and width < SMALL_CELLS:
        left.append((f"{glyphs.sep}held", "warn"))
    elif state.newer is not None:
        newer = f"{count(state.newer)} newer, " if state.newer else ""
        left.append((f"{glyphs.sep}held, {newer}home follows", "warn"))
    of = f" of {count(view.count + view.older)}" if view.older else ""
    right = [f"{count(view.count)}{of} steps in {duration(view.span_s)}"]
    if view.median_ms is not None:
        right.append(f"median {milliseconds(view.median_ms)}")
    if view.p95_ms is not None:
        right.append(f"p95 {milliseconds(view.p95_ms)}")
    if view.slowest:
        right.append(f"slowest {milliseconds(view.slowest[0].wall_ms)}")
    if len(view.ranks) > 1:
        right.insert(0, f"rank {view.rank} of {len(view.ranks)}, [ ] others")
    room = width - sum(len(text) for text, _ in left) - 3
    kept: list[str] = []
    for text in right:
        if len(glyphs.sep.join([*kept, text])) > room:
            break
        kept.append(text)
    return spread(left, [(glyphs.sep.join(kept) + " ", "muted")], width, glyphs)


def _columns(state: StepsState, width: int) -> _Columns:
    number = max(6, *(len(count(row.number)) + 1 for row in state.rows))
    wide = width >= 100
    at = 8 if wide and any(row.at_s is not None for row in state.rows) else 0
    wall, ratio = 9, 7
    left = width - 2 - number - at - wall - ratio - 1
    bar = 0 if width < SMALL_CELLS else max(10, int(left * 0.42))
    return _Columns(number, at, wall, ratio, bar, left - bar - (2 if bar else 1))


def _table(
    state: StepsState, view: StepsView, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """Heads and as many rows as fit, the selected one among them."""
    columns = _columns(state, width)
    room = max(1, height - 1)
    cursor = min(state.cursor, len(state.rows) - 1)
    first = max(0, min(len(state.rows) - room, cursor - room // 2))
    shown = state.rows[first : first + room]
    longest = scale_of([row.wall_ms for row in shown])
    rows = [_heads(columns, longest, width, glyphs)]
    for number, row in enumerate(shown, first):
        rows.append(_row(row, view, columns, longest, width, glyphs, here=number == cursor))
    return rows


def scale_of(walls_ms: Sequence[float]) -> float:
    """What a bar's full length stands for: the longest that does not dwarf the others."""
    most = SCALE * median(walls_ms)
    return max(ms for ms in walls_ms if ms <= most)


def _heads(columns: _Columns, longest: float, width: int, glyphs: Glyphs) -> Row:
    text = "  " + "step".rjust(columns.number)
    if columns.at:
        text += "at".rjust(columns.at)
    text += "time".rjust(columns.wall) + "x med".rjust(columns.ratio) + " "
    if columns.bar:
        scale = f"0 to {compact_ms(longest)}" + ("" if longest >= 999.5 else " ms")
        text += clip(f"host time, {scale}", columns.bar, glyphs).ljust(columns.bar + 1)
    return fit([(f"{text} why", "muted")], width, glyphs)


def _row(
    row: StepRow,
    view: StepsView,
    columns: _Columns,
    longest: float,
    width: int,
    glyphs: Glyphs,
    *,
    here: bool,
) -> Row:
    ratio = row.wall_ms / view.median_ms if view.median_ms else None
    slow = ratio is not None and ratio >= SLOW
    ink = "strong" if here else "text"
    spans: list[Span] = [(" >" if here else "  ", "key")]
    spans.append((count(row.number).rjust(columns.number), ink))
    if columns.at:
        at = "-" if row.at_s is None else moment(row.at_s)
        spans.append((at.rjust(columns.at), "muted"))
    spans.append((milliseconds(row.wall_ms).rjust(columns.wall), "warn" if slow else ink))
    times = "-" if ratio is None else factor(ratio)
    spans.append((times.rjust(columns.ratio) + " ", "warn" if slow else "muted"))
    if columns.bar:
        spans += _bar(row, longest, columns.bar, glyphs)
        spans.append((" ", "text"))
    why = why_text(row.why, columns.why, glyphs)
    spans.append((f" {why}", "text" if slow else "muted"))
    return fit(spans, width, glyphs)


def _bar(row: StepRow, longest: float, room: int, glyphs: Glyphs) -> list[Span]:
    """The step's parts; of a step beyond the scale the whole room, broken off at its end."""
    beyond = row.wall_ms > longest * 1.001
    cells = room - 2 if beyond else room
    spans = stack(dict(row.parts), row.wall_ms if beyond else longest, cells, glyphs)
    if beyond:
        spans.append(((">>" if glyphs.ascii else "»»"), "warn"))
    if not spans and row.parts:
        spans = [(glyphs.edge, max(row.parts, key=lambda part: part[1])[0])]
    used = sum(len(text) for text, _ in spans)
    return [*spans, (" " * (room - used), "text")]


def why_text(why: Sequence[Reason], room: int, glyphs: Glyphs) -> str:
    """As many reasons as fit whole, what is known of each besides left out first."""
    for kept in range(len(why), 0, -1):
        for full in range(kept, -1, -1):
            texts = [reason_text(one, more=at < full) for at, one in enumerate(why[:kept])]
            text = glyphs.sep.join(texts)
            if len(text) <= room:
                return text
    return clip(reason_text(why[0], more=False, short=True), room, glyphs) if why else ""


class StepsBoard(Board):
    """See `steps_rows`."""

    state = StepsState()

    @property
    def taken_apart(self) -> bool:
        """Whether a step is taken apart at this size."""
        return is_open(self.state, *self.size)

    def show(self, state: StepsState) -> None:
        """Show a state, repainting the rows that differ."""
        self.state = state
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The body at this size."""
        return steps_rows(self.state, width, height, self.glyphs)
