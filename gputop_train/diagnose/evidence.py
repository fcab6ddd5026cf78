"""Cut one window out of a run's store: the only place where diagnosis touches a reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gputop_train.diagnose.stats import median, quantile
from gputop_train.diagnose.steady import BLOCK, Cut, cut, older_than, totals_of
from gputop_train.diagnose.window import Depth, Window
from gputop_train.model import Interval, Site, Step, UtilSample
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import SECOND_NS, StepRollup, StoredNote, second

#: The live window: at least this long and at least this many steps.
LIVE_NS, LIVE_STEPS = 60_000_000_000, 50
#: Of a live window so many steps are looked at one by one; what is before them, by the second.
LIVE_DETAIL = 3_000
#: The probe writes its state twice a second; this long without it, while the trainer runs, is a
#: probe that died (a C call that holds the GIL can delay it by seconds).
STALE_NS = 20_000_000_000
#: Words lost beyond this part of a step's usual 20 words make the phases unreliable.
LOST_PART, WORDS_PER_STEP = 0.01, 20
#: Notes of the supervisor that say why no step was seen.
ABSENCE_NOTES = ("no-probe", "ring-refused")
#: Parts of the supervisor without which no step reaches the store.
STEP_PARTS = ("ring", "store")
#: So many steps counted by the probe and none stored is a loss; fewer may have been under way.
COUNTED_STEPS = 20
FINAL_ABSENCE_NOTE = "no-probe-after"


def build(
    reader: RunReader, *, t0_ns: int | None = None, t1_ns: int | None = None, final: bool
) -> Window:
    """Everything the rules look at.

    Args:
        reader: The run's store.
        t0_ns: Begin; ``None`` = the whole run when ``final``, else the last 60 s or 50 steps.
        t1_ns: End; ``None`` = the newest data.
        final: Judge the steady part of the whole run rather than its last window.

    Raises:
        StoreError: If the store cannot be read.
    """
    states = reader.probe_states()
    rank = min(reader.ranks(), default=min(states, default=0))
    found = (_whole if final else _live)(reader, rank, t0_ns, t1_ns)
    steps, older = found.steps, found.older
    part = cut(steps, older, starts_run=found.starts_run)
    begin, end = _bounds(part, t0_ns, t1_ns, reader)
    totals = totals_of(part.steps, part.older)
    probe = states.get(rank, {})
    uuid = _uuid(probe, reader, begin, end)
    util = [s for s in reader.util(begin, end) if s.uuid == uuid]
    walls = [s.wall_ns / 1e6 for s in part.steps]
    intervals = [i for i in reader.intervals(begin, end) if i.rank == rank]
    return Window(
        final=final,
        rank=rank,
        t0_ns=begin,
        t1_ns=end,
        steps=part.steps,
        totals=totals,
        whole=totals_of(steps, older) if final else totals,
        steps_seen=max(found.seen, len(steps)),
        warmup_excluded=part.excluded,
        warmup_why=part.why,
        median_ms=median(walls),
        p95_ms=quantile(walls, 0.95),
        intervals=tuple(_inside(intervals, begin, end)),
        sites=_sites(reader, rank, begin, end),
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
        missing=_missing(reader, probe, rank, found.seen, end, final=final),
        exit_code=reader.meta("exit_code"),
        cut_short=_cut_short(reader),
        run=_mapping(reader.meta("run")),
    )


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
    head = reader.first_rollups(BLOCK + 1, rank)
    seen = reader.steps_counted(rank, t1_ns)
    first = head[0].first_idx if head else 0
    older: Sequence[StepRollup] = ()
    steps: Sequence[Step]
    if t0_ns is not None:
        steps = reader.steps(t0_ns, t1_ns, rank)
    else:
        until = reader if t1_ns is None else reader.as_of(t1_ns)
        steps, older = _last_minute(until, rank)
    oldest = older[0].first_idx if older else steps[0].index if steps else None
    return _Found(steps, older, seen, head, starts_run=oldest is not None and oldest <= first)


def _last_minute(reader: RunReader, rank: int) -> tuple[Sequence[Step], Sequence[StepRollup]]:
    tail = reader.steps_tail(LIVE_DETAIL, rank)
    if not tail:
        return [], ()
    begin = tail[-1].t1_ns - LIVE_NS
    if len(tail) < LIVE_DETAIL or tail[0].t1_ns <= begin:
        at = bisect_left(tail, begin, key=attrgetter("t1_ns"))
        return tail[min(at, max(0, len(tail) - LIVE_STEPS)) :], ()
    # Whole seconds, so that no step is counted twice or left out.
    begin_sec = second(tail[0].t1_ns) + 1
    steps = [step for step in tail if second(step.t1_ns) >= begin_sec]
    if not steps:
        return tail, ()
    return steps, reader.step_rollups(begin, begin_sec * SECOND_NS - 1, rank)


def _bounds(part: Cut, t0_ns: int | None, t1_ns: int | None, reader: RunReader) -> tuple[int, int]:
    parts: list[Step | StepRollup] = [*part.older, *part.steps]
    if parts:
        return parts[0].t0_ns, parts[-1].t1_ns
    span = reader.span() or (0, 0)
    return t0_ns if t0_ns is not None else span[0], t1_ns if t1_ns is not None else span[1]


def _steady_start(rollups: Sequence[StepRollup], part: Cut) -> int | None:
    """Where the run's own steady part begins: a leak is judged over all of it, also live."""
    if part.excluded and part.steps:
        return (part.older[0] if part.older else part.steps[0]).t0_ns
    past = 0
    for rollup in rollups:
        if past >= BLOCK:
            return rollup.t0_ns
        past += rollup.n
    return part.steps[0].t0_ns if part.steps else None


def _inside(intervals: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    return [i for i in intervals if i.t0_ns >= begin and i.t1_ns <= end]


def _sites(reader: RunReader, rank: int, begin: int, end: int) -> tuple[Site, ...]:
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


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").lower()


def _uuid(probe: Mapping[str, Any], reader: RunReader, begin: int, end: int) -> str | None:
    """The device this rank trains on, as NVML names it; the only one seen where torch is silent."""
    known = sorted(
        {g.uuid for g in reader.gpu(begin, end)} | {u.uuid for u in reader.util(begin, end)}
    )
    wanted = _mapping(probe.get("cuda")).get("uuid")
    if isinstance(wanted, str) and wanted:
        return next((u for u in known if _bare(u) == _bare(wanted)), None)
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


def _missing(
    reader: RunReader,
    probe: Mapping[str, Any],
    rank: int,
    steps: int,
    end: int,
    *,
    final: bool,
) -> dict[str, str]:
    """Signal -> why it is not there, in words."""
    told = {str(k): str(v) for k, v in _mapping(reader.meta("missing")).items()}
    missing = dict(told)
    for key in ("util", "nvml"):
        if key in told:
            missing.setdefault("gpu_util", told[key].rstrip("."))
    trouble = _probe_trouble(reader, probe, steps, end, final=final)
    if trouble is not None:
        missing["probe"] = trouble
    loaders = [ld for ld in reader.loaders() if ld.rank == rank]
    if steps and any(ld.epochs for ld in loaders) and not any(ld.batches for ld in loaders):
        missing["hook:data"] = "a DataLoader was iterated, but none of its batches passed the probe"
    for name, placed in _mapping(probe.get("hooks")).items():
        if placed is not True:  # the probe's own reason, where its self-test gave one
            could_not = f"the probe could not place its {name} hook"
            missing.setdefault(f"hook:{name}", placed if isinstance(placed, str) else could_not)
    events = _mapping(probe.get("gpu_events"))
    if events.get("off_reason"):
        missing["gpu_events"] = f"GPU events are off: {events['off_reason']}"
    elif not events.get("steps"):
        missing["gpu_events"] = "no GPU events were recorded"
    return missing


def _cut_short(reader: RunReader) -> bool:
    code = reader.meta("exit_code")
    return isinstance(code, int) and code >= 128 and reader.meta("stopped_by") != "steps"


def _probe_trouble(
    reader: RunReader, probe: Mapping[str, Any], steps: int, end: int, *, final: bool
) -> str | None:
    notes = reader.notes()
    broken = _broken_part(notes)
    if not steps:
        return _absence(notes, broken) or (_uncounted(reader) if final else None)
    if broken is not None and broken.body.get("off"):
        return _sentence(broken.body, "a part that reads the probe failed")
    ring = _mapping(probe.get("ring"))
    if ring.get("failed"):
        return "the probe gave up inside the script, so later steps were not measured"
    lost = sum(v for v in (ring.get("lost"), ring.get("probe_lost")) if isinstance(v, int))
    if lost > LOST_PART * WORDS_PER_STEP * steps:
        return f"{lost:,} records of the probe were lost"
    seen = probe.get("t_ns")
    trainers = [
        p.t_ns
        for p in reader.procs(end, None)
        if p.role == "trainer" and p.pid == ring.get("pid", p.pid)
    ]
    if isinstance(seen, int) and trainers and max(trainers) - max(seen, end) > STALE_NS:
        return f"the probe has been silent for {(max(trainers) - seen) / 1e9:.0f} s"
    return None


def _broken_part(notes: Sequence[StoredNote]) -> StoredNote | None:
    """The newest failure of a part that brings steps from the probe to the store."""
    failed = [
        note
        for note in notes
        if note.kind == "part-failed" and str(note.body.get("part")).startswith(STEP_PARTS)
    ]
    return failed[-1] if failed else None


def _absence(notes: Sequence[StoredNote], broken: StoredNote | None) -> str | None:
    """Why not one step is there, if it is not that the script made none."""
    refused = next((note for note in notes if note.kind == "ring-refused"), None)
    for note in notes:
        # What was found at the end outranks what was guessed under way; what we ourselves could
        # not read outranks both, for then the probe is not to blame.
        if note.kind == FINAL_ABSENCE_NOTE:
            if note.body.get("blocked") is False:
                return None
            return _sentence((broken or refused or note).body, "the probe did not report")
    if broken is not None:
        return _sentence(broken.body, "a part that reads the probe failed")
    for note in notes:
        # A script that never loaded torch, or only evaluates, has no steps: nothing is wrong.
        if note.kind in ABSENCE_NOTES and note.body.get("blocked") is not False:
            return _sentence(note.body, "the probe did not report")
    return None


def _uncounted(reader: RunReader) -> str | None:
    """Steps that the probe counted and nobody stored, whatever became of them."""
    counts = [_mapping(s.get("cost")).get("steps") for s in reader.probe_states().values()]
    counted = max((n for n in counts if isinstance(n, int)), default=0)
    if counted < COUNTED_STEPS:
        return None
    return f"the probe counted {counted:,} steps, but none of them was recorded"


def _sentence(body: Mapping[str, Any], otherwise: str) -> str:
    text = body.get("text")
    return text.rstrip(".") if isinstance(text, str) and text else otherwise


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
