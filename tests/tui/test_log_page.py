"""The log page: it follows, moves, searches, and stays where it was put."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch.logpages import LogFile
from gputop_train.tui.application import GputopApp
from gputop_train.tui.paint import ASCII, UNICODE
from gputop_train.tui.screens.log import LogPage
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.widgets.logview import LogView, log_view_rows

from .driving import app_of, lines, settle, until
from .fakes import FakeSource, replay, starved

SIZE = (80, 24)


class Printing(FakeSource):
    """A run whose output lies in a file."""

    def __init__(self, path: Path, *, made: Any = starved) -> None:
        super().__init__("starved")
        self.path = path
        self.made = made

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        text = self.path.read_text()
        made: Snapshot = self.made(view)
        return replace(
            made,
            page=view.page,
            log=tuple(text.splitlines()[-400:]),
            log_path=str(self.path),
            log_size=len(text),
        )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "output.log"
    odd = {100: " needle one", 500: " Needle two", 900: " needle three"}
    path.write_text("".join(f"line {i:04d}{odd.get(i, '')}\n" for i in range(1000)))
    return path


def app_on(log: Path) -> GputopApp:
    return app_of("starved", source=Printing(log))


def text(app: GputopApp) -> str:
    return "\n".join(lines(app))


def page(app: GputopApp) -> LogPage:
    assert isinstance(app.front, LogPage)
    return app.front


async def open_log(pilot: Any) -> None:
    await settle(pilot)
    await pilot.press("9")
    await until(pilot, lambda: "line 0999" in text(pilot.app))


async def test_it_follows_what_is_printed(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        assert "following" in text(app)
        with log.open("a") as stream:
            stream.write("the newest line\n")
        await until(pilot, lambda: "the newest line" in text(app))


async def test_moved_up_it_stays_there_until_it_is_to_follow_again(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        before = page(app).view.lines
        await pilot.press("up", "k", "pageup")
        await until(pilot, lambda: not page(app).following)
        await until(pilot, lambda: "line 0999" not in text(app))
        there = page(app).view.lines
        with log.open("a") as stream:
            stream.write("the newest line\n" * 3)
        source = app._feed._source
        assert isinstance(source, Printing)
        reads = source.reads
        await until(pilot, lambda: source.reads > reads + 2)
        assert page(app).view.lines == there
        assert there[-1] < before[-1]
        await pilot.press("end")
        await until(pilot, lambda: "the newest line" in text(app))
        assert page(app).following


async def test_going_down_past_the_newest_line_follows_again(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("pageup")
        await until(pilot, lambda: not page(app).following)
        await pilot.press("pagedown", "pagedown")
        await until(pilot, lambda: page(app).following)
        assert "line 0999" in text(app)


async def test_home_is_the_first_line_and_every_line_is_reached_by_pages(log: Path) -> None:
    log.write_text("".join(log.read_text().splitlines(keepends=True)[-200:]))
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("g")
        await until(pilot, lambda: "line 0800" in text(app))
        seen = set(page(app).view.lines)
        while not page(app).following:
            was = page(app).view
            await pilot.press("pagedown")
            await until(pilot, lambda was=was: page(app).view != was)  # type: ignore[misc]
            seen |= set(page(app).view.lines)
        assert len(seen) == 200


async def test_a_search_from_the_newest_line_goes_back_and_n_goes_on(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("slash", *"needlx", "backspace", "e")
        assert "/needle" in lines(app)[-3]
        await pilot.press("enter")
        await until(pilot, lambda: ">line 0900 needle three" in text(app))
        await pilot.press("N")
        await until(pilot, lambda: ">line 0500 Needle two" in text(app))
        await pilot.press("N")
        await until(pilot, lambda: ">line 0100 needle one" in text(app))
        await pilot.press("N")
        await until(pilot, lambda: ">line 0900 needle three" in text(app))
        assert "Went on from the newest output" in text(app)
        await pilot.press("n")
        await until(pilot, lambda: ">line 0100 needle one" in text(app))
        assert "/needle" in text(app)


async def test_upper_case_is_meant_and_what_is_nowhere_is_said(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        await pilot.press("slash", *"Needle", "enter")
        await until(pilot, lambda: ">line 0500 Needle two" in text(app))
        await pilot.press("slash", *"q1?", "enter")  # no key of these does anything else
        await until(pilot, lambda: "No line shows 'q1?'" in text(app))
        assert len(app.screen_stack) == 1
        assert app.front.NAME == "log"


async def test_the_overview_opens_the_log_searching_and_escape_goes_back(log: Path) -> None:
    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"needle", "enter")
        await until(pilot, lambda: ">line 0900 needle three" in text(app))
        await pilot.press("slash", "escape")
        assert page(app).view.typing is None
        await pilot.press("escape")
        assert app.front.NAME == "overview"


async def test_another_height_is_filled_and_long_lines_are_reached_sideways(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("first\n" + "".join(f"{i} " + "x" * 150 + " END\n" for i in range(200)))
    app = app_on(path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("9")
        await until(pilot, lambda: "199 xxx" in text(app))
        assert "END" not in text(app)
        await pilot.press(*["right"] * 5)
        assert "END" in text(app)
        assert "column 101" in text(app)
        await pilot.press(*["left"] * 5, "g")
        await until(pilot, lambda: "first" in text(app))
        few = len(page(app).view.lines)
        await pilot.resize_terminal(80, 40)
        await until(pilot, lambda: len(page(app).view.lines) == few + 16)
        assert "first" in text(app)


async def test_before_anything_is_printed_nothing_is_claimed(tmp_path: Path) -> None:
    app = app_on(tmp_path / "output.log")
    (tmp_path / "output.log").touch()
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("9")
        await until(pilot, lambda: "nothing printed yet" in text(app))
        await pilot.press("up", "g", "n")
        await until(pilot, lambda: "Nothing was searched for" in text(app))


async def test_a_log_that_cannot_be_read_is_said_and_the_page_goes_on(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise ValueError("surprise")

    app = app_on(log)
    async with app.run_test(size=SIZE) as pilot:
        await open_log(pilot)
        with monkeypatch.context() as patched:
            patched.setattr(LogFile, "before", broken)
            await pilot.press("pageup")
            await until(pilot, lambda: "could not be read (ValueError: surprise)" in text(app))
        assert page(app).following
        await pilot.press("pageup")
        await until(pilot, lambda: not page(app).following)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_size_is_filled_exactly(glyphs: Any) -> None:
    view = LogView(("one two", "é漢字 two", "x" * 500), hit=1, share=0.4, size=10**9, pattern="two")
    for width in (1, 5, 20, 40, 80, 300):
        for height in (1, 2, 3, 10):
            for each in (view, replace(view, typing="lo", left=3), LogView()):
                rows = log_view_rows(each, width, height, glyphs)
                assert len(rows) == height


@pytest.mark.parametrize(
    ("state", "size"),
    [
        *(("following", size) for size in ("120x40", "80x24", "40x12")),
        *(("found", size) for size in ("200x60", "80x24", "40x12")),
        *((state, "80x24") for state in ("typing", "replay", "plain")),
    ],
)
def test_the_log_page_looks_as_agreed(state: str, size: str, snap_compare: Any, log: Path) -> None:
    made = replay if state == "replay" else starved
    bar = "epoch 3:  26%|##6       | 334/1284 [01:29<04:12,  3.73it/s, loss=2.31]"
    with log.open("a") as stream:
        stream.write("epoch 2: train loss 2.412, val acc 0.588\n" + bar)

    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("9")
        await until(pilot, lambda: "334/1284" in text(pilot.app))
        if state in ("found", "plain"):
            await pilot.press("slash", *"needle", "enter")
            await until(pilot, lambda: ">line 0900" in text(pilot.app))
        elif state == "typing":
            await pilot.press("slash", *"val a")
        await pilot.pause()

    app = app_of(
        "replay" if state == "replay" else "starved",
        source=Printing(log, made=made),
        ascii=state == "plain",
    )
    columns, rows = map(int, size.split("x"))
    assert snap_compare(app, terminal_size=(columns, rows), run_before=open_it)
