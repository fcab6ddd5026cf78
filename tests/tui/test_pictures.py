"""What people see, picture by picture. Look at a changed picture before accepting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gputop_train.tui.screens.compare import Picker
from gputop_train.tui.screens.settings import Settings

from . import trials
from .driving import app_of, lines, settle, until
from .fakes import RUN
from .test_changing import two_runs

SIZES = {"120x40": (120, 40), "80x24": (80, 24), "40x12": (40, 12), "200x60": (200, 60)}
PICTURES = [
    *(
        (state, "120x40")
        for state in ("starved", "healthy", "too_early", "no_gpu", "ended", "replay", "leaking")
    ),
    *(
        (state, "80x24")
        for state in ("starved", "healthy", "too_early", "no_gpu", "failed", "abstained", "leaking")
    ),
    *((state, "40x12") for state in ("starved", "ended", "starting")),
    ("starved", "200x60"),
]


@pytest.mark.parametrize(("state", "size"), PICTURES)
def test_the_screen_looks_as_agreed(state: str, size: str, snap_compare: Any) -> None:
    assert snap_compare(app_of(state), terminal_size=SIZES[size], run_before=settle)


def test_plain_ascii_looks_as_agreed(snap_compare: Any) -> None:
    app = app_of("starved", ascii=True)
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=settle)


@pytest.mark.parametrize("key", ["q", "question_mark"])
def test_what_opens_over_the_screen_looks_as_agreed(key: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press(key)
        await pilot.pause()

    assert snap_compare(app_of("starved"), terminal_size=SIZES["80x24"], run_before=open_it)


@pytest.mark.parametrize("size", ["120x40", "80x24", "40x12"])
def test_settings_look_as_agreed(size: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("t", "space", "down")
        await until(pilot, lambda: isinstance(pilot.app.screen, Settings))
        await pilot.pause()

    app = app_of("starved", run=RUN)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=open_it)


def test_settings_in_plain_ascii_look_as_agreed(snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("t", "a")
        await pilot.pause()

    app = app_of("starved", ascii=True, run=RUN)
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=open_it)


@pytest.mark.parametrize("size", ["120x40", "80x24", "40x12"])
@pytest.mark.parametrize("state", ["running", "done"])
def test_a_trial_looks_as_agreed(state: str, size: str, snap_compare: Any, tmp_path: Path) -> None:
    place = trials.write(tmp_path, trials.done() if state == "done" else trials.running())

    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        pilot.app.watch_trial(place)
        await until(pilot, lambda: any("baseline" in line for line in lines(pilot.app)))
        await pilot.pause()

    assert snap_compare(app_of("ended"), terminal_size=SIZES[size], run_before=open_it)


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("size", ["120x40", "80x24", "40x12"])
def test_the_list_of_runs_looks_as_agreed(size: str, snap_compare: Any, tmp_path: Path) -> None:
    two_runs(tmp_path)

    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("c")
        await until(pilot, lambda: isinstance(pilot.app.screen, Picker))
        await until(pilot, lambda: any("aaaaaa" in line for line in lines(pilot.app)))
        await pilot.pause()

    app = app_of("ended", run=RUN, root=tmp_path)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=open_it)


@pytest.mark.parametrize("size", ["120x40", "80x24", "40x12"])
def test_a_comparison_looks_as_agreed(size: str, snap_compare: Any, tmp_path: Path) -> None:
    two_runs(tmp_path)

    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("c")
        await until(pilot, lambda: any("aaaaaa" in line for line in lines(pilot.app)))
        await pilot.press("space", "down", "space", "enter")
        await until(pilot, lambda: any("bbbbbb with aaaaaa" in line for line in lines(pilot.app)))
        await pilot.pause()

    app = app_of("ended", run=RUN, root=tmp_path)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=open_it)
