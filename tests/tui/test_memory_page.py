"""The memory page on real stores: what it says of what is held, and how it looks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.tui.application import GputopApp
from gputop_train.tui.paint import ASCII, UNICODE, fit, width_of
from gputop_train.tui.playback import Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.screens.memory import MemoryPage
from gputop_train.tui.snapshot import Axis, RunView, Snapshot, View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.views.memory import MemoryPageView
from gputop_train.tui.widgets.memory_page import memory_page_rows, plot_of

from . import made_memory
from .anything import records_of
from .driving import settle, until
from .made_memory import GIB
from .test_steps_page import SIZES

VIEW = View(window_s=60, columns=100, page="memory")
STATES: dict[str, Callable[[Path], int]] = {
    "leaking": lambda path: made_memory.write(path, grows=0.5 * GIB),
    "steady": lambda path: made_memory.write(path, neighbour=True),
    "out_of_memory": lambda path: made_memory.write(path, oom=True),
    "no_gpu": lambda path: made_memory.write(path, gpu=False),
    "starting": lambda path: made_memory.write(path, seconds=0),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "3f2a"


def seen(run_dir: Path, state: str) -> tuple[Snapshot, MemoryPageView]:
    end = STATES[state](run_dir)
    source = LiveSource(run_dir, now_ns=lambda: end)
    snapshot = source.read(VIEW)
    source.close()
    assert snapshot.memory_page is not None
    return snapshot, snapshot.memory_page


def text_of(snapshot: Snapshot, width: int = 120, height: int = 36) -> str:
    rows = memory_page_rows(snapshot, width, height, UNICODE)
    return "\n".join("".join(text for text, _ in row) for row in rows)


def test_growth_is_told_with_when_memory_ends(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "leaking")
    # 0.5 GiB a second in ten steps a second; 15.5 GiB free and 3.8 GiB in the pool after a minute.
    assert view.growth.per_step == pytest.approx(0.05 * GIB, rel=0.02)
    assert view.growth.full_s == pytest.approx((80 - 35 - 29.5 + 4) / 0.5, rel=0.1)
    assert "+51.2 MiB a step" in text_of(snapshot)
    assert "at this rate" in text_of(snapshot)


def test_what_rests_is_steady_and_has_no_end(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "steady")
    assert view.growth.per_step is None and view.growth.full_s is None
    assert "steady: the low-water marks show no rising trend" in text_of(snapshot)


def test_what_is_held_by_whom_is_told_as_measured(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "steady")
    assert (view.used, view.ours, view.total) == (44 * GIB, 35 * GIB, 80 * GIB)
    assert view.held[2] == ("optimizer state", 12 * GIB)
    said = text_of(snapshot)
    assert "python3 4711 9.0 GiB" in said
    assert "1.0 GiB of it beside the pool" in said
    assert "4 workers 1.2 GiB (USS)" in said
    assert "optimizer state 12.0 GiB  40%" in said


def test_an_out_of_memory_error_is_shown_with_its_line(run_dir: Path) -> None:
    snapshot, _ = seen(run_dir, "out_of_memory")
    said = text_of(snapshot)
    assert "the last out-of-memory error" in said
    assert "train.py:62" in said
    assert "4 retries after a flush" in said


def test_a_replay_knows_nothing_of_what_is_still_to_come(run_dir: Path) -> None:
    made_memory.write(run_dir, oom=True)
    source = ReplaySource(run_dir, Playback(speed=1e-9))
    source.read(VIEW)
    source.playback.seek(4)  # tensors are counted after 5 s, memory runs out after 50
    early = source.read(VIEW).memory_page
    source.playback.seek(40)
    later = source.read(VIEW).memory_page
    source.playback.seek(100)
    end = source.read(VIEW).memory_page
    source.close()
    assert early is not None and later is not None and end is not None
    assert (early.held, early.oom) == ((), ())
    assert later.held and later.oom == ()
    assert any("train.py:62" in line for line in end.oom)


def test_without_a_gpu_it_is_private_memory_and_says_so(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "no_gpu")
    assert (view.basis, view.used, view.reserved) == ("rss-anon", None, None)
    said = text_of(snapshot)
    assert "trainer, private" in said and "workers, USS" in said
    assert "allocator" not in said and "on the card" not in said


def test_the_scale_is_the_device_once_half_of_it_is_held(run_dir: Path) -> None:
    snapshot, view = seen(run_dir, "leaking")
    plot = plot_of(snapshot, view)
    assert plot.top == plot.limit == 80 * GIB


AXIS = Axis(0, 60_000_000_000, 20)


@settings(max_examples=20, deadline=None)
@given(records_of(MemoryPageView), st.integers(1, 220), st.integers(1, 70), st.booleans())
def test_whatever_was_read_fits(view: MemoryPageView, width: int, height: int, ascii: bool) -> None:
    glyphs = ASCII if ascii else UNICODE
    snapshot = Snapshot(RunView("a", "b"), "live", AXIS, memory_page=view)
    rows = memory_page_rows(snapshot, width, height, glyphs)
    assert 0 < len(rows) <= height
    assert all(width_of(fit(row, width, glyphs)) == width for row in rows)


PICTURES = [
    *(("leaking", size) for size in SIZES),
    ("steady", "80x24"),
    ("out_of_memory", "120x40"),
    ("no_gpu", "120x40"),
    ("no_gpu", "40x12"),
    ("starting", "80x24"),
]


@pytest.mark.parametrize(("state", "size"), PICTURES)
def test_the_page_looks_as_agreed(state: str, size: str, run_dir: Path, snap_compare: Any) -> None:
    end = STATES[state](run_dir)

    async def drive(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press("4")
        await until(pilot, lambda: isinstance(pilot.app.screen, MemoryPage))
        await until(pilot, lambda: pilot.app.screen.snapshot is not None)
        await pilot.pause()

    app = GputopApp(
        LiveSource(run_dir, now_ns=lambda: end), ascii=state == "out_of_memory", hz=20.0
    )
    assert snap_compare(app, terminal_size=SIZES[size], run_before=drive)
