"""What the memory page reads. A pure function of the store and the view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gputop_train.diagnose.rules.memory_leak import MIN_STEPS, Growth, standstill, trend_of
from gputop_train.model import GpuSample, HostSample, MemorySample, ProcSample
from gputop_train.report.memory import oom_lines
from gputop_train.tui import series
from gputop_train.tui.build import card_of, device_name
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.snapshot import Axis
from gputop_train.tui.text import size
from gputop_train.tui.views.memory import GrowthView, HostMemory, MemoryPageView, Values

NS = 1_000_000_000
ON_GPU = "cuda-allocator"
#: Steps before the growth of memory is looked at: what is built once is no growth.
WARM_UP_STEPS = 20
#: Seconds of readings the growth is taken from, at most: half an hour bounds what a look costs.
GROWTH_NS = 1800 * NS
#: The probe's snapshot of a live run is so much newer than what is shown, at most.
PROBE_NS = 10 * NS
#: Columns of an out-of-memory error's picture.
OOM_COLUMNS = 100
_KINDS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer_state", "optimizer state"),
    ("other", "other"),
)


def parts(asked: Asked) -> dict[str, Any]:
    """The page's field of the snapshot."""
    return {"memory_page": memory_page(asked)}


def memory_page(asked: Asked) -> MemoryPageView | None:
    """Memory of the rank that is shown; ``None`` before anything was read."""
    reader, axis, recent = asked.reader, asked.axis, asked.recent
    now = min(axis.t1_ns, asked.now_ns)
    # What a script gives back on its way out would hide what it held while it trained.
    held_ns = now if asked.over_ns is None else max(axis.t0_ns + 1, min(now, asked.over_ns))
    rank = asked.rank if asked.rank is not None else 0
    samples = recent.memory(reader, rank, held_ns - GROWTH_NS, held_ns)
    state = reader.probe_states().get(rank, {})
    hosts = reader.host(axis.t0_ns - NS, now) or reader.host(now - 30 * NS, now)
    procs = recent.procs(reader, axis.t0_ns - NS, now)
    host = _host(hosts[-1] if hosts else None, procs)
    if not samples:
        return None
    newest = samples[-1]
    mine = [s for s in samples if s.basis == newest.basis]
    on_gpu = newest.basis == ON_GPU
    gpu = card_of(recent.gpu(reader, axis.t0_ns - NS, held_ns), state) if on_gpu else []
    card = gpu[-1] if gpu else None
    total = _total(on_gpu, state, card, hosts)
    told = next((s for s in reversed(mine) if s.reserved is not None), newest)
    held, held_step, partial = _held(state.get("held"), held_ns)
    # The probe's words are the newest: of an earlier moment they do not tell.
    oom = _mapping(state.get("oom")) if _said_by(state.get("oom"), now) else {}
    counters = _mapping(state.get("memory")) if _said_by(state, now + PROBE_NS) else {}
    span = reader.span()
    return MemoryPageView(
        basis=newest.basis,
        rank=rank,
        device=device_name(state) if on_gpu else "",
        ranks=max(1, len(reader.ranks())),
        total=total,
        used=card.memory_used if card else None,
        ours=card.memory_ours if card else None,
        allocated=newest.allocated,
        reserved=told.reserved,
        peak_allocated=_largest(s.peak_allocated for s in mine) if on_gpu else _most(mine),
        peak_reserved=_largest(s.peak_reserved for s in mine),
        foreign_count=card.foreign_processes if card else None,
        foreign=card.foreign if card else (),
        held=held,
        held_step=held_step,
        held_partial=partial,
        split=_largest([told.inactive_split]),
        retries=_largest([counters.get("retries"), *(s.retries for s in mine)]),
        ooms=_largest([counters.get("ooms"), oom.get("count"), *(s.ooms for s in mine)]),
        growth=_growth(asked, rank, mine, _free(on_gpu, total, newest, told, card, hosts), total),
        host=host,
        oom=tuple(oom_lines(oom, span[0] if span else None, OOM_COLUMNS, size=size)),
        used_history=_values([(s.t_ns, s.memory_used) for s in gpu], axis),
        reserved_history=_values([(s.t_ns, s.reserved) for s in mine], axis),
        allocated_history=_values([(s.t_ns, s.allocated) for s in mine], axis),
        peak_history=_peaks(mine, axis),
        worker_history=() if on_gpu else _values(_worker_sums(procs), axis),
    )


def _total(
    on_gpu: bool, state: Mapping[str, Any], card: GpuSample | None, hosts: Sequence[HostSample]
) -> int | None:
    if on_gpu:
        if card is not None and card.memory_total:
            return card.memory_total
        return _largest([_mapping(state.get("cuda")).get("total")])
    limits = [n for h in hosts[-1:] for n in (h.mem_limit, h.mem_total) if n]
    return min(limits, default=None)


def _free(
    on_gpu: bool,
    total: int | None,
    newest: MemorySample,
    told: MemorySample,
    card: GpuSample | None,
    hosts: Sequence[HostSample],
) -> float | None:
    """Bytes that can still be had: free on the device or machine, and free in the pool."""
    if total is None:
        return None
    if not on_gpu:
        available = hosts[-1].mem_available if hosts else None
        return None if available is None else float(min(available, total))
    if card is None or card.memory_used is None or told.reserved is None:
        return float(max(0, total - newest.allocated))
    pool = max(0, told.reserved - newest.allocated)
    return float(max(0, total - card.memory_used) + pool)


def _growth(
    asked: Asked, rank: int, samples: Sequence[MemorySample], free: float | None, total: int | None
) -> GrowthView:
    """The trend of what is held after a step, by the rule's own measures."""
    reader = asked.reader
    count = reader.steps_counted(rank, asked.now_ns)
    if count - WARM_UP_STEPS < MIN_STEPS:
        return GrowthView(why=f"not judged before {MIN_STEPS + WARM_UP_STEPS} steps")
    done = 0
    begin = samples[0].t_ns
    for rollup in reader.first_rollups(60, rank):
        done += rollup.n
        if done >= WARM_UP_STEPS:
            begin = max(begin, rollup.t1_ns)
            break
    newest = reader.steps_tail(1, rank=rank)
    wall_s = (min(newest[-1].t1_ns, asked.now_ns) - begin) / NS if newest else 0.0
    # Counted by the store: rows of half an hour would have to be kept to be summed up here.
    rate = (count - reader.steps_counted(rank, begin)) / wall_s if wall_s > 0 else 0.0
    points = [((s.t_ns - begin) / NS * rate, float(s.allocated)) for s in samples]
    trend = trend_of([p for p in points if p[0] >= 0], samples[-1].basis) if rate > 0 else None
    if trend is None:
        return GrowthView(why="too few readings yet")
    why = standstill(trend, float(total) if total else None) or _ruled_out(asked, samples)
    if why:
        return GrowthView(steps=trend.steps, why=why)
    return _named(trend, rate, free)


def _named(trend: Growth, rate: float, free: float | None) -> GrowthView:
    per_s = trend.per_step * rate
    full_s = free / per_s if free is not None and per_s > 0 else None
    return GrowthView(trend.per_step, trend.steps, full_s)


def _ruled_out(asked: Asked, samples: Sequence[MemorySample]) -> str:
    """What the diagnosis knows against it: a cache that fills, a profiler that keeps."""
    found = asked.reader.latest_finding()
    if found is None:
        return ""
    for name in ("ruled_out", "abstained"):
        rows = found.body.get(name)
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and row.get("id") == "memory-leak":
                return str(row.get("missing") or "ruled out")
    return ""


def _said_by(value: Any, now: int) -> bool:
    """Whether what carries a time is of that time or earlier."""
    t_ns = _mapping(value).get("t_ns")
    return not isinstance(t_ns, int) or t_ns <= now


def _held(value: Any, now: int) -> tuple[tuple[tuple[str, int], ...], int | None, bool]:
    held = _mapping(value)
    if not held or not _said_by(held, now):
        return (), None, False
    kinds = [(words, held[name]) for name, words in _KINDS if isinstance(held.get(name), int)]
    step = held.get("step")
    return tuple(kinds), step if isinstance(step, int) else None, bool(held.get("partial"))


def _host(host: HostSample | None, procs: Sequence[ProcSample]) -> HostMemory | None:
    last = max((p.t_ns for p in procs), default=None)
    now = [p for p in procs if p.t_ns == last]
    trainers = [p for p in now if p.role == "trainer"]
    workers = [p for p in now if p.role == "worker"]
    if host is None and not now:
        return None
    private, basis = _private(workers)
    return HostMemory(
        trainers=len(trainers),
        trainer_private=_sum(p.rss_anon for p in trainers),
        trainer_rss=_sum(p.rss for p in trainers),
        workers=len(workers),
        worker_private=private,
        worker_basis=basis,
        available=host.mem_available if host else None,
        total=host.mem_total if host else None,
        limit=host.mem_limit if host else None,
        charged=host.mem_limit_used if host else None,
        swap_in=host.swap_in_bytes_per_s if host else None,
        shm_used=host.shm_used if host else None,
        shm_total=host.shm_total if host else None,
    )


def _private(workers: Sequence[ProcSample]) -> tuple[int | None, str]:
    """Memory that only the workers hold; RssAnon also counts what a fork shares unwritten."""
    exact = _sum(p.uss for p in workers)
    if exact is not None:
        return exact, "USS"
    anon = _sum(p.rss_anon for p in workers)
    return anon, "RssAnon" if anon is not None else ""


def _sum(values: Any) -> int | None:
    """The sum; ``None`` for none, or if one of them was not measured."""
    known = list(values)
    return sum(known) if known and None not in known else None


def _worker_sums(procs: Sequence[ProcSample]) -> list[tuple[int, float | None]]:
    by_time: dict[int, list[ProcSample]] = {}
    for p in procs:
        if p.role == "worker":
            by_time.setdefault(p.t_ns, []).append(p)
    return [(t, _private(rows)[0]) for t, rows in sorted(by_time.items())]


def _values(readings: Sequence[tuple[int, float | None]], axis: Axis) -> Values:
    known = [(t, float(value)) for t, value in readings if value is not None]
    times = [t for t, _ in known if t >= axis.t0_ns - NS]
    if not times:
        return ()
    values = [value for t, value in known if t >= axis.t0_ns - NS]
    return series.mean_by_bin(series.spans_of(times), times, values, axis)


def _peaks(samples: Sequence[MemorySample], axis: Axis) -> Values:
    """The largest allocation so far at each reading; a script may reset the allocator's own."""
    most, rising = 0, []
    for s in samples:
        if s.peak_allocated is not None:
            most = max(most, s.peak_allocated)
            rising.append((s.t_ns, most))
    return _values(rising, axis)


def _most(samples: Sequence[MemorySample]) -> int | None:
    return max((s.allocated for s in samples), default=None)


def _largest(values: Any) -> int | None:
    return max((v for v in values if isinstance(v, int)), default=None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
