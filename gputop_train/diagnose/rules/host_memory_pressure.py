"""``host-memory-pressure``: memory of the machine, or of the container, runs short.

Looks for: swap-in >= 1 MB/s (gpuprof) in at least three samples running ("any sustained swap-in"),
by this run's processes where their major faults are counted; or less than 5% of memory available
(the cgroup's limit counts), a warning with memory pressure (PSI "some" >= 10%, proposed), else
information.
Differential: the page cache is reclaimable and counts as available; another program's swapping.
Fix: fewer workers and shallower queues, numpy or Arrow instead of Python lists, more memory.
Probe: half of workers x prefetch_factor. Gain: not measured; what swapping costs shows elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputop_train.diagnose.loading_advice import loader_at, loader_line
from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Severity,
    Threshold,
    amount,
    number,
    percent,
)
from gputop_train.diagnose.supply import mean
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, HostSample, Loader

ID = "host-memory-pressure"
#: gpuprof; and so many samples (seconds) running are "sustained" (proposed).
SWAP_IN_PER_S, SUSTAINED = 1e6, 3
#: Of memory, or of the cgroup's limit (catalogue 12).
LITTLE = 0.05
#: PSI "some avg10" of memory, percent (proposed).
PRESSURE = 10.0
#: A process that reads pages back from storage makes major faults (proposed).
OUR_FAULTS_PER_S = 1.0


def judge(window: Window) -> Judgement:
    """Judge one window."""
    swapped = [h.swap_in_bytes_per_s for h in window.host if h.swap_in_bytes_per_s is not None]
    left = [part for part in (available(h) for h in window.host) if part is not None]
    if not swapped and not left:
        return Abstention(ID, "swap-in and available memory of the host")
    faults = _our_faults(window)
    if longest_run(rate >= SWAP_IN_PER_S for rate in swapped) >= SUSTAINED:
        if faults is not None and faults < OUR_FAULTS_PER_S:
            return RuledOut(ID, "the machine swaps, but none of this run's processes")
        rate = mean(rate for rate in swapped if rate >= SWAP_IN_PER_S) or 0.0
        sure = faults is not None
        summary = f"Memory is short: {rate / 1e6:.3g} MB/s come back from swap."
        return _finding(window, summary, "warn", rate, left, sure=sure)
    if left and longest_run(part < LITTLE for part in left) >= min(SUSTAINED, len(left)):
        pressed = max((h.psi_memory for h in window.host if h.psi_memory is not None), default=0.0)
        summary = f"Memory is short: {percent(min(left))} of it is left, nothing is swapped yet."
        level: Severity = "warn" if pressed >= PRESSURE else "info"
        return _finding(window, summary, level, None, left, sure=False)
    return RuledOut(ID, "no sustained swap-in, and memory is left")


def available(sample: HostSample) -> float | None:
    """Part (0..1) of memory that is available, within the cgroup's limit."""
    parts = []
    if sample.mem_available is not None and sample.mem_total:
        parts.append(sample.mem_available / sample.mem_total)
    if sample.mem_limit and sample.mem_limit_used is not None:
        parts.append(max(0.0, 1 - sample.mem_limit_used / sample.mem_limit))
    return min(parts) if parts else None


def longest_run(flags: Iterable[bool]) -> int:
    """How many of these are true one after another, at most."""
    best = now = 0
    for flag in flags:
        now = now + 1 if flag else 0
        best = max(best, now)
    return best


def _our_faults(window: Window) -> float | None:
    sums: dict[int, float] = {}
    for p in window.procs:
        if p.major_faults_per_s is not None:
            sums[p.t_ns] = sums.get(p.t_ns, 0.0) + p.major_faults_per_s
    return max(sums.values()) if sums else None


def _finding(
    window: Window,
    summary: str,
    level: Severity,
    rate: float | None,
    left: Sequence[float],
    *,
    sure: bool,
) -> Finding:
    loaders = [ld for ld in window.feeding_loaders if ld.num_workers]
    anon = _by_role(window)
    rows: list[Evidence] = [
        amount("swapped in", rate, "/s") if rate is not None else Evidence("swapped in", None),
        number("memory available, least", min(left) if left else None, "of it"),
        number("memory pressure, PSI some", _pressure(window), "%"),
        *(amount(f"private memory, {role}", size) for role, size in anon),
    ]
    return Finding(
        id=ID,
        summary=summary,
        severity=level,
        confidence="high" if sure else "medium",
        lost_share=0.0,
        evidence=tuple(row for row in rows if row.value is not None),
        where=tuple(loader_line(ld) for ld in loaders[:1]),
        where_missing=None if loaders else "memory of the host has no line of code",
        advice=_advice(loaders, anon),
        gain=None,
    )


def _pressure(window: Window) -> float | None:
    return max((h.psi_memory for h in window.host if h.psi_memory is not None), default=None)


def _by_role(window: Window) -> list[tuple[str, float]]:
    """Newest private memory of the run's processes, summed by role, the largest first."""
    newest = {p.pid: p for p in window.procs if p.rss_anon is not None}
    sums: dict[str, float] = {}
    for p in newest.values():
        name = "workers" if p.role == "worker" else p.role
        sums[name] = sums.get(name, 0.0) + (p.rss_anon or 0)
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _advice(loaders: Sequence[Loader], anon: list[tuple[str, float]]) -> tuple[Advice, ...]:
    held = ", ".join(f"{role} {size / 1e9:.3g} GB" for role, size in anon) or "not measured"
    steps = []
    for ld in loaders[:1]:
        half, depth = max(1, ld.num_workers // 2), ld.prefetch_factor or 2
        if half < ld.num_workers:
            steps.append(
                Advice(
                    f"num_workers {ld.num_workers} -> {half}{loader_at(ld)}: {ld.num_workers} x "
                    f"{depth} batches lie in memory, and each worker has its own copy of what it "
                    f"touches (private memory: {held}).",
                    {"num_workers": half},
                )
            )
    steps.append(
        Advice(
            f"Make what the processes hold now smaller (private memory: {held}): numpy or Arrow "
            "arrays instead of Python lists and dicts, memory-mapped files instead of loaded ones."
        )
    )
    return tuple(steps)


PAGE = Page(
    number=12,
    title="Memory of the host runs short",
    meaning=(
        "The machine or the container has no memory left: pages come back from swap, processes "
        "stall, and in the end the kernel kills one. The page cache is not meant: it gives way."
    ),
    looks_at=(
        "swap-in of the machine; major faults of the run's processes",
        "available memory of the machine and within the cgroup's limit",
        "memory pressure (PSI), private memory of trainer and workers",
    ),
    thresholds=(
        Threshold(
            "swap-in",
            f">= {SWAP_IN_PER_S / 1e6:.0f} MB/s in {SUSTAINED} samples running",
            "gpuprof (1 MB/s); how long is proposed",
        ),
        Threshold("available memory", f"< {percent(LITTLE)}", "proposed"),
        Threshold("for a warning without swap: PSI some", f">= {PRESSURE:.0f}%", "proposed"),
        Threshold(
            "major faults of the run",
            f">= {OUR_FAULTS_PER_S:.0f}/s, where counted",
            "proposed",
        ),
    ),
    mistaken_for=(
        "the page cache, which fills memory and is given up when needed",
        "another program's swapping: this run makes no major faults",
        "worker-memory-growth: named by itself",
    ),
    mend=(
        "fewer workers, a smaller prefetch_factor",
        "numpy or Arrow instead of Python lists",
        "more memory, a higher limit",
    ),
    test="half of workers x prefetch_factor",
    gain="not measured: what swapping costs shows in the other shares",
)
RULE = Rule(ID, 101, judge, probe="half of workers x prefetch_factor", page=PAGE)
