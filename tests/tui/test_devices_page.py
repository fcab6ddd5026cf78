"""The devices page on real stores: one line a GPU, n/a and never 0, and what its keys do."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.tui.application import GputopApp
from gputop_train.tui.gather.devices import throttle_words
from gputop_train.tui.paint import ASCII, UNICODE, Row, fit, width_of
from gputop_train.tui.playback import Playback
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.screens.devices import DevicesPage
from gputop_train.tui.screens.overview import Overview
from gputop_train.tui.snapshot import Axis, RunView, Snapshot, View
from gputop_train.tui.source import LiveSource
from gputop_train.tui.views.devices import DevicesView
from gputop_train.tui.widgets.devices import devices_rows
from gputop_train.tui.widgets.gpus import gpus_rows, gpus_want

from . import made_cards
from .anything import records_of
from .driving import lines, settle, until
from .test_steps_page import RECORDINGS, SIZES

VIEW = View(window_s=60, columns=100, page="devices")
STATES: dict[str, Callable[[Path], int]] = {
    "eight": made_cards.eight,
    "lost": lambda path: made_cards.eight(path, lost=3),
    "mig": made_cards.mig,
    "no_gpu": made_cards.no_gpu,
    "many_cores": lambda path: made_cards.no_gpu(path, 128),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "3f2a"


def read(run_dir: Path, state: str, view: View = VIEW) -> Snapshot:
    end = STATES[state](run_dir)
    source = LiveSource(run_dir, now_ns=lambda: end)
    snapshot = source.read(view)
    source.close()
    return snapshot


def seen(run_dir: Path, state: str, view: View = VIEW) -> DevicesView:
    found = read(run_dir, state, view).devices
    assert found is not None
    return found


def words(rows: list[Row]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def drawn(snapshot: Snapshot, width: int = 120, height: int = 36) -> list[str]:
    return words(devices_rows(snapshot, 0, width, height, UNICODE))


# What is read


def test_each_gpu_has_its_own_readings(run_dir: Path) -> None:
    view = seen(run_dir, "eight")
    assert [gpu.label for gpu in view.gpus] == list("01234567")
    assert [gpu.ranks for gpu in view.gpus] == [(n,) for n in range(8)]
    assert [gpu.power_w for gpu in view.gpus] == [580.0 + 11 * n for n in range(8)]
    assert all(gpu.name == "H200" and gpu.history for gpu in view.gpus)
    assert view.gpus[4].sm == pytest.approx(72.0)
    assert view.gpus[2].throttle == ("software thermal", "power limit")
    assert view.gpus[0].throttle == ()
    assert view.zoom is None and view.curves == ()


def test_who_else_computes_on_a_gpu_is_named(run_dir: Path) -> None:
    rows = drawn(read(run_dir, "eight"))
    line = next(row for row in rows if "contention" in row)
    assert "2 processes of others, busy 38% of the time" in line
    assert "python3 4711 21.0 GiB" in line and "vllm 4712 9.0 GiB" in line
    assert rows[rows.index(line) - 1].startswith("  5 ▲")


def test_a_gpu_that_was_lost_has_no_numbers_and_says_since_when(run_dir: Path) -> None:
    snapshot = read(run_dir, "lost")
    assert snapshot.devices is not None
    gpu = snapshot.devices.gpus[3]
    assert (gpu.util, gpu.sm, gpu.memory_used, gpu.power_w) == (None, None, None, None)
    rows = drawn(snapshot)
    assert rows[0].startswith(" ▲ The driver lost GPU 3")
    assert "no reading for 35s" in next(row for row in rows if row.startswith("  3"))


def test_a_gpu_that_was_lost_long_ago_stays_on_the_page(run_dir: Path) -> None:
    end = made_cards.eight(run_dir, lost=3)
    source = LiveSource(run_dir, now_ns=lambda: end + 300_000_000_000)
    rows = drawn(source.read(VIEW))
    source.close()
    assert "no reading" in next(row for row in rows if row.startswith("  3"))


def test_a_wide_window_shows_the_same_means(run_dir: Path) -> None:
    narrow = seen(run_dir, "eight", View(window_s=60, columns=60, page="devices"))
    wide = seen(run_dir, "eight", View(window_s=60, columns=20, page="devices"))
    for a, b in zip(narrow.gpus, wide.gpus, strict=True):
        means = [
            sum(v for v in gpu.history if v is not None) / sum(v is not None for v in gpu.history)
            for gpu in (a, b)
        ]
        assert means[0] == pytest.approx(means[1], abs=1.0)
        assert (a.util, a.sm) == (b.util, b.sm)


def test_what_a_mig_instance_does_not_have_is_not_zero(run_dir: Path) -> None:
    snapshot = read(run_dir, "mig")
    assert snapshot.devices is not None
    first, second = snapshot.devices.gpus
    assert (first.label, second.label) == ("0a", "0b")
    assert (first.util, first.power_w, first.rx) == (None, None, None)
    line = next(row for row in drawn(snapshot) if row.startswith(" >0a"))
    assert line.count("n/a") == 2 and " 0%" not in line
    assert (first.history_of, first.sm) == ("SM", 61.0)


def test_without_a_gpu_it_is_the_machine(run_dir: Path) -> None:
    snapshot = read(run_dir, "many_cores")
    assert snapshot.devices is not None and snapshot.devices.gpus == ()
    host = snapshot.devices.host
    assert host is not None and len(host.cores) == 128
    said = "\n".join(drawn(snapshot))
    assert "There is no NVIDIA driver" in said
    assert "read 393 MiB/s" in said and "in 2.2 GiB/s" in said and "io 12%" in said


def test_of_one_gpu_everything_is_shown_over_time(tmp_path: Path) -> None:
    with zipfile.ZipFile(RECORDINGS / "leaking.zip") as archive:
        archive.extractall(tmp_path)
    source = ReplaySource(next(tmp_path.rglob("run.sqlite")).parent, Playback(speed=1e-9))
    source.read(VIEW)
    source.playback.seek(30)
    view = source.read(VIEW).devices
    source.close()
    assert view is not None and view.zoom == 0
    names = {curve.name: curve for curve in view.curves}
    assert {"utilisation", "SM active", "memory", "power", "temp", "SM clock"} <= names.keys()
    assert names["power"].top == 700.0
    assert view.gpus[0].throttle == ("power limit",)
    assert view.gpus[0].link == "gen 5 x16"


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        (None, None),
        (0, ()),
        (1, ()),
        (4, ("power limit",)),
        (0x48, ("hardware slowdown", "hardware thermal")),
        (0x1000, ("reason 0x1000",)),
    ],
)
def test_reasons_for_low_clocks_are_said_in_words(
    bits: int | None, said: tuple[str, ...] | None
) -> None:
    assert throttle_words(bits) == said


# The overview's share of it


def test_the_overview_has_a_line_for_each_of_several_gpus(run_dir: Path) -> None:
    snapshot = read(run_dir, "eight", View(page="overview"))
    assert len(snapshot.gpus) == 8
    assert [gpus_want(8, width) for width in (80, 120, 200)] == [8, 4, 3]
    assert gpus_want(1, 120) == 0
    rows = words(gpus_rows(snapshot, 120, 4, UNICODE))
    assert len(rows) == 4 and "GPU 4" in rows[0] and "▲" in rows[1]
    short = words(gpus_rows(snapshot, 120, 2, UNICODE))
    assert "and 5 more" in short[1]
    assert snapshot.chart is not None
    assert "SM active 70%" in snapshot.chart.facts  # the mean over all of them
    assert not any("W" in fact for fact in snapshot.chart.facts)


async def test_enter_leads_from_the_overview_to_the_gpus(run_dir: Path) -> None:
    end = made_cards.eight(run_dir)
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), hz=20.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DevicesPage))


# Keys


async def test_enter_looks_at_one_gpu_and_escape_goes_back_step_by_step(run_dir: Path) -> None:
    end = made_cards.eight(run_dir)
    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), hz=20.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("6")
        await until(pilot, lambda: any("8 x H200" in line for line in lines(app)))
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: any("GPU 2  H200" in line for line in lines(app)))
        await pilot.press("down")
        await until(pilot, lambda: any("GPU 3  H200" in line for line in lines(app)))
        await pilot.press("escape")
        await until(pilot, lambda: any("8 x H200" in line for line in lines(app)))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, Overview))


# Whatever was read


@settings(max_examples=20, deadline=None)
@given(records_of(DevicesView), st.integers(1, 220), st.integers(1, 70), st.booleans())
def test_whatever_was_read_fits(view: DevicesView, width: int, height: int, ascii: bool) -> None:
    glyphs = ASCII if ascii else UNICODE
    zoom = view.zoom if view.zoom is not None and 0 <= view.zoom < len(view.gpus) else None
    snapshot = Snapshot(
        RunView("a", "b"),
        "live",
        Axis(0, 60_000_000_000, 20),
        devices=replace(view, zoom=zoom),
        gpus=view.gpus,
    )
    for rows in (
        devices_rows(snapshot, 0, width, height, glyphs),
        gpus_rows(snapshot, width, height, glyphs),
    ):
        assert len(rows) <= height
        assert all(width_of(fit(row, width, glyphs)) == width for row in rows)


# Pictures

PICTURES = [
    *(("eight", size, "6") for size in SIZES),
    ("eight", "120x40", ""),
    ("eight", "120x40", "6 down down enter"),
    ("lost", "80x24", "6"),
    ("mig", "80x24", "6"),
    ("no_gpu", "80x24", "6"),
    ("no_gpu", "40x12", "6"),
    ("many_cores", "120x40", "6"),
]


@pytest.mark.parametrize(("state", "size", "keys"), PICTURES)
def test_the_page_looks_as_agreed(
    state: str, size: str, keys: str, run_dir: Path, snap_compare: Any
) -> None:
    end = STATES[state](run_dir)

    async def drive(pilot: Any) -> None:
        await settle(pilot)
        for key in keys.split():
            await pilot.press(key)
            if key == "6":
                await until(pilot, lambda: isinstance(pilot.app.screen, DevicesPage))
                await until(pilot, lambda: pilot.app.screen.snapshot is not None)
        if "enter" in keys:
            await until(pilot, lambda: pilot.app.screen.snapshot.devices.zoom is not None)
        await pilot.pause()

    app = GputopApp(LiveSource(run_dir, now_ns=lambda: end), ascii=state == "lost", hz=20.0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=drive)
