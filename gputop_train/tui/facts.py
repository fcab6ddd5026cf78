"""Measured numbers as the card says them: short, whole, and not twice. Pure.

A card has room for a line of reasons. What the headline's sentence says already is left out, the
rest loses the words that only a full list needs, and a fact that does not fit is dropped whole
rather than cut. The evidence view shows all of them, as they were written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.cells import cell_len

from gputop_train.model import Evidence, Finding
from gputop_train.tui.paint import Glyphs, clip, plain, wrap
from gputop_train.tui.text import percent

#: How the card says a piece of evidence, by the beginning of its name; the first that fits counts.
#: Empty: the finding's own sentence says it. Anything else is said as it was written.
_CARD_WORDS: tuple[tuple[str, str], ...] = (
    ("lost to data wait", ""),
    ("wait in next()", ""),
    ("num_workers", "num_workers {n}"),
    ("cores the run may use", "{v} allowed"),
    ("trainer process", "trainer keeps {v} busy"),
    ("kept busy by other programs", "other programs keep {v} busy"),
    ("queue empty when polled", "queue empty at {v}"),
    ("workers at 85% CPU or more", "{v} workers at 85% CPU or more"),
    ("GPU idle behind reads", "GPU idle behind reads at least {v}"),
    ("host blocked in reads", "host blocked in reads {v}"),
    ("cost by the model", ""),
    ("blocking reads", ""),
    ("queue found empty at a phase edge", "GPU queue empty at {v}"),
    ("GPU idle behind launches", ""),
    ("GPU utilisation", "GPU utilisation {v}"),
    ("SM activity", "SM active {v}"),
    ("saving", ""),
    ("saves", "{n} saves"),
    ("one save, mean", ""),
    ("one save, size", "{v} a save"),
    ("steps between", ""),
    ("evaluations", "{n} evaluations"),
    ("evaluation", ""),
    ("one evaluation", ""),
    ("step without it", "a step without it {v} on average"),
    ("growth of the low-water marks", ""),
    ("growth over the steady part", ""),
    ("low-water mark at its start", "held {v} at the start of the steady part"),
    ("Mann-Kendall", ""),
    ("time until memory runs out", ""),
    ("basis", ""),
)
#: The next larger unit and how many of the smaller it takes.
_LARGER = {
    "kB": ("MB", 1000.0),
    "MB": ("GB", 1000.0),
    "GB": ("TB", 1000.0),
    "us": ("ms", 1000.0),
    "ms": ("s", 1000.0),
}


def evidence_text(item: Evidence, *, short: bool = False) -> str:
    """One measured number in words; ``short`` leaves out what a unit says in brackets."""
    if not measured(item):
        return f"{item.what}: not measured"
    return f"{item.what} {quantity(item, short=short)}"


def measured(item: Evidence) -> bool:
    """Whether there is a value; a quotient without a divisor (NaN, infinity) is none."""
    value = item.value
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def quantity(item: Evidence, *, short: bool = False) -> str:
    """A value with its unit, in the unit that suits its size."""
    unit = item.unit.split(" (")[0] if short else item.unit
    value = item.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{value} {unit}".rstrip()
    if isinstance(value, float) and unit.startswith("of ") and 0 <= value <= 1:
        return f"{percent(value)} {unit}"  # a share: "0.53 of wall" reads worse
    first, _, rest = unit.partition(" ")
    while first in _LARGER and abs(value) >= _LARGER[first][1]:
        first, divisor = _LARGER[first]
        value /= divisor
        unit = f"{first} {rest}".rstrip()
    if unit == "cores" and value == 1:
        unit = "core"
    if unit.startswith("%") and isinstance(value, float):
        value = float(f"{value:.2g}") if value < 99.5 else round(value)
    joint = "" if unit.startswith("%") or unit in ("", "x") else " "
    return f"{_number(value)}{joint}{unit}"


def _number(value: float) -> str:
    if isinstance(value, int) or abs(value) >= 99.5:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def card_facts(finding: Finding) -> list[str]:
    """The evidence a card shows, most telling first; all of it where nothing has a shorter form."""
    facts = []
    for item in finding.evidence:
        if not measured(item) or item.unit.startswith("reads,"):
            continue  # lines of code with their counts are what "where" shows
        words = next((w for name, w in _CARD_WORDS if item.what.startswith(name)), None)
        if words is None:
            facts.append(evidence_text(item, short=True))
        elif words:
            whole = isinstance(item.value, float) and item.value.is_integer()
            n = f"{item.value:,.0f}" if whole else str(item.value)
            v = quantity(item, short=True).replace("of edges", "of phase edges")
            facts.append(words.format(n=n, v=v))
    return facts or [evidence_text(item, short=True) for item in finding.evidence[:2]]


def pack(parts: Sequence[str], joint: str, width: int, lines: int, glyphs: Glyphs) -> list[str]:
    """Whole parts on at most ``lines`` lines, in order; the first is cut if it alone is too long.

    A part that does not fit is left out, and so is all that follows it.
    """
    out: list[str] = []
    joint = plain(joint, glyphs)
    for raw in parts:
        part = plain(raw, glyphs)
        if out and cell_len(out[-1] + joint + part) <= width:
            out[-1] += joint + part
        elif len(out) < lines and (not out or cell_len(part) <= width):
            out.append(part)
        else:
            break
    if out and cell_len(out[0]) > width:
        first = brief(out[0], width, lines - len(out) + 1, glyphs)
        out[:1] = first or [clip(out[0], width, glyphs)]
    return out[: max(0, lines)]


#: Fewer characters than this say nothing.
SHORTEST_CLAUSE = 12
#: Where a sentence can end early and still mean what it says.
_CLAUSE = re.compile(r"(?<=[\w)\]%])(?=[.;:,] | \()")


def brief(text: str, width: int, lines: int, glyphs: Glyphs) -> list[str]:
    """Text broken into at most ``lines`` lines; where it is too long, it ends after a clause."""
    if lines < 1:
        return []
    whole = wrap(text, width, lines + 1, glyphs)
    if len(whole) <= lines:
        return whole
    for end in reversed([found.start() for found in _CLAUSE.finditer(text)]):
        begin = text[:end]
        if end < SHORTEST_CLAUSE or begin.count("(") != begin.count(")"):
            continue
        kept = wrap(begin + glyphs.ellipsis, width, lines + 1, glyphs)
        if len(kept) <= lines:
            return kept
    return wrap(text, width, lines, glyphs)


#: ``1.02e+03`` in sentences of runs recorded by older versions.
_EXPONENT = re.compile(r"\b\d(?:\.\d+)?e\+\d{1,2}\b")


def without_exponents(text: str) -> str:
    """Numbers in a sentence as people write them: ``1.02e+03`` is ``1,020``."""
    return _EXPONENT.sub(lambda found: f"{float(found[0]):,.0f}", text)
