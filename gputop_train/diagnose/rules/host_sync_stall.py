"""``host-sync-stall``: blocking reads of GPU results leave the GPU without work.

Looks for: GPU idle time behind ``.item()``, ``.cpu()``, ``synchronize()``...: E_sync / T >= 5%
warn, >= 15% critical (catalogue 18, proposed). The host time S blocked there is context, no proof
(NVIDIA's own check list: host synchronisation duration is not GPU stall).
Two numbers: a *lower bound* (event pairs around the call with the idle time that follows it, a
profiler burst's gaps behind blocking calls, or ``S - busy``), and a *model*: without the reads the
host runs ahead and a step takes ``max(T - S, busy)``, so they cost ``min(S, idle)`` of what no
earlier gate explains. Event pairs alone understate the damage: the run-ahead that a read destroys
shows as launch idle behind it. Neither exceeds S: without its reads a host still takes ``T - S``,
so of a long idle time behind a short block the rest is the host's own way to its next launch, in
code outside the model (``host-compute``) or in launches (``launch-bound``).
Lines are ordered by the idle time measured behind them, not by how long they block.
Differential: S large while the GPU is busy is harmless; a host-bound loop finds the queue empty, S
is small and the read costs nothing. A GradScaler reads by design: it is named where it costs, with
the mend that keeps its check on the device.
Fix: read every N steps; collect on the device; ``torch.where`` instead of ``if t.any()``.
Probe: read the site every 50 steps (the others are the control). Gain: T / (T - E).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gputop_train.diagnose.accounting import INTERRUPTIONS, account, lost_share, natural_experiment
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Confidence,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    ceiling,
    hook_missing,
    ms,
    name,
    number,
    percent,
    plain,
    severity,
    short_call,
    times,
    where,
)
from gputop_train.diagnose.rules.device_roundtrip import read_share
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.user_code import OBSERVES
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Site, Where

ID = "host-sync-stall"
WARN, CRITICAL = 0.05, 0.15
#: Without a lower bound above WARN the model alone must show this much, with the queue dry at most
#: edges, before it is believed (proposed here).
MODEL_ALONE, MODEL_DRY = 0.15, 0.5
READ_EVERY = 50
#: A loop that ends when a tensor says so asks it after so many rounds.
EVERY_ROUNDS = 10
#: Fewer pairs of events at a line say nothing of it.
MIN_PAIRS = 3
#: So many reads of one line a step are a loop over elements (proposed here).
LOOP = 8


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Wall shares: ``blocked`` host time S, ``lower`` bound and ``model`` of what it costs."""

    blocked: float
    lower: float | None
    model: float | None
    basis: str


@once
def sync_cost(window: Window) -> SyncCost:
    """What blocking reads cost this window (used by ``launch-bound`` as its earlier gate)."""
    acc = account(window)
    blocked = max(acc.shares.get("sync", 0.0) + acc.shares.get("gpu_wait", 0.0), _drawn(window))
    pairs = acc.exposed.get("sync")
    idle = acc.idle_share
    model = None
    if idle is not None:
        model = min(blocked, max(0.0, idle - _earlier_gates(window)))
    bounds = []
    if pairs is not None:
        bounds.append((min(pairs, blocked), "GPU event pairs"))
    if acc.burst is not None:
        bounds.append((acc.burst.sync, "idle behind blocking calls in a profiler burst"))
    if acc.busy_most is not None:
        bounds.append((max(0.0, blocked - acc.busy_most), "blocked beyond GPU busy"))
    if not bounds:
        return SyncCost(blocked, None, None, "")
    lower, basis = max(bounds, key=lambda b: b[0])
    return SyncCost(blocked, lower, model, basis)


def _drawn(window: Window) -> float:
    """Wall share in reads by their lines: of many a step the steps' own records hold but a few."""
    if window.totals.syncs < LOOP * window.totals.steps:
        return 0.0
    spent = sum(s.total_ns for s in window.sites if s.kind == "sync" and s.rank == window.rank)
    wall = window.totals.wall_ns
    return min(1.0, spent / wall) if wall > 0 else 0.0


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
    if read_share(window) > 0 and cost.lower - read_share(window) < WARN:
        return RuledOut(ID, "what is read comes back in the same step (device-roundtrip)")
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
        advice=_advice(window, lost),
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
    for s in _sites(window):
        behind = _behind(s)
        idle = "" if behind is None else f", GPU idle {ms(behind / 1e6)}"
        rows.append(
            Evidence(
                f"{name(where(s))} {short_call(s.call)}",
                s.count,
                f"reads, {ms(s.total_ns / 1e6)} blocked{idle}",
            )
        )
    if control is not None:
        rows.append(control)
    return tuple(row for row in rows if row.value is not None)


def _behind(site: Site) -> float | None:
    """Idle device time behind all reads of a line, ns, from those with events around them."""
    if not site.pairs or site.pairs < MIN_PAIRS or site.pair_ns is None:
        return None
    return (site.pair_ns + (site.after_ns or 0)) / site.pairs * site.count


def _sites(window: Window) -> list[Site]:
    """The fewest lines that cover 80% of the cost, at most three, the dearest first.

    A line without events counts by its blocked time, as much idle time to it as at the others.
    """
    mine = [s for s in window.sites if s.kind == "sync" and s.rank == window.rank and s.count > 0]
    told = [(s, behind) for s in mine if (behind := _behind(s)) is not None]
    blocked = sum(s.total_ns for s, _ in told)
    ratio = sum(behind for _, behind in told) / blocked if blocked else 1.0
    costs = {s.id: s.total_ns * ratio for s in mine} | {s.id: behind for s, behind in told}
    ranked = sorted(
        (s for s in mine if costs[s.id] > 0), key=lambda s: (-costs[s.id], s.file, s.line)
    )
    chosen: list[Site] = []
    covered, total = 0.0, sum(costs.values())
    for site in ranked[:3]:
        if covered >= COVERAGE * total:
            break
        chosen.append(site)
        covered += costs[site.id]
    return chosen


def _places(window: Window) -> tuple[tuple[Where, ...], str | None]:
    sites = _sites(window)
    if sites:
        return tuple(where(s) for s in sites), None
    return (), "the reads were too short, or made where the probe takes no line"


#: What a line of reads looks like -> what to do, most particular first.
SCALER = re.compile(r"scaler\w*\.(?:step|unscale_|update)\s*\(")
WAIT = re.compile(r"synchronize\s*\(")
BRANCH = re.compile(
    r"\.(?:any|all|isnan|isfinite|isinf)\(|nonzero|masked_select|\bunique|^(?:if|while)\b"
    r"|\s(?:[<>]=?|[!=]=)\s[^()\[\]]*$"  # `torch.dist(u, old) < tolerance`: asked if it is true
)
#: Whole tensors brought to the host, where what comes next may need them.
WHOLE = re.compile(r"\.(?:cpu|numpy|tolist)\(\)")


def _advice(window: Window, lost: float) -> tuple[Advice, ...]:
    """For each line by what it is, then how to tell that it helped."""
    acc = account(window)
    steps = [_for(window, site, lost) for site in _sites(window)[:2]]
    if not steps:
        per_step = window.totals.syncs / max(1, window.totals.steps)
        steps.append(
            f"Read every {READ_EVERY} steps instead of {times(per_step)} a step; between "
            f"reads keep the value on the GPU: total += loss.detach(). {ms(acc.ms(lost))} of "
            f"{ms(acc.step_ms or 0.0)} are idle behind reads now."
        )
    steps.append(
        f"If a step then stays at {ms(acc.step_ms or 0.0)}, the host was the limit and not the "
        f"read: look for launch-bound; {percent(lost)} is what reads cost at least."
    )
    return tuple(Advice(text) for text in dict.fromkeys(steps))


def _for(window: Window, site: Site, lost: float) -> str:
    acc = account(window)
    at = f"{short_call(site.call)} at {name(where(site))}"
    each = site.count * _untold(window) / max(1, window.totals.steps)
    idle = f"{ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}"
    if SCALER.search(site.call):
        row = _optimizer(window)
        return (
            f"fused=True in {row} keeps the scaler's check on the GPU: {at} reads it "
            f"{times(each)} a step now ({idle} idle); bf16 autocast needs no scaler."
        )
    if WAIT.search(site.call):
        return (
            f"Remove {at}: {plain(each)} a step, {idle} idle. To time a step, record two "
            f"torch.cuda.Event and read them {READ_EVERY} steps later."
        )
    if BRANCH.search(site.call) and each >= LOOP:
        return (
            f"Ask {at} every {EVERY_ROUNDS} rounds of its loop, or make a fixed number of rounds: "
            f"it reads the GPU {times(each)} a step now ({idle} idle)."
        )
    if BRANCH.search(site.call):
        return (
            f"Replace {at} by torch.where or a mask multiplied in: the branch reads the GPU "
            f"{times(each)} a step ({idle} idle)."
        )
    if each >= LOOP:
        return (
            f"Collect the {plain(each)} values a step of {at} on the GPU (index_add_, torch.stack) "
            f"and read them once with .tolist(), every {READ_EVERY} steps: {plain(each)} reads -> "
            f"{plain(1 / READ_EVERY)} a step."
        )
    if WHOLE.search(site.call) and not OBSERVES.search(f"{site.func} {site.call}"):
        return (
            f"Do on the GPU what follows {at}, or copy it with non_blocking=True and use it a step "
            f"later: it is read {times(each)} a step now, {idle} idle."
        )
    return (
        f"Read {at} every {READ_EVERY} steps: if step % {READ_EVERY} == 0. It is read "
        f"{times(each)} a step now, {idle} idle; in between keep it on the GPU, detached."
    )


def _untold(window: Window) -> float:
    """Reads for each one that a line tells: in older stores only slow ones were told by line."""
    told = sum(s.count for s in window.sites if s.kind == "sync" and s.rank == window.rank)
    return max(1.0, window.totals.syncs / told) if told else 1.0


def _optimizer(window: Window) -> str:
    rows = window.probe.get("optimizers")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) else {}
    return str(first.get("cls") or "the optimizer")


RULE = Rule(
    ID,
    50,
    judge,
    probe="read the site every 50 steps",
    page=Page(
        number=18,
        title="Reads of GPU results leave the GPU without work",
        meaning=(
            "`.item()`, `.cpu()`, a branch on a tensor: the host waits for the GPU, and then the "
            "GPU for the host. A person sees a flat, low utilisation and a step that does not "
            "overlap."
        ),
        looks_at=(
            "GPU idle time behind each read and until the next launch, by event pairs and by line",
            "time the host is blocked there, as context",
            "utilisation, edges that found the queue empty, a profiler burst",
            "steps with more reads than usual beside the others",
        ),
        thresholds=(
            Threshold("GPU idle behind reads, warn", f">= {percent(WARN)} of wall", "proposed"),
            Threshold("GPU idle behind reads, critical", f">= {percent(CRITICAL)}", "proposed"),
            Threshold(
                "by the model max(T - S, busy) alone",
                f">= {percent(MODEL_ALONE)}, queue empty at >= {percent(MODEL_DRY)} of edges",
                "proposed",
            ),
            Threshold("reads of one line that are a loop", f">= {LOOP} a step", "proposed"),
        ),
        mistaken_for=(
            "a long block while the GPU is busy: harmless (NVIDIA's check list)",
            "a read in a host-bound loop: the queue was empty before, the read costs nothing",
            "a GradScaler, which reads by design: named only where it costs",
            "`input-bound`: idle time that a wait for data explains is not charged to reads",
        ),
        mend=(
            "Read every 50 steps; accumulate on the GPU in between.",
            "One `.tolist()` for all values of a step.",
            "`torch.where` or a mask in place of a branch.",
            "`fused=True` keeps a GradScaler's check on the device.",
        ),
        test="Read the line every 50 steps; the steps that skip it are the control",
        gain="ceiling at least `T / (T - E)`: lost run-ahead shows as launch idle besides",
    ),
)
