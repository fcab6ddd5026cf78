"""The mouse: a click on the name of a key is that key, the wheel is the arrows."""

from __future__ import annotations

import pytest
from textual.geometry import Offset

from gputop_train.tui.clicks import key_at, page_at
from gputop_train.tui.paint import UNICODE
from gputop_train.tui.screens.settings import Settings
from gputop_train.tui.widgets.tabs import tabs_row

from .driving import app_of, lines, settle, until
from .fakes import RUN

BAR = (
    (" q", "key"),
    (" quit ", "muted"),
    (" ?", "key"),
    (" help ", "muted"),
    (" +/-", "key"),
    (" x", "muted"),
)
CARD = (
    ("- ", "critical"),
    ("[t] change and rerun", "key"),
    (" - ", "critical"),
    ("[p] prove", "key"),
)


@pytest.mark.parametrize(
    ("row", "column", "key"),
    [
        (BAR, 1, "q"),
        (BAR, 4, "q"),
        (BAR, 9, "question_mark"),
        (BAR, 16, None),  # two keys in one
        (BAR, 80, None),
        (CARD, 0, None),
        (CARD, 4, "t"),
        (CARD, 20, "t"),
        (CARD, 27, "p"),
    ],
)
def test_a_key_is_where_its_name_and_its_meaning_are(
    row: object, column: int, key: str | None
) -> None:
    assert key_at(row, column) == key  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [120, 60, 40])
def test_every_page_is_where_its_name_is(width: int) -> None:
    pages = [("1", "overview"), ("2", "steps"), ("3", "lines"), ("6", "devices"), ("8", "findings")]
    row = tabs_row(pages, "steps", width, UNICODE)
    text = "".join(part for part, _ in row)
    for key, _name in pages:
        assert page_at(row, text.index(key)) == key
    assert page_at(row, len(text.rstrip()) + 1) is None


async def click(pilot: object, app: object, words: str) -> None:
    """Click on words as they stand on the screen."""
    for y, line in enumerate(lines(app)):  # type: ignore[arg-type]
        if words in line:
            await pilot.click(offset=Offset(line.index(words) + 1, y))  # type: ignore[attr-defined]
            return
    raise AssertionError(words)


async def test_clicks_turn_pages_open_help_and_settings() -> None:
    app = app_of("starved", run=RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await click(pilot, app, "2 steps")
        await until(pilot, lambda: app.front.NAME == "steps")
        await click(pilot, app, "1 overview")
        await until(pilot, lambda: app.front.NAME == "overview")
        await until(pilot, lambda: any("? help" in line for line in lines(app)))
        await click(pilot, app, "? help")
        await until(pilot, lambda: any("On every page" in line for line in lines(app)))
        await pilot.press("escape")
        await until(pilot, lambda: any("[t] change" in line for line in lines(app)))
        await click(pilot, app, "[t] change")
        await until(pilot, lambda: isinstance(app.screen, Settings))


async def test_the_wheel_moves_the_cursor() -> None:
    app = app_of("starved", run=RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, Settings))
        screen = app.screen
        assert isinstance(screen, Settings)
        await pilot._post_mouse_events(
            [__import__("textual.events").events.MouseScrollDown], offset=(20, 10)
        )
        await until(pilot, lambda: screen._page.cursor == 3)
