"""Where a run changed its way of running: stretches of one step time and one mix of labels. Pure.

Change points by binary segmentation (Scott and Knott 1974; Fryzlewicz 2014 for its consistency) on
the mean step time and on the label shares, interruptions left out: a save is an event in a regime
and no change of it. A split counts when medians on its two sides differ by more than the scatter
around them and by enough to matter. Levels that come back (every epoch starts slowly) are a cycle
of one regime, not a change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gputop_train.diagnose.accounting import INTERRUPTIONS
from gputop_train.diagnose.stats import Floats
from gputop_train.diagnose.window import Stretch
from gputop_train.model import LABELS, ProcSample, Step
from gputop_train.store.rollup import StepRollup, sum_labels

Part = Step | StepRollup

#: A regime has as many steps as a verdict needs and this part of the time looked at (proposed
#: here); what is shorter belongs to a pattern. A live one lasts as long as a live verdict takes.
MIN_STEPS, MIN_PART, LIVE_NS = 20, 0.10, 5_000_000_000
#: Two regimes differ by this much in a label's share of the step (the warn band) ...
MIN_SHARE = 0.10
#: ... or by this factor in step time: cold-cache's 1.3 (catalogue 6) is a change worth a name.
MIN_RATIO = 1.3
#: And by this many times the scatter of the parts on either side (proposed here).
MIN_SIGMA = 3.0
#: Rows of one regime that run as another does, as a part of the other: a cycle (proposed here).
SWINGS = 0.3
BINS, MAX_REGIMES = 120, 4
STEADY = tuple(label for label in LABELS if label not in INTERRUPTIONS)
#: Labels whose share makes a way of running; how work is spread over the phases of a step drifts
#: with the clock of the host.
COSTS = ("data_wait", "h2d", "sync", "comm", "other")


def regimes(parts: Sequence[Part], least_ns: int = 0, *, by_time: bool = True) -> list[int]:
    """Where regimes begin.

    Args:
        parts: Steps, or seconds of steps, of one rank in order of time.
        least_ns: How long each of them lasts at least.
        by_time: Whether another step time alone makes another regime. A host's own speed drifts by
            half within minutes (catalogue 0b), which changes no cause.

    Returns:
        Indices into ``parts``, the first of which is 0; empty without parts.
    """
    if not parts:
        return []
    edges, features, spans, counts = _bins(parts)
    if not by_time:
        features = features[:, 1:]
    found = [(0, len(features))]
    while len(found) < MAX_REGIMES:
        cuts = [(_split(features, spans, counts, a, b, least_ns), (a, b)) for a, b in found]
        best = max(((c[0], c[1], part) for c, part in cuts if c is not None), default=None)
        if best is None:
            break
        _, at, (a, b) = best
        place = found.index((a, b))
        finer = [*found[:place], (a, at), (at, b), *found[place + 1 :]]
        if _returns(features, finer):
            break
        found = finer
    return [edges[a] for a, _ in found]


def stretch(parts: Sequence[Part], procs: Sequence[ProcSample] = ()) -> Stretch | None:
    """Sums of consecutive parts of one rank; ``None`` without parts.

    Args:
        parts: Steps, or seconds of steps, in order of time.
        procs: Samples of the run's processes; those outside the stretch are left out.
    """
    if not parts:
        return None
    labels = sum_labels([part.labels for part in parts])
    wall = max(1, sum(part.wall_ns for part in parts))
    steps = sum(_steps(part) for part in parts)
    paused = sum(labels.get(label, 0) for label in INTERRUPTIONS)
    first = parts[0]
    t0_ns, t1_ns = first.t0_ns, parts[-1].t1_ns
    inside = [p for p in procs if t0_ns <= p.t_ns <= t1_ns]
    return Stretch(
        t0_ns=t0_ns,
        t1_ns=t1_ns,
        first_step=first.index if isinstance(first, Step) else first.first_idx,
        steps=steps,
        step_ms=max(0, wall - paused) / steps / 1e6,
        shares={label: labels.get(label, 0) / wall for label in LABELS},
        read_bytes_per_s=_rate([(p.t_ns, p.pid, p.read_bytes_per_s) for p in inside]),
        rchar_per_s=_rate([(p.t_ns, p.pid, p.rchar_per_s) for p in inside]),
    )


def ends(parts: Sequence[Part], length_ns: int) -> tuple[Sequence[Part], Sequence[Part]]:
    """The first and the last parts of a run, each this long or a third of it if that is less."""
    if not parts:
        return (), ()
    begin, end = parts[0].t0_ns, parts[-1].t1_ns
    length_ns = min(length_ns, (end - begin) // 3)
    first = [part for part in parts if part.t1_ns <= begin + length_ns]
    last = [part for part in parts if part.t0_ns >= end - length_ns]
    return first, last


def _steps(part: Part) -> int:
    return 1 if isinstance(part, Step) else part.n


def _rate(rows: Sequence[tuple[int, int, float | None]]) -> float | None:
    """Sum over processes of their mean rates; a process that ended early counts for its part."""
    known = [(t, pid, value) for t, pid, value in rows if value is not None]
    times = {t for t, _, _ in rows}
    return sum(value for _, _, value in known) / len(times) if known else None


def _bins(parts: Sequence[Part]) -> tuple[list[int], Floats, Floats, Floats]:
    """Parts pooled to at most 120 rows of about as many steps: log step time, then shares.

    Returns:
        The first part of each row; the rows' features; their lengths in ns; their steps.
    """
    known = all(tuple(part.labels) == LABELS for part in parts)
    table = np.array(
        [
            list(part.labels.values()) if known else [part.labels.get(k, 0) for k in LABELS]
            for part in parts
        ],
        dtype=float,
    )
    counts = np.array([_steps(part) for part in parts], dtype=float)
    per_bin = max(1.0, float(counts.sum()) / BINS)
    row_of = np.minimum(((np.cumsum(counts) - counts) / per_bin).astype(int), BINS - 1)
    starts = np.flatnonzero(np.diff(row_of, prepend=-1))
    sums = np.add.reduceat(table, starts, axis=0)
    steps = np.add.reduceat(counts, starts)
    keep = [LABELS.index(label) for label in STEADY]
    wall = np.maximum(1.0, sums[:, keep].sum(axis=1))
    costs = sums[:, [LABELS.index(label) for label in COSTS]]
    features = np.column_stack([np.log(wall / steps), costs / wall[:, None]])
    return starts.tolist(), features, np.maximum(1.0, sums.sum(axis=1)), steps


def _split(
    features: Floats, spans: Floats, counts: Floats, a: int, b: int, least_ns: int
) -> tuple[float, int] | None:
    """How much the best split of rows ``a`` to ``b`` explains, and where; ``None`` if nowhere."""
    x, n = features[a:b], b - a
    allowed = _allowed(spans, counts, a, b, least_ns)
    if not len(allowed):
        return None
    scaled = x / _scale(x)
    left = np.cumsum(scaled, axis=0)[allowed - 1]
    k = allowed[:, None].astype(float)
    jump = left / k - (scaled.sum(axis=0) - left) / (n - k)
    gain = (jump**2).sum(axis=1) * (allowed * (n - allowed) / n)
    for at in (int(allowed[i]) for i in np.argsort(-gain, kind="stable")[:3]):
        if _differ(x[:at], x[at:]):
            return float(gain.max()), a + at
    return None


def _allowed(spans: Floats, counts: Floats, a: int, b: int, least_ns: int) -> npt.NDArray[np.int64]:
    time, steps = np.cumsum(spans[a:b]), np.cumsum(counts[a:b])
    shortest = max(float(least_ns), MIN_PART * float(spans.sum()))
    enough = (time >= shortest) & (steps >= MIN_STEPS)
    enough &= (time[-1] - time >= shortest) & (steps[-1] - steps >= MIN_STEPS)
    return np.flatnonzero(enough[:-1]) + 1


def _scale(x: Floats) -> Floats:
    """What a change is measured in: the least that matters, or the scatter of neighbours."""
    return np.asarray(np.maximum(_least(x), _scatter(x)), dtype=float)


def _least(x: Floats) -> Floats:
    """The least change of each feature that matters; a log step time comes first, if at all."""
    least = np.full(x.shape[1], MIN_SHARE)
    if x.shape[1] > len(COSTS):
        least[0] = np.log(MIN_RATIO)
    return least


def _scatter(x: Floats) -> Floats:
    """Standard deviation of each feature but for changes of level: from neighbours' differences."""
    if len(x) < 3:
        return np.zeros(x.shape[1])
    steps: Floats = np.median(np.abs(np.diff(x, axis=0)), axis=0)
    return np.asarray(steps * (1.4826 / np.sqrt(2)), dtype=float)


def _differ(before: Floats, after: Floats) -> bool:
    jump = np.abs(np.median(after, axis=0) - np.median(before, axis=0))
    least = _least(before)
    noise = np.maximum(before.std(axis=0), after.std(axis=0))
    few = np.sqrt(1 / len(before) + 1 / len(after))
    # Beyond the error of the medians, and beyond what single rows scatter: a slope is no step.
    return bool(np.any((jump >= least) & (jump >= MIN_SIGMA * noise * few) & (jump >= noise)))


def _returns(features: Floats, found: Sequence[tuple[int, int]]) -> bool:
    """Whether a later regime runs as an earlier one, or keeps falling back to it."""
    rows = [features[a:b] for a, b in found]
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j]
    return any(
        (j >= i + 2 and not _differ(rows[i], rows[j]))
        or _falls_back(rows[i], rows[j] if j > i else rows[j][::-1])
        for i, j in pairs
    )


def _falls_back(model: Floats, rows: Floats) -> bool:
    """Whether rows of one regime run as the other does, again and again: a cycle of both.

    Args:
        model: Rows of the other.
        rows: Its own, from where they are nearest to the other in time; a gradual change may begin
            as the other ended.
    """
    theirs, own = np.median(model, axis=0), np.median(rows, axis=0)
    told = np.abs(theirs - own) >= _least(rows)
    if not told.any():
        return False
    near = np.abs(rows - theirs)[:, told] < np.abs(rows - own)[:, told]
    alike: npt.NDArray[np.bool_] = np.all(near, axis=1)
    left = int(np.argmin(alike)) if not alike.all() else len(rows)
    return int(alike[left:].sum()) >= max(SWINGS * len(model), MIN_PART * len(rows), 2)
