"""The examination on one screen: worst first with its remedy, what is well in one line each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from gputop_train.doctor.findings import LEVELS, Check, Level
from gputop_train.report import format as fmt

MAX_WIDTH, MIN_WIDTH = 100, 40
#: The word is what is read; its colour only helps.
_WORDS: dict[Level, tuple[str, str]] = {
    "fail": ("FAIL", "bold red"),
    "warn": ("warn", "yellow"),
    "note": ("note", "cyan"),
    "unchecked": ("?", "dim"),
    "ok": ("ok", "green"),
}
_SUMMARY: dict[Level, str] = {
    "fail": "will break or blind a run",
    "warn": "to mend",
    "note": "to know",
    "unchecked": "not checked",
    "ok": "well",
}
_MARK_WIDTH = 6


def lines(checks: Sequence[Check], width: int, *, ascii_only: bool = False) -> list[Text]:
    """What is printed.

    Args:
        checks: Worst first.
        width: Columns; lines never exceed it, nor `MAX_WIDTH`.
        ascii_only: Use no character beyond ASCII.
    """
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    title_width = max((len(check.title) for check in checks), default=0) + 2
    if room < 60:
        title_width = 0
    shown: list[Text] = []
    for check in checks:
        if check.level == "ok":
            shown.append(_in_one_line(check, room, title_width, ascii_only))
        else:
            shown += _in_full(check, room, title_width, ascii_only)
    return [*shown, Text(), *_counted(checks, room, ascii_only)]


def _plain(text: str, ascii_only: bool) -> str:
    text = fmt.printable(text)
    return fmt.to_ascii(text) if ascii_only else text


def _begin(check: Check, title_width: int, ascii_only: bool) -> Text:
    word, style = _WORDS[check.level]
    line = Text(" ").append(f"{word:<{_MARK_WIDTH - 1}}", style)
    if title_width:
        line.append(_plain(check.title, ascii_only).ljust(title_width))
    return line


def _in_one_line(check: Check, room: int, title_width: int, ascii_only: bool) -> Text:
    line = _begin(check, title_width, ascii_only)
    said = _plain(check.found if title_width else f"{check.title}: {check.found}", ascii_only)
    left = room - len(line.plain)
    more = "..." if ascii_only else "…"
    return line.append(said if len(said) <= left else said[: left - len(more)] + more, "dim")


def _in_full(check: Check, room: int, title_width: int, ascii_only: bool) -> list[Text]:
    first = _begin(check, title_width, ascii_only)
    lead = " " * len(first.plain)
    said = _plain(check.found if title_width else f"{check.title}: {check.found}", ascii_only)
    found = textwrap.wrap(said, room - len(lead), break_on_hyphens=False)
    whole = [first.append(found[0] if found else "")]
    whole += [Text(lead + line) for line in found[1:]]
    if check.remedy:
        arrow = "-> " if ascii_only else "→ "
        remedy = _plain(check.remedy, ascii_only)
        wrapped = textwrap.wrap(remedy, room - len(lead) - len(arrow), break_on_hyphens=False)
        for number, line in enumerate(wrapped):
            whole.append(
                Text(lead).append(" " * len(arrow) if number else arrow).append(line, "bold")
            )
    return whole


def _counted(checks: Sequence[Check], room: int, ascii_only: bool) -> list[Text]:
    counts = [(sum(c.level == level for c in checks), level) for level in LEVELS]
    parts = [f"{count} {_SUMMARY[level]}" for count, level in counts if count]
    text = ("; " if ascii_only else " · ").join(parts)
    if not any(check.level in ("fail", "warn") for check in checks):
        text = f"Nothing in the way of a run: {text}"
    return [Text(f" {line}") for line in textwrap.wrap(text, room - 1)]
