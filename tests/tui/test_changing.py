"""Settings, rerun, trial and compare: what keys do, on fake snapshots and real records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch.options import Setting
from gputop_train.tui.application import GputopApp
from gputop_train.tui.doors import Doors, StartError
from gputop_train.tui.screens.ask import Ask
from gputop_train.tui.screens.compare import Compare, Picker
from gputop_train.tui.screens.settings import Settings
from gputop_train.tui.screens.trial import Trial
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.trial_app import TrialApp

from . import trials
from .driving import Controls, lines, settle, until
from .fakes import RUN, FakeSource, ended, starved
from .made_run import S, exit_json, run_json, write_store

SIZE = (110, 34)


class EndsLater(FakeSource):
    """A run that ends when told."""

    def __init__(self) -> None:
        super().__init__("starved")
        self.over = threading.Event()

    def stop(self) -> None:
        """As the supervisor that takes the request."""
        self.over.set()

    def read(self, view: View) -> Snapshot:
        self.reads += 1
        return ended(view) if self.over.is_set() else starved(view)


def app_with(source: FakeSource, *, stop: Callable[[], str | None] | None = None, **doors: Any):
    doors = {"run": RUN, "rerun": True} | doors
    return GputopApp(source, hz=20.0, stop=stop, doors=Doors(**doors))


def text(app: GputopApp) -> str:
    return "\n".join(lines(app))


async def shows(pilot: Any, words: str) -> None:
    await until(pilot, lambda: words in text(pilot.app))
    assert not pilot.app._leaving


async def test_settings_are_chosen_kept_and_taken_back() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t")
        await shows(pilot, "loader train.py:41")
        assert "nothing changed" in text(app)
        await pilot.press("space")  # to what is advised
        await shows(pilot, "--set num_workers=7")
        await pilot.press("right")  # cores end at 16
        await shows(pilot, "--set num_workers=8")
        await pilot.press("1", "0", "down")
        await shows(pilot, "--set num_workers=10")
        await pilot.press("down", "down", "enter")
        await shows(pilot, "--set pin_memory=true")
        await shows(pilot, "2 changed")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("t")
        await shows(pilot, "2 changed")
        await pilot.press("backspace")
        await shows(pilot, "1 changed")
        assert app.choices == {("pin_memory", None): True}


async def test_digits_are_shown_taken_back_and_refused_where_they_mean_nothing() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "1", "2")
        await shows(pilot, "12_")
        await pilot.press("backspace")
        await shows(pilot, "1_")
        await pilot.press("escape")
        assert isinstance(app.screen, Settings)
        assert app.choices == {}
        await pilot.press("down", "0", "enter")
        await shows(pilot, "out of range")
        await pilot.press("down", "down", "4")
        await shows(pilot, "pin_memory is on or off")


async def test_what_cannot_be_set_says_why() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", *["down"] * 5, "space")
        await shows(pilot, "num_workers cannot be set: an IterableDataset")
        assert app.choices == {}


async def test_all_that_is_advised_is_taken_with_one_key() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "a")
        await shows(pilot, "--set num_workers=7 --set pin_memory=true")


async def test_a_run_without_steps_has_no_settings_yet_and_says_so() -> None:
    app = app_with(FakeSource("starting"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t")
        await shows(pilot, "Nothing is known of this run's settings yet")
        await pilot.press("space", "right", "4", "enter", "backspace", "a", "down")
        assert app.choices == {}


async def test_a_run_that_has_ended_is_run_again_after_a_question() -> None:
    app = app_with(FakeSource("ended"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "space", "r")
        await shows(pilot, "Run the script again with num_workers=7?")
        await shows(pilot, "Results change with num_workers")
        await pilot.press("r")
        await until(pilot, lambda: app.return_value is not None)
    result = app.return_value
    assert result is not None
    assert (result.action, result.settings) == ("rerun", (Setting("num_workers", 7),))


async def test_a_rerun_can_wait_for_the_end_of_the_run() -> None:
    source = EndsLater()
    app = app_with(source)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "space", "r")
        await shows(pilot, "Run the script again with num_workers=7?")
        await pilot.press("w")
        await shows(pilot, "Runs again when this run ends: num_workers=7.")
        assert app.return_value is None
        source.over.set()
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert app.return_value.action == "rerun"


async def test_a_rerun_can_stop_the_run_first() -> None:
    source = EndsLater()
    app = app_with(source, stop=source.stop)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r")
        await shows(pilot, "Nothing was changed")
        await pilot.press("s")
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert (app.return_value.action, app.return_value.settings) == ("rerun", ())


async def test_a_stop_that_fails_leaves_no_rerun_behind() -> None:
    source = EndsLater()
    app = app_with(source, stop=lambda: "The supervisor does not answer.")
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r", "s")
        await shows(pilot, "does not answer")
        source.over.set()
        await shows(pilot, "ended, exit code 0")
        assert app.return_value is None


async def test_stopping_for_good_forgets_the_rerun_that_was_to_follow() -> None:
    source = EndsLater()
    app = app_with(source, stop=source.stop)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r", "w")
        await shows(pilot, "Runs again when this run ends")
        await pilot.press("q", "s")
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert app.return_value.action == "stopped"


@pytest.mark.parametrize("answer", ["c", "escape", "q"])
async def test_a_question_can_be_declined(answer: str) -> None:
    app = app_with(FakeSource("ended"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r", answer)
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.return_value is None


async def test_a_run_of_somebody_else_gives_the_command_instead(tmp_path: Path) -> None:
    app = GputopApp(
        FakeSource("starved"), hz=20.0, run_dir=tmp_path, doors=Doors(run=RUN, rerun=False)
    )
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "space", "r")
        await shows(pilot, "This screen did not start the run")
        await shows(pilot, "gputop-train --set num_workers=7 train.py")
        await pilot.press("escape", "p")
        await shows(pilot, "gputop-train trial --set num_workers=7 train.py")
    written = tmp_path / "next-run.txt"
    assert written.read_text() == "gputop-train trial --set num_workers=7 train.py\n"
    assert written.stat().st_mode & 0o777 == 0o600


async def test_a_replay_starts_nothing_and_says_so() -> None:
    app = GputopApp(
        FakeSource("replay"),
        replay=Controls(),
        hz=20.0,
        doors=Doors(why_not="A replay starts nothing."),
    )
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r")
        await shows(pilot, "A replay starts nothing.")
        await pilot.press("c")
        await shows(pilot, "no other runs here")


async def test_a_trial_is_asked_for_started_with_what_is_advised_and_watched(
    tmp_path: Path,
) -> None:
    asked: list[Sequence[str]] = []

    def start(candidates: Sequence[str]) -> Path:
        asked.append(candidates)
        return trials.write(tmp_path, trials.running())

    app = app_with(FakeSource("ended"), start_trial=start)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("p")
        await shows(pilot, "Prove num_workers=7, pin_memory=true in a trial?")
        await pilot.press("enter")
        await shows(pilot, "leg 5: num_workers=4, measuring, step 41 of 72")
        assert asked == [("num_workers=7", "pin_memory=true", "num_workers=7,pin_memory=true")]
        await pilot.press("r")
        await shows(pilot, "The trial still runs")
        trials.write(tmp_path, trials.done())
        await shows(pilot, "Three changes under 3% in a row")
        await pilot.press("r")
        await shows(pilot, "Run the script again with num_workers=4?")
        await pilot.press("r")
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert app.return_value.settings == (Setting("num_workers", 4),)


async def test_a_trial_waits_until_the_run_has_ended(tmp_path: Path) -> None:
    source = EndsLater()
    app = app_with(source, start_trial=lambda _: trials.write(tmp_path, trials.running()))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("p")
        await shows(pilot, "let this run finish first")
        await pilot.press("w")
        await shows(pilot, "Starts the trial when this run ends")
        assert not isinstance(app.screen, Trial)
        source.over.set()
        await shows(pilot, "leg 5")
        await pilot.press("q", "l")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_there_is_one_trial_at_a_time(tmp_path: Path) -> None:
    started: list[Path] = []

    def start(_: Sequence[str]) -> Path:
        started.append(trials.write(tmp_path, trials.running()))
        return started[-1]

    app = app_with(FakeSource("ended"), start_trial=start)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("p", "p")
        await shows(pilot, "leg 5")
        await pilot.press("q", "l")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("r")
        await shows(pilot, "A trial still runs")
        await pilot.press("c", "p")
        await until(pilot, lambda: isinstance(app.screen, Trial))
    assert len(started) == 1


async def test_a_trial_that_cannot_start_says_why() -> None:
    def start(_: Sequence[str]) -> Path:
        raise StartError("The trial ended at once. No room.")

    app = app_with(FakeSource("ended"), start_trial=start)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("p", "p")
        await shows(pilot, "The trial ended at once. No room.")
        assert len(app.screen_stack) == 1


async def test_without_a_choice_and_without_advice_there_is_nothing_to_prove() -> None:
    app = app_with(FakeSource("starting"), start_trial=lambda _: Path())
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("p")
        await shows(pilot, "choose a setting with t")


# The trial's own screen


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": 1, "state": "running", "table": [', "no record of it that can be read"),
        ("[]", "no record of it that can be read"),
        ('{"schema": 99}', "no record of it that can be read"),
        (
            '{"schema": 1, "state": "running", "table": 7, "progress": [], "candidates": {}}',
            "killed",
        ),
    ],
)
async def test_a_record_that_is_damaged_or_foreign_is_said_not_shown(
    tmp_path: Path, content: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputop_train.tui.screens.trial._LOOKS", 2)
    place = tmp_path / "t1"
    place.mkdir()
    (place / "trial.json").write_text(content)
    app = app_with(FakeSource("ended"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        app.watch_trial(place)
        await shows(pilot, words)
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_a_trial_whose_process_was_killed_shows_what_it_measured(tmp_path: Path) -> None:
    place = trials.write(tmp_path, trials.running() | {"start_ticks": 1})
    app = app_with(FakeSource("ended"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        app.watch_trial(place)
        await shows(pilot, "was killed")
        assert "2.39x" in text(app)


# Comparing


def two_runs(root: Path) -> None:
    for number, name in enumerate(("aaaaaa", "bbbbbb")):
        path = root / name
        path.mkdir()
        path.chmod(0o700)
        end = write_store(path, seconds=30)
        started = (1_700_000_000 + number) * S
        run_json(path, started_wall_ns=started, overrides={"num_workers": 4} if number else {})
        exit_json(path, end)


async def test_an_earlier_run_is_chosen_and_put_beside_this_one(tmp_path: Path) -> None:
    two_runs(tmp_path)
    run = {"id": "bbbbbb", "mode": "script", "script": "train.py", "compared_with": "aaaaaa"}
    app = app_with(FakeSource("ended"), run=run, root=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("c")
        await shows(pilot, "aaaaaa")
        assert isinstance(app.screen, Picker)
        assert "bbbbbb" not in "\n".join(lines(app)[1:])
        await pilot.press("enter")
        await shows(pilot, "host time a step")
        assert isinstance(app.screen, Compare)
        assert "aaaaaa with bbbbbb" in text(app)
        assert "data wait" in text(app)
        await pilot.press("x")
        await shows(pilot, "bbbbbb with aaaaaa")
        await pilot.press("down", "pagedown", "end", "home", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_any_two_runs_can_be_marked(tmp_path: Path) -> None:
    two_runs(tmp_path)
    run = {"id": "cccccc", "mode": "script", "script": "train.py"}
    app = app_with(FakeSource("ended"), run=run, root=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("c")
        await shows(pilot, "aaaaaa")
        await pilot.press("space", "down", "space", "enter")
        await shows(pilot, "bbbbbb with aaaaaa")


async def test_a_run_without_a_record_says_so_and_a_damaged_one_is_passed_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "dddddd").mkdir()
    (tmp_path / "dddddd" / "run.json").write_text("{")
    empty = tmp_path / "eeeeee"
    empty.mkdir()
    run_json(empty)
    run = {"id": "cccccc", "mode": "script", "script": "train.py"}
    app = app_with(FakeSource("ended"), run=run, root=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("c")
        await shows(pilot, "eeeeee")
        assert "dddddd" not in text(app)
        await pilot.press("enter")
        await shows(pilot, "Nothing to compare was recorded of")


async def test_a_script_that_was_run_only_once_has_nothing_to_choose_from(tmp_path: Path) -> None:
    two_runs(tmp_path)
    run = {"id": "cccccc", "mode": "script", "script": "other.py"}
    app = app_with(FakeSource("ended"), run=run, root=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("c")
        await shows(pilot, "No other run of this script")
        await pilot.press("enter", "space", "a")
        await shows(pilot, "aaaaaa")
        await pilot.press("q")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_the_overviews_keys_mean_nothing_on_the_screens_over_it() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("t", "e", "c", "y", "less_than_sign")
        assert isinstance(app.screen, Settings)
        await pilot.press("question_mark")
        await shows(pilot, "On every page")
        await pilot.press("escape", "ctrl+c")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await pilot.press("ctrl+c")
        assert isinstance(app.screen, Ask)


@pytest.mark.parametrize("size", [(40, 12), (40, 10), (80, 24)])
async def test_a_question_shows_its_answers_on_the_smallest_terminal(size: tuple[int, int]) -> None:
    app = app_with(FakeSource("starved"), start_trial=lambda _: Path())
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for keys in (("p",), ("r",), ("q",)):
            await pilot.press(*keys)
            await until(pilot, lambda: isinstance(app.screen, Ask))
            await shows(pilot, " cancel ")
            await pilot.press("c")
            await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_leaving_says_what_will_not_happen() -> None:
    app = app_with(FakeSource("starved"))
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        await pilot.press("r", "w", "q")
        await shows(pilot, "The rerun that was to follow does not happen once you leave.")


async def test_a_trial_that_is_joined_again_is_shown_pictured_and_left(tmp_path: Path) -> None:
    place = trials.write(tmp_path, trials.done())
    app = TrialApp(place, ascii=True)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "stop tuning this")
        assert text(app).isascii()
        await pilot.press("s")
        await shows(pilot, "Picture saved")
        await pilot.press("r")
        await until(pilot, lambda: app.return_value is not None)
    assert (place / "screen-1.svg").stat().st_mode & 0o777 == 0o600
    assert app.return_value is not None
    assert app.return_value.settings == (Setting("num_workers", 4),)


async def test_a_running_trial_that_is_joined_again_is_left_running(tmp_path: Path) -> None:
    app = TrialApp(trials.write(tmp_path, trials.running()))
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "leg 5")
        await pilot.press("ctrl+c")
        await shows(pilot, "come back with: gputop-train attach t3f2a1c")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.press("q", "l")
        await until(pilot, lambda: app.return_value is not None)
    assert app.return_value is not None
    assert app.return_value.settings == ()
