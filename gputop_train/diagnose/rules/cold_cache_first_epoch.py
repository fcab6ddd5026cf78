"""``cold-cache-first-epoch``: the data is read from storage for the first time. No fault.

Looks for, either: storage was read >= 3 times as fast early in the run as late, and a step took
>= 1.3 times as long (gpuprof), with a late wait below a warning; or the first epoch is under way,
blocked workers read from storage, and the rate has not settled (its second half below two thirds of
the first, or less than 30 s of samples; proposed). It suppresses what is asked after it: cache
thrashing, slow fetching and slow preparation.
Differential: a rate that stays (``fetch-stall``, ``page-cache-thrashing``); nothing from storage.
Fix: wait, or read the data once before. Information, never a warning. Probe: the second epoch.
Gain: none that lasts.
"""

from __future__ import annotations

from gputop_train.diagnose.loading_advice import loader_at
from gputop_train.diagnose.rules.base import (
    WARN,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    amount,
    gain,
    percent,
    span,
)
from gputop_train.diagnose.supply import (
    IDLE_WORKER,
    STORAGE_BYTES_PER_S,
    Supply,
    mean,
    supply_of,
)
from gputop_train.diagnose.window import Stretch, Window
from gputop_train.model import Abstention, Advice, Finding, Loader

ID = "cold-cache-first-epoch"
#: gpuprof: early read rate over late, early step over late.
READ_RATIO, STEP_RATIO = 3.0, 1.3
#: The read rate has settled when its second half is at least this part of the first, over at least
#: so many seconds (both proposed).
SETTLED_PART, SETTLED_S = 2 / 3, 30.0


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the wait is that of a first pass over the data."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None:
        return RuledOut(ID, "no DataLoader")
    early, late = window.early, window.late
    if early is not None and late is not None and _is_over(early, late):
        return _named(
            found,
            loader,
            "It was the first pass over the data: storage is hardly read any more.",
            early.read_bytes_per_s or 0.0,
            (early.step_ms, late.step_ms),
        )
    rates = storage_rates(window)
    if not rates:
        return Abstention(ID, "bytes read from storage (/proc/PID/io)")
    whole = mean(rate for _, rate in rates) or 0.0
    if whole < STORAGE_BYTES_PER_S:
        return RuledOut(ID, "next to nothing is read from storage")
    if window.first_epoch_done is not False:
        return RuledOut(ID, "the data was read once, or how long an epoch is is not known")
    if not _blocked(supply):
        return RuledOut(ID, "the workers compute")
    if _settled(rates):
        return RuledOut(ID, "the rate at which storage is read has settled")
    return _named(
        found, loader, "It is the first pass over the data, read from storage.", whole, None
    )


def _is_over(early: Stretch, late: Stretch) -> bool:
    first, last = early.read_bytes_per_s, late.read_bytes_per_s
    if first is None or last is None or early.t0_ns == late.t0_ns:
        return False
    return (
        first >= STORAGE_BYTES_PER_S
        and first >= READ_RATIO * last
        and early.step_ms >= STEP_RATIO * late.step_ms
        and late.shares.get("data_wait", 0.0) < WARN
    )


def _blocked(supply: Supply) -> bool:
    cpu = mean(supply.workers_busy)
    return cpu is not None and cpu <= IDLE_WORKER


def storage_rates(window: Window) -> list[tuple[int, float]]:
    """(t_ns, bytes a second from storage) of the run's processes together, in order of time."""
    sums: dict[int, float] = {}
    for p in window.procs:
        if p.read_bytes_per_s is not None:
            sums[p.t_ns] = sums.get(p.t_ns, 0.0) + p.read_bytes_per_s
    return sorted(sums.items())


def _settled(rates: list[tuple[int, float]]) -> bool:
    if (rates[-1][0] - rates[0][0]) / 1e9 < SETTLED_S:
        return False
    half = len(rates) // 2
    first = mean(rate for _, rate in rates[:half]) or 0.0
    second = mean(rate for _, rate in rates[half:]) or 0.0
    return second >= SETTLED_PART * first


def _named(
    found: Finding,
    loader: Loader,
    why: str,
    rate: float,
    steps: tuple[float, float] | None,
) -> Refinement:
    rows = [amount("read from storage, early", rate, "/s")]
    if steps is not None:
        rows += [span("step, early", steps[0]), span("step, late", steps[1])]
    epoch = f"{loader.length:,} batches" if loader.length else "one pass"
    return Refinement(
        ID,
        1.0,
        why,
        confidence="high" if steps is not None else "low",
        evidence=tuple(rows),
        advice=(
            Advice(
                f"Nothing to change yet{loader_at(loader)}: judge again after {epoch} (one epoch), "
                f"{rate / 1e6:.3g} MB/s come from storage now. To skip it, read the files once "
                "before (vmtouch -t, or cat FILES > /dev/null) if they fit in memory."
            ),
        ),
        gain=gain(found.lost_share, "T / (T - E) while the first epoch lasts; none after it"),
        severity="info",
    )


PAGE = Page(
    number=6,
    title="The first pass over cold data",
    meaning=(
        "The files are not in memory yet, so the first epoch reads them from storage and is slow; "
        "later ones are not. It ends by itself: information, never a warning."
    ),
    looks_at=(
        "bytes the run's processes read from storage, early and late",
        "step time and data wait, early and late",
        "whether the loader was read through once",
    ),
    thresholds=(
        Threshold("early read rate", f">= {READ_RATIO:.0f} x the late one", "gpuprof"),
        Threshold("early step", f">= {STEP_RATIO} x the late one", "gpuprof"),
        Threshold("late data wait", f"< {percent(WARN)} of wall", "proposed"),
        Threshold(
            "in the first epoch: not settled",
            f"second half of the samples < {percent(SETTLED_PART)} of the first, or < "
            f"{SETTLED_S:.0f} s of them",
            "proposed",
        ),
    ),
    mistaken_for=(
        "fetch-stall: the rate has settled, or the epoch is over",
        "page-cache-thrashing: every epoch reads from storage again",
        "compile or other warm-up: nothing comes from storage",
    ),
    mend=("wait for the second epoch", "read the files once before the run"),
    test="the second epoch",
    gain="none that lasts",
)
RULE = Rule(
    ID,
    307,
    probe="judge the second epoch",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
