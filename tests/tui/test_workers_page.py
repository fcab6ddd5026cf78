"""The workers page on real stores: loaders, their processes, the cores, and how it looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.tui.application import GputopApp
from gputop_train.tui.paint import ASCII, UNICODE, fit, width_of
from gputop_train.tui.screens.workers import WorkersPage
from gputop_train.tui.snapshot import Axis, RunView, Snapshot, View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.views.workers import WorkersPageView
from gputop_train.tui.widgets.workers_page import workers_page_rows

from . import made_workers
from .anything import records_of
from .driving import lines, settle, until
from .test_steps_page import SIZES

VIEW = View(window_s=60, columns=100, page="workers")
MIB = 1 << 20
STATES: dict[str, Callable[[Path], int]] = {
    "four": made_workers.write,
    "many": lambda path: made_workers.write(path, 64),
    "none": lambda path: made_workers.write(path, 0),
    "several": lambda path: made_workers.write(path, 8, loaders=3),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "3f2a"


def seen(run_dir: Path, state: str, view: View = VIEW) -> tuple[Snapshot, WorkersPageView]:
    end = STATES[state](run_dir)
    source = LiveSource(run_dir, now_ns=lambda: end)
    snapshot = source.read(view)
    source.close()
    assert snapshot.workers_page is not None
    return snapshot, snapshot.workers_page


def text_of(snapshot: Snapshot, width: int = 120, height: int = 36) -> str:
    rows = workers_page_rows(snapshot, width, height, UNICODE)
    return "\n".join("".join(text for text, _ in row) for row in rows)


def test_a_loader_is_told_with_its_settings_and_whether_it_keeps_up(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "four")
    (loader,) = view.loaders
    assert loader.place == "train.py:41"
    assert dict(loader.settings)["prefetch_factor"] == "2"
    # A step of 100 ms waits 60 of them; workers take 183 ms on average, without the slowest batch.
    assert loader.wants_ms == pytest.approx(40.0)
    assert loader.gives_ms == pytest.approx(183 / 4, rel=0.02)
    said = text_of(snapshot)
    assert "too slow: training could take one every 40.0 ms" in said
    assert "feeds training" in said and "1,281,167 items" in said


def test_each_worker_has_its_own_readings(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "four")
    workers = view.loaders[0].workers
    assert [worker.pid for worker in workers] == [5000, 5001, 5002, 5003]
    assert [worker.memory for worker in workers] == [(250 + n) * MIB for n in range(4)]
    assert workers[0].reads_per_s == 3e6
    assert all(any(v is not None for v in worker.history) for worker in workers)
    row = next(line for line in text_of(snapshot).splitlines() if line.startswith(" w0 "))
    assert "2.9 MiB/s" in row and "250 MiB" in row and "180 ms" in row


def test_who_has_the_cores_is_told(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "four")
    cores = view.cores
    assert cores is not None
    assert (cores.trainer, cores.main_thread) == (1.6, 0.97)
    assert cores.busy is not None and cores.workers is not None and cores.others is not None
    assert cores.others == pytest.approx(cores.busy - 1.6 - cores.workers)
    said = text_of(snapshot)
    assert "its main thread 0.97" in said
    assert "idle that this run could use" in said


def test_cores_that_are_fought_for_are_called_so(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "many")
    assert view.cores is not None
    assert view.cores.denied == pytest.approx(0.1 + 64 * 0.02)
    assert "oversubscribed: 1.4 more wanted" in text_of(snapshot)


@pytest.mark.parametrize(("width", "height"), [(120, 36), (80, 20), (40, 9), (300, 96)])
def test_sixty_four_workers_all_have_a_place(run_dir: Path, width: int, height: int) -> None:
    snapshot, view = seen(run_dir, "many")
    rows = workers_page_rows(snapshot, width, height, UNICODE)
    assert len(rows) <= height
    said = "\n".join("".join(text for text, _ in row) for row in rows)
    if width >= 80:
        assert all(f"w{n} " in said for n in range(64))
    else:
        marks = [text for row in rows for text, ink in row if ink == "data_wait"]
        assert len("".join(marks).replace(" ", "")) == len(view.loaders[0].workers) == 64


def test_a_worker_that_was_not_seen_has_no_numbers(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "four")
    gone = replace(view.loaders[0].workers[1], cpu=None, state=None, memory=None, history=())
    loader = replace(view.loaders[0], workers=(view.loaders[0].workers[0], gone))
    page = replace(view, loaders=(loader,))
    said = text_of(replace(snapshot, workers_page=page))
    row = next(line for line in said.splitlines() if line.startswith(" w1 "))
    assert "not seen" in row and "0%" not in row


def test_without_workers_the_training_process_makes_the_batches(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "none")
    assert view.loaders[0].workers == ()
    assert "176 ms to make a batch · in the training process" in text_of(snapshot)


async def test_the_arrows_show_another_loader(run_dir: Path) -> None:
    end = made_workers.write(run_dir, 8, loaders=3)
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), hz=20.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("5")
        await until(pilot, lambda: any(">train.py:41" in line for line in lines(app)))
        await pilot.press("down")
        await until(pilot, lambda: any(">evaluate.py:88" in line for line in lines(app)))


@settings(max_examples=20, deadline=None)
@given(records_of(WorkersPageView), st.integers(1, 220), st.integers(1, 70), st.booleans())
def test_whatever_was_read_fits(
    view: WorkersPageView, width: int, height: int, ascii: bool
) -> None:
    glyphs = ASCII if ascii else UNICODE
    view = replace(view, chosen=view.chosen % max(1, len(view.loaders)))
    axis = Axis(0, 60_000_000_000, 20)
    snapshot = Snapshot(RunView("a", "b"), "live", axis, workers_page=view)
    rows = workers_page_rows(snapshot, width, height, glyphs)
    assert len(rows) <= height
    assert all(width_of(fit(row, width, glyphs)) == width for row in rows)


PICTURES = [
    *(("many", size) for size in SIZES),
    ("four", "120x40"),
    ("four", "80x24"),
    ("none", "80x24"),
    ("several", "120x40"),
]


@pytest.mark.parametrize(("state", "size"), PICTURES)
def test_the_page_looks_as_agreed(state: str, size: str, run_dir: Path, snap_compare: Any) -> None:
    end = STATES[state](run_dir)

    async def drive(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("5")
        await until(pilot, lambda: isinstance(pilot.app.screen, WorkersPage))
        await until(pilot, lambda: pilot.app.screen.snapshot is not None)
        await pilot.pause()

    plain = (state, size) == ("four", "80x24")
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), ascii=plain, hz=20.0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=drive)
