"""The screen behind glass: whatever the app can do is known to show or to change, and only shows here."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.binding import Binding

from gputop_train.tui import served
from gputop_train.tui.application import GputopApp
from gputop_train.tui.screens.ask import Answer, Ask
from gputop_train.tui.screens.settings import Settings
from gputop_train.tui.screens.trial import Trial
from gputop_train.tui.served import ServedApp

from .driving import settle, until
from .fakes import FakeSource

#: What starts, stops, asks or writes, or needs a shell.
CHANGES = {"settings", "rerun", "trial", "compare", "picture", "suspend_process"}


def actions() -> set[str]:
    found = set()
    for kind in GputopApp.__mro__:
        for binding in vars(kind).get("BINDINGS", []):
            made = binding if isinstance(binding, Binding) else Binding(*binding)
            found.add(made.action.partition("(")[0].rpartition(".")[2])
    return found


def test_every_action_of_the_app_is_known_to_show_or_to_change() -> None:
    new = actions() - served._SHOWS - CHANGES
    assert not new, "enter them in tui/served.py if all they do is show, else in CHANGES here"
    assert not served._SHOWS & CHANGES


async def test_keys_that_change_something_do_nothing(tmp_path: Path) -> None:
    app = ServedApp(FakeSource("starved"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for key in ("t", "r", "p", "c", "s"):
            await pilot.press(key)
            assert len(app.screen_stack) == 1
        await pilot.press("q")
        await until(pilot, lambda: app._exit)


@pytest.mark.parametrize(
    "screen",
    [
        lambda: Trial(Path("/nonexistent")),
        lambda: Settings({}, lambda _: ""),
        lambda: Ask(["?"], [Answer("c", "cancel", "")]),
    ],
)
async def test_nothing_that_asks_can_be_opened(screen: object) -> None:
    app = ServedApp(FakeSource("starved"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.push_screen(screen())  # type: ignore[operator]
        await pilot.pause()
        assert len(app.screen_stack) == 1


async def test_the_palette_offers_what_shows_alone() -> None:
    app = ServedApp(FakeSource("starved"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Leave", "Help", "Evidence"} <= titles
        assert not titles & {"Settings", "Rerun", "Trial", "Compare", "Screenshot"}
