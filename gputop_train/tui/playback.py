"""Where a replay stands and how fast it goes. Controls may be called from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from gputop_train.tui.snapshot import ReplayView

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


class Playback:
    """The clock of a replay, in seconds of the run; it begins with the first picture.

    Args:
        clock: Seconds that pass at the viewer's.
        speed: Seconds of the run per second of the viewer; ``None`` plays a whole run in about
            half a minute, in the order and at the distances of its events.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, speed: float | None = None
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._speed = speed
        self._playing = True
        self._position_s = 0.0
        self._since: float | None = None
        self._length_s: float | None = None

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

    def advance(self, length_s: float) -> ReplayView:
        """Where it stands now, in a run of this length."""
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
        if self._playing and self._since is not None:
            self._position_s += (now - self._since) * (self._speed or 1.0)
        if self._length_s is not None:
            self._position_s = min(self._length_s, self._position_s)
        self._since = now


def _story_speed(length_s: float) -> float:
    """The slowest speed, from 1, at which the whole run takes `STORY_S` or less; else the top."""
    return next((s for s in SPEEDS if s >= 1 and length_s / s <= STORY_S), SPEEDS[-1])
