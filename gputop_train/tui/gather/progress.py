"""How far the script is by its own count, and when that count ends. Pure: no clock, no files.

Right or silent. A count is believed when it moves with the optimizer steps that the probe counted,
at one rate; a download, a tokenisation or an evaluation does not. Its pace is measured here, from
one look to the next, so a count that was only ever seen once has no end. Of several, the one that
takes longest is shown: the outermost of nested loops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from gputop_train.tui.gather.counters import Counter, counters
from gputop_train.tui.views.progress import Progress

#: Moves of a count that its pace is taken from, at most; at one look a second, four minutes.
MOVES = 240
#: A pace spans so many looks at least: a move is seen up to one look late. Shorter ones are noise.
MIN_LOOKS, MIN_SPAN_S = 10, 5.0
#: The rate of a count to steps in the first half of its moves over that in the second.
SAME_RATE = 1.5
#: Whether line ``3/10`` comes at the begin or the end of what it counts matters less than this
#: part of what is left, or than so many seconds: either will do.
ONE_UNIT, SOON_S = 0.05, 2.0
#: A count that has not moved for so many times its pace has been left.
STALE = 5.0
MIN_STALE_S = 120.0
#: Two counts that end together within this part are one loop; the finer one is shown.
TOGETHER = 0.05
MAX_TRACKS = 32


@dataclass(slots=True)
class _Track:
    """What was seen of one count.

    Attributes:
        moves: ``(time, steps, n)`` when it was seen to move.
        fresh: Whether it appeared while the output was watched.
        resets: Times it began again.
    """

    counter: Counter
    seen_s: float
    fresh: bool
    first_n: int
    moves: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=MOVES))
    resets: int = 0
    began_at_zero: bool = False


@dataclass(frozen=True, slots=True)
class _Pace:
    track: _Track
    unit_s: float
    steps_per_unit: float

    @property
    def whole_s(self) -> float:
        return self.track.counter.total * self.unit_s


class Follower:
    """Remembers a run's counts from one look at its output to the next."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._looks: deque[float] = deque(maxlen=MIN_LOOKS + 1)
        self._looked = False

    def observe(
        self, t_s: float, steps: int, lines: Sequence[str], passes: Collection[int] = ()
    ) -> Progress | None:
        """Take a look.

        Args:
            t_s: When, on any steady clock.
            steps: Optimizer steps since the start.
            lines: The newest lines of the output.
            passes: Batches in a pass of each loader, where known.

        Returns:
            The count to show; ``None`` when none is known to move with the steps.
        """
        if self._looks and t_s <= self._looks[-1]:
            return self._chosen(self._looks[-1], steps, passes)
        self._looks.append(t_s)
        for counter in counters(lines):
            self._note(counter, t_s, steps)
        self._looked = self._looked or steps > 0
        return self._chosen(t_s, steps, passes)

    def _note(self, counter: Counter, t_s: float, steps: int) -> None:
        track = self._tracks.get(counter.key)
        if track is None:
            if len(self._tracks) >= MAX_TRACKS:
                del self._tracks[next(iter(self._tracks))]
            track = _Track(counter, t_s, self._looked, counter.n)
            if track.fresh:
                track.moves.append((t_s, steps, counter.n))
            self._tracks[counter.key] = track
        elif counter.n > track.counter.n:
            track.moves.append((t_s, steps, counter.n))
        elif counter.n < track.counter.n:
            track.moves.clear()
            track.resets += 1
        track.began_at_zero |= counter.n == 0
        track.counter, track.seen_s = counter, t_s

    def _chosen(self, t_s: float, steps: int, passes: Collection[int]) -> Progress | None:
        paces = [
            pace
            for track in self._tracks.values()
            if (pace := self._pace(track, t_s)) is not None and _goes_on(pace, t_s)
        ]
        if not paces:
            return None
        longest = max(pace.whole_s for pace in paces)
        together = [pace for pace in paces if pace.whole_s >= longest * (1 - TOGETHER)]
        pace = max(together, key=lambda one: one.track.counter.total)
        counter = pace.track.counter
        return Progress(
            done=counter.n,
            total=counter.total,
            unit=counter.unit,
            whole=_is_whole(pace.track, passes),
            left_s=_left_s(pace, t_s),
        )

    def _pace(self, track: _Track, t_s: float) -> _Pace | None:
        moves = track.moves
        if len(moves) < (2 if track.counter.unit == "epoch" else 3):
            return None
        (first_s, first_steps, first_n), (last_s, last_steps, last_n) = moves[0], moves[-1]
        looks = (self._looks[-1] - self._looks[0]) / max(1, len(self._looks) - 1)
        if last_s - first_s < max(MIN_SPAN_S, MIN_LOOKS * looks) or last_steps <= first_steps:
            return None
        if len(moves) > 2:
            middle = moves[len(moves) // 2]
            before = (middle[2] - first_n, middle[1] - first_steps)
            after = (last_n - middle[2], last_steps - middle[1])
            if not (before[1] > 0 and after[1] > 0):
                return None
            ratio = (before[0] * after[1]) / (before[1] * after[0])
            if not 1 / SAME_RATE <= ratio <= SAME_RATE:
                return None
        units = last_n - first_n
        return _Pace(track, (last_s - first_s) / units, (last_steps - first_steps) / units)


def _goes_on(pace: _Pace, t_s: float) -> bool:
    counter = pace.track.counter
    idle_s = t_s - pace.track.moves[-1][0]
    ended = counter.exact and counter.n >= counter.total
    return not ended and idle_s <= max(MIN_STALE_S, STALE * pace.unit_s)


def _is_whole(track: _Track, passes: Collection[int]) -> bool:
    """Whether the count surely spans the run: epochs, or more batches than any pass has."""
    if track.resets:
        return False
    counter = track.counter
    if counter.unit == "epoch":
        return True
    return bool(passes) and counter.unit != "sample" and counter.total > max(passes)


def _left_s(pace: _Pace, t_s: float) -> float | None:
    since_s = t_s - pace.track.moves[-1][0]
    left = _units_left(pace)
    if left is None:
        return None
    # While the loop pauses (a save, an evaluation) the count waits for its next move.
    return max(left - 1, 0) * pace.unit_s + max(0.0, min(left, 1) * pace.unit_s - since_s)


def _units_left(pace: _Pace) -> float | None:
    """Units that were left at the last move; ``None`` where a line can be read in two ways."""
    track, counter = pace.track, pace.track.counter
    left = counter.total - counter.n
    if counter.exact:
        return float(left)
    if pace.unit_s <= max(ONE_UNIT * left * pace.unit_s, SOON_S):
        return left + 0.5
    # ``epoch 3/10`` may say that three are done or that the third begins: the steps tell, where
    # they are known from the first on and the count does not begin at zero.
    if track.began_at_zero or track.resets or pace.steps_per_unit <= 0:
        return None
    done = track.moves[-1][1] / pace.steps_per_unit
    if abs(done - (counter.n - 1)) < 0.3:
        return left + 1.0
    if abs(done - counter.n) < 0.3 and track.fresh and track.first_n == 1:
        return float(left)
    return None
