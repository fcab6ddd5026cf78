"""Runs the app headless on a fake source, waiting for what it shows rather than for time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from gputop_train.tui.application import GputopApp
from gputop_train.tui.doors import Doors
from gputop_train.tui.result import TuiResult
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import plot_columns

from .fakes import FakeSource


def app_of(
    state: str,
    *,
    ascii: bool = False,
    run_dir: Path | None = None,
    stop: Callable[[], str | None] | None = None,
    source: FakeSource | None = None,
    run: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> GputopApp:
    source = source or FakeSource(state)
    replay = Controls() if state == "replay" else None
    return GputopApp(
        source,
        replay=replay,
        ascii=ascii,
        run_dir=run_dir,
        hz=20.0,
        stop=stop,
        come_back=COME_BACK,
        doors=Doors(run=run or {}, root=root, rerun=run is not None),
    )


COME_BACK = "gputop-train attach 3f2a"


class Controls:
    """Remembers what a replay was told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def toggle(self) -> None:
        self.told.append("toggle")

    def seek(self, seconds: float) -> None:
        self.told.append(seconds)

    def change_speed(self, by: int) -> None:
        self.told.append(("speed", by))


async def settle(pilot: Pilot[TuiResult]) -> None:
    """Wait until a snapshot for this very width is on the screen."""
    app = pilot.app
    wanted = plot_columns(app.size.width)

    def shown() -> bool:
        panels = app.query(Panel)
        snapshots = [panel.snapshot for panel in panels]
        return bool(snapshots) and all(
            s is not None and s.axis.columns == wanted for s in snapshots
        )

    await until(pilot, shown)
    await pilot.pause()


async def until(pilot: Pilot[TuiResult], true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"it never came about: {true}")


def lines(app: GputopApp) -> list[str]:
    """The screen as text."""
    return ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]


def shown_snapshot(app: GputopApp) -> Snapshot:
    snapshot = app.query(Panel).first().snapshot
    assert snapshot is not None
    return snapshot
