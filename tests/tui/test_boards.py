"""Settings, trials, runs and comparisons at every size, from records of any content."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputop_train.model import LABELS
from gputop_train.report.compare import RunSide, Times, compare
from gputop_train.tui.other_runs import OtherRun
from gputop_train.tui.paint import ASCII, UNICODE, Glyphs, Row, fit
from gputop_train.tui.trial_page import TrialPage, page
from gputop_train.tui.widgets.compare import CompareTable, compare_rows
from gputop_train.tui.widgets.picker import PickerPage, picker_rows
from gputop_train.tui.widgets.settings import SettingsPage, settings_rows
from gputop_train.tui.widgets.stack import stack
from gputop_train.tui.widgets.trial import TrialTable, trial_rows

from . import trials
from .fakes import SETTINGS
from .test_widgets import read

Painter = Callable[[int, int, Glyphs], list[Row]]
CHOICES = {("num_workers", None): 7, ("prefetch_factor", None): 4}
PAGE = SettingsPage(
    "train.py", SETTINGS, CHOICES, 3, command="gputop-train " + "x" * 200, cores=8.0
)
RUN = OtherRun("3f2a1c", "first", 1_700_000_000 * 10**9, "finished", "prep-stall", 98.1, (), True)
LIST = PickerPage("8b01de", (RUN, replace(RUN, id="000000", step_ms=None, verdict="")), 1)


def side(name: str, data_wait: float, **more: Any) -> RunSide:
    phases = dict.fromkeys(LABELS, 0.0) | trials.phases(data_wait)
    times = Times(400, sum(phases.values()), phases, 64.0)
    step = times.step_ms
    return RunSide(
        name, name, ("python", "train.py"), steps=420, step_median_ms=step, steady=times,
        whole=times, stretches_ms=(step, step * 1.01), samples_per_s=64e3 / step, **more,
    )  # fmt: skip


PAIR = compare([side("3f2a1c", 60.1), side("8b01de", 3.0, settings=("num_workers=7 (applied)",))])
PAINTERS: dict[str, Painter] = {
    "settings": lambda w, h, g: settings_rows(PAGE, w, h, g),
    "typing": lambda w, h, g: settings_rows(replace(PAGE, typing="12", message="no"), w, h, g),
    "no settings": lambda w, h, g: settings_rows(SettingsPage("x"), w, h, g),
    "trial": lambda w, h, g: trial_rows(page("t1", trials.done(), alive=False), w, h, g),
    "running trial": lambda w, h, g: trial_rows(page("t1", trials.running(), alive=True), w, h, g),
    "no trial": lambda w, h, g: trial_rows(page("t1", None, alive=False), w, h, g),
    "runs": lambda w, h, g: picker_rows(LIST, w, h, g),
    "no runs": lambda w, h, g: picker_rows(replace(LIST, rows=(), message="no"), w, h, g),
    "comparison": lambda w, h, g: compare_rows(PAIR, w, g),
}


@pytest.mark.parametrize("painter", PAINTERS)
def test_every_size_is_drawn_to_its_last_cell(painter: str) -> None:
    for width in (1, 12, 20, 40, 61, 80, 120, 200):
        for height in (1, 2, 3, 5, 12, 24, 50):
            for glyphs in (UNICODE, ASCII):
                rows = PAINTERS[painter](width, height, glyphs)
                if painter != "comparison" and height >= 12:
                    assert len(rows) == height
                for row in rows:
                    fitted = fit(row, width, glyphs)
                    assert sum(cell_len(text) for text, _ in fitted) == width
                    assert glyphs is UNICODE or read([fitted]).isascii()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_what_a_row_says_is_not_cut_where_there_is_room(width: str) -> None:
    for painter in ("settings", "trial", "runs", "comparison"):
        for row in PAINTERS[painter](int(width), 40, UNICODE):
            assert sum(cell_len(text) for text, _ in row) <= int(width), read([row])


def test_the_trial_names_every_change_its_verdict_and_what_it_came_to() -> None:
    text = read(trial_rows(page("t1", trials.done(), alive=False), 120, 40, UNICODE))
    for words in (
        "2.39x  2.31-2.48  2.10-2.70  ✓ faster",
        "1.01x  0.98-1.04          -  no difference",
        "refused",
        "it needs num_workers of at least 1",
        "waiting",
        "* changes results",
        "? what-if",
        "data wait",
        "Three changes under 3% in a row: stop tuning this.",
    ):
        assert words in text
    assert "cost/M" not in text


def test_a_price_gets_its_column_and_a_trial_without_a_gpu_none_for_it() -> None:
    body = trials.done()
    for number, row in enumerate(body["table"]):
        row |= {"cost_per_million": 1.25 * number, "gpu_busy": None, "peak_memory": None}
    text = read(trial_rows(page("t1", body, alive=False), 120, 40, UNICODE))
    assert "cost/M" in text
    assert "GPU" not in text
    assert "peak mem" not in text


def test_the_best_change_is_one_that_may_be_kept() -> None:
    best = page("t1", trials.done(), alive=False).best
    assert best is not None
    assert best.change == "num_workers=4"  # replay_batch was faster, and is a what-if
    body = trials.done()
    body["candidates"][0]["settings"] = {"num_workers": 4, "of_another_version": 1}
    assert page("t1", body, alive=False).best is None


def test_bars_share_one_scale_and_never_outgrow_their_room() -> None:
    long, short = trials.phases(60.0), trials.phases(3.0)
    longest = sum(long.values())
    for room in (1, 10, 60, 100):
        sizes = [
            sum(cell_len(text) for text, _ in stack(parts, longest, room, UNICODE))
            for parts in (long, short)
        ]
        assert sizes[0] == room
        assert sizes[1] == pytest.approx(room * sum(short.values()) / longest, abs=1)
    assert stack({}, 0.0, 10, UNICODE) == []


def test_a_comparison_says_first_where_the_difference_came_from() -> None:
    rows = compare_rows(PAIR, 100, UNICODE)
    assert read(rows[:1]).startswith(" 98.1 ms -> 41.0 ms a step (2.4x faster): data wait -57.1 ms")
    assert "num_workers=7 (applied)" in read(rows[:6])


def test_a_comparison_is_scrolled_within_its_ends() -> None:
    table = CompareTable()
    table.found, table.message = PAIR, ""
    assert "more rows below" in read(table.content(80, 20) or [])
    table.top = 10_000
    last = read(table.content(80, 20) or [])
    assert "gputop-train trial" in last
    assert "more rows below" not in last
    table.top = -5
    assert "98.1 ms" in read(table.content(80, 20) or [])


def test_the_keys_of_a_trial_are_those_that_do_something() -> None:
    table = TrialTable()
    table.page = page("t1", trials.running(), alive=True)
    assert "leave or stop" in read(table.content(80, 24) or [])
    assert " r " not in read((table.content(80, 24) or [])[-1:])
    table.page = page("t1", trials.done(), alive=False)
    assert "r how to keep it" in read((table.content(80, 24) or [])[-1:])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_stands_in_a_record_the_screen_is_drawn(data: st.DataObject) -> None:
    body = trials.done()
    for key in data.draw(st.lists(st.sampled_from(sorted(body)), max_size=4)):
        body[key] = data.draw(JSON)
    for row in body["table"] if isinstance(body["table"], list) else []:
        if isinstance(row, dict):
            for key in data.draw(st.lists(st.sampled_from(sorted(row) or ["x"]), max_size=2)):
                row[key] = data.draw(JSON)
    shown = page("t1", body, alive=data.draw(st.booleans()))
    assert isinstance(shown, TrialPage)
    for width, height in ((40, 12), (120, 40)):
        for row in trial_rows(shown, width, height, ASCII):
            fitted = fit(row, width, ASCII)
            assert sum(cell_len(text) for text, _ in fitted) == width
            assert read([fitted]).isascii()


def test_numbers_that_are_none_are_not_measured(tmp_path: Path) -> None:
    body = trials.done()
    body["table"][0] |= {"step_ms": math.nan, "time_per_sample_us": "1", "peak_memory": True}
    row = page("t1", body, alive=False).rows[0]
    assert (row.step_ms, row.time_per_sample_us, row.peak_bytes) == (None, None, None)
