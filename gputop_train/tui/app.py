"""Opens the screen on a run and sees to it that the terminal comes back, however it ends."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from gputop_train import paths
from gputop_train.launch.runfile import read_json
from gputop_train.look import Look
from gputop_train.tui import terminal
from gputop_train.tui.feed import Later, Source
from gputop_train.tui.files import write_private
from gputop_train.tui.loading import swiftly
from gputop_train.tui.playback import Playback
from gputop_train.tui.result import TuiResult
from gputop_train.tui.terminal import can_run

with swiftly():
    from gputop_train.tui import themes
    from gputop_train.tui.application import GputopApp
    from gputop_train.tui.base import BaseApp
    from gputop_train.tui.control import request_stop
    from gputop_train.tui.doors import Doors
    from gputop_train.tui.messages import LeaveNow


def _crash_report(error: BaseException, run_dir: Path, again: str) -> str:
    """Write a traceback without local variables; say in a sentence what happened."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    path = write_private(run_dir, "screen-crash.txt", text)
    details = f" Details are in {path}." if path is not None else ""
    return (
        f"The screen failed ({type(error).__name__}); training is not affected.{details} "
        f"Watch on with: {again}"
    )


def _run(app: BaseApp, run_dir: Path, look: Look, *, replay: bool, again: str) -> TuiResult:
    app.theme, app.takes_mouse = themes.chosen(look.theme), look.mouse
    signalled: list[int] = []

    def leave(code: int) -> None:
        signalled.append(code)
        app.post_message(LeaveNow(code))

    try:
        with terminal.Guard(leave):
            result = app.run(mouse=look.mouse)
    except KeyboardInterrupt:
        return TuiResult("detached", 130)
    except Exception as error:
        app.crash, result = error, None
    if signalled:
        return TuiResult("ended" if replay else "detached", signalled[0])
    if app.crash is not None:
        told = _crash_report(app.crash, run_dir, again)
        with contextlib.suppress(OSError):
            print(told, file=sys.stderr)
        return TuiResult("ended" if replay else "detached", 0, told)
    return result if result is not None else TuiResult("ended" if replay else "detached", 0)


def _live(run_dir: Path) -> Source:
    with swiftly():
        from gputop_train.tui.source import LiveSource
    return LiveSource(run_dir)


def _recorded(run_dir: Path, playback: Playback) -> Source:
    with swiftly():
        from gputop_train.tui.replay import ReplaySource
    return ReplaySource(run_dir, playback)


def run_live(
    run_dir: Path | str,
    *,
    ascii: bool = False,
    look: Look | None = None,
    rerun: bool = False,
    start_trial: Callable[[Sequence[str]], Path] | None = None,
) -> TuiResult:
    """Show a run until the person leaves. Blocks; restores the terminal however it ends.

    Args:
        run_dir: The run's directory.
        ascii: Draw with plain ASCII; chosen by itself where the terminal needs it.
        look: The rest of how it looks.
        rerun: Whether the caller runs the script again when the result says so.
        start_trial: As in `Doors`.
    """
    path, look = Path(run_dir), look or Look()
    app = GputopApp(
        Later(lambda: _live(path)),
        run_dir=path,
        ascii=ascii or terminal.needs_ascii(),
        hz=look.hz or terminal.repaint_hz(),
        window_s=look.window_s,
        stop=lambda: request_stop(path),
        come_back=paths.come_back("attach", path),
        doors=Doors(
            read_json(path / "run.json") or {},
            path.parent,
            rerun=rerun,
            start_trial=start_trial,
        ),
    )
    return _run(app, path, look, replay=False, again=paths.come_back("attach", path))


def run_replay(
    run_dir: Path | str,
    *,
    ascii: bool = False,
    look: Look | None = None,
    speed: float | None = None,
    pictures: Path | None = None,
) -> TuiResult:
    """Play a recorded run back until the person leaves.

    Args:
        run_dir: The run's directory.
        ascii: Draw with plain ASCII; chosen by itself where the terminal needs it.
        look: The rest of how it looks.
        speed: Seconds of the run per second; ``None`` shows all of it in about half a minute.
        pictures: Where screenshots go when ``run_dir`` is about to be removed again.
    """
    path, look = Path(run_dir), look or Look()
    playback = Playback(speed=speed)
    app = GputopApp(
        Later(lambda: _recorded(path, playback)),
        run_dir=path,
        pictures=pictures,
        replay=playback,
        ascii=ascii or terminal.needs_ascii(),
        hz=look.hz or terminal.repaint_hz(),
        window_s=look.window_s,
        doors=Doors(
            read_json(path / "run.json") or {},
            # A recording is unpacked by itself; there is nothing beside it.
            path.parent if pictures is None else None,
            why_not="A replay starts nothing.",
        ),
    )
    return _run(app, path, look, replay=True, again=paths.come_back("replay", path))


def run_trial(trial_dir: Path, *, ascii: bool = False, look: Look | None = None) -> TuiResult:
    """Show a trial until the person leaves; the result names the settings to keep, if any.

    Args:
        trial_dir: The trial's directory.
        ascii: Draw with plain ASCII; chosen by itself where the terminal needs it.
        look: The rest of how it looks.
    """
    from gputop_train.tui.trial_app import TrialApp

    app = TrialApp(trial_dir, ascii=ascii or terminal.needs_ascii())
    again = paths.come_back("attach", trial_dir, root=trial_dir.parent.parent)
    return _run(app, trial_dir, look or Look(), replay=False, again=again)


__all__ = ["GputopApp", "TuiResult", "can_run", "run_live", "run_replay", "run_trial"]
