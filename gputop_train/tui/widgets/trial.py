"""The trial's table: every change beside the script as it is, filling while legs are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputop_train.model import LABELS
from gputop_train.tui.paint import (
    UNICODE,
    Glyphs,
    Row,
    Span,
    clip,
    fit,
    plain,
    spread,
    width_of,
    wrap,
)
from gputop_train.tui.text import compact_ms, duration, label_word, milliseconds, rate, size
from gputop_train.tui.trial_page import TrialPage, TrialRow
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.settings import keys_row
from gputop_train.tui.widgets.stack import stack

#: Labels of the accounting table, in the order of a step; the others are added up as the rest.
ACCOUNT = ("data_wait", "h2d", "forward", "backward", "optimizer", "gpu_wait", "sync")
_INKS = {"faster": "good", "slower": "critical", "no difference": "text", "inconclusive": "warn"}
_STATES = {
    "starting": ("starting", "muted"),
    "running": ("running", "good"),
    "done": ("done", "good"),
    "stopped": ("stopped", "warn"),
    "failed": ("failed", "critical"),
    "gone": ("gone", "warn"),
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table: dropped from the highest ``rank`` on where the width is short."""

    name: str
    size: int
    rank: int
    cell: Callable[[TrialRow, Glyphs], tuple[str, str]]


def _plain_cell(text: str, ink: str = "text") -> tuple[str, str]:
    return text, ink if text != "-" else "faint"


def _step(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    return _plain_cell("-" if row.step_ms is None else compact_ms(row.step_ms))


def _sample(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    us = row.time_per_sample_us
    return _plain_cell("-" if us is None else f"{us:,.0f}" if us >= 99.5 else f"{us:.3g}")


def _rate(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    return _plain_cell("-" if row.samples_per_s is None else rate(row.samples_per_s))


def _memory(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    return _plain_cell("-" if row.peak_bytes is None else size(row.peak_bytes))


def _busy(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    return _plain_cell("-" if row.gpu_busy is None else f"{row.gpu_busy * 100:.0f}%")


def _relative(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    if row.speedup is None:
        return _plain_cell("-" if row.status or row.step_ms is None else "1x")
    return f"{_short(row.speedup)}x", _INKS.get(row.verdict, "text")


def _interval(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    return _plain_cell("-" if row.interval is None else _range(*row.interval), "muted")


def _predicted(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    if row.predicted_interval is not None:
        return _plain_cell(_range(*row.predicted_interval), "muted")
    if row.predicted is None:
        return _plain_cell("-", "muted")
    more = "+" if row.predicted_at_least else ""
    return _plain_cell(f"to {_short(row.predicted)}x{more}", "muted")


def _verdict(row: TrialRow, glyphs: Glyphs) -> tuple[str, str]:
    signs = {"faster": glyphs.ok, "slower": glyphs.warn}
    if row.verdict and row.status not in ("refused", "failed"):
        sign = signs.get(row.verdict, "")
        return f"{sign} {row.verdict}".strip(), _INKS.get(row.verdict, "text")
    return row.verdict or row.status, "warn" if row.status in ("refused", "failed") else "muted"


def _cost(row: TrialRow, _glyphs: Glyphs) -> tuple[str, str]:
    cost = row.cost_per_million
    return _plain_cell("-" if cost is None else f"{cost:,.3g}")


def _range(low: float, high: float) -> str:
    return f"{_short(low)}-{_short(high)}"


def _short(ratio: float) -> str:
    """A ratio in at most four characters where it is below a thousand."""
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


_COLUMNS = (
    _Column("step ms", 8, 3, _step),
    _Column("us/sample", 10, 5, _sample),
    _Column("samples/s", 10, 9, _rate),
    _Column("peak mem", 10, 6, _memory),
    _Column("GPU busy", 9, 7, _busy),
    _Column("relative", 9, 0, _relative),
    _Column("interval", 11, 2, _interval),
    _Column("predicted", 11, 4, _predicted),
    _Column("cost/M", 8, 8, _cost),
)
_VERDICT = 15
#: Of a table that is pasted: all columns fit.
_TEXT_COLUMNS = 130


def trial_rows(page: TrialPage, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The whole screen of a trial.

    Args:
        page: What to show.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.
    """
    rows = [_title(page, width, glyphs)]
    if height >= 14:
        rows.append(())
    status = _status(page, width, glyphs)
    rows += status
    if height >= 14 and status:
        rows.append(())
    table = _table(page, width, glyphs)
    parts = [table, _account(page, width, glyphs), _bars(page, width, glyphs)]
    whole = len(rows) + sum(len(part) + 1 for part in parts if part)
    foot = _foot(page, width, max(height // 4, height - whole - 1), glyphs)
    room = height - len(rows) - len(foot)
    for part in parts:
        # The table as far as it goes; what explains it whole or not at all.
        if part is table:
            rows += part[: max(0, room)]
        elif part and len(part) + 1 <= room:
            rows += [(), *part]
        else:
            break
        room = height - len(rows) - len(foot)
    rows += [()] * room
    return [*rows[: max(0, height - len(foot))], *foot]


def table_text(page: TrialPage) -> str:
    """The table, and what it came to in words, to be pasted somewhere."""
    parts = [_title(page, _TEXT_COLUMNS, UNICODE), (), *_table(page, _TEXT_COLUMNS, UNICODE)]
    lines = ["".join(text for text, _ in row).rstrip() for row in parts]
    said = [*page.sentences, *page.notes, *filter(None, [page.stop_hint])]
    return "\n".join([*lines, *([""] if said else []), *said]) + "\n"


def _title(page: TrialPage, width: int, glyphs: Glyphs) -> Row:
    word, ink = _STATES[page.state]
    sign = {"running": glyphs.live, "done": glyphs.ok, "starting": glyphs.wait}.get(
        page.state, glyphs.ended if page.state == "stopped" else glyphs.warn
    )
    left: list[Span] = [
        (" trial  ", "strong"),
        (page.title or "?", "text"),
        (f"  {page.id}", "muted"),
    ]
    return spread(left, [(f"{sign} {word} ", ink)], width, glyphs)


def _status(page: TrialPage, width: int, glyphs: Glyphs) -> list[Row]:
    """What runs now, with a bar of the leg's steps."""
    if page.over:
        text = page.problem or ("" if page.state == "done" else page.now)
        ink = "critical" if page.state in ("failed", "gone") else "text"
        return [
            fit([(f" {line}", ink)], width, glyphs) for line in wrap(text, width - 2, 2, glyphs)
        ]
    if page.leg is None:
        return [fit([(f" {page.now or 'Waiting for the first leg.'}", "muted")], width, glyphs)]
    what = f" leg {page.leg}: {page.arm}, {page.phase or 'starting'}"
    if width < 60:
        what = f" leg {page.leg}"
    if page.step is not None and page.steps:
        what += f", step {page.step} of {page.steps}"
    left = ""
    if page.left_s is not None:
        low, high = (duration(seconds) for seconds in page.left_s)
        left = f"{low} left " if low == high else f"{low} to {high} left "
        if width_of([(what, "text"), (left, "muted")]) >= width:
            left = left.replace(" left", "")
    row = spread([(what, "text")], [(left, "muted")], width, glyphs)
    if not page.steps or page.step is None:
        return [row]
    share = max(0.0, min(1.0, page.step / page.steps))
    bar = max(1, width - 2)
    done = round(share * bar)
    return [
        row,
        fit([(" ", "text"), (glyphs.bar * done, "info"), (glyphs.rule * (bar - done), "faint")],
            width, glyphs),
    ]  # fmt: skip


def _table(page: TrialPage, width: int, glyphs: Glyphs) -> list[Row]:
    if not page.rows:
        return []
    names = max(len(_change(row)) for row in page.rows) + 2
    least = min(names, 12 if width < 60 else 22 if width < 100 else 28)
    unused = {c.name for c in _COLUMNS if _blank(c, page, glyphs)}
    kept = [c for c in _COLUMNS if c.name not in unused]
    while kept and 1 + least + sum(c.size for c in kept) + _VERDICT > width:
        kept.remove(max(kept, key=lambda column: column.rank))
    first = min(names, max(least, width - 1 - sum(c.size for c in kept) - _VERDICT))
    head: list[Span] = [(" " + "change".ljust(first), "muted")]
    head += [(column.name.rjust(column.size), "muted") for column in kept]
    rows = [fit([*head, ("  verdict", "muted")], width, glyphs)]
    for row in page.rows:
        ink = "strong" if row is page.best else "text"
        spans: list[Span] = [(" " + clip(_change(row), first - 1, glyphs).ljust(first), ink)]
        for column in kept:
            text, tone = column.cell(row, glyphs)
            spans.append((plain(text, glyphs).rjust(column.size), tone))
        spans.append(("  " + _verdict(row, glyphs)[0], _verdict(row, glyphs)[1]))
        rows.append(fit(spans, width, glyphs))
        if row.why and row.status in ("refused", "failed", "inconclusive"):
            rows.append(fit([(f"   {row.why}", "muted")], width, glyphs))
    if any(row.marks for row in page.rows):
        legend = {
            "changes results": "* changes results",
            "what-if": "? what-if: what is trained is useless",
        }
        known = [words for mark, words in legend.items() if any(mark in r.marks for r in page.rows)]
        rows.append(fit([(" " + "   ".join(known), "muted")], width, glyphs))
    return rows


def _blank(column: _Column, page: TrialPage, glyphs: Glyphs) -> bool:
    """Whether a column has nothing to say: no GPU, no price, no prediction."""
    late = column.name in ("GPU busy", "cost/M", "predicted", "peak mem")
    return late and all(column.cell(row, glyphs)[0] == "-" for row in page.rows)


def _change(row: TrialRow) -> str:
    signs = {"changes results": " *", "what-if": " ?"}
    return row.change + "".join(sign for mark, sign in signs.items() if mark in row.marks)


def _account(page: TrialPage, width: int, glyphs: Glyphs) -> list[Row]:
    """Where a step goes, in milliseconds by part."""
    known = [row for row in page.rows if row.phases]
    if not known:
        return []
    shown = [
        label
        for label in ACCOUNT
        if any((row.phases or {}).get(label, 0.0) >= 0.005 for row in known)
    ]
    size_ = 11 if width >= 110 else 9
    while shown and 14 + (len(shown) + 1) * size_ > width:
        shown.pop()
    first = max(
        12,
        min(max(len(_change(row)) for row in page.rows) + 2, width - (len(shown) + 1) * size_ - 1),
    )
    names = [label_word(label, short=size_ < 11) for label in shown]
    head = " " + "ms a step".ljust(first)
    rows = [
        fit(
            [(head, "muted"), *((n.rjust(size_), "muted") for n in (*names, "rest"))], width, glyphs
        )
    ]
    for row in known:
        parts = row.phases or {}
        rest = sum(ms for label, ms in parts.items() if label not in shown)
        cells: list[Span] = [(" " + clip(_change(row), first - 1, glyphs).ljust(first), "text")]
        for label in shown:
            ms = parts.get(label, 0.0)
            cells.append((compact_ms(ms).rjust(size_), label if ms >= 0.005 else "faint"))
        cells.append((compact_ms(rest).rjust(size_), "muted"))
        rows.append(fit(cells, width, glyphs))
    return rows


def _bars(page: TrialPage, width: int, glyphs: Glyphs) -> list[Row]:
    """The steps as bars on one scale."""
    known = [row for row in page.rows if row.phases]
    if len(known) < 2:
        return []
    longest = max(sum((row.phases or {}).values()) for row in known)
    first = max(12, min(max(len(_change(row)) for row in known) + 2, width // 3))
    rows = []
    for row in known:
        parts = row.phases or {}
        room = width - first - 12
        bar = stack(parts, longest, room, glyphs)
        total = f" {milliseconds(sum(parts.values()))}"
        name = (" " + clip(_change(row), first - 1, glyphs).ljust(first), "muted")
        rows.append(fit([name, *bar, (total, "text")], width, glyphs))
    used = [
        label
        for label in LABELS
        if any((r.phases or {}).get(label, 0) > 0.01 * longest for r in known)
    ]
    legend: list[Span] = [(" " * (first + 1), "text")]
    for label in used:
        legend += [(glyphs.bar, label), (f" {label_word(label, short=True)}  ", "muted")]
    return [*rows, fit(legend, width, glyphs)]


def _foot(page: TrialPage, width: int, room: int, glyphs: Glyphs) -> list[Row]:
    """What it came to, in at most ``room`` rows: the hint to stop always, notes if they fit."""
    said: list[Row] = []
    for sentence in page.sentences:
        said += [((f" {line}", "strong"),) for line in wrap(sentence, width - 2, 3, glyphs)]
    hint: list[Row] = []
    if page.stop_hint and page.stop_hint not in page.sentences:
        hint = [((f" {line}", "info"),) for line in wrap(page.stop_hint, width - 2, 2, glyphs)]
    said = said[: max(1, room - len(hint))]
    notes: list[Row] = []
    for note in page.notes:
        if note not in (*page.sentences, page.stop_hint):
            notes += [((f" {line}", "muted"),) for line in wrap(note, width - 2, 2, glyphs)]
    left = max(0, room - len(said) - len(hint))
    return [((glyphs.rule * width, "faint"),), *said, *hint, *notes[:left]]


class TrialTable(Board):
    """See `trial_rows`; a message stands above the keys."""

    page: TrialPage | None = None
    message = ""
    rerun = False

    def show(self, page: TrialPage) -> None:
        """Show a page, repainting the rows that differ."""
        self.page = page
        self.paint()

    def say(self, message: str) -> None:
        """Show a message until `say` is called with nothing."""
        self.message = message
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The trial at this size, its keys below."""
        if self.page is None:
            return None
        way_out = "close" if self.page.over else "leave or stop"
        keys = [("y", "copy table"), ("s", "screenshot"), ("q", way_out)]
        if self.page.over and self.page.best is not None:
            keys.insert(0, ("r", "rerun with it" if self.rerun else "how to keep it"))
        below = [fit([(f" {self.message}", "info")], width, self.glyphs)] if self.message else []
        below.append(keys_row(tuple(keys), width, self.glyphs))
        return [*trial_rows(self.page, width, height - len(below), self.glyphs), *below]
