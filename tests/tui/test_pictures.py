"""What people see, picture by picture. Look at a changed picture before accepting it."""

from __future__ import annotations

from typing import Any

import pytest

from .driving import app_of, settle

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


@pytest.mark.parametrize("key", ["q", "question_mark", "e"])
def test_what_opens_over_the_screen_looks_as_agreed(key: str, snap_compare: Any) -> None:
    async def open_it(pilot: Any) -> None:
        await settle(pilot)
        await pilot.press(key)
        await pilot.pause()

    assert snap_compare(app_of("starved"), terminal_size=SIZES["80x24"], run_before=open_it)
