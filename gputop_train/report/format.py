"""Numbers and lines as people read them on a plain terminal. Pure."""

from __future__ import annotations

import textwrap

#: Labels of host time that do not read well as they are spelled.
_WORDS = {
    "h2d": "H2D copy",
    "comm": "communication",
    "eval": "evaluation",
    "gpu_wait": "GPU wait",
    "gc": "garbage collection",
}
_ASCII = str.maketrans(
    {"·": "|", "→": "->", "─": "-", "…": "...", "±": "+-", "≥": ">=", "≤": "<=", "µ": "u"}
)


def label(name: str) -> str:
    """A label of host time in words: ``data wait``, ``H2D copy``."""
    return _WORDS.get(name, name.replace("_", " "))


def percent(share: float) -> str:
    """A share (0..1) as ``64%``; below ten percent with one digit: ``3.4%``."""
    scaled = share * 100
    return f"{scaled:.0f}%" if abs(scaled) >= 9.95 else f"{scaled:.1f}%"


def duration(seconds: float) -> str:
    """A span of wall time: ``4.2s``, ``42s``, ``4m12s``, ``3h05m``, ``2d04h``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    return whole_seconds(max(0, round(seconds)))


def whole_seconds(whole: int) -> str:
    """A span of whole seconds: ``42s``, ``4m12s``, ``3h05m``, ``2d04h``."""
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86_400}d{whole // 3600 % 24:02d}h"


def milliseconds(ms: float) -> str:
    """A step: ``0.42 ms``, ``8.3 ms``, ``268 ms``, ``1.32 s``."""
    if ms >= 999.5:
        return f"{ms / 1000:,.2f} s"
    return f"{ms:.0f} ms" if ms >= 99.5 else f"{ms:.1f} ms" if ms >= 0.995 else f"{ms:.2f} ms"


def size(count: float) -> str:
    """Bytes in decimal units: ``812 B``, ``4.1 kB``, ``735 MB``, ``2.3 GB``."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.1f} GB" if value < 99.95 else f"{value:,.0f} GB"


def factor(value: float) -> str:
    """A speed-up: ``1.9x``, ``12x``."""
    return f"{value:.1f}x" if value < 9.95 else f"{value:.0f}x"


def number(value: object) -> str:
    """A number with thousands marks and no more than four meaningful digits; text as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return printable(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def printable(text: str) -> str:
    """Text from a script (a path, a call) on one line and without terminal control codes."""
    return safe(" ".join(text.split()))


def safe(text: str) -> str:
    """Text of which nothing moves, hides, reorders or commands on a terminal; spaces stay.

    Printable is what ``str.isprintable`` says: no control code of either set (C0, C1), no
    formatting character (Unicode Cf: bidirectional overrides and isolates are such), no half of a
    surrogate pair, no separator but the space.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def to_ascii(text: str) -> str:
    """The same text for a terminal that shows ASCII only."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def row(key: str, text: str, width: int, *, key_width: int = 8) -> list[str]:
    """A labelled row, wrapped so that every line fits and continuation lines are aligned.

    Words longer than a line (paths) are left whole where a line would hold them, else broken.
    Whoever chose the words, none of them disturbs the terminal.
    """
    lead = f" {key:<{key_width}}"
    room = max(width, len(lead) + 10)
    return textwrap.wrap(
        safe(text),
        room,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    ) or [lead.rstrip()]
