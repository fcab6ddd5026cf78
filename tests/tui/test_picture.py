"""A saved picture needs no font from anywhere and keeps every column in its place."""

from __future__ import annotations

import html
import re
from xml.etree import ElementTree

import pytest

from gputop_train.tui.picture import CELL_H, CELL_W, portable

from .driving import app_of, lines, settle

INK = "terminal-1-r3"


def text(content: str, x: float = 0, y: float = 20) -> str:
    return (
        f'<text class="{INK}" x="{x}" y="{y}" textLength="1" clip-path="url(#l)">{content}</text>'
    )


def attributes(svg: str, tag: str) -> list[dict[str, str]]:
    return [
        dict(re.findall(r'([\w-]+)="([^"]*)"', part)) for part in re.findall(f"<{tag}[^>]*>", svg)
    ]


async def test_a_real_picture_asks_nobody_for_a_font_and_holds_all_words() -> None:
    app = app_of("starved")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        svg = portable(app.export_screenshot())
        shown = "\n".join(lines(app))
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace(
        "https://www.textualize.io", ""
    )
    ElementTree.fromstring(svg)  # well-formed
    words = [html.unescape(word) for word in re.findall(r"<text[^>]*>([^<]+)</text>", svg)]
    for word in ("STARVED", "DataLoader(train_set,", "num_workers=7]", "utilisation"):
        assert word in words
        assert word in shown
    assert not any(char in svg for char in "█▁░─│╭")


def test_each_word_begins_in_its_own_cell_and_is_as_wide_as_its_cells() -> None:
    words = attributes(portable(text("&#160;ab&#160;&#160;c&lt;d")), "text")
    assert [float(w["x"]) for w in words] == [12.2, 61.0]
    assert [float(w["textLength"]) for w in words] == [24.4, 36.6]
    assert all(w["lengthAdjust"] == "spacingAndGlyphs" for w in words)


def test_equal_blocks_side_by_side_are_one_shape_from_the_base_of_the_row() -> None:
    boxes = attributes(portable(text("██▄", 12.2)), "rect")
    assert [(float(b["x"]), float(b["width"])) for b in boxes] == [(12.2, 24.4), (36.6, CELL_W)]
    # A hair more, so that no line is left where a bar meets the row below.
    assert [float(b["height"]) for b in boxes] == pytest.approx([CELL_H + 0.6, CELL_H / 2 + 0.6])
    assert len({round(float(b["y"]) + float(b["height"]), 1) for b in boxes}) == 1


def test_signs_of_unknown_width_stand_in_the_middle_of_their_cell() -> None:
    (sign,) = attributes(portable(text("▲", 12.2)), "text")
    assert sign["text-anchor"] == "middle"
    assert float(sign["x"]) == 18.3
    assert "textLength" not in sign


def test_wide_and_combining_characters_keep_what_follows_in_place() -> None:
    words = attributes(portable(text("数e\u0301 x")), "text")
    assert [float(w["x"]) for w in words] == [0.0, 48.8]
