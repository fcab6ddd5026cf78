"""Pure tiling of a stretch of the training thread's time from its edges and spans.

A tile is ``(begin_ns, end_ns, label)``; tiles follow one another without a hole or an overlap. A
negative label marks time between edges: ``-1 - g`` belongs to gap ``g``, and all tiles of one gap
lie between the same two structural edges (loader, backward, optimizer).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from gputop_train.collect.apportion import (
    AT_BACKWARD,
    AT_DATA,
    AT_NONE,
    AT_OPTIMIZER,
    gap_kind,
)
from gputop_train.collect.words import (
    ARG_SITE,
    BACKWARD,
    CODE_BITS,
    CODE_MASK,
    COMPILE,
    DATA,
    DATA_NOGRAD,
    EVAL,
    FIRST_NON_EDGE,
    ITER,
    L_FORWARD,
    L_OPTIMIZER,
    LOGGING,
    OPTIMIZER,
    PHASE_LABEL,
    RANK,
    SAVE,
    split_site,
)
from gputop_train.model import LABELS

Tile = tuple[int, int, int]

MAX_DEPTH: Final = 64
_GAP: Final = -1

#: Which side of a gap a phase makes.
_STRUCTURE: Final = {
    DATA: AT_DATA,
    DATA_NOGRAD: AT_DATA,
    ITER: AT_DATA,
    BACKWARD: AT_BACKWARD,
    OPTIMIZER: AT_OPTIMIZER,
}
#: Phases whose outermost occurrences become intervals.
_KEPT: Final = frozenset({SAVE, COMPILE, LOGGING})


def _stronger(label: int, phase: int) -> int:
    inner = PHASE_LABEL[phase]
    return inner if label == _GAP or RANK[inner] >= RANK[label] else label


#: ``_UNDER[label][phase]``: the label inside ``phase`` opened under ``label``; -1 (the last row)
#: is no label. ``None`` for phases that do not nest.
_UNDER: Final[list[list[int | None]]] = [
    [_stronger(label, phase) if phase in PHASE_LABEL else None for phase in range(16)]
    for label in [*range(len(LABELS)), _GAP]
]


@dataclass(slots=True)
class Kept:
    """An outermost SAVE, COMPILE or LOGGING edge pair."""

    phase: int
    t0_ns: int
    t1_ns: int
    amount: int = 0
    site: int = 0


@dataclass(slots=True)
class Scan:
    """What the edges of one stretch say.

    Attributes:
        tiles: The stretch from begin to end, in order.
        kinds: ``gap_kind`` of each gap.
        kept: Saves, compilations and logging calls.
        backwards: Outermost backward calls.
        exhausted: Loaders were asked, and none told of a batch.
        samples: Samples the loaders delivered; ``None`` when a batch of unknown size was among
            them or none came.
        starts_loader: Whether an ITER edge is among them.
        loads: Whether a DATA edge is.
        evaluates: Whether an EVAL or DATA_NOGRAD edge is among them.
        bad: Edges that made no sense and were skipped.
    """

    tiles: list[Tile] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    backwards: int = 0
    samples: int | None = None
    exhausted: bool = False
    starts_loader: bool = False
    loads: bool = False
    evaluates: bool = False
    bad: int = 0


def scan(words: Sequence[int], t0_ns: int, t1_ns: int) -> Scan:
    """Tile ``[t0_ns, t1_ns]`` by its edges.

    Args:
        words: Edge words and the ``ARG_SITE`` words that follow them, in stream order.
        t0_ns: Begin of the stretch; earlier times are clipped to it.
        t1_ns: End of the stretch; later times are clipped to it.
    """
    result = Scan()
    tiles, kinds = result.tiles, result.kinds
    phases: list[int] = []
    labels: list[int] = [_GAP]
    label = _GAP
    last = t0_ns
    before = AT_OPTIMIZER
    closure_mark = 0
    code = ARG_SITE
    amounts: list[int] = []
    for word in words:
        if word & CODE_MASK == ARG_SITE:
            _argument(result, code, word >> CODE_BITS, phases, amounts)
            code = ARG_SITE
            continue
        code = word & CODE_MASK
        t = word >> CODE_BITS
        if t > t1_ns:
            t = t1_ns
        if t > last:
            tiles.append((last, t, label if label >= 0 else -1 - len(kinds)))
            last = t
        phase = code >> 1
        if code & 1:
            if phases and phases[-1] == phase:
                phases.pop()
                labels.pop()
                label = labels[-1]
                if not phases:
                    before = _STRUCTURE.get(phase, before)
                elif phase == BACKWARD and phases[-1] == OPTIMIZER:
                    closure_mark = len(tiles)
                if phase in _KEPT:
                    _close_kept(result, phase, t, phases)
            elif phase in phases:
                # Ends in between were lost: close what is inside.
                while phases[-1] != phase:
                    phases.pop()
                    labels.pop()
                phases.pop()
                labels.pop()
                label = labels[-1]
                result.bad += 1
                _close_kept(result, phase, t, phases)
            elif phase == EVAL:
                result.evaluates = True
            else:
                result.bad += 1
            continue
        inner = _UNDER[label][phase] if code < FIRST_NON_EDGE else None
        if inner is None or len(phases) >= MAX_DEPTH:
            if phase == EVAL:
                result.evaluates = True
            else:
                result.bad += 1
            continue
        if phase == BACKWARD:
            if BACKWARD not in phases:
                result.backwards += 1
            if phases and phases[-1] == OPTIMIZER:
                # A closure (LBFGS, Lightning): what ran in step() before its backward is forward.
                _relabel(tiles, closure_mark, L_OPTIMIZER, L_FORWARD)
        elif phase == OPTIMIZER:
            closure_mark = len(tiles)
        elif phase == DATA_NOGRAD:
            result.evaluates = True
        elif phase == ITER:
            result.starts_loader = True
        elif phase == DATA:
            result.loads = True
        elif phase in _KEPT and phase not in phases:
            result.kept.append(Kept(phase, t, -1))
        if not phases and phase in _STRUCTURE:
            kinds.append(gap_kind(before, _STRUCTURE[phase]))
        phases.append(phase)
        labels.append(inner)
        label = inner
    if t1_ns > last:
        tiles.append((last, t1_ns, label if label >= 0 else -1 - len(kinds)))
    kinds.append(gap_kind(before, AT_NONE))
    for kept in result.kept:
        if kept.t1_ns < 0:
            kept.t1_ns = t1_ns
    result.exhausted = result.loads and not amounts
    if amounts and all(amounts):
        result.samples = sum(amounts)
    return result


def _argument(result: Scan, code: int, value: int, phases: list[int], amounts: list[int]) -> None:
    """The ``ARG_SITE`` after an edge."""
    amount, site = split_site(value)
    phase = code >> 1
    if code == DATA << 1 | 1:
        amounts.append(amount)
    elif code == SAVE << 1 | 1 and SAVE not in phases:
        for kept in reversed(result.kept):
            if kept.phase == phase:
                kept.amount, kept.site = amount, site
                break


def _close_kept(result: Scan, phase: int, t: int, phases: list[int]) -> None:
    if phase in phases:
        return
    for kept in reversed(result.kept):
        if kept.phase == phase:
            if kept.t1_ns < 0:
                kept.t1_ns = t
            return


def _relabel(tiles: list[Tile], start: int, old: int, new: int) -> None:
    for index in range(start, len(tiles)):
        begin, end, label = tiles[index]
        if label == old:
            tiles[index] = (begin, end, new)


def flatten(overlays: Sequence[Tile]) -> list[Tile]:
    """Disjoint, sorted overlays, the strongest label winning where several overlap."""
    ordered = sorted(overlay for overlay in overlays if overlay[1] > overlay[0])
    if all(one[1] <= other[0] for one, other in pairwise(ordered)):
        return ordered
    events = sorted(
        [(begin, 1, label) for begin, _, label in ordered]
        + [(end, -1, label) for _, end, label in ordered]
    )
    active = [0] * len(LABELS)
    flat: list[Tile] = []
    last = events[0][0]
    strongest: int | None = None
    for t, change, label in events:
        if t > last and strongest is not None:
            if flat and flat[-1][1] == last and flat[-1][2] == strongest:
                flat[-1] = (flat[-1][0], t, strongest)
            else:
                flat.append((last, t, strongest))
        last = t
        active[label] += change
        present = [index for index, count in enumerate(active) if count > 0]
        strongest = max(present, key=lambda index: RANK[index]) if present else None
    return flat


def paint(tiles: Sequence[Tile], overlays: Sequence[Tile]) -> list[Tile]:
    """Lay disjoint, sorted overlays over tiles; the stronger label wins, any beats a gap."""
    painted: list[Tile] = []
    first = 0
    count = len(overlays)
    for begin, end, label in tiles:
        rank = RANK[label] if label >= 0 else -1
        while first < count and overlays[first][1] <= begin:
            first += 1
        index = first
        while index < count and overlays[index][0] < end:
            over_begin, over_end, over_label = overlays[index]
            if RANK[over_label] > rank:
                if over_begin > begin:
                    painted.append((begin, over_begin, label))
                    begin = over_begin
                stop = min(over_end, end)
                painted.append((begin, stop, over_label))
                begin = stop
            index += 1
        if begin < end:
            painted.append((begin, end, label))
    return painted


def divide(
    tiles: Sequence[Tile], intervals: Sequence[tuple[int, int]]
) -> tuple[list[Tile], list[Tile]]:
    """Tiles inside and outside of disjoint, sorted intervals."""
    inside: list[Tile] = []
    outside: list[Tile] = []
    first = 0
    count = len(intervals)
    for begin, end, label in tiles:
        while first < count and intervals[first][1] <= begin:
            first += 1
        index = first
        while index < count and intervals[index][0] < end:
            low, high = max(intervals[index][0], begin), min(intervals[index][1], end)
            if low > begin:
                outside.append((begin, low, label))
            inside.append((low, high, label))
            begin = high
            index += 1
        if begin < end:
            outside.append((begin, end, label))
    return inside, outside


def union(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Disjoint, sorted cover of intervals; touching ones become one."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def samples_in_gaps(
    tiles: Sequence[Tile], samples: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """``(offset, label)`` of the samples in gaps, offsets counted over all gaps together."""
    gaps = [(begin, end, -1) for begin, end, label in tiles if label < 0]
    return samples_by_gap(gaps, samples).get(-1, [])


def samples_by_gap(
    tiles: list[Tile], samples: Sequence[tuple[int, int]]
) -> dict[int, list[tuple[int, int]]]:
    """``(offset in the gap, label)`` of the samples in each gap, by the gap's negative label."""
    found: dict[int, list[tuple[int, int]]] = {}
    begins: list[int] = []
    offsets: list[int] = []
    lengths: dict[int, int] = {}
    for begin, end, label in tiles:
        begins.append(begin)
        if label < 0:
            offset = lengths.get(label, 0)
            lengths[label] = offset + end - begin
            offsets.append(offset)
        else:
            offsets.append(0)
    for t, label in samples:
        index = bisect_right(begins, t) - 1
        if index < 0:
            continue
        begin, end, gap = tiles[index]
        if gap < 0 and t < end:
            found.setdefault(gap, []).append((offsets[index] + t - begin, label))
    return found
