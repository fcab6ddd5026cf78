"""How the themes and the palette of commands look, and that every page can be kept as a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from textual.widgets import Input

from gputop_train.tui import pages
from gputop_train.tui.palette import PALETTES

from .driving import app_of, lines, settle, until
from .fakes import RUN

SIZE = (120, 40)


@pytest.mark.parametrize("theme", [name for name in PALETTES if name != "dark"])
def test_a_theme_looks_as_agreed(theme: str, snap_compare: Any) -> None:
    app = app_of("starved")
    app.theme = theme
    assert snap_compare(app, terminal_size=SIZE, run_before=settle)


@pytest.mark.parametrize(("ascii", "theme"), [(False, "dark"), (True, "ansi")])
def test_the_palette_looks_as_agreed(ascii: bool, theme: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: bool(pilot.app.screen.query(Input)))
        pilot.app.screen.query_one(Input).cursor_blink = False
        await pilot.press(*"theme")
        await until(pilot, lambda: any("Theme: light" in line for line in lines(pilot.app)))
        await pilot.pause(0.2)

    app = app_of("starved", ascii=ascii, run=RUN)
    app.theme = theme
    assert snap_compare(app, terminal_size=(80, 24), run_before=open_it)


async def test_every_page_is_kept_as_a_picture_of_its_own(tmp_path: Path) -> None:
    app = app_of("starved", run_dir=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for number, name in enumerate(pages.by_name(), start=1):
            app.action_page(name)
            await until(pilot, lambda name=name: app.screen is app.front and name == app.front.NAME)
            await pilot.press("s")
            place = tmp_path / f"screen-{number}.svg"
            await until(pilot, place.exists)
            await until(pilot, lambda place=place: any(place.name in line for line in lines(app)))
            svg = place.read_text()
            ElementTree.fromstring(svg)
            assert not re.search(
                r"(href|src)=|url\((?!#)|@import|<script", svg
            )  # nothing is fetched
            assert place.stat().st_mode & 0o777 == 0o600


@pytest.mark.long
async def test_plain_ascii_holds_in_the_help_and_the_palette_of_every_page() -> None:
    app = app_of("starved", ascii=True, run=RUN)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for name in pages.by_name():
            app.action_page(name)
            await until(pilot, lambda name=name: app.screen is app.front and name == app.front.NAME)
            for key in ("question_mark", "ctrl+p"):
                await pilot.press(key)
                await pilot.pause(0.1)
                assert "\n".join(lines(app)).isascii()
                await pilot.press("escape")
                await until(pilot, lambda: len(app.screen_stack) == 1)
