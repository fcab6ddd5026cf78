"""A screenshot that looks the same everywhere: Textual's SVG, freed from fonts it cannot count on.

Textual's picture asks a web server for its font and leaves every character where some font puts it.
Without that font columns drift and bars get gaps. Here each word is pinned to its cells, and
blocks and lines are drawn as shapes instead of being looked up in a font. Pure: text to text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from rich.cells import cell_len

#: Rich's own measures of a cell, in the units of its picture, and where a row begins above its
#: base line.
CELL_W, CELL_H, RISE = 12.2, 24.4, 18.5
FONTS = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'

_TEXT = re.compile(
    r'<text class="(?P<ink>[^"]+-r\d+)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="[\d.]+" '
    r'clip-path="[^"]+">(?P<text>[^<]*)</text>'
)
_REMOTE = re.compile(r"@font-face\s*{[^}]*}\s*")
#: Parts of a cell that a line covers: left, right, up, down from its middle.
_LINES = {
    "─": "lr", "━": "lr", "│": "ud", "╭": "rd", "╮": "ld", "╰": "ru", "╯": "lu", "└": "ru",
    "┌": "rd", "┐": "ld", "┘": "lu", "├": "rud", "┤": "lud",
}  # fmt: skip
_LINE_W = 2.0
_SEAM = 0.6
Box = tuple[float, float, float, float, float]  # x, y, width, height, opacity


def portable(svg: str) -> str:
    """Textual's picture without remote fonts, every word pinned to its cells.

    Args:
        svg: What `textual.app.App.export_screenshot` gives.
    """
    svg = _REMOTE.sub("", svg).replace("font-family: Fira Code, monospace", f"font-family: {FONTS}")
    return _TEXT.sub(lambda found: "".join(_shapes(found)), svg)


def _shapes(found: re.Match[str]) -> Iterator[str]:
    ink, x, y = found["ink"], float(found["x"]), float(found["y"])
    word, begin = "", x
    boxes: list[Box] = []
    for char in html.unescape(found["text"]):
        wide = cell_len(char) * CELL_W
        drawn = _boxes(char, x, y - RISE)
        pinned = drawn is None and char not in " \u00a0" and (char.isascii() or char.isalnum())
        if pinned or (word and not wide):
            begin = begin if word else x
            word += char
        else:
            yield from _word(word, ink, begin, x, y)
            word = ""
            if drawn:
                for box in drawn:
                    _join(boxes, box)
            elif drawn is None and char not in " \u00a0":
                # A sign of unknown width: centred in its cell it is right in every font.
                yield (
                    f'<text class="{ink}" x="{x + wide / 2:.1f}" y="{y:g}" '
                    f'text-anchor="middle">{html.escape(char)}</text>'
                )
        x += wide
    yield from _word(word, ink, begin, x, y)
    for left, top, width, height, opacity in boxes:
        extra = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        # Blocks side by side must not show a seam; a thin line must not be rounded away.
        extra += ' shape-rendering="crispEdges"' if min(width, height) > _LINE_W else ""
        yield (
            f'<rect class="{ink}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}"{extra}/>'
        )


def _word(word: str, ink: str, begin: float, end: float, y: float) -> Iterator[str]:
    if word:
        yield (
            f'<text class="{ink}" x="{begin:.1f}" y="{y:g}" textLength="{end - begin:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{html.escape(word)}</text>'
        )


def _boxes(char: str, x: float, top: float) -> list[Box] | None:
    """The rectangles a block or line character consists of; ``None`` for any other character."""
    code = ord(char)
    if 0x2581 <= code <= 0x2588:  # lower eighths
        height = CELL_H * (code - 0x2580) / 8
        # A bar goes on in the row below: where the two meet, rounding must leave no line.
        return [(x, top + CELL_H - height, CELL_W, height + _SEAM, 1.0)]
    if 0x2589 <= code <= 0x258F:  # left eighths
        return [(x, top, CELL_W * (0x2590 - code) / 8, CELL_H, 1.0)]
    if char in "░▒▓":
        return [(x, top, CELL_W, CELL_H, {"░": 0.45, "▒": 0.6, "▓": 0.8}[char])]
    if char not in _LINES:
        return None
    middle, centre, half = x + CELL_W / 2, top + CELL_H / 2, _LINE_W / 2
    parts: dict[str, Box] = {
        "l": (x, centre - half, CELL_W / 2 + half, _LINE_W, 1.0),
        "r": (middle - half, centre - half, CELL_W / 2 + half, _LINE_W, 1.0),
        "u": (middle - half, top, _LINE_W, CELL_H / 2 + half, 1.0),
        "d": (middle - half, centre - half, _LINE_W, CELL_H / 2 + half, 1.0),
    }
    if _LINES[char] == "lr":
        return [(x, centre - half, CELL_W, _LINE_W, 1.0)]
    return [parts[way] for way in _LINES[char]]


def _join(boxes: list[Box], box: Box) -> None:
    """Add a box, as part of the one to its left where they form one."""
    if boxes:
        left, top, width, height, opacity = boxes[-1]
        if (top, height, opacity) == box[1:2] + box[3:] and abs(left + width - box[0]) < 0.01:
            boxes[-1] = (left, top, width + box[2], height, opacity)
            return
    boxes.append(box)
