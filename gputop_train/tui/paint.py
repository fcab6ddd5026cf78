"""From words and numbers to rows of cells: the pure half of every widget.

A row is a tuple of ``(text, ink)`` spans, where an ink names a role, not a colour. `Glyphs` is the
alphabet (Unicode or plain ASCII). Turning inks into colours is `palette`'s job, so rows can be
compared, tested and read without a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

Span = tuple[str, str]
Row = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters drawings are made of.

    ``levels`` runs from empty to full in equal steps; ``band`` marks the range between a bin's
    mean and its largest sample; every meaning that has a colour also has its own glyph here.
    """

    ascii: bool
    levels: str
    lane: str
    band: str
    bar: str
    axis: str
    rule: str
    edge: str
    save: str
    evaluation: str
    live: str
    frozen: str
    play: str
    ended: str
    ok: str
    warn: str
    critical: str
    wait: str
    sep: str
    ellipsis: str
    corner: str
    side: str
    knob: str


UNICODE = Glyphs(
    ascii=False,
    levels=" ▁▂▃▄▅▆▇█",
    lane=" ▁▂▃▄▅▆▇█",
    band="░",
    bar="█",
    axis="─",
    rule="─",
    edge="│",
    save="▲",
    evaluation="◆",
    live="●",
    frozen="❚❚",
    play="▶",
    ended="■",
    ok="✓",
    warn="▲",
    critical="■",
    wait="◌",
    sep=" · ",
    ellipsis="…",
    corner="╭╮╰╯",
    side="│",
    knob="●",
)

ASCII = Glyphs(
    ascii=True,
    levels=" ..::==##",
    lane=" .:-=+*#@",
    band=".",
    bar="#",
    axis="-",
    rule="-",
    edge="|",
    save="^",
    evaluation="*",
    live="*",
    frozen="||",
    play=">",
    ended="#",
    ok="+",
    warn="!",
    critical="!!",
    wait="~",
    sep=" - ",
    ellipsis="~",
    corner="++++",
    side="|",
    knob="o",
)

# By code point: many of these are told apart from ASCII by machines only.
_TO_ASCII = {
    0x2192: "->",  # arrow
    0x00B7: "-",  # middle dot
    0x2026: "~",  # ellipsis
    0x2265: ">=",
    0x2264: "<=",
    0x00D7: "x",  # multiplication sign
    0x2013: "-",  # dashes
    0x2014: "-",
    0x2018: "'",  # quotation marks
    0x2019: "'",
    0x201C: '"',
    0x201D: '"',
    0x00B1: "+-",
    0x00B5: "u",  # micro
    0x2500: "-",  # box drawing
    0x2501: "-",
    0x2502: "|",
    **dict.fromkeys(range(0x2588, 0x258C), "#"),  # a progress bar's blocks, by how full they are
    **dict.fromkeys(range(0x258C, 0x2590), "="),
}


def plain(text: str, glyphs: Glyphs) -> str:
    """Text that cannot disturb the terminal: control characters shown as spaces, ASCII if asked."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    if glyphs.ascii and not text.isascii():
        text = text.translate(_TO_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def width_of(row: Sequence[Span]) -> int:
    """Cells a row takes."""
    return sum(cell_len(text) for text, _ in row)


def clip(text: str, width: int, glyphs: Glyphs) -> str:
    """Text cut to ``width`` cells, the cut shown."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1) + glyphs.ellipsis


def fit(row: Sequence[Span], width: int, glyphs: Glyphs) -> Row:
    """A row of exactly ``width`` cells: cut with an ellipsis or padded; same inks merged."""
    out: list[Span] = []
    left = width
    for raw, ink in row:
        text = plain(raw, glyphs)
        need = cell_len(text)
        if need > left:
            text = clip(text, left, glyphs)
            need = cell_len(text)
        if text:
            out.append((text, ink))
            left -= need
        if left <= 0:
            break
    if left > 0:
        out.append((" " * left, "text"))
    merged: list[Span] = []
    for text, ink in out:
        # A blank looks the same in any ink: joining it to its neighbour saves escapes on the wire.
        if merged and (merged[-1][1] == ink or text.isspace()):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        else:
            merged.append((text, ink))
    return tuple(merged)


def spread(left: Sequence[Span], right: Sequence[Span], width: int, glyphs: Glyphs) -> Row:
    """A row with one part at the left edge and one at the right, which gives way last."""
    tail = width_of(right)
    if tail >= width:
        return fit(right, width, glyphs)
    head = fit(left, width - tail, glyphs) if width_of(left) > width - tail else tuple(left)
    gap = width - tail - width_of(head)
    return fit((*head, (" " * gap, "text"), *right), width, glyphs)


def wrap(text: str, width: int, lines: int, glyphs: Glyphs) -> list[str]:
    """Text broken at blanks into at most ``lines`` lines; what does not fit ends in an ellipsis."""
    words = plain(text, glyphs).split()
    out: list[str] = []
    current = ""
    for position, word in enumerate(words):
        candidate = f"{current} {word}" if current else word
        if cell_len(candidate) <= width or not current:
            current = candidate
            continue
        if len(out) == lines - 1:
            rest = " ".join([current, *words[position:]])
            return [*out, clip(rest, width, glyphs)]
        out.append(current)
        current = word
    if current:
        out.append(clip(current, width, glyphs))
    return out[:lines]


def level(value: float, alphabet: str) -> str:
    """The glyph for a share of 0..1; anything measurable above zero is visible."""
    if not value > 0.004:  # nor anything that is no number
        return alphabet[0]
    return alphabet[max(1, round(min(1.0, value) * (len(alphabet) - 1)))]


def meter(share: float, width: int, glyphs: Glyphs) -> str:
    """A horizontal bar of ``width`` cells filled to ``share`` (0..1), solid then blank."""
    filled = max(1, round(min(1.0, share) * width)) if share > 0.004 else 0
    return glyphs.bar * filled + " " * (width - filled)
