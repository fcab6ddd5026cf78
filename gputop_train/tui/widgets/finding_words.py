"""What a diagnosis rests on and what it ruled out, as rows of a column. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len

from gputop_train.model import Abstention, Diagnosis, Finding, ids_by_reason
from gputop_train.tui.facts import measured, quantity, without_exponents
from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, plain, spread, wrap
from gputop_train.tui.text import duration, label_word, percent
from gputop_train.tui.views.findings import FindingsView
from gputop_train.tui.widgets.verdict import advice_texts, gain_text, short_path

#: So many diagnoses with one and the same reason are told together.
TOGETHER = 3
#: Words of a status that names no cause.
STATUS = {
    "healthy": "healthy",
    "abstained": "no verdict",
    "too-early": "too early",
    "no-steps": "no steps",
    "verdict": "verdict",
}
#: Labels of idle time beyond those of host time.
_IDLE = {"launch": "launches", "unattributed": "not attributed"}
_INDENT = "   "


def sign_of(status: str, severity: str, glyphs: Glyphs) -> Span:
    """The glyph of a claim, which says what its colour says."""
    if status == "verdict":
        signs = {"critical": glyphs.critical, "warn": glyphs.warn}
        return signs.get(severity, glyphs.wait), severity if severity in signs else "info"
    return (glyphs.ok, "good") if status == "healthy" else (glyphs.wait, "info")


def name_of(status: str, id_: str, refined: str, glyphs: Glyphs) -> str:
    """What is claimed: the verdict's ids, else the status."""
    if not id_:
        return STATUS.get(status, status)
    return f"{id_}{glyphs.sep}{refined}" if refined else id_


def grounds(diagnosis: Diagnosis, width: int, glyphs: Glyphs) -> list[Row]:
    """Each finding with its evidence, place, advice and gain."""
    rows: list[Row] = []
    for finding in filter(None, (diagnosis.verdict, *diagnosis.also)):
        rows += [*([()] if rows else []), *_finding(finding, diagnosis, width, glyphs)]
    if not rows and diagnosis.note:
        rows += wrapped(diagnosis.note, "text", width, glyphs, indent=" ")
    return rows


def _finding(finding: Finding, diagnosis: Diagnosis, width: int, glyphs: Glyphs) -> list[Row]:
    also = finding is not diagnosis.verdict
    sign, ink = sign_of("verdict", finding.severity, glyphs)
    head: list[Span] = [(f" {'also ' if also else ''}", "muted"), (f"{sign} ", ink)]
    head.append((name_of("verdict", finding.id, finding.refined or "", glyphs), "strong"))
    about = f"{finding.severity}, confidence {finding.confidence}"
    if finding.lost_share >= 0.005:
        about += f", {percent(finding.lost_share)} of wall"
    rows = [fit(head, width, glyphs)]
    rows += wrapped(about, "muted", width, glyphs)
    rows += wrapped(without_exponents(finding.summary), "text", width, glyphs)
    for item in finding.evidence:
        known = measured(item)
        value = quantity(item) if known else "not measured"
        rows += _beside(item.what, value, "text" if known else "faint", width, glyphs)
    places = [f"{short_path(w.file)}:{w.line}  {w.what}".rstrip() for w in finding.where]
    if not places and finding.where_missing:
        places = [finding.where_missing]
    for label, texts in (
        ("where", places),
        ("do", advice_texts(finding.advice)),
        ("gain", [gain_text(finding.gain)] if finding.gain is not None else []),
    ):
        for place, text in enumerate(filter(None, texts)):
            again = "then" if label == "do" and not text.startswith("Then ") else ""
            rows += labelled(label if place == 0 else again, text, width, glyphs)
    return rows


def _beside(what: str, value: str, ink: str, width: int, glyphs: Glyphs) -> list[Row]:
    """A quantity and its value at the right edge; on two rows where one is too short."""
    what, value = plain(what, glyphs), plain(value, glyphs)
    room = width - len(_INDENT) - 1
    if cell_len(what) + cell_len(value) + 2 <= room:
        return [spread([(_INDENT + what, "muted")], [(value, ink), (" ", "text")], width, glyphs)]
    rows = wrapped(what, "muted", width, glyphs)
    value = clip(value, room, glyphs)
    return [*rows, spread([(_INDENT, "text")], [(value, ink), (" ", "text")], width, glyphs)]


def labelled(label: str, text: str, width: int, glyphs: Glyphs) -> list[Row]:
    """A text that wraps beside its label."""
    head = len(_INDENT) + 7
    lines = wrap(text, width - head - 1, 6, glyphs)
    return [
        ((_INDENT + (label if n == 0 else "").ljust(7), "muted"), (line, "text"))
        for n, line in enumerate(lines)
    ]


def wrapped(text: str, ink: str, width: int, glyphs: Glyphs, *, indent: str = _INDENT) -> list[Row]:
    """A paragraph."""
    return [((indent + line, ink),) for line in wrap(text, width - len(indent) - 1, 8, glyphs)]


def idle_rows(view: FindingsView, width: int, glyphs: Glyphs) -> list[Row]:
    """The table of exposed idle time: what the GPU waited for."""
    heads = (f"last {duration(view.window_s)}", "whole run")
    title: list[Span] = [(" GPU idle behind", "strong")]
    if not view.idle:
        why = "no GPU event has measured it yet" if view.on_gpu else "the CPU is the device here"
        return [fit(title, width, glyphs), *wrapped(f"not measured: {why}", "muted", width, glyphs)]
    cells = 11
    rows = [spread(title, [(h.rjust(cells), "muted") for h in heads], width - 1, glyphs)]
    for idle in view.idle:
        word = _IDLE.get(idle.label) or label_word(idle.label)
        values = [
            ("-" if share is None else percent(share), "faint" if share is None else "text")
            for share in (idle.now, idle.whole)
        ]
        right = [(text.rjust(cells), ink) for text, ink in values]
        rows.append(spread([(_INDENT + word, "muted")], right, width - 1, glyphs))
    return rows


def unjudged(diagnosis: Diagnosis, width: int, glyphs: Glyphs) -> list[Row]:
    """What could not be judged, each with the signal it lacked; then what was ruled out and why."""
    rows: list[Row] = []
    for title, items in (
        ("not judged, a signal is missing", diagnosis.abstained),
        ("ruled out", diagnosis.ruled_out),
    ):
        if not items:
            continue
        rows += [*([()] if rows else []), fit([(f" {title}", "strong")], width, glyphs)]
        rows += _reasons(items, width, glyphs)
    return rows


def _reasons(items: Iterable[Abstention], width: int, glyphs: Glyphs) -> list[Row]:
    """Each diagnosis with its reason; those that share one are told together, at the end."""
    by_reason = ids_by_reason((item.id, item.missing) for item in items)
    alone = {why: ids for why, ids in by_reason.items() if len(ids) < TOGETHER}
    shared = {why: ids for why, ids in by_reason.items() if len(ids) >= TOGETHER}
    pairs = [(id_, why) for why, ids in alone.items() for id_ in ids]
    return [*_aligned(pairs, width, glyphs), *_together(shared, width, glyphs)]


def _aligned(pairs: Sequence[tuple[str, str]], width: int, glyphs: Glyphs) -> list[Row]:
    size = min(max((len(id_) for id_, _ in pairs), default=0), 24) + 2
    if width - size < 30:
        return [
            row for id_, why in pairs for row in wrapped(f"{id_}: {why}", "text", width, glyphs)
        ]
    rows: list[Row] = []
    for id_, why in pairs:
        lines = wrap(why, width - size - len(_INDENT) - 1, 4, glyphs)
        name = clip(id_, size - 1, glyphs).ljust(size)
        rows += [
            ((_INDENT + (name if n == 0 else " " * size), "muted"), (line, "text"))
            for n, line in enumerate(lines)
        ]
    return rows


def _together(shared: Mapping[str, Sequence[str]], width: int, glyphs: Glyphs) -> list[Row]:
    rows: list[Row] = []
    for why, ids in shared.items():
        rows += wrapped(f"{why}:", "text", width, glyphs)
        rows += wrapped(", ".join(ids), "muted", width, glyphs, indent=_INDENT + "  ")
    return rows
