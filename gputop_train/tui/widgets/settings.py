"""The table of settings: what the run has, what is advised, and what the next run is to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputop_train.tui import next_run
from gputop_train.tui.next_run import Choices
from gputop_train.tui.paint import Glyphs, Row, Span, fit, spread, wrap
from gputop_train.tui.snapshot import SettingGroup, SettingSeen
from gputop_train.tui.widgets.board import Board

#: Most wanted first: a narrow terminal shows as many as fit, and the way out.
KEYS = (
    ("space", "change"),
    ("a", "take advice"),
    ("r", "rerun"),
    ("p", "trial"),
    ("left/right", "step"),
    ("y", "copy command"),
    ("backspace", "reset"),
    ("0-9", "type"),
    ("esc", "close"),
)
#: What each setting is, for whoever meets it for the first time.
WHAT: Mapping[str, str] = {
    "num_workers": "processes that prepare batches beside training",
    "batch_size": "samples a step; the learning rate may have to follow",
    "pin_memory": "batches in page-locked memory, from which copies to the GPU are faster",
    "prefetch_factor": "batches each worker prepares ahead",
    "persistent_workers": "workers stay between epochs instead of being started anew",
    "non_blocking": "copies of page-locked batches to the GPU do not make the host wait",
    "tf32": "float32 matrix products on tensor cores, with a shorter mantissa",
    "bf16": "autocast to bfloat16 in the forward pass",
    "cudnn_benchmark": "cudnn tries its algorithms for each new shape and keeps the fastest",
    "compile": "torch.compile of the model; the first steps take long",
    "fused": "the optimizer updates all parameters in few kernels",
    "expandable_segments": "the allocator grows its segments, against fragmentation",
    "omp_threads": "threads the CPU's operators use",
}


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """All that the table shows.

    Attributes:
        title: Which run.
        cursor: Row the keys act on, counted over all groups.
        typing: Digits typed so far.
        message: A passing answer to a key press.
        command: The command that does the same, as a person would type it.
        cores: Cores the run may use.
    """

    title: str
    groups: tuple[SettingGroup, ...] = ()
    choices: Choices = field(default_factory=dict)
    cursor: int = 0
    typing: str = ""
    message: str = ""
    command: str = ""
    cores: float | None = None

    @property
    def flat(self) -> list[tuple[SettingGroup, SettingSeen]]:
        """Every row with its group."""
        return list(next_run.walk(self.groups))


@dataclass(frozen=True, slots=True)
class _Columns:
    """Cells of each column; 0 leaves it out."""

    key: int
    now: int
    advised: int
    gain: int
    wanted: int
    results: int


def _columns(width: int) -> _Columns:
    if width >= 110:
        return _Columns(24, 16, 14, 18, 16, 18)
    if width >= 72:
        return _Columns(20, 13, 10, 12, 12, 9)
    return _Columns(19, 8, 0, 0, 10, 0)


def settings_rows(page: SettingsPage, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The whole screen of settings.

    Args:
        page: What to show.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.
    """
    columns = _columns(width)
    foot = _foot(page, width, height, glyphs)
    head = [_title(page, width, glyphs)]
    if height >= 16:
        head.append(())
    head.append(_heads(columns))
    room = max(1, height - len(head) - len(foot) - 1)
    below = 0
    if not page.groups:
        body: list[Row] = [
            (),
            *(
                ((f" {line}", "muted"),)
                for line in wrap(
                    "Nothing is known of this run's settings yet: they show with its first step.",
                    width - 2,
                    3,
                    glyphs,
                )
            ),
        ]
        body = body[:room]
    else:
        body, below = _body(page, columns, width, room, glyphs)
    body += [()] * (room - len(body))
    more = f" {below} more below {glyphs.rule}" if below else ""
    rule: Row = ((glyphs.rule * max(0, width - len(more)) + more, "faint"),)
    return [*head, *body, rule, *foot]


def _title(page: SettingsPage, width: int, glyphs: Glyphs) -> Row:
    chosen = next_run.settings(page.groups, page.choices)
    left: list[Span] = [(" settings  ", "strong"), (page.title, "text")]
    if not chosen:
        return spread(left, [("nothing changed ", "muted")], width, glyphs)
    words = f"{len(chosen)} changed"
    if next_run.changing_results(chosen):
        words += f"{glyphs.sep}changes results"
    return spread(left, [(f"{words} ", "warn")], width, glyphs)


def _heads(columns: _Columns) -> Row:
    cells = [
        ("   setting", columns.key + 3),
        ("now", columns.now),
        ("advised", columns.advised),
        ("predicted", columns.gain),
        ("next run", columns.wanted),
        ("results", columns.results),
    ]
    return tuple((name.ljust(size), "muted") for name, size in cells if size)


def _body(
    page: SettingsPage, columns: _Columns, width: int, room: int, glyphs: Glyphs
) -> tuple[list[Row], int]:
    """The rows that fit around the cursor, and how many there are below them."""
    rows: list[Row] = []
    at = 0
    number = 0
    for group in page.groups:
        rows.append(_group(group, width, glyphs))
        for row in group.rows:
            if number == page.cursor:
                at = len(rows)
            rows.append(_row(page, group, row, number == page.cursor, columns, width, glyphs))
            number += 1
    if len(rows) <= room:
        return rows, 0
    first = max(0, min(len(rows) - room, at - room // 2))
    return rows[first : first + room], len(rows) - room - first


def _group(group: SettingGroup, width: int, glyphs: Glyphs) -> Row:
    title = f"{glyphs.rule} {group.title} "
    note = f"{glyphs.sep.strip()} {group.note} " if group.note else ""
    fill = glyphs.rule * max(0, width - len(title) - len(note))
    return fit([(title, "info"), (note, "muted"), (fill, "faint")], width, glyphs)


def _row(
    page: SettingsPage,
    group: SettingGroup,
    row: SettingSeen,
    here: bool,
    columns: _Columns,
    width: int,
    glyphs: Glyphs,
) -> Row:
    why = next_run.cannot(group, row, page.choices)
    changed = next_run.key_of(group, row) in page.choices and not why
    pointer = ">" if here else " "
    ink = "muted" if why else "strong" if here or changed else "text"
    spans: list[Span] = [
        (f" {pointer}{'*' if changed else ' '}", "warn" if changed else "key"),
        (_cell(row.key, columns.key), ink),
        (
            _cell(next_run.value_words(row.value, known=row.known), columns.now),
            "text" if row.known else "muted",
        ),
    ]
    advised = next_run.value_words(row.suggested) if row.suggested is not None else ""
    if why:
        used = 3 + columns.key + columns.now
        spans.append((f"{glyphs.side} {why}", "muted"))
        return fit(spans, max(width, used), glyphs)
    if columns.advised:
        spans.append((_cell(advised, columns.advised), "good"))
        spans.append((_cell(row.gain, columns.gain), "good"))
    if here and page.typing:
        spans.append((_cell(f"{page.typing}_", columns.wanted), "strong"))
    elif changed:
        value = next_run.wanted(group, row, page.choices)
        spans.append((_cell(next_run.wanted_words(value), columns.wanted), "warn"))
    elif not columns.advised and advised:
        spans.append((_cell(f"try {advised}", columns.wanted), "good"))
    else:
        spans.append((_cell("as now", columns.wanted), "faint"))
    if columns.results:
        spans.append(("change" if row.changes_results else "same", "muted"))
    return fit(spans, width, glyphs)


def _cell(text: str, size: int) -> str:
    return text[: size - 1].ljust(size)


def _foot(page: SettingsPage, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """What the row means, the command that does the same, and the keys."""
    foot: list[Row] = []
    flat = page.flat
    if page.message:
        foot.append(fit([(f" {page.message}", "info")], width, glyphs))
    elif flat and height >= 10:
        group, row = flat[min(page.cursor, len(flat) - 1)]
        foot.append(
            fit([(f" {row.key}: ", "strong"), (_about(page, group, row), "text")], width, glyphs)
        )
    elif height >= 10:
        foot.append(())
    if height >= 20:
        lines = wrap(page.command, width - 3, 2, glyphs) if page.command else []
        foot += [((f" {'$ ' if n == 0 else '  '}{line}", "muted"),) for n, line in enumerate(lines)]
    return [*foot, keys_row(KEYS, width, glyphs)]


def _about(page: SettingsPage, group: SettingGroup, row: SettingSeen) -> str:
    why = next_run.cannot(group, row, page.choices)
    if why:
        return f"cannot be set: {why}"
    parts = [WHAT.get(row.key, "")]
    value = next_run.wanted(group, row, page.choices)
    if (
        row.key in ("num_workers", "omp_threads")
        and isinstance(value, int)
        and page.cores
        and value > page.cores
    ):
        parts.insert(0, f"more than the {page.cores:g} cores this run may use")
    return "; ".join(filter(None, parts))


def keys_row(keys: tuple[tuple[str, str], ...], width: int, glyphs: Glyphs) -> Row:
    """Keys with their meaning, whole pairs only; the last pair, the way out, always."""
    last = f" {keys[-1][0]} {keys[-1][1]} "
    room = width - len(last)
    spans: list[Span] = []
    for key, meaning in keys[:-1]:
        need = len(key) + len(meaning) + 3
        if need > room:
            break
        room -= need
        spans += [(f" {key}", "key"), (f" {meaning} ", "muted")]
    spans += [(f" {keys[-1][0]}", "key"), (f" {keys[-1][1]} ", "muted")]
    return fit(spans, width, glyphs)


class SettingsTable(Board):
    """See `settings_rows`."""

    page: SettingsPage | None = None

    def show(self, page: SettingsPage) -> None:
        """Show a page, repainting the rows that differ."""
        self.page = page
        self.paint()

    def content(self, width: int, height: int) -> list[Row] | None:
        """The table at this size."""
        if self.page is None:
            return None
        return settings_rows(self.page, width, height, self.glyphs)
