"""Steps of which only the end was recorded: their time is shared out as in recorded ones near by.

Below a few milliseconds a step the probe records the phases of some steps only (STEP_TICK in
docs/wire-format.md). The wall time of the others is exact, and so are interruptions and long waits
for data; the rest of such a step is laid out like a recorded one of about the same length. Those of
late take turns, so that none of them weighs more than the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gputop_train.collect.tiling import Tile
from gputop_train.collect.words import (
    ARG_SITE,
    BACKWARD,
    CODE_MASK,
    L_BACKWARD,
    L_CHECKPOINT,
    L_COMPILE,
    L_DATA_WAIT,
    L_EVAL,
    L_GC,
    L_LOGGING,
    L_OPTIMIZER,
    LONG_WAIT_NS,
    OPTIMIZER,
)

#: Recorded steps to choose from; the probe records at least eight in a row.
KEPT: Final = 32
#: A layout is stretched or shrunk by at most this; what lies beyond is not explained by it.
MOST_STRETCH: Final = 2.0
#: What the sampler calls the optimizer is its call when it is this near the end, in calls.
NEAR_END: Final = 1.5
#: Exact wherever they occur, so never taken over from another step.
_INTERRUPTIONS: Final = frozenset({L_COMPILE, L_CHECKPOINT, L_EVAL, L_GC, L_LOGGING})


@dataclass(frozen=True, slots=True)
class Layout:
    """How a recorded step spent its time, interruptions left out.

    Attributes:
        wall_ns: Its length without them.
        tiles: ``(begin, end, label or gap)`` from 0 to ``wall_ns``.
        kinds: Kinds of its gaps.
        micro: Its backward calls.
        samples: Its samples, ``None`` if unknown.
        syncs: Its blocking reads.
        long_wait: Whether it waited for data so long that any step would have told it.
    """

    wall_ns: int
    tiles: tuple[Tile, ...]
    kinds: tuple[int, ...]
    micro: int
    samples: int | None
    syncs: int
    long_wait: bool

    def without(self, labels: frozenset[int]) -> Layout:
        """The same without some labels: those an unrecorded step tells exactly."""
        if not labels:
            return self
        tiles, wall = _closed_up(tile for tile in self.tiles if tile[2] not in labels)
        return replace(self, wall_ns=wall, tiles=tiles)


_Learned = tuple[Sequence[Tile], Sequence[int], int, int | None, int]


class Layouts:
    """The layouts of late of one training thread."""

    def __init__(self) -> None:
        self._kept: deque[Layout | _Learned] = deque(maxlen=KEPT)
        self._turn = 0

    def learn(
        self,
        tiles: Sequence[Tile],
        kinds: Sequence[int],
        *,
        micro: int,
        samples: int | None,
        syncs: int,
        usual: bool,
    ) -> None:
        """Keep a recorded step's layout.

        Args:
            tiles: The step from begin to end, evaluations cut out.
            kinds: Kinds of its gaps.
            micro: Its backward calls.
            samples: Its samples.
            syncs: Its blocking reads.
            usual: Whether all of it is likely in other steps too: no worker start-up, say. An
                unusual one is kept only while there is no other.
        """
        if not usual and self._kept:
            return
        if any(tile[2] not in _INTERRUPTIONS for tile in tiles):
            self._kept.append((tiles, kinds, micro, samples, syncs))

    def next(self, wall_ns: int, exact: frozenset[int]) -> Layout | None:
        """A layout for so much time: the next in turn that is about as long, else the nearest.

        Args:
            wall_ns: The time to lay out.
            exact: Labels that the step tells exactly: a layout is taken without them.
        """
        kept = self._kept
        nearest: Layout | None = None
        for _ in range(len(kept)):
            self._turn = (self._turn + 1) % len(kept)
            found = self._layout(self._turn)
            if found.long_wait and L_DATA_WAIT not in exact:
                continue  # this step would have told such a wait
            found = found.without(exact)
            if found.wall_ns <= wall_ns * MOST_STRETCH and wall_ns <= found.wall_ns * MOST_STRETCH:
                return found
            off = abs(found.wall_ns - wall_ns)
            if nearest is None or off < abs(nearest.wall_ns - wall_ns):
                nearest = found
        return nearest

    def _layout(self, place: int) -> Layout:
        """One of those kept; made when it is first needed, which in a slow loop is never."""
        found = self._kept[place]
        if not isinstance(found, Layout):
            tiles, kinds, micro, samples, syncs = found
            kept, wall = _closed_up(tile for tile in tiles if tile[2] not in _INTERRUPTIONS)
            long_wait = any(
                end - begin >= LONG_WAIT_NS for begin, end, label in kept if label == L_DATA_WAIT
            )
            found = Layout(wall, kept, tuple(kinds), micro, samples, syncs, long_wait)
            self._kept[place] = found
        return found


def told_exactly(words: Sequence[int]) -> list[int]:
    """Of the words in such a step those that stand for themselves.

    A backward or optimizer call that was recorded (of a GAN's other model, say, or after an
    evaluation) is one of several: it says nothing about the label's time in this step.
    """
    told: list[int] = []
    dropped = False
    for word in words:
        code = word & CODE_MASK
        if code != ARG_SITE:
            dropped = code >> 1 in (BACKWARD, OPTIMIZER)
        if not dropped:
            told.append(word)
    return told


def laid_out(layout: Layout, wall_ns: int) -> tuple[list[Tile], int]:
    """A layout stretched to ``wall_ns``, and how much of it no stretching explains."""
    wall = layout.wall_ns
    if wall <= 0:
        return [], wall_ns
    target = wall_ns if wall_ns <= MOST_STRETCH * wall else wall
    scaled = [
        (begin * target // wall, end * target // wall, label) for begin, end, label in layout.tiles
    ]
    return scaled, wall_ns - target


def in_doubt_left_out(
    layout: Layout, samples: Sequence[tuple[int, int]], wall_ns: int
) -> list[tuple[int, int]]:
    """Samples for the gaps of a layout, without those that belong to a phase beside the gap.

    The layout's edges are those of another step, so a sample that shows a phase with edges may seem
    to lie just across one. The optimizer's label is found in gaps too (clipping and zeroing
    gradients), but a step ends with the optimizer call: what lies that near its end is the call.
    """
    edged = {label for _, _, label in layout.tiles} & {L_BACKWARD, L_DATA_WAIT}
    begin, end, last = layout.tiles[-1] if layout.tiles else (0, 0, L_OPTIMIZER)
    call_from = wall_ns - (end - begin) * NEAR_END if last == L_OPTIMIZER else wall_ns
    return [
        (t, label)
        for t, label in samples
        if label not in edged and not (label == L_OPTIMIZER and t >= call_from)
    ]


def _closed_up(tiles: Iterable[Tile]) -> tuple[tuple[Tile, ...], int]:
    at = 0
    moved: list[Tile] = []
    for begin, end, label in tiles:
        moved.append((at, at + end - begin, label))
        at += end - begin
    return tuple(moved), at
