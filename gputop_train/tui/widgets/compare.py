"""Two runs side by side: where the time of a step went, and what became of it."""

from __future__ import annotations

from gputop_train.model import LABELS
from gputop_train.report.compare import Comparison, Phase
from gputop_train.report.compare import Row as Number
from gputop_train.report.compare_difference import signed, time_a_sample
from gputop_train.report.compare_text import value
from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, plain, wrap
from gputop_train.tui.text import label_word, milliseconds
from gputop_train.tui.widgets.board import Board
from gputop_train.tui.widgets.settings import keys_row
from gputop_train.tui.widgets.stack import stack

KEYS = (("up/down", "scroll"), ("x", "swap"), ("y", "copy"), ("s", "screenshot"), ("esc", "close"))
#: A phase is worth a row where it takes this share of any run's step.
WORTH = 0.002


def compare_rows(found: Comparison, width: int, glyphs: Glyphs) -> list[Row]:
    """Everything there is to say, from the top; longer than most terminals.

    Args:
        found: Two runs; the first is the reference.
        width: Cells.
        glyphs: The alphabet.
    """
    rows: list[Row] = []
    for difference in found.differences:
        rows += _wrapped(difference.sentence, "strong", width, glyphs)
        if difference.why != difference.sentence:
            ink = "good" if difference.apart else "warn"
            rows += _wrapped(difference.why, ink, width, glyphs)
    for run in found.runs:
        about = glyphs.sep.join(filter(None, (run.verdict, *run.settings))) or "no verdict"
        rows += _wrapped(f"{run.title}: {about}", "text", width, glyphs)
    rows += [(), *_bars(found, width, glyphs), ()]
    rows += _phases(found, width, glyphs)
    rows += [(), *_numbers(found, width, glyphs)]
    rows.append(())
    for warning in found.warnings:
        rows += _wrapped(warning, "warn", width, glyphs)
    rows += _wrapped(found.note, "muted", width, glyphs)
    return rows


def _wrapped(text: str, ink: str, width: int, glyphs: Glyphs) -> list[Row]:
    return [((f" {line}", ink),) for line in wrap(text, width - 2, 6, glyphs)]


def _bars(found: Comparison, width: int, glyphs: Glyphs) -> list[Row]:
    """Each run's mean step as a bar, both on one scale."""
    times = [found.times(index) for index in range(len(found.runs))]
    longest = max((t.step_ms for t in times if t is not None), default=0.0)
    if not longest:
        return []
    first = min(20, max(len(run.title) for run in found.runs) + 2)
    rows: list[Row] = []
    for run, time in zip(found.runs, times, strict=True):
        name = (" " + clip(run.title, first - 1, glyphs).ljust(first), "text")
        if time is None:
            rows.append(fit([name, ("not measured", "faint")], width, glyphs))
            continue
        bar = stack(time.phases_ms, longest, width - first - 12, glyphs)
        rows.append(fit([name, *bar, (f" {milliseconds(time.step_ms)}", "text")], width, glyphs))
    used = [phase.label for phase in _worth(found)]
    legend: list[Span] = [(" " * (first + 1), "text")]
    for label in (label for label in LABELS if label in used):
        legend += [(glyphs.bar, label), (f" {label_word(label, short=True)}  ", "muted")]
    return [*rows, fit(legend, width, glyphs)]


def _worth(found: Comparison) -> list[Phase]:
    return [p for p in found.phases if any(s is not None and s >= WORTH for s in p.shares)]


def _cells(width: int) -> tuple[int, int]:
    """Cells of the words at the left and of each number."""
    return (24, 14) if width >= 80 else (14, 12) if width >= 52 else (12, 9)


def _line(label: str, cells: list[tuple[str, str]], width: int, glyphs: Glyphs, ink: str) -> Row:
    first, size = _cells(width)
    spans: list[Span] = [(" " + clip(plain(label, glyphs), first - 1, glyphs).ljust(first), ink)]
    spans += [(clip(plain(text, glyphs), size, glyphs).rjust(size), tone) for text, tone in cells]
    return fit(spans, width, glyphs)


def _phases(found: Comparison, width: int, glyphs: Glyphs) -> list[Row]:
    by_sample = found.unit == "sample"
    unit = "a sample" if by_sample else "a step"
    heads = [(run.title, "muted") for run in found.runs] + [("change", "muted")]
    rows = [_line(f"host time {unit}", heads, width, glyphs, "muted")]
    for phase in _worth(found):
        values = phase.us if by_sample else phase.ms
        words = [_time(number, by_sample) for number in values]
        cells = [(text, phase.label if text != "-" else "faint") for text in words]
        rows.append(
            _line(
                label_word(phase.label), [*cells, _delta(values, by_sample)], width, glyphs, "text"
            )
        )
    return rows


def _time(number: float | None, by_sample: bool) -> str:
    if number is None:
        return "-"
    return time_a_sample(number) if by_sample else milliseconds(number)


def _delta(values: tuple[float | None, ...], by_sample: bool) -> tuple[str, str]:
    if len(values) != 2 or values[0] is None or values[1] is None:
        return "", "faint"
    delta = values[1] - values[0]
    if abs(delta) < 0.005:
        return "same", "faint"
    return signed("sample" if by_sample else "step", delta), "good" if delta < 0 else "warn"


def _numbers(found: Comparison, width: int, glyphs: Glyphs) -> list[Row]:
    rows = [_number(row, width, glyphs) for row in found.rows]
    if found.exposed:
        rows.append(_line("GPU idle a step", [], width, glyphs, "muted"))
        for row in found.exposed:
            cells = [(value(v, "ms"), "text" if v is not None else "faint") for v in row.values]
            rows.append(
                _line(f"  {row.label}", [*cells, _delta(row.values, False)], width, glyphs, "text")
            )
    return rows


def _number(row: Number, width: int, glyphs: Glyphs) -> Row:
    cells = [(value(v, row.unit), "text" if v is not None else "faint") for v in row.values]
    return _line(row.label, cells, width, glyphs, "text")


class CompareTable(Board):
    """See `compare_rows`; scrolls."""

    found: Comparison | None = None
    message = "Reading both runs."
    top = 0

    def show(self, found: Comparison | None, message: str = "") -> None:
        """Show a comparison, or why there is none."""
        self.found, self.message = found, message
        self.paint()

    def scroll_rows(self, by: int) -> None:
        """Move by rows."""
        self.top += by
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The part of it that fits, and the keys."""
        keys = keys_row(KEYS, width, self.glyphs)
        rule: Row = ((self.glyphs.rule * width, "faint"),)
        title: list[Span] = [(" compare  ", "strong")]
        if self.found is not None:
            title.append((" with ".join(run.title for run in self.found.runs), "text"))
            rows = compare_rows(self.found, width, self.glyphs)
        else:
            rows = []
        if self.message:
            rows = [*_wrapped(self.message, "info", width, self.glyphs), (), *rows]
        room = max(1, height - 4)
        self.top = max(0, min(self.top, len(rows) - room))
        body = rows[self.top : self.top + room]
        more = len(rows) - room - self.top
        if more > 0:
            title.append((f"   {more} more rows below", "muted"))
        return [fit(title, width, self.glyphs), (), *body, *[()] * (room - len(body)), rule, keys]
