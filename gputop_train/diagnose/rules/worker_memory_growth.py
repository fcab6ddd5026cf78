"""``worker-memory-growth``: private memory of the workers rises and does not stop.

Looks for: the sum of the workers' USS (pages no other process maps), less what file-backed pages
grew: Mann-Kendall p < 0.02 over at least five readings, growth >= 64 MB and >= 20% of the start (as
for memory-leak), a quarter of it in the second half (all proposed). Summed RSS does not show it:
reading a Python object writes its reference count, which copies the page that was shared since the
fork (measured in a report: private 259 MB against 18 MB mended, summed RSS 739 MB in both).
Where RssAnon grows as much, the workers allocate (a cache that fills, a leak): then only after the
first epoch.
Differential: memory-mapped files (nanoGPT #287) grow RSS and are given back; a start that flattens.
Fix: numpy or Arrow arrays instead of Python lists (pytorch #13246). Probe: the dataset's lists as
one array. Gain: none in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputop_train.diagnose.loading_advice import at, loader_at, loader_line
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    number,
    percent,
)
from gputop_train.diagnose.rules.memory_leak import MIN_BYTES, MIN_PART
from gputop_train.diagnose.rules.page_cache_thrashing import cache_room
from gputop_train.diagnose.stats import mann_kendall
from gputop_train.diagnose.supply import supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader, ProcSample

ID = "worker-memory-growth"
MIN_READINGS = 5
#: Five readings that only rise have 0.014 (proposed; memory-leak has more of them, and 0.01).
MAX_P = 0.02
#: Of the growth, in the second half of the readings (proposed): what flattens was a start.
LATE_PART = 0.25
#: RssAnon that grows by at least this part of the private growth: the workers allocate (proposed).
ALLOCATED = 0.5


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes of all workers together.

    Attributes:
        private: Growth of USS without file-backed pages.
        anon: Growth of RssAnon; ``None`` = not measured.
        late: Of ``private``, in the second half.
    """

    start: float
    private: float
    anon: float | None
    late: float
    p_value: float
    seconds: float
    workers: int


def judge(window: Window) -> Judgement:
    """Judge one window."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there are no workers")
    rows = _rows(window, loader)
    if not any(p.uss is not None for p in rows):
        return Abstention(ID, window.missing.get("uss", "private memory of the workers (USS)"))
    found = growth(rows)
    if found is None:
        return RuledOut(ID, "too few readings of a worker's private memory for a trend")
    if found.private < MIN_BYTES or found.private < MIN_PART * found.start:
        return RuledOut(ID, f"it grew by {found.private / 1e6:.1f} MB, too little to matter")
    if found.p_value >= MAX_P or found.late < LATE_PART * found.private:
        return RuledOut(ID, "it grew at the start and then levelled off")
    allocates = found.anon is not None and found.anon >= ALLOCATED * found.private
    if allocates and loader.epochs < 2:
        return RuledOut(ID, "the first epoch may fill a cache of the dataset in each worker")
    return _finding(window, loader, found, allocates=allocates)


def _rows(window: Window, loader: Loader) -> list[ProcSample]:
    others = {pid for ld in window.loaders if ld is not loader for pid in ld.worker_pids} - set(
        loader.worker_pids
    )
    return [p for p in window.procs if p.role == "worker" and p.pid not in others]


def growth(rows: list[ProcSample]) -> Growth | None:
    """How the workers' memory grew; only those that were read at least twice count."""
    read = [p for p in rows if p.uss is not None]
    counts: dict[int, int] = {}
    for p in read:
        counts[p.pid] = counts.get(p.pid, 0) + 1
    kept = {pid for pid, n in counts.items() if n >= 2}
    mine = sorted((p for p in read if p.pid in kept), key=lambda p: p.t_ns)
    mapped = {p.pid: size for p in reversed(mine) if (size := _mapped(p)) is not None}
    sums = _summed(mine, kept, _private(mapped))
    if len(sums) < MIN_READINGS:
        return None
    times, values = [t for t, _ in sums], [v for _, v in sums]
    half = (times[0] + times[-1]) / 2
    at_half = next(v for t, v in zip(times, values, strict=True) if t >= half)
    anon = _summed(mine, kept, _anon)
    return Growth(
        start=values[0],
        private=values[-1] - values[0],
        anon=anon[-1][1] - anon[0][1] if anon else None,
        late=values[-1] - at_half,
        p_value=mann_kendall(values),
        seconds=(times[-1] - times[0]) / 1e9,
        workers=len(kept),
    )


def _summed(
    rows: list[ProcSample], pids: set[int], of: Callable[[ProcSample], float | None]
) -> list[tuple[int, float]]:
    """Sum over the workers at each reading, the others as last read; once all were read."""
    newest: dict[int, float] = {}
    sums: list[tuple[int, float]] = []
    for p in sorted(rows, key=lambda p: (p.t_ns, p.pid)):
        value = of(p)
        if value is None:
            return []
        newest[p.pid] = value
        if len(newest) == len(pids):
            sums.append((p.t_ns, sum(newest.values())))
    return sums


def _private(first: Mapping[int, int]) -> Callable[[ProcSample], float | None]:
    """USS less what file-backed pages grew since the first reading: those are given back."""

    def of(sample: ProcSample) -> float | None:
        if sample.uss is None:
            return None
        mapped = _mapped(sample)
        grew = 0 if mapped is None else max(0, mapped - first.get(sample.pid, mapped))
        return float(sample.uss - grew)

    return of


def _mapped(sample: ProcSample) -> int | None:
    if sample.rss is None or sample.rss_anon is None:
        return None
    return sample.rss - sample.rss_anon


def _anon(sample: ProcSample) -> float | None:
    return float(sample.rss_anon) if sample.rss_anon is not None else None


def _finding(window: Window, loader: Loader, found: Growth, *, allocates: bool) -> Finding:
    per_s = found.private / found.seconds if found.seconds > 0 else 0.0
    room = cache_room(window)
    left_s = room / per_s if room is not None and per_s > 0 else None
    code = at(loader.source) or loader_at(loader)
    mb = f"{found.private / 1e6:,.0f} MB"
    each = f"{found.private / found.workers / 1e6:,.0f} MB each"
    if allocates:
        why = "they allocate it"
        first = (
            f"Find what {loader.dataset} keeps in each of {found.workers} workers{code}: {mb} in "
            f"{found.seconds:,.0f} s, {each}, after the first epoch too: a dict or list that grows "
            "with every item, or a cache without a limit (functools.lru_cache(maxsize=None))."
        )
    else:
        why = "pages shared since the fork are copied"
        first = (
            f"Hold the items of {loader.dataset} in numpy or Arrow arrays instead of Python lists "
            f"and dicts{code}: reading an object writes its reference count, and {found.workers} "
            f"workers copied {mb} of pages so ({each}; pytorch #13246)."
        )
    half = max(1, loader.num_workers // 2)
    steps = [Advice(first)]
    if half < loader.num_workers:
        steps.append(
            Advice(
                f"Until then, num_workers {loader.num_workers} -> {half}{loader_at(loader)} halves "
                f"it, at the price of slower loading.",
                {"num_workers": half},
            )
        )
    rows: list[Evidence] = [
        amount("growth of the workers' private memory", found.private),
        amount("at its start", found.start),
        amount("growth a second", per_s, "/s"),
        number("of it in the second half", found.late / found.private, "of it"),
        amount("growth of RssAnon", found.anon)
        if found.anon is not None
        else Evidence("growth of RssAnon", None),
        number("minutes until memory runs out", left_s / 60 if left_s is not None else None),
    ]
    return Finding(
        id=ID,
        summary=(
            f"The private memory of {found.workers} workers grew by {mb} in "
            f"{found.seconds:,.0f} s and still grows: {why}."
        ),
        severity="warn",
        confidence="high" if found.anon is not None else "medium",
        lost_share=0.0,
        evidence=tuple(row for row in rows if row.value is not None),
        where=tuple(p for p in (loader.source, loader_line(loader)) if p is not None),
        advice=tuple(steps),
        gain=None,
    )


PAGE = Page(
    number=49,
    title="The workers' memory grows",
    meaning=(
        "Each worker's own memory rises with every item it reads, until the machine has none left "
        "and a worker is killed. Usually the dataset holds Python lists: reading an object writes "
        "its reference count, so the page it shares with the other processes is copied."
    ),
    looks_at=(
        "unique set size (USS) of each worker, read one at a time every ten seconds or so",
        "RssAnon of each worker: grows where it allocates, not where pages are copied",
        "file-backed pages, which are subtracted",
    ),
    thresholds=(
        Threshold(
            "growth",
            f">= {MIN_BYTES / 1e6:.0f} MB and >= {percent(MIN_PART)} of the start",
            "proposed, as for memory-leak; a report of 18 against 259 MB",
        ),
        Threshold("Mann-Kendall p", f"< {MAX_P}, over >= {MIN_READINGS} readings", "proposed"),
        Threshold("in the second half", f">= {percent(LATE_PART)} of it", "proposed"),
        Threshold(
            "allocated rather than copied",
            f"RssAnon grew by >= {percent(ALLOCATED)} of it",
            "proposed",
        ),
    ),
    mistaken_for=(
        "memory-mapped files: their pages are given back (nanoGPT #287)",
        "summed RSS, which counts shared pages once for each worker",
        "a cache that fills in the first epoch",
        "memory-leak: the trainer's or the GPU's memory",
    ),
    mend=(
        "numpy or Arrow arrays instead of Python lists (pytorch #13246)",
        "fewer workers until then",
    ),
    test="the dataset's lists as one array",
    gain="none in time: the run ends when memory does",
)
RULE = Rule(ID, 102, judge, probe="the dataset's lists as one array", page=PAGE)
