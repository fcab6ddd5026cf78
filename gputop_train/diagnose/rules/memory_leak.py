"""``memory-leak``: memory held after a step keeps growing, step after step.

Looks for: the *low-water marks* of allocated memory, the least of each of 24 stretches of steps
(readings come at step ends, a few a second; docs/memory.md), or of the trainer's RssAnon on a
CPU-only run (never RSS, which counts file pages): Theil-Sen slope > 0 and Mann-Kendall p < 0.01
over window minima of >= 200 steady steps, and growth >= 1% of the device (catalogue 31), or
>= 64 MB and >= 20% of the start (proposed here). Growth must go on in each of the last three
quarters: allocator warm-up, a lazily built optimizer state and caches that fill all flatten.
Differential: reserved grows while allocated is flat (not a leak); longer sequences, whose peaks
rise and low-water marks do not; page cache and memmap files, which are no private memory.
On the CPU also a dataset that keeps its items in the training process: not judged before it has
been through them once.
Fix: ``.item()`` or ``.detach()`` on what is stored; clear lists and hooks. Probe: drop the suspect.
Gain: none in time; it ends in an out-of-memory error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputop_train.diagnose.rules.anomaly_mode import profiling
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import mann_kendall, theil_sen
from gputop_train.diagnose.told import rows, whole
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, MemorySample, Where

ID = "memory-leak"
MIN_STEPS = 200
MAX_P = 0.01
DEVICE_PART = 0.01
MIN_BYTES, MIN_PART = 64_000_000, 0.20
#: Window minima over the steady part: 24, or 12 where samples are few; at least 3 a quarter.
WINDOWS, FEW_WINDOWS = 24, 12
#: How fast each of the last three quarters must still grow, as a part of the whole slope.
STILL_GROWING = 0.3
SOON_S, TODAY_S = 3600.0, 86_400.0
#: A scalar on the GPU takes a block of 512 bytes; far above it a kept tensor drags a graph along.
WITH_GRAPH = 100_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Trend of the low-water marks; bytes and steps."""

    per_step: float
    total: float
    steps: float
    start: float
    p_value: float
    quarters: tuple[float, ...]
    basis: str


def growth(window: Window) -> Growth | None:
    """The trend of this window's low-water marks, or ``None`` with too few samples."""
    return trend_of(_points(window), window.memory[-1].basis if window.memory else "")


def trend_of(points: Sequence[tuple[float, float]], basis: str) -> Growth | None:
    """The trend of the low-water marks of ``(step, bytes)``, or ``None`` with too few of them."""
    marks = low_water_marks(points, WINDOWS if len(points) >= 2 * WINDOWS else FEW_WINDOWS)
    if len(marks) < FEW_WINDOWS:
        return None
    steps, values = [m[0] for m in marks], [m[1] for m in marks]
    slope = theil_sen(steps, values)
    if slope is None:
        return None
    # What is held for good up to a step is the least that is held at any later one: memory that a
    # later epoch gives back is not.
    held = values.copy()
    for i in range(len(held) - 2, -1, -1):
        held[i] = min(held[i], held[i + 1])
    edges = [round(len(marks) * q / 4) for q in range(5)]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    quarters = [theil_sen(steps[part], held[part]) or 0.0 for part in parts]
    return Growth(
        per_step=slope,
        total=held[-1] - held[0],
        steps=steps[-1] - steps[0],
        start=held[0],
        p_value=mann_kendall(values),
        quarters=tuple(quarters),
        basis=basis,
    )


def standstill(trend: Growth, capacity: float | None) -> str | None:
    """Why a trend is no growth without end, in words; ``None`` if it is one."""
    if trend.per_step <= 0 or trend.p_value >= MAX_P:
        return "the low-water marks show no rising trend"
    large = trend.total >= MIN_BYTES and trend.total >= MIN_PART * trend.start
    if not large and not (capacity and trend.total >= DEVICE_PART * capacity):
        return f"it grew by {trend.total / 1e6:.1f} MB, too little to matter"
    if min(trend.quarters[1:]) < STILL_GROWING * trend.per_step:
        return "memory grew and then levelled off"
    return None


def low_water_marks(
    points: Sequence[tuple[float, float]], windows: int
) -> list[tuple[float, float]]:
    """The lowest value of each of ``windows`` equal stretches of steps, with its step."""
    if len(points) < windows:
        return []
    first, last = points[0][0], points[-1][0]
    width = (last - first) / windows
    if width <= 0:
        return []
    lowest: dict[int, tuple[float, float]] = {}
    for step, value in points:
        at = min(windows - 1, int((step - first) / width))
        if at not in lowest or value < lowest[at][1]:
            lowest[at] = (step, value)
    return [lowest[at] for at in sorted(lowest)]


def _points(window: Window) -> list[tuple[float, float]]:
    """(step, allocated) of the steady part.

    One clock for all: a sample's own step number restarts with a launcher's attempt. By the kept
    steps' own ends, since memory that grows by steps stands still while one takes a minute; before
    them evenly.
    """
    basis = window.memory[-1].basis if window.memory else ""
    same = [m for m in window.memory if m.rank == window.rank and m.basis == basis]
    start = min((m.t_ns for m in same), default=0)
    ends = [float(s.t1_ns - start) for s in window.steps if s.t1_ns >= start]
    totals = window.totals
    rate = totals.steps / totals.wall_ns if totals.wall_ns else 0.0
    before = rate * ends[0] if ends else 0.0

    def step(sample: MemorySample) -> float:
        at = float(sample.t_ns - start)
        if not ends or at <= ends[0]:
            return at * rate
        place = bisect_right(ends, at)
        if place == len(ends):
            return before + place - 1 + (at - ends[-1]) * rate
        part = (at - ends[place - 1]) / max(1.0, ends[place] - ends[place - 1])
        return before + place - 1 + part

    return sorted((step(m), float(m.allocated)) for m in same)


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.memory:
        return Abstention(ID, window.missing.get("memory", "memory samples"))
    if window.steps_seen - window.warmup_excluded < MIN_STEPS:
        return RuledOut(ID, f"not judged before {MIN_STEPS} steady steps")
    if _may_fill_a_cache(window):
        return RuledOut(ID, "the first epoch may fill a cache of the dataset in this process")
    trend = growth(window)
    if trend is None:
        return RuledOut(ID, "too few memory samples for a trend")
    capacity = _capacity(window)
    why = standstill(trend, capacity)
    if why is not None:
        return RuledOut(ID, why)
    if profiling(window):
        return Abstention(ID, "memory without the script's profiler, which keeps all it records")
    return _finding(window, trend, capacity)


def _may_fill_a_cache(window: Window) -> bool:
    """A dataset of the user's, read in the training process, that has items it never gave yet."""
    if window.memory[-1].basis == "cuda-allocator":
        return False
    return any(
        ld.num_workers == 0
        and not ld.iterable
        and ld.dataset != "TensorDataset"
        and ld.epochs <= 1
        and (ld.length is None or ld.batches < ld.length)
        for ld in window.feeding_loaders
    )


def _capacity(window: Window) -> float | None:
    """Bytes there are: of the device, or of the machine within the cgroup's limit."""
    if window.memory[-1].basis == "cuda-allocator":
        totals = [g.memory_total for g in window.gpu if g.memory_total]
        total = totals[-1] if totals else whole(window.probe.get("cuda"), "total")
        return float(total) if total else None
    for sample in reversed(window.host):
        limits = [v for v in (sample.mem_limit, sample.mem_total) if v]
        if limits:
            return float(min(limits))
    return None


def _eta_s(window: Window, trend: Growth, capacity: float | None) -> float | None:
    per_s = trend.per_step * window.totals.steps / (window.totals.wall_ns / 1e9)
    if capacity is None or per_s <= 0:
        return None
    used = float(window.memory[-1].allocated)
    if trend.basis != "cuda-allocator":
        available = [h.mem_available for h in window.host if h.mem_available is not None]
        used = capacity - min(available[-1], capacity) if available else used
    return max(0.0, capacity - used) / per_s


def _finding(window: Window, trend: Growth, capacity: float | None) -> Finding:
    eta = _eta_s(window, trend, capacity)
    on_gpu = trend.basis == "cuda-allocator"
    noun = "GPU memory" if on_gpu else "The trainer's private memory (RssAnon)"
    soon = f" At this rate it runs out in {_duration(eta)}." if eta is not None else ""
    places = _allocating(window) if on_gpu else ()
    level = severity(0.2 if eta is not None and eta < SOON_S else 0.1, window.totals.steps)
    rows: list[Evidence] = [
        amount("growth of the low-water marks", trend.per_step, " a step"),
        amount("growth over the steady part", trend.total),
        amount("low-water mark at its start", trend.start),
        _p_value(trend.p_value),
        _time_left(eta),
        Evidence("basis", trend.basis),
    ]
    return Finding(
        id=ID,
        summary=(
            f"{noun} held after each step grows by {_size(trend.per_step)} a step, without end: "
            f"{_size(trend.total)} over {trend.steps:,.0f} steps.{soon}"
        ),
        severity=level,
        confidence="high" if on_gpu else "medium",
        lost_share=0.0,
        evidence=tuple(row for row in rows if row.value is not None),
        where=places,
        where_missing=None if places else _no_line(on_gpu),
        advice=_advice(trend, on_gpu),
        gain=None,
    )


def _no_line(on_gpu: bool) -> str:
    if on_gpu:
        return "torch records which line allocated only where the script asks it to"
    return "nothing records which line allocated on the host"


def _allocating(window: Window) -> tuple[Where, ...]:
    """Lines that hold most, from the allocation history an out-of-memory error was read with."""
    lines = [r for r in rows(window.probe.get("oom"), "lines") if whole(r, "line") is not None]
    lines.sort(key=lambda r: -(whole(r, "bytes") or 0))
    return tuple(
        Where(str(r.get("file")), r["line"], f"{_size(whole(r, 'bytes') or 0)} allocated here")
        for r in lines[:3]
    )


def _advice(trend: Growth, on_gpu: bool) -> tuple[Advice, ...]:
    size, hundred = _size(trend.per_step), _size(100 * trend.per_step)
    kept = (
        f"{size} a step is more than numbers take: whole tensors are kept, undetached ones with "
        "the activations of their step."
        if trend.per_step >= WITH_GRAPH
        else f"{size} a step fits small tensors that are kept."
    )
    if on_gpu:
        return (
            Advice(
                f"{kept} Look where they are stored (a list of losses or outputs, a running sum, a "
                "hook): store loss.item() or x.detach().cpu() instead."
            ),
            Advice(
                "If it goes on, see what holds it: torch.cuda.memory._record_memory_history() "
                f"around 100 steps, which then show {hundred} more by line."
            ),
        )
    # Measured: small detached tensors that stay between large blocks still make the heap grow,
    # since free memory around them cannot be joined.
    return (
        Advice(
            f"{kept} Look where (a list of losses, a running sum, a hook; a replay buffer with a "
            "limit ends by itself): store loss.item() or x.tolist(). A kept .detach() still "
            "scatters the heap."
        ),
        Advice(
            "If it goes on, count the tensors in gc.get_objects() 100 steps apart: more of them "
            f"are in a list, a dict or a hook; as many, with {hundred} more memory, are a running "
            "sum with its graph."
        ),
    )


def urgency(window: Window) -> float:
    """The lost wall share this leak stands for when findings are ranked (engine.py).

    A run that dies of it within the hour loses everything; within a day as much as a critical
    finding; otherwise it yields to any other warning. Host memory yields from an hour on: what has
    a limit (a replay buffer, a cache) grows just so until it is full.
    """
    trend = growth(window)
    eta = _eta_s(window, trend, _capacity(window)) if trend is not None else None
    far = TODAY_S if trend is not None and trend.basis == "cuda-allocator" else SOON_S
    if eta is None or eta >= far:
        return 0.03
    return 1.0 if eta < SOON_S else 0.20


def _p_value(p: float) -> Evidence:
    return Evidence("Mann-Kendall p", "< 0.001" if p < 0.001 else float(f"{p:.2g}"))


def _time_left(seconds: float | None) -> Evidence:
    what = "time until memory runs out"
    if seconds is None or seconds < 120:
        return number(what, seconds, "s")
    return (
        number(what, seconds / 60, "min") if seconds < 7200 else number(what, seconds / 3600, "h")
    )


def _size(n: float) -> str:
    if n >= 1e9:
        return f"{n / 1e9:.2f} GB"
    return f"{n / 1e6:.3g} MB" if n >= 1e6 else f"{n / 1e3:.3g} kB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


RULE = Rule(
    ID,
    100,
    judge,
    probe="drop the suspected container for 200 steps",
    page=Page(
        number=31,
        title="Memory that grows without end",
        meaning=(
            "What a step leaves behind adds up: tensors kept in a list, a running sum that holds "
            "its graph. The run does not become slower; it ends."
        ),
        looks_at=(
            "lowest allocated GPU memory after a step, in 24 stretches of steps",
            "without a GPU the trainer's private memory (RssAnon), which holds no file pages",
            "capacity of the card, or of the machine within its cgroup",
            "allocation history, where the script records it",
        ),
        thresholds=(
            Threshold(
                "trend of the low-water marks",
                f"Theil-Sen slope > 0, Mann-Kendall p < {MAX_P:g}, >= {MIN_STEPS} steady steps",
                "proposed; SageMaker: +5% moving average, TraceML: baseline < middle < recent",
            ),
            Threshold(
                "growth",
                f">= {percent(DEVICE_PART)} of the device, or >= {MIN_BYTES / 1e6:.0f} MB and "
                f">= {percent(MIN_PART)} of the start",
                "proposed; TraceML: >= 1 GiB",
            ),
            Threshold(
                "still growing",
                f"each of the last three quarters at >= {percent(STILL_GROWING)} of the slope",
                "proposed",
            ),
            Threshold("critical", f"memory ends within {SOON_S / 60:.0f} minutes", "proposed"),
        ),
        mistaken_for=(
            "reserved memory that grows while allocated does not: the allocator's cache",
            "longer sequences: peaks rise, low-water marks do not",
            "page cache and memmap files: no private memory",
            "a dataset that keeps its items: not judged before it has been read once",
            "allocator warm-up and lazily built optimizer state: they level off",
        ),
        mend=(
            "loss.item() or .detach() on what is stored",
            "clear lists and hooks; no retain_graph",
        ),
        test="drop the suspected container for 200 steps",
        gain="none in time: it ends in an out-of-memory error",
    ),
)
