"""The steps page on real stores: what it says of a step, how it looks, what its keys do."""

from __future__ import annotations

import time
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.model import LABELS, Interval, Site, Step
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from gputop_train.tui.application import GputopApp
from gputop_train.tui.gather.step_words import all_recorded, ordinal, reasons, recorded, unsampled
from gputop_train.tui.gather.steps import histogram, medians, step_row
from gputop_train.tui.paint import ASCII, UNICODE, Glyphs, fit, width_of
from gputop_train.tui.playback import Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.screens.steps import StepsPage
from gputop_train.tui.snapshot import Snapshot, View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.views.steps import Reason, StepRow, StepsView
from gputop_train.tui.widgets.histogram import histogram_rows, tick_text, ticks
from gputop_train.tui.widgets.steplanes import detail_rows
from gputop_train.tui.widgets.steps import StepsState, steps_rows
from tests.store_support import any_steps

from . import made_steps
from .driving import lines, settle, until
from .made_run import MS, START, S

RECORDINGS = Path(__file__).parents[2] / "demos" / "recordings"
SIZES = {"120x40": (120, 40), "80x24": (80, 24), "40x12": (40, 12), "200x60": (200, 60)}
VIEW = View(window_s=60, columns=100, page="steps")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "3f2a"


def seen(run_dir: Path, end: int, view: View = VIEW) -> StepsView:
    source = LiveSource(run_dir, now_ns=lambda: end)
    found = source.read(view).steps
    source.close()
    assert found is not None
    return found


def row_of(view: StepsView, number: int) -> StepRow:
    return next(row for row in (*view.newest, *view.slowest) if row.number == number)


# What is said of a step


def test_steps_come_newest_first_and_slowest_first_with_what_set_them_apart(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    view = seen(run_dir, end)
    assert view.count == 240
    assert [row.number for row in view.newest[:3]] == [240, 239, 238]
    walls = [row.wall_ms for row in view.slowest]
    assert walls == sorted(walls, reverse=True)
    assert len(view.slowest) == 100
    save = row_of(view, 121)
    assert save.why == (Reason("checkpoint", 760.0, "1.8 GB, train.py:88"),)
    assert (save.pauses[0].begin_ms, save.pauses[0].end_ms) == (1.0, 761.0)
    assert row_of(view, 101).why == (Reason("eval", 1100.0, "train.py:62"),)
    assert row_of(view, 151).why == (Reason("data_wait", 320.0, "16.0x its median"),)
    assert row_of(view, 171).why == (
        Reason("backward", 5.0, "usually 40.0 ms"),
        Reason("data_wait", 2.0, "usually 20.0 ms"),
    )
    assert row_of(view, 1).why[0] == Reason("first step")
    assert row_of(view, 240).why == ()
    assert view.unsampled == "every 5th is"


def test_numbers_are_those_of_the_store(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    view = seen(run_dir, end)
    with RunReader(run_dir) as reader:
        steps = {step.index + 1: step for step in reader.steps(rank=0)}
    assert view.median_ms == pytest.approx(np.median([s.wall_ns for s in steps.values()]) / 1e6)
    for row in (*view.newest, *view.slowest):
        step = steps[row.number]
        assert row.wall_ms == step.wall_ns / 1e6
        assert row.at_s == (step.t1_ns - START) / 1e9
        assert sum(ms for _, ms in row.parts) == pytest.approx(row.wall_ms)
        assert dict(row.parts) == {k: v / 1e6 for k, v in step.labels.items() if v}
        assert (row.idle is None) == (step.exposed is None)
    assert view.histogram is not None
    assert sum(view.histogram.counts) == 240


def test_a_window_holds_its_own_steps_and_the_newest_ones_where_there_are_few(
    run_dir: Path,
) -> None:
    end = made_steps.write(run_dir)
    view = seen(run_dir, end, View(window_s=15, columns=100, page="steps"))
    with RunReader(run_dir) as reader:
        assert view.count == len(reader.steps(end - 15 * S, rank=0)) < 240
    late = seen(run_dir, end + 500 * S)
    assert late.count == 20
    assert late.newest[0].number == 240


def test_once_the_script_is_over_its_last_steps_are_shown_however_long_it_went_on(
    run_dir: Path,
) -> None:
    end = made_steps.write(run_dir, ended=True)
    made_steps.exit_json(run_dir, end + 3600 * S)
    assert seen(run_dir, end).count == 240


def test_steps_kept_by_the_second_only_are_counted_and_not_shown(run_dir: Path) -> None:
    made_steps.write(run_dir, 0)
    wall = 500 * MS
    steps = [
        Step(0, i, START + i * wall, START + (i + 1) * wall, {"other": wall}) for i in range(3000)
    ]
    end = steps[-1].t1_ns
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.add_steps(steps)
        writer.commit()
        writer.prune(end)
        writer.commit()
    view = seen(run_dir, end, View(window_s=3600, columns=100, page="steps"))
    assert view.count < 3000
    assert view.count + view.older == pytest.approx(3000, abs=4)  # seconds are whole


def test_of_too_few_steps_none_is_called_slow_or_quick(run_dir: Path) -> None:
    end = made_steps.write(run_dir, 4)
    assert {row.why for row in seen(run_dir, end).newest} == {()}


def test_each_rank_is_read_alone(run_dir: Path) -> None:
    end = made_steps.write(run_dir, ranks=3)
    view = seen(run_dir, end)
    assert (view.rank, view.ranks, view.count) == (0, (0, 1, 2), 240)
    assert view.newest[0].why == ()
    other = seen(run_dir, end, replace(VIEW, rank=2))
    assert (other.rank, other.count) == (2, 240)
    assert seen(run_dir, end, replace(VIEW, rank=7)).rank == 0


def test_a_run_without_steps_has_none(run_dir: Path) -> None:
    end = made_steps.write(run_dir, 0)
    assert seen(run_dir, end) == StepsView()


def step(labels: dict[str, int], index: int = 7, measured: int | None = None) -> Step:
    wall = sum(labels.values())
    timed = wall if measured is None else measured
    return Step(0, index, 0, wall, dict.fromkeys(LABELS, 0) | labels, measured_ns=timed)


COMMON = dict.fromkeys(LABELS, 0.0) | {"data_wait": 1e7, "backward": 4e7}


def test_estimated_parts_are_never_blamed_and_interruptions_always_named() -> None:
    slow = step({"data_wait": 90 * MS, "backward": 40 * MS}, measured=0)
    assert reasons(slow, COMMON, 5e7, timed=False) == (Reason("its parts were not timed"),)
    saved = step({"backward": 90 * MS, "checkpoint": 60 * MS}, measured=60 * MS)
    assert reasons(saved, COMMON, 5e7, timed=False) == (Reason("checkpoint", 60.0),)


def test_a_step_counts_as_unrecorded_only_where_some_are() -> None:
    waited = {"data_wait": 90 * MS, "backward": 40 * MS, "eval": 10 * MS}
    assert not recorded(step(waited, measured=100 * MS))
    assert recorded(step(waited, measured=101 * MS))
    assert all_recorded(None)
    assert all_recorded({"detail": {"recorded": 9, "steps": 9}})
    assert not all_recorded({"detail": {"recorded": 8, "steps": 9}})


def test_a_slow_step_of_which_nothing_stands_out_says_so() -> None:
    even = step({"data_wait": 12 * MS, "backward": 50 * MS})
    assert reasons(even, COMMON, 5e7) == (Reason("no part stands out"),)
    assert reasons(step({"data_wait": 10 * MS, "backward": 44 * MS}), COMMON, 5e7) == ()


def test_what_usually_takes_no_time_is_said_to() -> None:
    read = step({"data_wait": 10 * MS, "backward": 40 * MS, "sync": 30 * MS})
    assert reasons(read, COMMON, 5e7) == (Reason("sync", 30.0, "usually none"),)
    wait = step({"data_wait": 3000 * MS, "backward": 40 * MS})
    assert reasons(wait, COMMON, 5e7) == (Reason("data_wait", 3000.0, "usually 10.0 ms"),)


def test_many_pauses_are_one_reason_with_their_number_and_no_place_where_they_differ() -> None:
    pauses = [Interval(0, "gc", i, i + 5, site) for i, site in ((0, 1), (10, 2), (20, 2))]
    sites = {n: Site(0, n, "gc", "/p/a.py", n, "f", "gc") for n in (1, 2)}
    found = reasons(step({"backward": 40 * MS, "gc": 30 * MS}), COMMON, 5e7, pauses, sites)
    assert found == (Reason("gc", 30.0, "3 times"),)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "no GPU events in this run"),
        ({"gpu_events": {"every": 3, "off_reason": None}}, "every 3rd is"),
        ({"gpu_events": {"every": 1}}, "most are"),
        ({"gpu_events": {"every": None}}, "no GPU events so far"),
        (
            {"gpu_events": {"every": 3, "off_reason": "a graph is captured"}},
            "GPU events are off: a graph is captured",
        ),
    ],
)
def test_why_a_step_carries_no_gpu_events(state: dict[str, Any] | None, words: str) -> None:
    assert unsampled(state) == words


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 47, 102, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "47th", "102nd", "111th")
    ]


# The histogram


def test_every_step_is_in_a_bin_whatever_the_spread() -> None:
    random = np.random.default_rng(7)
    for walls in (
        random.lognormal(3, 0.05, 500),
        random.lognormal(3, 2, 500),
        np.full(50, 3.0),
        np.asarray([1.0, 1e6]),
        np.asarray([0.0, 5.0, 5.0]),
    ):
        found = histogram(walls)
        assert found is not None
        assert sum(found.counts) == len(walls)
        assert found.log == (walls.min() > 0 and walls.max() / walls.min() > 6)
        assert len(found.edges) == len(found.counts) + 1
        for glyphs in (UNICODE, ASCII):
            rows = histogram_rows(found, [("median", float(np.median(walls)))], 90, 8, glyphs)
            assert {width_of(row) for row in rows} == {90}
    assert histogram(np.asarray([3.0])) is None
    assert histogram(np.zeros(4)) is None


def test_one_step_among_thousands_is_still_seen() -> None:
    found = histogram(np.asarray([10.0] * 5000 + [20.0]))
    assert found is not None
    rows = histogram_rows(found, [], 100, 8, UNICODE)
    assert "".join(text for text, _ in rows[-2]).rstrip().endswith("▁")


@pytest.mark.parametrize(
    ("low", "high", "log", "words"),
    [
        (8.8, 2500.0, True, ["10 ms", "100 ms", "1 s"]),
        (11.0, 70.0, True, ["20 ms", "50 ms"]),
        (242.0, 428.0, False, ["250 ms", "300 ms", "350 ms", "400 ms"]),
        (0.31, 0.52, False, ["0.35 ms", "0.4 ms", "0.45 ms", "0.5 ms"]),
    ],
)
def test_the_axis_has_round_numbers(low: float, high: float, log: bool, words: list[str]) -> None:
    assert [tick_text(ms) for ms in ticks(low, high, log=log)] == words


# The GPU beside the host


def gpu_of(exposed: dict[str, int], dry: float | None, labels: dict[str, int]) -> tuple[str, str]:
    """The GPU's lane and what is said of it."""
    sampled = replace(step(labels), exposed=exposed, dry=dry)
    row = step_row(sampled, medians([sampled]), sampled.wall_ns)
    rows = [
        "".join(text for text, _ in row) for row in detail_rows(row, StepsView(), 109, 9, ASCII)
    ]
    at = next(number for number, text in enumerate(rows) if text.startswith(" GPU"))
    return rows[at][8:108], rows[at + 1].strip()


def test_interruptions_lie_where_they_were_in_the_step() -> None:
    slow = step({"backward": 60 * MS, "checkpoint": 30 * MS, "eval": 10 * MS})
    pauses = [
        Interval(0, "checkpoint", slow.t0_ns + 20 * MS, slow.t0_ns + 50 * MS),
        Interval(0, "eval", slow.t0_ns + 90 * MS, slow.t0_ns + 100 * MS),
    ]
    row = step_row(slow, medians([slow]), slow.wall_ns, pauses)
    rows = detail_rows(row, StepsView(), 109, 10, ASCII)
    lanes = [[span for span in row if span[0].strip()] for row in rows]
    (when,) = [spans for spans in lanes if spans and spans[0][0].strip() == "when"]
    assert [(text.strip(), ink) for text, ink in when[1:]] == [
        ("-" * 20, "faint"),
        ("#" * 30, "checkpoint"),
        ("-" * 40, "faint"),
        ("#" * 10, "eval"),
    ]
    plain = step_row(slow, medians([slow]), slow.wall_ns)
    assert not any(
        text.strip() == "when"
        for row in detail_rows(plain, StepsView(), 109, 10, ASCII)
        for text, _ in row[:1]
    )


PARTS = {"data_wait": 50 * MS, "forward": 20 * MS, "backward": 20 * MS, "gpu_wait": 10 * MS}


def test_a_gpu_that_never_ran_out_of_work_was_busy_all_the_time() -> None:
    lane, words = gpu_of({"data_wait": 2_000}, 0.0, PARTS)
    assert lane == "#" * 100
    assert words == "GPU busy all the time"


def test_after_a_wait_it_idled_in_nothing_is_told_of_the_gpu_but_where_the_host_waits_for_it() -> (
    None
):
    lane, words = gpu_of({"data_wait": 40 * MS}, 0.0, PARTS)
    assert lane == "#" * 10 + "-" * 40 + "." * 40 + "#" * 10
    assert words == "GPU idle up to 40.0 ms in the host's waits: data wait 40.0 ms"


def test_a_queue_found_empty_is_told_and_its_parts_are_not_called_busy() -> None:
    lane, words = gpu_of({"data_wait": 2_000}, 1.0, PARTS)
    assert lane == "#" * 50 + "." * 40 + "#" * 10
    assert words == (
        "GPU not idle in the host's waits; its queue had run empty at 100% of the other edges"
    )


# On real recordings


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.zip")))
def test_of_a_recording_each_step_that_an_interruption_held_up_says_so(
    name: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(RECORDINGS / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    run_dir = next(tmp_path.rglob("run.sqlite")).parent
    source = ReplaySource(run_dir, Playback(speed=1e-9))
    source.read(VIEW)
    source.playback.seek(1e9)
    view = source.read(View(window_s=3600, columns=100, page="steps")).steps
    source.close()
    assert view is not None
    with RunReader(run_dir) as reader:
        steps = {step.t1_ns: step for step in reader.steps(rank=view.rank)}
    assert view.count == len(steps)
    for row in (*view.newest, *view.slowest):
        labels = steps[row.t1_ns].labels
        named = {reason.what for reason in row.why}
        for label in ("checkpoint", "eval"):
            assert (label in named) == (labels[label] >= 0.03 * row.wall_ms * 1e6)
        assert named <= {*LABELS, "first step", "no part stands out", "its parts were not timed"}
    for size in SIZES.values():
        for state in (StepsState(view), StepsState(view, 3, slowest=True, opened=True, newer=2)):
            for glyphs in (UNICODE, ASCII):
                rows = steps_rows(state, size[0], size[1] - 4, glyphs)
                assert len(rows) <= size[1] - 4
                assert {width_of(row) for row in rows if row} == {size[0]}
                assert not glyphs.ascii or all(text.isascii() for row in rows for text, _ in row)


# The page


def app_on(run_dir: Path, end: int, *, replay: bool = False, ascii: bool = False) -> GputopApp:
    if not replay:
        return GputopApp(LiveSource(run_dir, now_ns=lambda: end), ascii=ascii, hz=20.0)
    source = ReplaySource(run_dir, Playback(speed=1.0, clock=lambda: 0.0))
    source.playback.toggle()
    return GputopApp(source, replay=source.playback, ascii=ascii, hz=20.0)


async def opened(pilot: Any) -> None:
    """The page is in front and shows steps, or why there are none."""
    await settle(pilot)
    await pilot.press("2")
    await until(pilot, lambda: isinstance(pilot.app.screen, StepsPage))
    await until(pilot, lambda: shown(pilot.app).state.view is not None)
    await pilot.pause()


def shown(app: GputopApp) -> Any:
    return app.screen._board  # type: ignore[attr-defined]


STATES: dict[str, Callable[[Path], int]] = {
    "live": made_steps.write,
    "no_gpu": lambda path: made_steps.write(path, gpu=False),
    "eight_gpus": lambda path: made_steps.write(path, ranks=8),
    "ended": lambda path: made_steps.write(path, ended=True),
    "unrecorded": lambda path: made_steps.write(path, gpu=False, recorded=False),
    "starting": lambda path: made_steps.write(path, 0),
    "replay": made_steps.write,
}
PICTURES = [
    *(("live", size, "") for size in SIZES),
    *(("live", size, "o j enter") for size in ("80x24", "40x12")),
    ("live", "40x12", "j j"),
    ("live", "120x40", "o j j j"),
    ("live", "120x40", "j j space"),
    ("no_gpu", "120x40", "o j"),
    ("no_gpu", "80x24", ""),
    ("eight_gpus", "120x40", ""),
    ("ended", "80x24", "o"),
    ("unrecorded", "120x40", "o j j j"),
    ("starting", "80x24", ""),
    ("starting", "40x12", ""),
    ("replay", "120x40", "end"),
]


@pytest.mark.parametrize(("state", "size", "keys"), PICTURES)
def test_the_page_looks_as_agreed(
    state: str, size: str, keys: str, run_dir: Path, snap_compare: Any
) -> None:
    end = STATES[state](run_dir)

    async def drive(pilot: Any) -> None:
        await opened(pilot)
        await pilot.press(*keys.split())
        if state == "replay":
            await until(pilot, lambda: bool(shown(pilot.app).state.rows))
        await pilot.pause()

    app = app_on(run_dir, end, replay=state == "replay")
    assert snap_compare(app, terminal_size=SIZES[size], run_before=drive)


def test_the_page_in_plain_ascii_looks_as_agreed(run_dir: Path, snap_compare: Any) -> None:
    end = made_steps.write(run_dir)

    async def drive(pilot: Any) -> None:
        await opened(pilot)
        await pilot.press("o", "j")
        await pilot.pause()

    app = app_on(run_dir, end, ascii=True)
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=drive)


@asynccontextmanager
async def growing(run_dir: Path, size: tuple[int, int]) -> AsyncIterator[tuple[Any, Any]]:
    """The page on a run that makes ten more steps whenever it is told to."""
    end = made_steps.write(run_dir)
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end + ticks_ns()), hz=20.0)
    began = time.monotonic_ns()

    def ticks_ns() -> int:
        return time.monotonic_ns() - began

    count = 240

    def more() -> None:
        nonlocal count
        count += 10
        with RunWriter(run_dir / "run.sqlite") as writer:
            writer.add_steps(made_steps.made(count)[-10:])
            writer.commit()

    async with app.run_test(size=size) as pilot:
        await opened(pilot)
        yield pilot, more


async def test_the_newest_step_is_followed_until_another_one_is_selected(run_dir: Path) -> None:
    async with growing(run_dir, (120, 40)) as (pilot, more):
        board = shown(pilot.app)
        more()
        await until(pilot, lambda: board.state.rows[0].number == 250)
        await pilot.press("down", "j")
        assert board.state.cursor == 2
        chosen = board.state.rows[2].number
        more()
        await until(pilot, lambda: board.state.newer == 10)
        assert board.state.rows[board.state.cursor].number == chosen
        assert any("held, 10 newer, home follows" in line for line in lines(pilot.app))
        await pilot.press("home")
        await until(pilot, lambda: board.state.rows[0].number == 260)
        assert (board.state.newer, board.state.cursor) == (None, 0)
        more()
        await until(pilot, lambda: board.state.rows[0].number == 270)


async def test_a_frozen_view_stays_and_can_still_be_walked_through(run_dir: Path) -> None:
    async with growing(run_dir, (120, 40)) as (pilot, more):
        board = shown(pilot.app)
        await pilot.press("space")
        await until(pilot, lambda: any("frozen" in line for line in lines(pilot.app)))
        newest = board.state.rows[0].number
        more()
        await pilot.press("j")
        await pilot.pause(0.5)
        assert board.state.rows[0].number == newest
        assert board.state.cursor == 1
        await pilot.press("space", "home")
        await until(pilot, lambda: board.state.rows[0].number > newest)


async def test_keys_choose_the_order_the_row_and_what_is_taken_apart(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    async with app_on(run_dir, end).run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        board = shown(pilot.app)
        assert not board.taken_apart
        await pilot.press("o")
        assert board.state.slowest
        slowest = [row.number for row in board.state.rows]
        assert slowest[0] == 101
        await pilot.press("pagedown", "k")
        assert board.state.cursor == 9
        await pilot.press("enter")
        assert board.taken_apart
        text = "\n".join(lines(pilot.app))
        assert f"step {slowest[9]} " in text
        assert "host" in text
        await pilot.press("G")
        assert board.state.cursor == len(slowest) - 1
        await pilot.press("enter", "o", "g")
        assert not board.taken_apart
        assert not board.state.slowest
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, StepsPage))


async def test_a_step_that_was_not_sampled_says_so_and_a_sampled_one_shows_the_gpu(
    run_dir: Path,
) -> None:
    end = made_steps.write(run_dir)
    async with app_on(run_dir, end).run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        board = shown(pilot.app)
        texts = {}
        for _ in range(6):
            number = board.state.rows[board.state.cursor].number
            texts[number] = "\n".join(lines(pilot.app))
            await pilot.press("j")
            await pilot.pause()
        for number, text in texts.items():
            sampled = (number - 1) % made_steps.EVERY == 0
            assert ("GPU not sampled in this step: every 5th is" in text) != sampled
            assert ("GPU idle up to 15.0 ms in the host's waits: data wait" in text) == sampled


async def test_brackets_go_to_the_steps_of_another_rank(run_dir: Path) -> None:
    end = made_steps.write(run_dir, ranks=3)
    async with app_on(run_dir, end).run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        board = shown(pilot.app)
        await until(
            pilot, lambda: any("rank 0 of 3, [ ] others" in row for row in lines(pilot.app))
        )
        await pilot.press("j", "right_square_bracket")
        await until(pilot, lambda: board.state.view.rank == 1)
        assert board.state.newer is None
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: board.state.view.rank == 0)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: board.state.view.rank == 2)


async def test_a_step_is_copied_in_words(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), run_dir=run_dir, hz=20.0)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot)
        await pilot.press("o", "j", "j", "y")
        await until(pilot, (run_dir / "step.txt").exists)
        number = shown(pilot.app).state.rows[2].number
        await pilot.pause()
        text = (run_dir / "step.txt").read_text()
    assert text == app.clipboard
    assert text.startswith(f"step {number} · 922 ms · 9.1x the median")
    assert "why: checkpoint 820 ms (1.8 GB, train.py:88)\n" in text
    assert "host: checkpoint 820 ms, backward 40.0 ms, " in text
    assert "GPU idle up to 805 ms in the host's waits: checkpoint 790 ms" in text


async def test_another_window_releases_what_is_held(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    async with app_on(run_dir, end).run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        board = shown(pilot.app)
        await pilot.press("j")
        count = board.state.view.count
        await pilot.press("minus", "minus")
        await until(pilot, lambda: board.state.view.count < count)
        assert board.state.newer is None


async def test_a_replay_that_is_moved_back_shows_the_steps_of_then(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    app = app_on(run_dir, end, replay=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        await pilot.press("end")
        board = shown(app)
        await until(pilot, lambda: bool(board.state.rows) and board.state.rows[0].number == 240)
        await pilot.press("j", "j", "left")
        await until(pilot, lambda: board.state.rows[0].number < 200)
        assert board.state.newer is None


@settings(max_examples=50, deadline=None)
@given(
    any_steps(),
    st.integers(20, 220),
    st.integers(1, 60),
    st.booleans(),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.sampled_from([UNICODE, ASCII]),
)
def test_any_steps_are_drawn_at_any_size(
    steps: list[Step],
    width: int,
    height: int,
    slowest: bool,
    opened: bool | None,
    newer: int | None,
    glyphs: Glyphs,
) -> None:
    usual, walls_ms = medians(steps), np.asarray([s.wall_ns / 1e6 for s in steps])
    median_ns = float(np.median(walls_ms)) * 1e6
    pause = Interval(0, "eval", 0, steps[0].wall_ns)
    rows = tuple(step_row(s, usual, median_ns, [pause], origin_ns=-5) for s in steps)
    view = StepsView(
        rows,
        tuple(sorted(rows, key=lambda row: -row.wall_ms)),
        count=len(rows),
        median_ms=median_ns / 1e6,
        histogram=histogram(walls_ms),
        has_gpu=True,
    )
    drawn = steps_rows(
        StepsState(view, 3, slowest=slowest, opened=opened, newer=newer), width, height, glyphs
    )
    for row in drawn:
        assert width_of(fit(row, width, glyphs)) == width
        assert all(text.isprintable() for text, _ in row)
        assert not glyphs.ascii or all(text.isascii() for text, _ in row)


class Failing(LiveSource):
    """A source whose store goes bad when it is told to."""

    failing = False

    def read(self, view: View) -> Snapshot:
        if self.failing:
            raise StoreError("The store is damaged. Its output.log is still good to read.")
        return super().read(view)


async def test_steps_stay_when_the_store_goes_bad_and_the_reason_is_told(run_dir: Path) -> None:
    end = made_steps.write(run_dir)
    source = Failing(run_dir, now_ns=lambda: end)
    async with GputopApp(source, hz=20.0).run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        await until(pilot, lambda: bool(shown(pilot.app).state.rows))
        source.failing = True
        await until(pilot, lambda: any("The store is damaged" in line for line in lines(pilot.app)))
        assert shown(pilot.app).state.rows[0].number == 240
        await pilot.press("o")
        assert shown(pilot.app).state.rows[0].number == 101
