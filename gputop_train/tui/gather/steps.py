"""The steps of the time window, for the steps page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gputop_train.model import LABELS, Interval, Site, Step
from gputop_train.store.reader import RunReader
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.step_words import all_recorded, reasons, recorded, unsampled
from gputop_train.tui.views.steps import Histogram, Pause, StepRow, StepsView

#: Steps looked at, the newest of the window: 10 s of a loop of 1,000 a second.
MOST = 10_000
#: Rows of each order.
NEWEST, SLOWEST = 200, 100
#: Steps the medians by label are of, spread over the window.
USUAL = 200
#: Fewer steps have no usual one to set a step beside.
USUAL_OF = 5
#: A window with fewer steps shows the newest ones, however old.
FEW = 20
#: Longest interruptions of a step that are located.
PAUSES = 4
#: From this ratio of the slowest to the fastest step on, bins are on a logarithmic scale.
LOG_RATIO = 6.0
#: Bins, in bins a square root of the steps, and bounds.
BINS_PER_ROOT, FEWEST_BINS, MOST_BINS = 2.0, 8, 100
_NS = 1_000_000_000
#: Knuth's multiplicative hash (2^32 by the golden ratio): times of a steady loop share low bits.
_SCATTER = 2_654_435_769


def steps_page(asked: Asked) -> dict[str, Any]:
    """The page's field of the `Snapshot`."""
    if asked.rank is None:
        return {"steps": StepsView()}
    ranks = tuple(asked.reader.ranks())
    wanted = asked.view.rank
    rank = wanted if wanted is not None and wanted in ranks else asked.rank
    return {"steps": replace(steps_view(asked, rank), rank=rank, ranks=ranks)}


def steps_view(asked: Asked, rank: int) -> StepsView:
    """Steps that ended within the window; once training is over, within its last window."""
    reader = asked.reader
    end = asked.now_ns if asked.over_ns is None else min(asked.now_ns, asked.over_ns)
    begin = end - (asked.axis.t1_ns - asked.axis.t0_ns)
    times = reader.step_times(begin, end, rank, most=MOST)
    if len(times) < FEW:
        times = reader.step_times(None, end, rank, most=FEW)
    if not times:
        return StepsView()
    walls = np.asarray([t1 - t0 for t0, t1 in times], dtype=np.float64)
    newest = [t1 for _, t1 in times[-NEWEST:]][::-1]
    slowest = [times[i][1] for i in _largest(walls, SLOWEST)]
    sample = _spread_out([t1 for _, t1 in times])
    steps = asked.recent.ending(reader, rank, [*newest, *slowest, *sample])
    median_ns = float(np.median(walls))
    usual = medians([steps[t1] for t1 in sample if t1 in steps])
    shown = [steps[t1] for t1 in sorted({*newest, *slowest}) if t1 in steps]
    pauses = _pauses(reader, shown, rank)
    sites = {site.id: site for site in reader.sites(rank)} if pauses else {}
    started = asked.run.get("started_mono_ns")
    origin = started if isinstance(started, int) and started <= times[0][0] else None
    probe = reader.probe_states().get(rank)
    every = all_recorded(probe)
    rows = {
        step.t1_ns: step_row(
            step,
            usual,
            median_ns if len(times) >= USUAL_OF else 0.0,
            pauses.get(step.t1_ns, ()),
            sites,
            origin_ns=origin,
            timed=every or recorded(step),
        )
        for step in shown
    }
    missing = times[0][0] - begin > 2 * _NS
    return StepsView(
        newest=tuple(rows[t1] for t1 in newest if t1 in rows),
        slowest=tuple(rows[t1] for t1 in slowest if t1 in rows),
        count=len(times),
        older=_counted(reader, rank, begin, times[0][0]) if missing else 0,
        span_s=(times[-1][1] - times[0][0]) / 1e9,
        median_ms=median_ns / 1e6,
        p95_ms=float(np.quantile(walls, 0.95, method="inverted_cdf")) / 1e6
        if len(times) >= FEW
        else None,
        histogram=histogram(walls / 1e6, max(FEWEST_BINS, asked.view.columns // 2)),
        has_gpu=bool(((probe or {}).get("cuda") or {}).get("initialized")),
        unsampled=unsampled(probe),
    )


def _spread_out(ends: Sequence[int]) -> list[int]:
    """`USUAL` of these times or up to twice as many: the same ones again at the next look."""
    part = 1 << max(0, (len(ends) // USUAL).bit_length() - 1)
    return [t1 for t1 in ends if (t1 * _SCATTER >> 32) % part == 0]


def _largest(values: npt.NDArray[np.float64], most: int) -> list[int]:
    """Places of the largest values, largest first; of equal ones the earlier first."""
    if len(values) > most:
        least = np.partition(values, -most)[-most]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    order = np.argsort(-values[places], kind="stable")[:most]
    return [int(place) for place in places[order]]


def _counted(reader: RunReader, rank: int, t0_ns: int, t1_ns: int) -> int:
    return max(0, reader.steps_counted(rank, t1_ns) - reader.steps_counted(rank, t0_ns))


def _pauses(reader: RunReader, steps: Sequence[Step], rank: int) -> dict[int, list[Interval]]:
    """The interruptions of each step, by the step's end."""
    if not steps:
        return {}
    begins = [step.t0_ns for step in steps]
    found: dict[int, list[Interval]] = {}
    for pause in reader.intervals(begins[0], steps[-1].t1_ns):
        if pause.rank != rank:
            continue
        at = max(0, bisect_right(begins, pause.t0_ns) - 1)
        while at < len(steps) and begins[at] < pause.t1_ns:
            if steps[at].t1_ns > pause.t0_ns:
                found.setdefault(steps[at].t1_ns, []).append(pause)
            at += 1
    return found


def medians(steps: Sequence[Step]) -> dict[str, float]:
    """Median nanoseconds by label."""
    if not steps:
        return {}
    table = np.asarray([[step.labels.get(label, 0) for label in LABELS] for step in steps])
    return dict(zip(LABELS, np.median(table, axis=0).tolist(), strict=True))


def step_row(
    step: Step,
    usual: Mapping[str, float],
    median_ns: float,
    pauses: Sequence[Interval] = (),
    sites: Mapping[int, Site] | None = None,
    *,
    origin_ns: int | None = None,
    timed: bool = True,
) -> StepRow:
    """One step with what set it apart.

    Args:
        step: The step.
        usual: Median nanoseconds by label.
        median_ns: Median wall time; 0 where there are too few steps to tell.
        pauses: Its interruptions.
        sites: Places by id.
        origin_ns: When the run began.
        timed: Whether its phases were recorded.
    """
    longest = sorted(pauses, key=lambda pause: pause.t0_ns - pause.t1_ns)[:PAUSES]
    return StepRow(
        t1_ns=step.t1_ns,
        number=step.index + 1,
        at_s=(step.t1_ns - origin_ns) / 1e9 if origin_ns is not None else None,
        wall_ms=step.wall_ns / 1e6,
        parts=tuple((label, ns / 1e6) for label, ns in step.labels.items() if ns > 0),
        recorded=timed,
        timed=min(1.0, step.measured_ns / step.wall_ns) if step.wall_ns > 0 else 0.0,
        why=reasons(step, usual, median_ns, pauses, sites, timed=timed),
        pauses=tuple(
            Pause(pause.label, (pause.t0_ns - step.t0_ns) / 1e6, (pause.t1_ns - step.t0_ns) / 1e6)
            for pause in sorted(longest, key=lambda pause: pause.t0_ns)
        ),
        idle=None
        if step.exposed is None
        else tuple((label, ns / 1e6) for label, ns in step.exposed.items()),
        dry=step.dry,
        samples=step.samples,
        micro=step.micro,
        syncs=step.syncs,
    )


def histogram(walls_ms: npt.NDArray[np.float64], most: int = MOST_BINS) -> Histogram | None:
    """Step times in bins that suit their number and their spread.

    Args:
        walls_ms: Wall times in milliseconds.
        most: Bins there is room for.
    """
    if len(walls_ms) < 2:
        return None
    low, high = float(walls_ms.min()), float(walls_ms.max())
    if low <= 0 and high <= 0:
        return None
    if high <= low * 1.01:
        low, high = low * 0.95, high * 1.05
    log = low > 0 and high / low > LOG_RATIO
    bins = int(min(most, MOST_BINS, max(FEWEST_BINS, BINS_PER_ROOT * len(walls_ms) ** 0.5)))
    edges = np.geomspace(low, high, bins + 1) if log else np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # what rounding took from the ends would lose steps
    counts, _ = np.histogram(walls_ms, edges)
    return Histogram(tuple(edges.tolist()), tuple(int(n) for n in counts), log)
