"""``gc-pause``: Python's garbage collector stops the training thread.

Looks for: collections of at least 1 ms on the training thread (the ``gc`` label), each >= 5% of
the step it falls in (catalogue 21, proposed), that cost >= 3% of the wall (the floor of
interruptions), warn from 5%. OSDI'25 reports 12.6% from planning collections on 128 ranks.
Differential: collections that free a lot hold back a leak through cycles: switching them off would
hurt, and the advice says so. Reference counting frees most tensors; those pauses are not this.
Fix: ``gc.freeze()`` after the set-up, collections every N steps. Probe: ``gc.disable()`` for 200
steps. Gain: T / (T - E).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.pausing import pause_cost
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    gain,
    hook_missing,
    ms,
    name,
    number,
    occurrences,
    percent,
    severity,
    span,
    where,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Where

ID = "gc-pause"
INFO, WARN = 0.03, 0.05
#: Of the step it falls in (catalogue 21, proposed).
OF_STEP = 0.05
#: A collection that frees so many objects has work to do (proposed here: torch's own set-up and a
#: loop without cycles free hundreds).
FREES = 10_000
TARGET = 0.01


def judge(window: Window) -> Judgement:
    """Judge one window."""
    missing = hook_missing(window, "gc")
    if missing:
        return Abstention(ID, missing)
    host = account(window).shares.get("gc", 0.0)
    if host < INFO:
        return RuledOut(ID, f"garbage collection takes {percent(host)} of the time")
    paused = [s for s in window.steps if s.labels.get("gc", 0) > 0]
    part = median([s.labels["gc"] / max(1, s.wall_ns) for s in paused])
    if part is not None and part < OF_STEP:
        return RuledOut(ID, f"a pause is only {percent(part)} of the step it falls in")
    lost, basis = pause_cost(window, "gc")
    if lost is None:
        return Abstention(ID, basis)
    if lost < INFO:
        return RuledOut(
            ID, f"collections take {percent(host)} of the time, the GPU is idle for {percent(lost)}"
        )
    return _finding(window, lost, basis)


def _finding(window: Window, lost: float, basis: str) -> Finding:
    acc = account(window)
    found = occurrences(window, "gc")
    each = (
        sum(i.t1_ns - i.t0_ns for i in found) / len(found) / 1e6
        if found
        else acc.ms(acc.shares.get("gc", 0.0))
    )
    places = _places(window)
    told = window.probe.get("gc")
    told = told if isinstance(told, Mapping) else {}
    return Finding(
        id=ID,
        summary=(
            f"Garbage collection takes {percent(lost)} of the time: {ms(each)} each, "
            f"{len(found)} times."
        ),
        severity=severity(lost, window.totals.steps, warn=WARN),
        confidence="high",
        lost_share=lost,
        evidence=(
            number(f"lost to collections ({basis})", lost, "of wall"),
            number("collections of 1 ms or more", len(found)),
            span("one collection, mean", each),
            *_generations(told),
        ),
        where=places,
        where_missing=None
        if places
        else "the collector starts by itself, at no line of the script",
        advice=_advice(window, told, each, lost, places),
        gain=gain(lost, f"T / (T - E): {ms(acc.step_ms or 0.0)} less {ms(acc.ms(lost))}"),
    )


def _places(window: Window) -> tuple[Where, ...]:
    """Lines that collect on purpose."""
    asked = [s for s in window.sites if "gc.collect(" in s.call and s.rank == window.rank]
    return tuple(dict.fromkeys(where(s) for s in asked))[:1]


def _rows(told: Mapping[str, object]) -> list[Sequence[int]]:
    rows = told.get("generations")
    return (
        [r for r in rows if isinstance(r, list) and len(r) == 3] if isinstance(rows, list) else []
    )


def _generations(told: Mapping[str, object]) -> tuple[Evidence, ...]:
    rows = [
        number(f"generation {n}, pauses in the run", row[0], f"({row[2]:,} objects freed)")
        for n, row in enumerate(_rows(told))
        if row[0]
    ]
    frozen = told.get("frozen")
    if isinstance(frozen, int):
        rows.append(number("objects frozen", frozen))
    return tuple(rows)


def _advice(
    window: Window,
    told: Mapping[str, object],
    each: float,
    lost: float,
    places: tuple[Where, ...],
) -> tuple[Advice, ...]:
    rows = _rows(told)
    pauses, freed = sum(r[0] for r in rows), sum(r[2] for r in rows)
    step = window.median_ms or account(window).step_ms or 0.0
    every = _round(math.ceil(each / (TARGET * step))) if step > 0 else 1000
    steps = []
    if places:
        steps.append(
            Advice(
                f"Take gc.collect() out of the loop ({name(places[0])}), or call it every "
                f"{every:,} steps: {ms(each)} each is then 1% of the time instead of "
                f"{percent(lost)}."
            )
        )
    if pauses and freed / pauses >= FREES:
        steps.append(
            Advice(
                f"Find what makes cycles first: a pause frees {freed / pauses:,.0f} objects. "
                "gc.set_debug(gc.DEBUG_SAVEALL) for one epoch lists them in gc.garbage; switching "
                "the collector off would let them pile up."
            )
        )
    if not told.get("frozen"):
        steps.append(
            Advice(
                "After the model and the loaders are built, and before the loop: gc.collect(); "
                f"gc.freeze(). 0 objects are frozen now, so each of the {ms(each)} pauses looks at "
                "all of them again."
            )
        )
    if places:  # neither gc.disable() nor a threshold keeps a call of one's own from collecting
        return tuple(steps[:3])
    threshold = told.get("threshold")
    now = f" (thresholds {tuple(threshold)} now)" if isinstance(threshold, list) else ""
    if pauses and freed / pauses >= FREES:
        first = threshold[0] if isinstance(threshold, list) and threshold else 700
        steps.append(
            Advice(
                f"If the cycles stay, collect less often: gc.set_threshold({10 * first}){now}; one "
                f"in ten of the pauses of {ms(each)} remains, memory between them grows."
            )
        )
        return tuple(steps[:3])
    steps.append(
        Advice(
            f"gc.disable() before the loop and gc.collect() every {every:,} steps{now}: a planned "
            f"pause of {ms(each)} is then at most 1% of the time, and all ranks can take it "
            "together."
        )
    )
    return tuple(steps[:3])


def _round(steps: int) -> int:
    """Up to a number a person would write."""
    size: int = 10 ** max(0, len(str(steps)) - 1)
    return math.ceil(steps / size) * size


RULE = Rule(
    ID,
    13,
    judge,
    probe="gc.disable() for 200 steps",
    page=Page(
        number=21,
        title="The garbage collector stops the training thread",
        meaning=(
            "Python looks through its objects for cycles while no step runs. A person sees single "
            "steps that are longer, at no line of their own."
        ),
        looks_at=(
            "`gc.callbacks`: collections of 1 ms or more on the training thread, by generation",
            "objects freed and frozen, thresholds",
            "steps with a pause beside those without",
        ),
        thresholds=(
            Threshold("a pause, median", f">= {percent(OF_STEP)} of its step", "proposed"),
            Threshold(
                "time lost, information", f">= {percent(INFO)} of wall", "proposed: interruptions"
            ),
            Threshold("time lost, warn", f">= {percent(WARN)} of wall", "proposed: interruptions"),
            Threshold("time lost, critical", f">= {percent(CRITICAL)} of wall", "TraceML's bands"),
            Threshold("a pause has work to do", f">= {FREES:,} objects freed", "proposed"),
        ),
        mistaken_for=(
            "a leak through cycles: pauses that free much keep memory down, without them it grows",
            "`memory-leak`: memory grows although nothing is collected",
        ),
        mend=(
            "No `gc.collect()` in the loop.",
            "`gc.collect(); gc.freeze()` after the set-up.",
            "`gc.disable()`, and a planned collection every N steps on all ranks at once.",
        ),
        test="`gc.disable()` for 200 steps",
        gain="ceiling `T / (T - E)`. 12.6% was measured on 128 ranks (OSDI'25)",
    ),
)
