"""The trials page: what was tried on this script, newest first, and its way to a trial's screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gputop_train.trial import words as trial_words
from gputop_train.tui.gather.trials import trials_view
from gputop_train.tui.paint import ASCII, UNICODE
from gputop_train.tui.screens.trial import Trial
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.views.trials import TrialsView
from gputop_train.tui.widgets import trials as list_words
from gputop_train.tui.widgets.trials import TrialsState, result, trials_rows

from . import trials
from .driving import app_of, lines, settle, until
from .fakes import RUN, FakeSource, replay, starved

SIZE = (120, 40)
S = 1_000_000_000
#: 14 November 2023, 22:13:20 UTC.
WALL = 1_700_000_000 * S


def write(root: Path, trial_id: str, body: dict[str, Any]) -> Path:
    place = root / "trials" / trial_id
    written = trials.write(root, body | {"id": trial_id})
    written.rename(place)
    return place


def kept(root: Path) -> Path:
    """Four trials: done, stopped with nothing proved, of another script, and one under way."""
    write(root, "t000001", trials.done() | {"started_wall_ns": WALL - 86_400 * S})
    none = trials.done() | {"started_wall_ns": WALL - 3600 * S, "state": "stopped"}
    none["table"] = [none["table"][0], none["table"][2]]
    none["candidates"] = [none["candidates"][1]]
    none["stop_hint"] = None
    write(root, "t000002", none)
    write(root, "t000003", trials.done() | {"started_wall_ns": WALL - 60 * S, "script": "other.py"})
    write(root, "t000004", trials.running() | {"started_wall_ns": WALL, "now": "leg 2: baseline"})
    return root


class Kept(FakeSource):
    """A run with trials beside it, read as the real source does."""

    def __init__(self, root: Path, *, made: Any = starved) -> None:
        super().__init__("starved")
        self.root = root
        self.made = made

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        snapshot: Snapshot = self.made(view)
        found = trials_view(self.root, RUN) if view.page == "trials" else None
        if found is not None:
            found = replace(found, now_wall_ns=WALL)
        return replace(snapshot, page=view.page, trials=found)


def view_of(root: Path) -> TrialsView:
    return trials_view(root, RUN)


def test_trials_are_listed_newest_first_with_what_they_came_to(tmp_path: Path) -> None:
    seen = view_of(kept(tmp_path)).trials
    assert [trial.id for trial in seen] == ["t000004", "t000003", "t000002", "t000001"]
    assert [trial.state for trial in seen] == ["running", "done", "stopped", "done"]
    assert [trial.same_script for trial in seen] == [True, False, True, True]
    assert result(seen[3]) == "2.39x as fast (2.31 to 2.48) num_workers=4, changes results"
    assert seen[3].predicted == (2.1, 2.7)
    assert result(seen[2]) == "1 change, none proved faster"


def test_damaged_and_missing_records_are_passed_over(tmp_path: Path) -> None:
    assert view_of(tmp_path).trials == ()
    place = write(tmp_path, "t000001", trials.done())
    write(tmp_path, "t000002", {"schema": 1, "table": "nonsense", "started_wall_ns": "x"})
    (place / "trial.json").write_text("{")
    (only,) = view_of(tmp_path).trials
    assert only.id == "t000002"
    assert result(only) != ""


async def test_enter_opens_the_selected_trial_and_leaving_it_comes_back(tmp_path: Path) -> None:
    app = app_of("starved", source=Kept(kept(tmp_path)))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("7")
        await until(pilot, lambda: any("t000004" in line for line in lines(app)))
        assert not any("t000003" in line for line in lines(app))
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, Trial))
        await until(
            pilot,
            lambda: any("trial  train.py" in line or "t000001" in line for line in lines(app)),
        )
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.front.NAME == "trials"


async def test_a_new_trial_leaves_the_selection_on_the_one_it_was_on(tmp_path: Path) -> None:
    app = app_of("starved", source=Kept(kept(tmp_path)))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("7")
        await until(pilot, lambda: any("t000004" in line for line in lines(app)))
        await pilot.press("down")
        assert any(line.startswith(">") and "t000002" in line for line in lines(app))
        write(tmp_path, "t000005", trials.done() | {"started_wall_ns": WALL + S})
        await until(pilot, lambda: any("t000005" in line for line in lines(app)))
        assert any(line.startswith(">") and "t000002" in line for line in lines(app))
        await pilot.press("a")
        assert any("t000003 other.py" in line for line in lines(app))
        assert any(line.startswith(">") and "t000002" in line for line in lines(app))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_size_is_drawn(glyphs: Any, tmp_path: Path) -> None:
    full = TrialsState(view_of(kept(tmp_path)))
    for state in (full, TrialsState(), TrialsState(TrialsView((), 0)), replace(full, cursor=2)):
        for width in (1, 12, 40, 80, 300):
            for height in (1, 2, 5, 9, 100):
                assert len(trials_rows(state, width, height, glyphs)) <= height


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize(
    ("state", "size"),
    [
        *(("kept", size) for size in ("120x40", "80x24", "40x12", "200x60")),
        ("none", "80x24"),
        ("none", "40x12"),
        ("replay", "80x24"),
        ("plain", "80x24"),
    ],
)
def test_the_trials_page_looks_as_agreed(
    state: str, size: str, snap_compare: Any, tmp_path: Path
) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("7")
        words = "No trial of train.py" if state == "none" else "t000004"
        await until(pilot, lambda: any(words in line for line in lines(pilot.app)))
        if state in ("kept", "plain"):
            await pilot.press("down", "down")
        await pilot.pause()

    root = tmp_path if state == "none" else kept(tmp_path)
    source = Kept(root, made=replay if state == "replay" else starved)
    app = app_of(
        "replay" if state == "replay" else "starved", source=source, ascii=state == "plain"
    )
    columns, rows = map(int, size.split("x"))
    assert snap_compare(app, terminal_size=(columns, rows), run_before=open_it)


@pytest.mark.parametrize("value", [0.5, 1.0, 2.394, 9.994, 9.996, 12.34])
def test_speed_ups_are_written_as_the_trial_itself_writes_them(value: float) -> None:
    assert list_words.factor(value) == trial_words.factor(value)
    assert list_words.between((value, 2 * value)) == trial_words.between((value, 2 * value))
