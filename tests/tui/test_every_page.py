"""Every page in every state at every size, as text: what the pictures of single pages leave out.

One file a state and size, all pages below each other. Look at a changed one before it is accepted:
``python -m pytest tests/tui/test_every_page.py --snapshot-update``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from gputop_train.tui.application import GputopApp
from gputop_train.tui.gather.findings import FINDINGS
from gputop_train.tui.pages import key_of, names
from gputop_train.tui.replay import ReplaySource
from gputop_train.tui.source import LiveSource

from . import made_cards, made_run
from .driving import lines, settle, until

SIZES = {"120x40": (120, 40), "80x24": (80, 24), "40x12": (40, 12), "200x60": (200, 60)}
pytestmark = pytest.mark.usefixtures("in_utc")


class TextFile(SingleFileSnapshotExtension):
    """A text file for each test."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    _file_extension = "txt"


@pytest.fixture
def snapshot(snapshot: Any) -> Any:
    return snapshot.use_extension(TextFile)


def one_gpu(path: Path) -> int:
    path.mkdir()
    made_run.run_json(path, pid=os.getpid())
    return made_run.write_store(path)


def torn(path: Path) -> int:
    """A store whose first page was overwritten, as a full disk or another program leaves it."""
    end = one_gpu(path)
    with (path / "run.sqlite").open("r+b") as file:
        file.write(b"nothing that SQLite knows\n" * 200)
    for rest in path.glob("run.sqlite-*"):
        rest.unlink()
    return end


STATES: dict[str, Callable[[Path], int]] = {
    "live": one_gpu,
    "paused": one_gpu,
    "replay": one_gpu,
    "no_gpu": made_cards.no_gpu,
    "mig": made_cards.mig,
    "eight_gpus": made_cards.eight,
    "error": torn,
}


def app_of(state: str, run_dir: Path, end: int) -> GputopApp:
    if state == "replay":
        source = ReplaySource(run_dir)
        return GputopApp(source, replay=source.playback, hz=20.0)
    return GputopApp(LiveSource(run_dir, now_ns=lambda: end), hz=20.0)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
async def test_every_page_reads_as_agreed(state: str, tmp_path: Path, snapshot: Any) -> None:
    await compare(state, ("120x40", "80x24"), tmp_path, snapshot)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
async def test_the_smallest_and_the_largest_too(state: str, tmp_path: Path, snapshot: Any) -> None:
    await compare(state, ("40x12", "200x60"), tmp_path, snapshot)


async def compare(state: str, sizes: Sequence[str], tmp_path: Path, snapshot: Any) -> None:
    run_dir = tmp_path / "3f2a"
    end = STATES[state](run_dir)
    if state == "replay":
        made_run.exit_json(run_dir, end)
    # Terminals side by side: a page takes longer to come up than to compute.
    seen = await asyncio.gather(*(pages_of(state, run_dir, end, SIZES[size]) for size in sizes))
    for size, text in zip(sizes, seen, strict=True):
        assert text == snapshot(name=size)


async def pages_of(state: str, run_dir: Path, end: int, size: tuple[int, int]) -> str:
    app = app_of(state, run_dir, end)
    told = []
    async with app.run_test(size=size) as pilot:
        if state != "error":
            await settle(pilot)
        if state == "replay":
            await pilot.press("end")
        elif state != "error":
            # Begins the judgement of the whole run; a store at rest is not read again for it.
            await pilot.press(key_of("findings"))
            await until(pilot, lambda: FINDINGS._kept.whole is not None)
            # Turned to again it is read again: a view frozen before would keep "being judged".
            await pilot.press(key_of("overview"))
            await at_rest(pilot, "overview", torn=False)
            await pilot.press(key_of("findings"))
            await at_rest(pilot, "findings", torn=False)
        if state == "paused":
            await pilot.press("space")
        for name in names():
            await pilot.press(key_of(name))
            told.append(f"== {name}\n{await at_rest(pilot, name, state == 'error')}")
    return "\n".join(told) + "\n"


async def at_rest(pilot: Any, name: str, torn: bool) -> str:
    """The page's text once it is whole and no longer changes."""
    app: GputopApp = pilot.app

    def there() -> bool:
        page = app.screen
        seen = getattr(page, "snapshot", None)
        return getattr(page, "NAME", "") == name and (torn or (seen and seen.page == name))

    await until(pilot, there)
    before, same = None, 0
    while same < (4 if torn else 2):
        await pilot.pause(0.03)
        now = [line.rstrip() for line in lines(app)]
        same = same + 1 if now == before else 0
        before = now
    return "\n".join(before or ())
