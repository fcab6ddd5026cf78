"""The list of runs to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.tui.other_runs import OtherRun
from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit
from gputop_train.tui.text import milliseconds, wall_time
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.settings import keys_row

KEYS = (
    ("enter", "compare with this run"),
    ("space", "mark two"),
    ("a", "all scripts"),
    ("esc", "close"),
)


@dataclass(frozen=True, slots=True)
class PickerPage:
    """The list at one instant; ``rows`` is ``None`` while it is read."""

    run_id: str
    rows: tuple[OtherRun, ...] | None = None
    cursor: int = 0
    marked: tuple[str, ...] = ()
    all_scripts: bool = False
    message: str = ""
    now_ns: int = 0

    @property
    def shown(self) -> tuple[OtherRun, ...]:
        """The runs to choose from."""
        return tuple(row for row in self.rows or () if self.all_scripts or row.same_script)


def picker_rows(page: PickerPage, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The whole list.

    Args:
        page: What to show.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.
    """
    head: list[Row] = [
        fit([(" compare  ", "strong"), (f"run {page.run_id} with", "text")], width, glyphs),
        _line(
            ("", "started", "step", "verdict", "settings"), "muted", width, glyphs, lead="   run"
        ),
    ]
    foot = [(((glyphs.rule * width), "faint"),), keys_row(KEYS, width, glyphs)]
    if page.message:
        foot.insert(1, fit([(f" {page.message}", "info")], width, glyphs))
    room = max(0, height - len(head) - len(foot))
    if page.rows is None:
        body = [fit([(" Reading the runs.", "muted")], width, glyphs)]
    elif not page.shown:
        text = " No other run of this script is kept here; a shows those of all scripts."
        body = [fit([(text, "muted")], width, glyphs)]
    else:
        body = [
            _run(page, row, number == page.cursor, width, glyphs)
            for number, row in enumerate(page.shown)
        ]
    first = max(0, min(len(body) - room, page.cursor - room // 2))
    body = body[first : first + room]
    return [*head, *body, *[()] * (room - len(body)), *foot]


def _run(page: PickerPage, row: OtherRun, here: bool, width: int, glyphs: Glyphs) -> Row:
    mark = "*" if row.id in page.marked else " "
    cells = (
        "",
        wall_time(row.started_wall_ns, page.now_ns),
        "-" if row.step_ms is None else milliseconds(row.step_ms),
        row.verdict or row.state,
        ", ".join(row.settings) or "-",
    )
    ink = "strong" if here else "text"
    name = f"{row.id} {row.name}" if row.name else row.id
    return _line(cells, ink, width, glyphs, lead=f" {'>' if here else ' '}{mark}{name}")


def _line(cells: tuple[str, ...], ink: str, width: int, glyphs: Glyphs, *, lead: str) -> Row:
    wide = width >= 72
    first = 24 if width >= 100 else 16 if wide else 11
    sizes = (0, 17 if wide else 0, 10, 26 if width >= 100 else 20 if wide else 18)
    spans: list[Span] = [(clip(lead, first - 1, glyphs).ljust(first), ink)]
    for text, size in zip(cells, sizes, strict=False):
        if size:
            spans.append((clip(text, size - 1, glyphs).ljust(size), ink))
    return fit([*spans, (cells[-1], ink)], width, glyphs)


class PickerList(Board):
    """See `picker_rows`."""

    page: PickerPage | None = None

    def show(self, page: PickerPage) -> None:
        """Show a page, repainting the rows that differ."""
        self.page = page
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The list at this size."""
        if self.page is None:
            return None
        return picker_rows(self.page, width, height, self.glyphs)
