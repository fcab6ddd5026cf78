"""A finished run at a chosen time: play, pause, seek, and how fast.

Read from one thread (`feed.Feed`); the controls may be called from another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gputop_train.store.errors import StoreError
from gputop_train.tui.snapshot import ReplayView, Snapshot, View
from gputop_train.tui.source import NS, RunFiles, axis_for, last_step_ns, read_consistently

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
#: A whole run is played within this many seconds where `SPEEDS` allow it, unless told otherwise.
STORY_S = 30.0


class ReplayControls(Protocol):
    """What the keys of a replay do."""

    def toggle(self) -> None:
        """Play or pause; at the end, start over."""
        ...

    def seek(self, seconds: float) -> None:
        """Move by a time of the run."""
        ...

    def change_speed(self, by: int) -> None:
        """Go to the next faster (+1) or slower (-1) speed."""
        ...


class ReplaySource:
    """A finished run, played back.

    Args:
        run_dir: The run's directory.
        clock: Seconds that pass at the viewer's.
        speed: Seconds of the run per second of the viewer; ``None`` plays a whole run in about
            half a minute, in the order and at the distances of its events.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        speed: float | None = None,
    ) -> None:
        self._files = RunFiles(run_dir)
        self._clock = clock
        self._lock = threading.Lock()
        self._speed = speed
        self._playing = True
        self._position_s = 0.0
        self._since = clock()
        self._length_s: float | None = None
        self._over_ns: int | None = None

    def read(self, view: View) -> Snapshot:
        """The run as it stood at the replay's time.

        Raises:
            StoreError: There is no store, or it cannot be read.
        """
        files = self._files
        reader = files.reader()
        span = reader.span() if reader is not None else None
        if reader is None or span is None:
            raise StoreError(
                "This run recorded nothing that could be replayed. "
                "Its output is in output.log in the run's directory."
            )
        started = files.run.get("started_mono_ns")
        begin = started if isinstance(started, int) and started <= span[0] else span[0]
        if self._over_ns is None:
            self._over_ns = last_step_ns(reader)
        replay = self._advance((span[1] - begin) / NS)
        now = begin + int(replay.position_s * NS)
        axis = axis_for(now, view, replay.position_s)
        # At its end everything counts, also the last words written after the script was gone.
        seen = reader if replay.position_s >= replay.length_s else reader.as_of(now)
        return Snapshot(
            state="replay",
            elapsed_s=replay.position_s,
            log=files.lines(view.log_lines),
            log_path=str(files.path / "output.log"),
            log_size=files.log.size,
            log_note="as it was at the end: lines carry no time",
            replay=replay,
            page=view.page,
            **read_consistently(seen, files, view, axis, now, self._over_ns),
        )

    def close(self) -> None:
        """Let go of files."""
        self._files.close()

    def toggle(self) -> None:
        """Play or pause; at the end, start over."""
        with self._lock:
            self._move()
            if self._length_s is not None and self._position_s >= self._length_s:
                self._position_s, self._playing = 0.0, True
            else:
                self._playing = not self._playing

    def seek(self, seconds: float) -> None:
        """Move by a time of the run."""
        with self._lock:
            self._move()
            end = self._length_s if self._length_s is not None else 0.0
            self._position_s = min(end, max(0.0, self._position_s + seconds))

    def change_speed(self, by: int) -> None:
        """Go to the next faster (+1) or slower (-1) speed."""
        with self._lock:
            self._move()
            speed = self._speed or 1.0
            nearest = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - speed))
            self._speed = SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + by))]

    def _advance(self, length_s: float) -> ReplayView:
        with self._lock:
            self._length_s = length_s
            if self._speed is None:
                self._speed = _story_speed(length_s)
            self._move()
            return ReplayView(
                self._position_s,
                length_s,
                self._speed,
                self._playing and self._position_s < length_s,
            )

    def _move(self) -> None:
        """Account for the time that passed since the last call."""
        now = self._clock()
        if self._playing:
            self._position_s += (now - self._since) * (self._speed or 1.0)
        if self._length_s is not None:
            self._position_s = min(self._length_s, self._position_s)
        self._since = now


def _story_speed(length_s: float) -> float:
    """The slowest speed, from 1, at which the whole run takes `STORY_S` or less; else the top."""
    return next((s for s in SPEEDS if s >= 1 and length_s / s <= STORY_S), SPEEDS[-1])
