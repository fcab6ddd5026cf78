"""Keys and messages: what the app does, not how it looks."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_train.store.errors import StoreError
from gputop_train.tui.application import GputopApp
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.widgets.header import Header
from gputop_train.tui.widgets.logpane import LogPane
from gputop_train.tui.widgets.notice import Notice
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import plot_columns

from .driving import Controls, app_of, lines, settle, shown_snapshot, until
from .fakes import FakeSource, ended, starved

SIZE = (100, 30)


async def test_freezing_stops_the_view_and_not_the_reading() -> None:
    source = FakeSource("starved", changing=True)
    app = app_of("starved", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space")
        frozen = shown_snapshot(app)
        reads = source.reads
        await until(pilot, lambda: source.reads >= reads + 3)
        assert shown_snapshot(app).step.count == frozen.step.count
        assert "frozen" in lines(app)[0]
        await pilot.press("space")
        await until(pilot, lambda: shown_snapshot(app).step.count > frozen.step.count)


class EndsLater(FakeSource):
    """A run that ends when told."""

    def __init__(self) -> None:
        super().__init__("starved")
        self.over = threading.Event()

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        return ended(view) if self.over.is_set() else starved(view)


async def test_the_end_of_the_run_is_shown_even_while_the_view_is_frozen() -> None:
    source = EndsLater()
    app = app_of("starved", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space")
        source.over.set()
        await until(pilot, lambda: any("The script ended" in line for line in lines(app)))


async def test_stopping_waits_for_the_end_and_gives_the_scripts_exit_code() -> None:
    source = EndsLater()
    asked = threading.Event()

    def stop() -> str | None:
        asked.set()
        return None

    app = app_of("starved", source=source, stop=stop)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("q", "s")
        await until(pilot, asked.is_set)
        await until(pilot, lambda: "stopping" in lines(app)[0])
        source.over.set()
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert (app.return_value.action, app.return_value.exit_code) == ("stopped", 0)


async def test_a_stop_that_did_not_get_through_is_said_and_watching_goes_on() -> None:
    app = app_of("starved", stop=lambda: "The supervisor does not answer.")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("q", "s")
        await until(pilot, lambda: any("does not answer" in line for line in lines(app)))
        await until(pilot, lambda: "live" in lines(app)[0])


async def test_cancelling_changes_nothing() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("q", "c")
        await pilot.pause()
        assert len(app.screen_stack) == 1
        assert app.return_value is None


class Unreadable(FakeSource):
    """Reads once and then fails with what it is given."""

    def __init__(self, error: Exception) -> None:
        super().__init__("starved")
        self.error = error

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        if self.reads > 2 and view.columns > 1:
            raise self.error
        return starved(view)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreError("The store is damaged. Look at output.log."), "The store is damaged"),
        (ValueError("surprise"), "could not read the run"),
    ],
)
async def test_a_read_that_fails_keeps_the_last_picture_and_says_why(
    error: Exception, words: str
) -> None:
    app = app_of("starved", source=Unreadable(error))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: any(words in line for line in lines(app)))
        assert any("STARVED" in line for line in lines(app))


class Slow(FakeSource):
    """Gives nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__("starved")
        self.go = threading.Event()

    def read(self, view: View) -> Snapshot:
        self.go.wait()
        return super().read(view)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40)])
async def test_the_frame_is_there_before_anything_was_read(size: tuple[int, int]) -> None:
    source = Slow()
    app = app_of("starved", source=source, run={"script": "sub/train.py"})
    try:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "reading the run" in lines(app)[0])
            assert "train.py" in lines(app)[0]
            await until(pilot, lambda: "q quit" in lines(app)[-1])
            source.go.set()
            await settle(pilot)
            assert "reading the run" not in lines(app)[0]
            assert any("STARVED" in line for line in lines(app))
    finally:
        source.go.set()


async def test_a_first_read_that_fails_says_why_where_nothing_else_is() -> None:
    source = Unreadable(StoreError("The store is damaged. Look at output.log."))
    source.reads = 2
    app = app_of("starved", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: any("The store is damaged" in line for line in lines(app)))


async def test_plus_and_minus_change_the_window_within_its_limits() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("plus")
        await until(pilot, lambda: "2m00s ago" in "\n".join(lines(app)))
        await pilot.press(*["minus"] * 12)
        await until(pilot, lambda: "15s ago" in "\n".join(lines(app)))


async def test_replay_keys_reach_the_replay_and_q_leaves_without_a_question() -> None:
    app = app_of("replay")
    controls = app._replay
    assert isinstance(controls, Controls)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("space", "left", "right", "less_than_sign", "greater_than_sign", "q")
        await until(pilot, lambda: app.return_value is not None)
    assert controls.told == ["toggle", -10, 10, ("speed", -1), ("speed", 1)]


async def test_copying_without_a_verdict_says_there_is_nothing(tmp_path: Path) -> None:
    app = app_of("healthy", run_dir=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("y")
        await until(pilot, lambda: any("nothing to copy" in line for line in lines(app)))
    assert list(tmp_path.iterdir()) == []


async def test_advice_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "advice.txt").symlink_to(victim)
    app = app_of("starved", run_dir=run_dir)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("y")
        await until(pilot, lambda: any("Advice copied" in line for line in lines(app)))
    assert victim.read_text() == "mine"


async def test_the_log_scrolls_back_and_follows_again() -> None:
    source = FakeSource("starved")
    long = tuple(f"line {i:03d}" for i in range(200))
    source.make = lambda view: replace(starved(view), log=long)
    app = app_of("starved", source=source)
    async with app.run_test(size=(100, 40)) as pilot:
        await settle(pilot)
        assert any("line 199" in line for line in lines(app))
        await pilot.press("pageup", "pageup")
        assert app.query_one(LogPane).back == 20
        assert not any("line 199" in line for line in lines(app))
        await pilot.press("end")
        assert any("line 199" in line for line in lines(app))


async def test_only_changed_rows_are_painted_again() -> None:
    app = app_of("starved")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app._feed.stop()
        await pilot.pause(0.1)
        painted: list[tuple[str | None, int]] = []

        def watch(panel: Panel) -> None:
            original = panel.refresh

            def refresh(*regions: object, **options: bool) -> object:
                painted.extend((panel.id, region.y) for region in regions)  # type: ignore[attr-defined]
                return original(*regions, **options)  # type: ignore[arg-type]

            panel.refresh = refresh  # type: ignore[assignment,method-assign]

        for panel in app.query(Panel):
            watch(panel)
        before = shown_snapshot(app)
        app.front.show(replace(before, elapsed_s=253.0, log=(*before.log, "new line")))
        rows = app.query_one(LogPane).size.height
        assert ("header", 0) in painted
        assert {panel for panel, _ in painted} == {"header", "log"}
        assert len([1 for panel, _ in painted if panel == "log"]) < rows


async def test_the_command_palette_quits_by_the_same_question() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert len(app.screen_stack) == 2
        assert {command.title for command in app.get_system_commands(app.front)} >= {
            "Leave",
            "Help",
            "Settings",
            "Rerun",
            "Trial",
            "Compare",
        }


async def test_another_theme_brings_its_own_colours() -> None:
    app = app_of("starved")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        dark = dict(app.query_one(Header).inks)
        app.theme = "light"
        await until(pilot, lambda: dict(app.query_one(Header).inks) != dark)
        assert app.query_one(Header).inks.keys() == dark.keys()
        assert any("STARVED" in line for line in lines(app))


async def test_leaving_closes_the_source() -> None:
    source = FakeSource("ended")
    app = app_of("ended", source=source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("q")
    await asyncio.to_thread(source.closing.wait, 20)
    assert source.closed
    assert app.return_value is not None
    assert (app.return_value.action, app.return_value.exit_code) == ("ended", 0)


async def test_messages_give_way_to_what_stands_there_otherwise() -> None:
    app = app_of("no_gpu")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        notice = app.query_one(Notice)
        assert "the CPU is the device here" in "\n".join(lines(app))
        notice.say("a passing word")
        assert "a passing word" in "\n".join(lines(app))
        notice.say("")
        assert "the CPU is the device here" in "\n".join(lines(app))
        assert app.query_one(Header).size.height == 1


async def test_another_width_is_filled_to_its_last_column() -> None:
    app = app_of("starved")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for width, height in ((120, 40), (40, 12), (200, 60)):
            await pilot.resize_terminal(width, height)
            await settle(pilot)
            assert shown_snapshot(app).axis.columns == plot_columns(width)


@pytest.mark.parametrize(("key", "told"), [("home", -1e12), ("end", 1e12), ("left", -10.0)])
async def test_a_replay_goes_where_a_key_sends_it(key: str, told: float) -> None:
    controls = Controls()
    app = GputopApp(FakeSource("replay"), replay=controls, hz=20.0)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press(key)
        await until(pilot, lambda: bool(controls.told))
    assert controls.told == [told]


async def test_pictures_of_a_recording_outlast_it_and_replace_nothing(tmp_path: Path) -> None:
    scratch, here = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir()
    here.mkdir()
    (here / "screen-1.svg").write_text("mine")
    (here / "advice.txt").write_text("mine as well")
    app = GputopApp(
        FakeSource("replay"), run_dir=scratch, pictures=here, replay=Controls(), hz=20.0
    )
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("s", "y")
        await until(pilot, lambda: (here / "screen-2.svg").exists())
    assert (here / "screen-1.svg").read_text() == "mine"
    assert (here / "advice.txt").read_text() == "mine as well"
    assert "</svg>" in (here / "screen-2.svg").read_text()
    assert list(scratch.iterdir()) == []
