"""Turning pages: what comes to the front, what is read for it, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gputop_train.tui import pages
from gputop_train.tui.page import Page
from gputop_train.tui.paint import UNICODE, Row
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.tabs import tabs_row

from .driving import app_of, lines, settle, until
from .fakes import FakeSource

SIZE = (100, 30)
ALL = tuple((pages.key_of(name), name) for name in pages.names())


class Words(Panel):
    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        return [((f"for {snapshot.page} at step {snapshot.step.count}", "text"),)] * height


class MadePage(Page):
    """A page with a panel and a key of its own."""

    KEYS = (("o", "order"),)
    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "order", "order")]

    def compose_body(self) -> ComposeResult:
        self.words = Words()
        yield self.words

    def show_body(self, snapshot: Snapshot) -> None:
        self.words.show(snapshot)

    def action_order(self) -> None:
        self.ask(log_lines=7)


class Steps(MadePage):
    NAME = "steps"


class Log(MadePage):
    NAME = "log"


@pytest.fixture(autouse=True)
def three_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = {
        "overview": pages.PAGES["overview"],
        "steps": f"{__name__}:Steps",
        "log": f"{__name__}:Log",
    }
    monkeypatch.setattr(pages, "PAGES", made)
    yield


class Seen(FakeSource):
    """Remembers what it was asked for."""

    def __init__(self, *, changing: bool = False) -> None:
        super().__init__("starved", changing=changing)
        self.views: list[View] = []

    def read(self, view: View) -> Snapshot:
        self.views.append(view)
        return super().read(view)


async def test_a_key_brings_a_page_to_the_front_and_escape_the_overview() -> None:
    source = Seen()
    app = app_of("starved", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("2")
        await until(pilot, lambda: "for steps at step" in "\n".join(lines(app)))
        assert source.views[-1].page == "steps"
        assert "[2 steps]" in "\n".join(lines(app))
        assert "o order" in lines(app)[-1]
        assert len(app.screen_stack) == 1
        await pilot.press("escape")
        assert app.front.NAME == "overview"
        assert any("STARVED" in line for line in lines(app))
        await until(pilot, lambda: source.views[-1].page == "overview")


async def test_tab_goes_round_the_pages_there_are() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        seen = []
        for key in ("tab", "tab", "tab", "shift+tab", "shift+tab"):
            await pilot.press(key)
            seen.append(app.front.NAME)
        assert seen == ["steps", "log", "overview", "log", "steps"]
        await pilot.press("4")  # no such page
        assert app.front.NAME == "steps"


async def test_only_the_page_in_front_is_shown_what_is_new() -> None:
    app = app_of("starved", source=Seen(changing=True))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        overview = app.front
        await pilot.press("2")
        await until(pilot, lambda: app.front.snapshot is not None)
        left_at = overview.snapshot
        was = app.front.snapshot
        assert was is not None
        await until(pilot, lambda: app.front.snapshot is not was)
        assert overview.snapshot is left_at


async def test_what_a_page_asked_for_is_asked_for_again_when_it_comes_back() -> None:
    source = Seen()
    app = app_of("starved", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("2", "o")
        await until(pilot, lambda: source.views[-1].log_lines == 7)
        await pilot.press("1")
        await until(pilot, lambda: source.views[-1].page == "overview")
        await pilot.press("2")
        await until(pilot, lambda: source.views[-1].page == "steps")
        assert source.views[-1].log_lines == 7


async def test_a_frozen_view_turns_pages_and_holds_each_at_what_it_showed_first() -> None:
    app = app_of("starved", source=Seen(changing=True))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space", "2")
        await until(pilot, lambda: app.front.snapshot is not None)
        held = app.front.snapshot
        assert held is not None
        reads = app._feed._source.reads  # type: ignore[attr-defined]
        await until(pilot, lambda: app._feed._source.reads > reads + 2)  # type: ignore[attr-defined]
        assert app.front.snapshot is not None
        assert app.front.snapshot.step.count == held.step.count
        assert "frozen" in lines(app)[0]


async def test_keys_of_pages_mean_nothing_under_a_question() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("q", "2")
        assert app.front.NAME == "overview"
        await pilot.press("c", "2", "q")
        assert app.front.NAME == "steps"
        assert len(app.screen_stack) == 2
        await pilot.press("c")
        assert len(app.screen_stack) == 1
        assert app.front.NAME == "steps"


async def test_the_palette_opens_pages() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+p", *"page steps")
        await until(pilot, lambda: any("Page: steps" in line for line in lines(app)))
        await pilot.press("enter")
        await until(pilot, lambda: any("for steps at step" in line for line in lines(app)))


async def test_another_theme_reaches_pages_that_were_not_in_front() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("2", "1")
        app.theme = "light"
        await pilot.pause()
        await pilot.press("2")
        page = app.front
        assert isinstance(page, MadePage)
        assert dict(page.words.inks) == dict(app.inks)


@pytest.mark.parametrize("width", [36, 40, 79, 80, 91, 92, 200])
@pytest.mark.parametrize("current", ["overview", "lines", "log"])
def test_the_page_in_front_is_named_at_every_width(width: int, current: str) -> None:
    text = "".join(span for span, _ in tabs_row(ALL, current, width, UNICODE))
    assert len(text) == width
    assert text.count("[") == text.count("]") == 1
    inside = text[text.index("[") + 1 : text.index("]")]
    assert (inside.split()[0], current) in ALL
    assert all(key in text for key, _ in ALL)
    if width >= 80:
        assert all(name in text for _, name in ALL[1:])
