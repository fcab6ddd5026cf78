"""Cut one window out of a run's store: the only place where diagnosis touches a reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from gputop_train.diagnose import abreast
from gputop_train.diagnose.absence import missing_signals
from gputop_train.diagnose.aftermath import since
from gputop_train.diagnose.regimes import LIVE_NS as REGIME_NS
from gputop_train.diagnose.regimes import ends, regimes, stretch
from gputop_train.diagnose.stats import median, quantile
from gputop_train.diagnose.steady import BLOCK, Cut, cut, older_than, totals_of
from gputop_train.diagnose.window import Depth, Stretch, Totals, Window, bare_uuid
from gputop_train.model import INTERRUPTION_LABELS, Interval, Site, Step, UtilSample
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import SECOND_NS, StepRollup, second

#: The live window: at least this long and at least this many steps.
LIVE_NS, LIVE_STEPS = 60_000_000_000, 50
#: Of a live window so many steps are looked at one by one; what is before them, by the second.
LIVE_DETAIL = 3_000
#: A live window reaches back to two periods of an interruption, at most this far, where that costs
#: this part of the time (half of the least any rule looks for, with room).
PERIODS_NS, PERIODIC_PART, SPELL_NS = 900_000_000_000, 0.02, 1_000_000_000
#: Occurrences in the last minute from which on no more are looked for (a save may be a few calls).
OFTEN = 12
#: Seconds of the run's beginning that are read for comparison.
HEAD = 70
#: What is compared as the beginning and the end of a run (a cold cache is told by it).
END_NS = 60_000_000_000


def build(
    reader: RunReader, *, t0_ns: int | None = None, t1_ns: int | None = None, final: bool
) -> Window:
    """Everything the rules look at.

    A live window begins no earlier than the newest way of running (regimes.py); a final one is the
    whole run, with the newest beside it.

    Args:
        reader: The run's store.
        t0_ns: Begin; ``None`` = the whole run when ``final``, else the last 60 s or 50 steps, or as
            far back as two periods of an interruption go.
        t1_ns: End; ``None`` = the newest data.
        final: Judge the steady part of the whole run rather than its last window.

    Raises:
        StoreError: If the store cannot be read.
    """
    states = reader.probe_states()
    rank = min(reader.ranks(), default=min(states, default=0))
    found = (_whole if final else _live)(reader, rank, t0_ns, t1_ns)
    part = cut(found.steps, found.older, starts_run=found.starts_run)
    begins = _begins([*found.older, *found.steps], part, final=final)
    newest = part.since(begins[-1]) if len(begins) > 1 else part
    kept = part if final else newest
    span = _bounds(kept, t0_ns, t1_ns, reader)
    window = _cut_out(reader, rank, states, found, kept, span, final=final)
    early, late = _ends(reader, rank, found, part, span, final=final)
    edges = pairwise([*begins, span[1] + 1])
    known = (stretch([p for p in part.parts if a <= p.t0_ns < b]) for a, b in edges)
    return replace(
        window,
        since=None if final else since(reader, rank, window.gpu_uuid, span[1], window.probe),
        whole=totals_of(found.steps, found.older) if final else window.totals,
        early=early,
        late=late,
        regimes=tuple(one for one in known if one is not None),
        newest=(
            _cut_out(reader, rank, states, found, newest, (begins[-1], span[1]), final=final)
            if final and newest is not part
            else None
        ),
    )


def _begins(seen: Sequence[Step | StepRollup], part: Cut, *, final: bool) -> list[int]:
    """Begin of each regime in ns; the warm-up helps to tell the first from it and is left out."""
    found = regimes(seen) if final else regimes(seen, REGIME_NS, by_time=False)
    changes = [seen[at].t0_ns for at in found]
    if not part.parts:
        return []
    first = part.parts[0].t0_ns
    return [first, *(t for t in changes if t > first)]


def _cut_out(
    reader: RunReader,
    rank: int,
    states: Mapping[int, Mapping[str, Any]],
    found: _Found,
    part: Cut,
    span: tuple[int, int],
    *,
    final: bool,
) -> Window:
    begin, end = span
    totals = totals_of(part.steps, part.older)
    probe = states.get(rank, {})
    uuid = _uuid(probe, reader, begin, end)
    util = [s for s in reader.util(begin, end) if s.uuid == uuid]
    walls = [s.wall_ns / 1e6 for s in part.steps]
    intervals = [i for i in reader.intervals(begin, end) if i.rank == rank]
    # Counters come once a second: those of the last steps are read after them.
    newest = not found.steps or found.steps[-1].t1_ns <= end
    return Window(
        final=final,
        rank=rank,
        t0_ns=begin,
        t1_ns=end,
        steps=part.steps,
        totals=totals,
        whole=totals,
        steps_seen=max(found.seen, len(found.steps)),
        warmup_excluded=part.excluded,
        warmup_why=part.why,
        median_ms=median(walls),
        p95_ms=quantile(walls, 0.95),
        intervals=tuple(_inside(intervals, begin, end)),
        sites=_sites(reader, rank, begin, None if newest else end),
        loaders=tuple(reader.loaders()),
        depths=_depths(reader, rank, begin, end),
        util=tuple(util),
        util_mean=_util_mean(reader, uuid, util, begin, end),
        gpu=tuple(g for g in reader.gpu(begin, end) if g.uuid == uuid),
        gpm=tuple(g for g in reader.gpm(begin, end) if g.uuid == uuid),
        host=tuple(reader.host(begin, end)) or tuple(reader.host(None, end)[-1:]),
        procs=tuple(p for p in reader.procs(begin, end) if p.rank in (rank, None)),
        memory=tuple(reader.memory(_steady_start(found.head, part), end, rank)),
        probe=probe,
        probe_states=states,
        gpu_uuid=uuid,
        missing=missing_signals(reader, probe, rank, found.seen, end, final=final),
        exit_code=reader.meta("exit_code"),
        cut_short=_cut_short(reader),
        run=_mapping(reader.meta("run")),
        ranks=abreast.ranks(reader, states, begin, end),
        cards=abreast.cards(reader),
        halves=_halves(part),
    )


def _halves(part: Cut) -> tuple[Totals, Totals] | None:
    """Sums over the first and the second half of the wall time, in whole parts."""
    parts = part.parts
    middle = (parts[0].t0_ns + parts[-1].t1_ns) // 2 if parts else 0
    at = bisect_left(parts, middle, key=attrgetter("t1_ns"))
    if not 0 < at < len(parts):
        return None
    cut_at = parts[at].t0_ns
    second_half = part.since(cut_at)
    first = Cut(
        part.steps[: len(part.steps) - len(second_half.steps)],
        part.older[: len(part.older) - len(second_half.older)],
        0,
        "",
    )
    return totals_of(first.steps, first.older), totals_of(second_half.steps, second_half.older)


def _ends(
    reader: RunReader,
    rank: int,
    found: _Found,
    part: Cut,
    span: tuple[int, int],
    *,
    final: bool,
) -> tuple[Stretch | None, Stretch | None]:
    """The run's first minute after its warm-up, and its last."""
    first, last = ends(part.parts, END_NS)
    if not final and not found.starts_run:
        begin = _settled(found.head) or 0
        first = [r for r in found.head if begin <= r.t0_ns and r.t1_ns <= begin + END_NS]
        last = part.parts
    edges = [(p[0].t0_ns, p[-1].t1_ns) for p in (first, last) if p]
    procs = [
        p for a, b in edges for p in reader.procs(a, min(b, span[1])) if p.rank in (rank, None)
    ]
    return stretch(first, procs), stretch(last, procs)


@dataclass(frozen=True, slots=True)
class _Found:
    """What the store holds of the steps of a window.

    Attributes:
        older: Seconds before ``steps`` whose steps are not looked at one by one.
        seen: Steps of the rank up to the window's end.
        head: The run's first seconds.
    """

    steps: Sequence[Step]
    older: Sequence[StepRollup]
    seen: int
    head: Sequence[StepRollup]
    starts_run: bool


def _cut_short(reader: RunReader) -> bool:
    code = reader.meta("exit_code")
    return isinstance(code, int) and code >= 128 and reader.meta("stopped_by") != "steps"


def _whole(reader: RunReader, rank: int, t0_ns: int | None, t1_ns: int | None) -> _Found:
    """A run as a whole, or what of it lies between two times."""
    rollups = reader.step_rollups(None, t1_ns, rank)
    seen = sum(r.n for r in rollups)
    steps = reader.steps(t0_ns, t1_ns, rank)
    if t0_ns is not None:
        rollups = [r for r in rollups if r.t0_ns >= t0_ns]
    return _Found(steps, older_than(rollups, steps), seen, rollups, starts_run=bool(steps))


def _live(reader: RunReader, rank: int, t0_ns: int | None, t1_ns: int | None) -> _Found:
    """The last minute or 50 steps. Read every few seconds: nothing here may grow with the run."""
    head = reader.first_rollups(HEAD, rank)
    seen = reader.steps_counted(rank, t1_ns)
    first = head[0].first_idx if head else 0
    older: Sequence[StepRollup] = ()
    steps: Sequence[Step]
    if t0_ns is not None:
        steps = reader.steps(t0_ns, t1_ns, rank)
    else:
        until = reader if t1_ns is None else reader.as_of(t1_ns)
        steps, older = _last_minute(until, rank, seen)
    oldest = older[0].first_idx if older else steps[0].index if steps else None
    return _Found(steps, older, seen, head, starts_run=oldest is not None and oldest <= first)


def _last_minute(
    reader: RunReader, rank: int, seen: int
) -> tuple[Sequence[Step], Sequence[StepRollup]]:
    tail = reader.steps_tail(LIVE_DETAIL, rank)
    if not tail:
        return [], ()
    begin = min(tail[-1].t1_ns - LIVE_NS, _two_periods(reader, rank, tail[-1].t1_ns))
    if len(tail) >= seen or tail[0].t1_ns <= begin:
        at = bisect_left(tail, begin, key=attrgetter("t0_ns"))
        return tail[min(at, max(0, len(tail) - LIVE_STEPS)) :], ()
    # Whole seconds, so that no step is counted twice or left out.
    begin_sec = second(tail[0].t1_ns) + 1
    steps = [step for step in tail if second(step.t1_ns) >= begin_sec]
    if not steps:
        return tail, ()
    older = reader.step_rollups(begin, begin_sec * SECOND_NS - 1, rank)
    return steps, [r for r in older if r.t0_ns >= begin]


def _two_periods(reader: RunReader, rank: int, end: int) -> int:
    """Since when an interruption that costs anything came twice; ``end`` where none did.

    From the end of the one before on: a window that begins with an occurrence holds one too many.
    """
    lately = [i.label for i in reader.intervals(end - LIVE_NS, end) if i.rank == rank]
    begin = end
    for label in INTERRUPTION_LABELS:
        if label == "restart" or lately.count(label) > OFTEN:
            continue  # the last minute holds enough of them; how many there were may be very many
        spells: list[tuple[int, int]] = []
        for i in reader.intervals(end - PERIODS_NS, end, label):
            if i.rank != rank:
                continue
            # A model and its optimizer saved by two calls are one save.
            if spells and i.t0_ns - spells[-1][1] < SPELL_NS:
                spells[-1] = (spells[-1][0], max(i.t1_ns, spells[-1][1]))
            else:
                spells.append((i.t0_ns, i.t1_ns))
        if len(spells) < 2:
            continue
        third = spells[-3][1] if len(spells) > 2 else spells[0][0] - SPELL_NS
        from_ns = max(end - PERIODS_NS, third)
        lost = sum(b - a for a, b in spells[-2:])
        if lost >= PERIODIC_PART * (end - from_ns):
            begin = min(begin, from_ns)
    return begin


def _bounds(part: Cut, t0_ns: int | None, t1_ns: int | None, reader: RunReader) -> tuple[int, int]:
    if part.parts:
        return part.parts[0].t0_ns, part.parts[-1].t1_ns
    span = reader.span() or (0, 0)
    return t0_ns if t0_ns is not None else span[0], t1_ns if t1_ns is not None else span[1]


def _steady_start(rollups: Sequence[StepRollup], part: Cut) -> int | None:
    """Where the run's own steady part begins: a leak is judged over all of it, also live."""
    if part.excluded and part.steps:
        return (part.older[0] if part.older else part.steps[0]).t0_ns
    settled = _settled(rollups)
    return settled if settled is not None or not part.steps else part.steps[0].t0_ns


def _settled(head: Sequence[StepRollup]) -> int | None:
    """Begin of the first second before which the shortest warm-up had passed."""
    past = 0
    for rollup in head:
        if past >= BLOCK:
            return rollup.t0_ns
        past += rollup.n
    return None


def _inside(intervals: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    return [i for i in intervals if i.t0_ns >= begin and i.t1_ns <= end]


def _sites(reader: RunReader, rank: int, begin: int, end: int | None) -> tuple[Site, ...]:
    """Places with the counters of the window; those of ``Module.eval()`` carry no counters."""
    seen = [s for s in reader.sites_between(begin, end) if s.rank == rank]
    ids = {s.id for s in seen}
    modes = [s for s in reader.sites(rank) if s.kind == "eval" and s.id not in ids]
    return (*seen, *modes)


def _depths(reader: RunReader, rank: int, begin: int, end: int) -> tuple[Depth, ...]:
    return tuple(
        Depth(d.loader_id, d.t_ns, d.ready)
        for d in reader.loader_depths(begin, end)
        if d.rank == rank and d.ready is not None
    )


def _uuid(probe: Mapping[str, Any], reader: RunReader, begin: int, end: int) -> str | None:
    """The device this rank trains on, as NVML names it; the only one seen where torch is silent."""
    known = sorted(
        {g.uuid for g in reader.gpu(begin, end)} | {u.uuid for u in reader.util(begin, end)}
    )
    wanted = _mapping(probe.get("cuda")).get("uuid")
    if isinstance(wanted, str) and wanted:
        return next((u for u in known if bare_uuid(u) == bare_uuid(wanted)), None)
    return known[0] if len(known) == 1 else None


def _util_mean(
    reader: RunReader, uuid: str | None, util: Sequence[UtilSample], begin: int, end: int
) -> float | None:
    if uuid is None:
        return None
    rows = [r for r in reader.util_rollups(begin, end) if r.uuid == uuid]
    count = sum(r.n for r in rows)
    if count > len(util):  # older samples live on as means only
        return sum(r.mean * r.n for r in rows) / count
    return sum(s.util for s in util) / len(util) if util else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
