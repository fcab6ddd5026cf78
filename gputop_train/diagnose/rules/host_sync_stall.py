"""``host-sync-stall``: blocking reads of GPU results leave the GPU without work.

Looks for: GPU idle time behind ``.item()``, ``.cpu()``, ``synchronize()``...: E_sync / T >= 5%
warn, >= 15% critical (catalogue 18, proposed). The host time S blocked there is context, no proof
(NVIDIA's own check list: host synchronisation duration is not GPU stall).
Two numbers: a *lower bound* (event pairs around the call with the idle time that follows it, a
profiler burst's gaps behind blocking calls, or ``S - busy``), and a *model*: without the reads the
host runs ahead and a step takes ``max(T - S, busy)``, so they cost ``min(S, idle)`` of what no
earlier gate explains. Event pairs alone understate the damage: the run-ahead that a read destroys
shows as launch idle behind it.
Differential: S large while the GPU is busy is harmless; a host-bound loop finds the queue empty, S
is small and the read costs nothing.
Fix: read every N steps; collect on the device; ``torch.where`` instead of ``if t.any()``.
Probe: read the site every 50 steps (the others are the control). Gain: T / (T - E).
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share, natural_experiment
from gputop_train.diagnose.rules.base import (
    Confidence,
    Judgement,
    Rule,
    RuledOut,
    ceiling,
    hook_missing,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    short_call,
    top_sites,
    where,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Site, Where

ID = "host-sync-stall"
WARN, CRITICAL = 0.05, 0.15
#: Without a lower bound above WARN the model alone must show this much, with the queue dry at most
#: edges, before it is believed (proposed here).
MODEL_ALONE, MODEL_DRY = 0.15, 0.5
READ_EVERY = 50


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Wall shares: ``blocked`` host time S, ``lower`` bound and ``model`` of what it costs."""

    blocked: float
    lower: float | None
    model: float | None
    basis: str


def sync_cost(window: Window) -> SyncCost:
    """What blocking reads cost this window (used by ``launch-bound`` as its earlier gate)."""
    acc = account(window)
    blocked = acc.shares.get("sync", 0.0) + acc.shares.get("gpu_wait", 0.0)
    pairs = acc.exposed.get("sync")
    idle = acc.idle_share
    model = None
    if idle is not None:
        model = min(blocked, max(0.0, idle - _earlier_gates(window)))
    bounds = [(pairs, "GPU event pairs")] if pairs is not None else []
    if acc.burst is not None:
        bounds.append((acc.burst.sync, "idle behind blocking calls in a profiler burst"))
    if acc.busy_most is not None:
        bounds.append((max(0.0, blocked - acc.busy_most), "blocked beyond GPU busy"))
    if not bounds:
        return SyncCost(blocked, None, None, "")
    lower, basis = max(bounds, key=lambda b: b[0])
    return SyncCost(blocked, lower, model, basis)


def _earlier_gates(window: Window) -> float:
    """Idle share that interruptions, data and copies already claim."""
    acc = account(window)
    claimed = sum(acc.shares.get(label, 0.0) for label in INTERRUPTIONS)
    for label in ("data_wait", "h2d"):
        lost, _ = lost_share(window, label)
        claimed += acc.shares.get(label, 0.0) if lost is None else lost
    return claimed


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: there is no GPU a read could keep waiting")
    missing = hook_missing(window, "sync")
    if missing:
        return Abstention(ID, missing)
    cost = sync_cost(window)
    if max(cost.blocked, cost.lower or 0.0) < WARN:
        return RuledOut(ID, f"reads block the host {percent(cost.blocked)} of the time")
    if cost.lower is None:
        return Abstention(ID, "GPU events or driver utilisation around blocking reads")
    acc = account(window)
    modelled = (
        cost.model is not None
        and cost.model >= MODEL_ALONE
        and acc.exposed.get("sync") is not None
        and acc.dry is not None
        and acc.dry >= MODEL_DRY
    )
    if cost.lower < WARN and not modelled:
        return RuledOut(
            ID,
            f"reads block the host {percent(cost.blocked)} of the time, but the GPU is idle for "
            f"only {percent(cost.lower)} of it ({cost.basis}): harmless",
        )
    return _finding(window, cost)


def _finding(window: Window, cost: SyncCost) -> Finding:
    acc = account(window)
    lower = cost.lower or 0.0
    lost = max(lower, cost.model or 0.0) if acc.exposed.get("sync") is not None else lower
    control = _control(window)
    confidence: Confidence = "medium"
    if lower >= WARN and (acc.exposed.get("sync") is not None or control is not None):
        confidence = "high"
    places, why_none = _places(window)
    per_step = window.totals.syncs / max(1, window.totals.steps)
    return Finding(
        id=ID,
        summary=(
            f"Blocking reads of GPU results cost at least {percent(lost)} of every step: "
            f"{plain(per_step)} a step, after each the GPU stands idle until the host catches up."
        ),
        severity=severity(lost, window.totals.steps, warn=WARN, critical=CRITICAL),
        confidence=confidence,
        lost_share=lost,
        evidence=_evidence(window, cost, per_step, control),
        where=places,
        where_missing=why_none,
        advice=_advice(per_step, places),
        gain=Gain(
            ceiling(lost),
            None,
            f"T / (T - E), E from {cost.basis}" + (" and max(T - S, busy)" if lost > lower else ""),
            at_least=True,
        ),
    )


def _control(window: Window) -> Evidence | None:
    """Steps with more reads than usual against the others, where the run offers both."""
    usual = median([s.syncs for s in window.steps])
    if usual is None:
        return None
    found = natural_experiment(window, [s.syncs > usual for s in window.steps])
    if found is None or found.low <= 0:
        return None
    return number(
        f"{found.n_with} steps with more reads than the other {found.n_without} are longer by",
        found.difference,
        "ms",
    )


def _evidence(
    window: Window, cost: SyncCost, per_step: float, control: Evidence | None
) -> tuple[Evidence, ...]:
    acc = account(window)
    rows = [
        number(f"GPU idle behind reads, at least ({cost.basis})", cost.lower, "of wall"),
        number("host blocked in reads (context)", cost.blocked, "of wall"),
        number("cost by the model max(T - S, busy)", cost.model, "of wall"),
        number("blocking reads", per_step, "a step"),
        number("queue found empty at a phase edge", acc.dry, "of edges"),
        number("GPU utilisation, mean", acc.util_mean, "%"),
    ]
    rows += [
        Evidence(
            f"{name(where(s))} {short_call(s.call)}",
            s.count,
            f"reads, {ms(s.total_ns / 1e6)} blocked",
        )
        for s in _sites(window)
    ]
    if control is not None:
        rows.append(control)
    return tuple(row for row in rows if row.value is not None)


def _sites(window: Window) -> list[Site]:
    return top_sites(s for s in window.sites if s.kind == "sync" and s.rank == window.rank)


def _places(window: Window) -> tuple[tuple[Where, ...], str | None]:
    sites = _sites(window)
    if sites:
        return tuple(where(s) for s in sites), None
    return (), "the reads were too short, or made where the probe takes no line"


def _advice(per_step: float, places: tuple[Where, ...]) -> tuple[Advice, ...]:
    line = f" ({name(places[0])})" if places else ""
    steps = [
        Advice(
            f"Read every {READ_EVERY} steps instead of every step{line}: "
            f"if step % {READ_EVERY} == 0. Between reads keep the value on the GPU, detached."
        )
    ]
    if per_step >= 2:
        steps.append(
            Advice(
                f"Collect the {plain(per_step)} values of a step on the GPU (torch.stack, "
                "index_add_) and read them once with .tolist()."
            )
        )
    steps.append(
        Advice("Replace branches on tensors (if t.any(), nonzero) by torch.where or masks.")
    )
    return tuple(steps)


RULE = Rule(ID, 50, judge, probe="read the site every 50 steps")
