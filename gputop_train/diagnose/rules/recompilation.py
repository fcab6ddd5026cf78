"""``recompilation``: torch.compile compiles again and again, or has given up and runs eagerly.

Looks for: compilation after warm-up >= 2% of the window (catalogue 22, proposed); or a function
that reached dynamo's limit of 8 recompilations, behind which it runs eagerly: its stalls end by
themselves, often within what counts as warm-up, and so does its speed-up.
Differential: the first compilation of each function; a recompilation or two in which dynamo makes a
size dynamic by itself; compilations that have ended are information;
many functions compiled once or twice each, which is no limit.
Fix: buckets or padding; ``mark_dynamic``; ``dynamic=True``; ``drop_last``. Probe: one fixed shape.
Gain: (nT + c) / (nT); what the lost speed-up was worth is not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gputop_train.diagnose.accounting import account, shares
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Severity,
    Threshold,
    gain,
    ms,
    name,
    number,
    occurrences,
    percent,
    severity,
    short_call,
    top_sites,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Where

ID = "recompilation"
#: Of the window, after warm-up.
FLOOR = 0.02
#: torch._dynamo's default limit of recompilations of one function.
LIMIT = 8
#: A run whose compile time is a smaller part of it is not worth a word about its warm-up.
WHOLE = WARN
#: So many recompilations are how dynamo makes a size dynamic by itself, and then they end.
TO_DYNAMIC = 2
#: Characters of a guard in a line of advice; the evidence has all of it.
ROOM = 80


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What dynamo tells.

    Attributes:
        again: Compilations beyond each function's first.
        at_limit: One function has reached the limit.
    """

    again: int | None
    graphs: int | None
    breaks: int | None
    at_limit: bool
    places: tuple[Where, ...]
    guard: str | None


def judge(window: Window) -> Judgement:
    """Judge one window."""
    dynamo = window.probe.get("dynamo")
    steady = account(window).shares.get("compile", 0.0)
    if not isinstance(dynamo, Mapping):
        if steady >= FLOOR:
            return Abstention(ID, "dynamo's counters")
        return RuledOut(ID, "torch.compile is not in use")
    found = _read(dynamo)
    if not found.places and found.again:
        found = replace(found, places=_called(window))
    whole = shares(window.whole).get("compile", 0.0)
    if steady >= FLOOR and found.again != 0 and (found.again or LIMIT) > TO_DYNAMIC:
        return _finding(window, found, steady, whole)
    if found.at_limit:
        return _finding(window, found, steady, whole)
    many = (found.graphs or 0) >= LIMIT and found.again is None
    if many and whole >= WHOLE:
        return Abstention(
            ID,
            f"dynamo's recompilations; it made {found.graphs} graphs in {percent(whole)} of the "
            "time",
        )
    if steady >= FLOOR:
        again = f"{found.again} times again" if found.again else "for the first time"
        return RuledOut(ID, f"functions are compiled {again}: that is how sizes become dynamic")
    return RuledOut(ID, f"compilation takes {percent(steady)} of the time after warm-up")


def _read(dynamo: Mapping[str, Any]) -> _Compiled:
    rows = [
        row
        for row in dynamo.get("reasons") or ()
        if isinstance(row, list) and len(row) == 5 and isinstance(row[4], int)
    ]
    rows.sort(key=lambda row: -row[4])
    again = _count(dynamo.get("recompiles"))
    # Every compiled version of a function is tried and told as a failure of its own: the n-th
    # recompilation adds n. Where a release tells only one each, this understates.
    most = int((math.sqrt(8 * rows[0][4] + 1) - 1) / 2) if rows else 0
    alone = len(rows) == 1 and again is not None and again >= LIMIT
    return _Compiled(
        again=again,
        graphs=_count(dynamo.get("unique_graphs")),
        breaks=_count(dynamo.get("graph_breaks")),
        at_limit=again is not None and again >= LIMIT and (alone or most >= LIMIT or not rows),
        places=tuple(
            Where(row[1], row[2], f"{row[0]}(...)") for row in rows[:2] if not _library(row[1])
        ),
        guard=rows[0][3] if rows else None,
    )


def _library(file: str) -> bool:
    return any(part in file for part in ("site-packages", "dist-packages", "/torch/", "<"))


def _called(window: Window) -> tuple[Where, ...]:
    """Where the person's code calls what is compiled, where dynamo names a frame of torch's."""
    mine = [s for s in window.sites if s.kind == "sample" and s.rank == window.rank]
    for label in ("compile", "forward"):
        found = top_sites((s for s in mine if s.label == label), limit=1, by_count=True)
        if found:
            return tuple(where(s) for s in found)
    return ()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finding(window: Window, found: _Compiled, steady: float, whole: float) -> Finding:
    acc = account(window)
    lost = steady
    if steady < FLOOR:
        # The first compilation of each function is not counted.
        graphs = max(found.graphs or 0, (found.again or 0) + 1)
        lost = whole * min(1.0, (found.again or 0) / graphs)
    each = [i.t1_ns - i.t0_ns for i in occurrences(window, "compile")]
    told = _severity(window, found, lost)
    return Finding(
        id=ID,
        summary=_summary(found, lost, steady),
        severity=told,
        confidence="high" if found.again is not None else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number("recompilations in the run", found.again),
                Evidence("guard that failed last", found.guard) if found.guard else None,
                number("compiling, after warm-up", steady, "of wall"),
                number("compiling, whole run", whole, "of wall") if window.final else None,
                number("one compilation, mean", sum(each) / len(each) / 1e6, "ms")
                if each
                else None,
                number("graphs made", found.graphs),
                number("graph breaks", found.breaks),
            )
            if row is not None and row.value is not None
        ),
        where=found.places,
        where_missing=None if found.places else "dynamo did not say which function",
        advice=_advice(window, found),
        gain=gain(
            lost,
            f"(nT + c) / (nT): {ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)} a step"
            if steady >= FLOOR
            else "recompiling over the whole run; the speed-up that compiled code had is not known",
            at_least=found.at_limit,
        ),
    )


def _severity(window: Window, found: _Compiled, lost: float) -> Severity:
    half = window.steps[len(window.steps) // 2 :]
    if not found.at_limit and not any(s.labels.get("compile", 0) for s in half):
        return "info"  # it has ended by itself
    by_cost = severity(lost, window.totals.steps, warn=INFO)
    return "warn" if found.at_limit and by_cost == "info" else by_cost


def _summary(found: _Compiled, lost: float, steady: float) -> str:
    at = f" ({name(found.places[0])})" if found.places else ""
    if found.at_limit:
        tail = (
            f"and took {percent(lost)} of the run to compile." if lost >= INFO else "and stays so."
        )
        return (
            f"torch.compile reached its limit of {LIMIT} recompilations{at}: the function runs "
            f"eagerly since, {tail}"
        )
    return (
        f"torch.compile compiles again and again{at}: {found.again or 'several'} times, "
        f"{percent(steady)} of the time after warm-up."
    )


def _shapes(window: Window) -> int | None:
    """Distinct shapes of the batches of the loader with most of them."""
    rows = window.probe.get("shapes")
    rows = rows if isinstance(rows, list) else []
    seen = [r[1] for r in rows if isinstance(r, list) and len(r) == 3 and isinstance(r[1], int)]
    return max(seen, default=None)


def _advice(window: Window, found: _Compiled) -> tuple[Advice, ...]:
    at = f" ({name(found.places[0])})" if found.places else ""
    guard = short_call(found.guard or "", ROOM)
    shapes = _shapes(window)
    seen = f"; batches had {shapes} shapes" if shapes and shapes > 1 else ""
    if "size mismatch" in guard or "size" in guard or "shape" in guard or not guard:
        steps = [
            Advice(
                f"Let the size that changes be dynamic{at}: torch.compile(..., dynamic=True), or "
                "torch._dynamo.mark_dynamic(x, dim) on the input"
                + (f". The guard that fails: {guard}" if guard else "")
                + f"{seen}."
            ),
            Advice(
                f"Or pad to at most {LIMIT - 2} lengths (buckets), below the limit of {LIMIT} "
                "compilations of one function; drop_last=True where only the last batch differs."
            ),
        ]
    else:
        steps = [
            Advice(
                f"Take out of the function what changes in each call{at}: a Python number or "
                f"attribute it reads is compiled in. The guard that fails: {guard}."
            ),
            Advice(
                "Pass that value as a tensor (torch.tensor(v, device=...)), or compute it outside "
                f"the compiled function: {found.again or 'several'} compilations then become 1."
            ),
        ]
    steps.append(
        Advice(
            "If it still recompiles, TORCH_LOGS=recompiles prints each guard that fails; "
            f"raising torch._dynamo.config.recompile_limit above {LIMIT} only buys more stalls."
        )
    )
    return tuple(steps)


RULE = Rule(
    ID,
    14,
    judge,
    probe="one fixed shape",
    page=Page(
        number=22,
        title="torch.compile compiles again and again",
        meaning=(
            "A guard fails in call after call, so the function is compiled anew until dynamo's "
            "limit, and runs eagerly from there. A person sees steps of many seconds that stop by "
            "themselves, with the speed-up gone."
        ),
        looks_at=(
            "dynamo's count of compilations by function, the guards that failed, graph breaks",
            "compilation time on the training thread, after warm-up and over the whole run",
            "distinct shapes of batches",
        ),
        thresholds=(
            Threshold("compiling after warm-up", f">= {percent(FLOOR)} of wall", "proposed"),
            Threshold("recompilations in all", f"> {TO_DYNAMIC}", "proposed: dynamic sizes"),
            Threshold("recompilations of one function", f">= {LIMIT}", "torch._dynamo's default"),
            Threshold(
                "time lost, warn", f">= {percent(INFO)} of wall, or at the limit", "proposed"
            ),
            Threshold("time lost, critical", f">= {percent(CRITICAL)} of wall", "TraceML's bands"),
        ),
        mistaken_for=(
            "the first compilation of each function: warm-up",
            "one or two recompilations in which dynamo makes a size dynamic by itself",
            "many functions compiled once or twice each: the limit is by function",
        ),
        mend=(
            "`dynamic=True`, or `mark_dynamic` on the size that changes.",
            "Pad or bucket, `drop_last=True`.",
            "Take Python numbers that change out of the compiled function.",
        ),
        test="Feed one fixed shape",
        gain="ceiling `(nT + c) / (nT)`, at least: what the compiled code saved is lost besides",
    ),
)
