"""One step taken apart: why it took as long, what the host did, and what the GPU did meanwhile.

The store has how long each kind of time was in a step, and how long the GPU idled in each kind of
wait, not in which order; so both bars are grouped by kind, and the GPU's lies under the host's.
Interruptions alone are kept with their times: a lane of its own shows when in the step they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, wrap
from gputop_train.tui.text import count, factor, label_word, milliseconds, moment, percent
from gputop_train.tui.views.steps import Part, Reason, StepRow, StepsView
from gputop_train.tui.widgets.stepbar import bar_of, cells_of, names_under

#: Cells left of the bars.
HEAD = 8
#: Rows at most.
HEIGHT = 10
#: The GPU's idle time in a kind of wait is named from this share of the step on.
IDLE_SHARE = 0.005


def detail_rows(
    row: StepRow, view: StepsView, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """The step under the cursor, the least important rows left out first.

    Args:
        row: The step.
        view: What it is one of.
        width: Cells.
        height: Rows there is room for.
        glyphs: The alphabet.
    """
    rows: list[Row] = [_head(row, view, width, glyphs)]
    rows += [fit([(f" {text}", "text")], width, glyphs) for text in _why(row, width - 2, glyphs)]
    room = width - HEAD - 1
    cells = cells_of(row.parts, room) if row.parts and room > 0 else []
    if cells:
        rows.append(_lane("host", bar_of(row.parts, cells, glyphs), width, glyphs))
        rows.append(_lane("", names_under(row.parts, cells, room), width, glyphs))
    if row.idle is not None and cells:
        rows.append(_lane("GPU", _gpu(row, cells, glyphs), width, glyphs))
    if cells and (when := _when(row, room, glyphs)):
        rows.append(_lane("when", when, width, glyphs))
    rows += [
        fit([(" " * HEAD, "text"), (text, "muted")], width, glyphs)
        for text in wrap(_gpu_words(row, view), room, 2, glyphs)
    ]
    rows += [
        fit([(" " * HEAD, "text"), (text, "muted")], width, glyphs)
        for text in wrap(_notes(row, glyphs), room, 2, glyphs)
    ]
    return rows[:height]


def step_text(row: StepRow, view: StepsView, glyphs: Glyphs) -> str:
    """The step as plain text, for a note or a colleague."""
    parts = sorted(row.parts, key=lambda part: -part[1])
    lines = [
        _title(row, view, glyphs),
        f"why: {glyphs.sep.join(map(reason_text, row.why))}" if row.why else "",
        "host: " + ", ".join(f"{label_word(label)} {milliseconds(ms)}" for label, ms in parts),
        _gpu_words(row, view),
        _notes(row, glyphs, legend=False),
    ]
    return "".join(f"{line}\n" for line in lines if line)


def _head(row: StepRow, view: StepsView, width: int, glyphs: Glyphs) -> Row:
    title = clip(_title(row, view, glyphs), width - 4, glyphs)
    rest = width - cell_len(title) - 3
    asides = (" parts by kind, not in order ", " by kind ", "")
    aside = next(words for words in asides if not words or rest >= len(words) + 4)
    spans = [(f"{glyphs.rule} ", "faint"), (title, "strong"), (" ", "text")]
    spans += [(glyphs.rule * (rest - len(aside) - 1), "faint"), (aside, "muted")]
    return fit([*spans, (glyphs.rule, "faint")], width, glyphs)


def _title(row: StepRow, view: StepsView, glyphs: Glyphs) -> str:
    words = [f"step {count(row.number)}", milliseconds(row.wall_ms)]
    if view.median_ms:
        words.append(f"{factor(row.wall_ms / view.median_ms)} the median")
    if row.at_s is not None:
        words.append(f"at {moment(row.at_s)}")
    if row.samples:
        words.append(f"{count(row.samples)} samples")
    if row.micro > 1:
        words.append(f"{count(row.micro)} backward calls")
    return glyphs.sep.join(words)


def _why(row: StepRow, width: int, glyphs: Glyphs) -> list[str]:
    if not row.why:
        return ["A step like the others."]
    return wrap(glyphs.sep.join(map(reason_text, row.why)), width, 2, glyphs)


def reason_text(reason: Reason, *, more: bool = True, short: bool = False) -> str:
    """``checkpoint 2.23 s (1.8 GB, train.py:88)``; without what is in brackets, or in short."""
    if reason.ms is None:
        return reason.what
    text = f"{label_word(reason.what, short=short)} {milliseconds(reason.ms)}"
    return f"{text} ({reason.more})" if more and reason.more else text


def _lane(name: str, spans: Sequence[Span], width: int, glyphs: Glyphs) -> Row:
    return fit([(f" {name}".ljust(HEAD), "text"), *spans], width, glyphs)


def _when(row: StepRow, room: int, glyphs: Glyphs) -> list[Span]:
    """The step from its begin to its end, with the interruptions where they were."""
    if not row.pauses or row.wall_ms <= 0:
        return []
    inks = [""] * room
    for pause in row.pauses:
        first = min(room - 1, max(0, int(pause.begin_ms / row.wall_ms * room)))
        last = min(room, max(first + 1, round(pause.end_ms / row.wall_ms * room)))
        inks[first:last] = [pause.label] * (last - first)
    if len(set(inks)) == 1:  # the host's own bar says as much
        return []
    spans: list[Span] = []
    for label, cells in groupby(inks):
        size = sum(1 for _ in cells)
        spans.append((glyphs.bar * size, label) if label else (glyphs.axis * size, "faint"))
    return spans


def _gpu(row: StepRow, cells: Sequence[int], glyphs: Glyphs) -> list[Span]:
    """What the GPU did under each part of the host's time.

    In a wait it works through what was queued, then idles; while the host waits for it, it works.
    Under the other parts that was not measured, unless it never ran out of work.
    """
    idle = dict(row.idle or ())
    busy, flat, unknown = glyphs.bar, glyphs.axis, glyphs.band
    spans: list[Span] = []
    for (label, ms), size in zip(row.parts, cells, strict=True):
        if not size:
            continue
        if label in idle:
            empty = min(size, round(min(1.0, idle[label] / ms) * size))
            spans += [(busy * (size - empty), "gpu"), (flat * empty, "muted")]
        else:
            full = label == "gpu_wait" or _always_busy(row)
            spans.append(((busy if full else unknown) * size, "gpu" if full else "gpu_band"))
    return spans


def _always_busy(row: StepRow) -> bool:
    """Whether the GPU had work all through the step.

    It idled in no wait, and at each other edge an event recorded at the edge before was still
    waiting its turn: all that was launched before that one kept it busy in between. After a wait
    in which it idled this says nothing (`collect.gpu_edges` leaves such edges out).
    """
    return row.dry == 0.0 and not _worth_naming(row)


def _worth_naming(row: StepRow) -> list[Part]:
    """The waits the GPU idled in, longest first."""
    floor = IDLE_SHARE * row.wall_ms
    return sorted((one for one in row.idle or () if one[1] > floor), key=lambda one: -one[1])


def _gpu_words(row: StepRow, view: StepsView) -> str:
    if row.idle is None:
        if not view.has_gpu:
            return ""
        return f"GPU not sampled in this step: {view.unsampled}"
    if _always_busy(row):
        return "GPU busy all the time"
    text = "GPU not idle in the host's waits"
    if worth := _worth_naming(row):
        whole = min(row.wall_ms, sum(ms for _, ms in row.idle))
        text = f"GPU idle up to {milliseconds(whole)} in the host's waits: "
        text += ", ".join(f"{label_word(label)} {milliseconds(ms)}" for label, ms in worth)
    if row.dry:
        text += f"; its queue had run empty at {percent(row.dry)} of the other edges"
    return text


def _notes(row: StepRow, glyphs: Glyphs, *, legend: bool = True) -> str:
    key = f"GPU {glyphs.bar} busy {glyphs.axis} idle"
    if not _always_busy(row):
        key += f" {glyphs.band} not told"
    words = [key] if legend and row.idle is not None else []
    words += [
        f"{label_word(pause.label)} from {milliseconds(max(0.0, pause.begin_ms))} to "
        f"{milliseconds(min(row.wall_ms, pause.end_ms))}"
        for pause in row.pauses
    ]
    if row.syncs:
        words.append(f"{count(row.syncs)} blocking {'read' if row.syncs == 1 else 'reads'}")
    if not row.recorded:
        words.append("phases not recorded in this step: laid out like those of recorded ones")
    elif row.timed < 0.995:
        words.append(f"{percent(row.timed)} timed, the rest estimated from samples")
    return glyphs.sep.join(words)
