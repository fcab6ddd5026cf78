"""``straggler-rank``: all ranks wait for one.

Looks for: the rank that waits *least* for the others (TraceML's policy), and how much longer the
others wait: (median of the others - its own) / T >= 10% warn, 20% critical (TraceML; OSDI'25 from
1.1 on). It must be the same rank in >= 60% of the stretches (gpuprof). Its cause is named when one
label explains >= 80% of the difference (TraceML).
On the CPU waits are inside backward, so what counts is the time outside backward, communication and
interruptions; on a GPU it is DDP's own timing of each rank.
Differential: ranks that take turns are noise or sequences of varying length; a rank that saves or
evaluates is ``checkpoint-stall`` or ``eval-stall``; equal waits are ``comm-bound``.
Fix: by cause. Probe: swap the data of two ranks: does slowness follow the data or the card?
Gain: T / (T - difference).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gputop_train.diagnose.accounting import INTERRUPTIONS, account
from gputop_train.diagnose.comm import wait_shares, world_size
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    CRITICAL,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    gain,
    ms,
    name,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import LABELS, Abstention, Advice, Finding, Loader, Where

ID = "straggler-rank"
#: The same rank in so many of the stretches, of so many at least.
SAME, MIN_PARTS = 0.60, 5
#: Labels in which a rank waits for the others.
WAITING = ("backward", "comm", "gpu_wait", "sync")
#: A clock this much below the other cards' is a cause of its own.
SLOW_CLOCK = 0.95
WORDS = {
    "data_wait": "waiting for its data",
    "h2d": "copying to its GPU",
    "forward": "its forward",
    "optimizer": "its optimizer",
    "other": "code outside the model",
    "clock": "the clock of its card",
}


@dataclass(frozen=True, slots=True)
class Straggler:
    """The slowest rank.

    Attributes:
        score: Part of a step by which the others wait longer than it does.
        same: Part of the stretches in which it was the slowest; ``None`` where not known.
        cause: Label (or ``clock``) that explains it, and how much of it; ``None`` without one.
    """

    rank: int
    score: float
    same: float | None
    cause: tuple[str, float] | None
    by_ddp: bool


def _own(totals: Totals) -> float | None:
    """Part of the wall time that a rank neither waits for others nor pauses."""
    if totals.wall_ns <= 0:
        return None
    apart = sum(totals.labels.get(label, 0) for label in (*WAITING, *INTERRUPTIONS))
    return max(0.0, 1.0 - apart / totals.wall_ns)


def _behind(own: dict[int, float]) -> tuple[int, float]:
    """The rank with most of its own to do, and by how much more than the others' median."""
    rank = max(own, key=lambda r: (own[r], -r))
    others = median([v for r, v in own.items() if r != rank])
    return rank, own[rank] - (others or 0.0)


def slowest(window: Window) -> Straggler | None:
    """The slowest rank; ``None`` where not every rank was measured."""
    views = window.ranks
    if window.on_gpu:
        waits = wait_shares(window)
        if set(waits) != set(views):
            return None
        rank, score = _behind({r: -share for r, share in waits.items()})
        same = None
    else:
        own = {r: v for r, view in views.items() if (v := _own(view.totals)) is not None}
        if set(own) != set(views):
            return None
        rank, score = _behind(own)
        same = _same(window, rank)
    return Straggler(rank, score, same, _cause(window, rank, score), window.on_gpu)


def _same(window: Window, rank: int) -> float | None:
    count: Counter[int] = Counter()
    for parts in zip(*(view.parts for view in window.ranks.values()), strict=False):
        own = {
            r: v
            for r, totals in zip(window.ranks, parts, strict=True)
            if (v := _own(totals)) is not None
        }
        if len(own) == len(window.ranks):
            count[_behind(own)[0]] += 1
    total = sum(count.values())
    return count[rank] / total if total >= MIN_PARTS else None


def _cause(window: Window, rank: int, score: float) -> tuple[str, float] | None:
    """What the slow rank does longer than the others, where that is enough."""
    if score <= 0:
        return None
    views = window.ranks
    found: dict[str, float] = {}
    for label in LABELS:
        if label in WAITING or label in INTERRUPTIONS:
            continue
        shares = {r: v.totals.labels.get(label, 0) / v.totals.wall_ns for r, v in views.items()}
        others = median([s for r, s in shares.items() if r != rank])
        found[label] = (shares[rank] - (others or 0.0)) / score
    clocks = {r: v.clock_mhz for r, v in views.items() if v.clock_mhz}
    others = median([c for r, c in clocks.items() if r != rank])
    mine = clocks.get(rank)
    if mine and others and mine < SLOW_CLOCK * others:
        found["clock"] = (1 - mine / others) / score
    part, label = max((part, label) for label, part in found.items())
    return (label, min(1.0, part)) if part >= COVERAGE else None


def judge(window: Window) -> Judgement:
    """Judge one window."""
    world = world_size(window)
    if world < 2:
        return RuledOut(ID, "a single process waits for nobody")
    if len(window.ranks) < 2 or len(window.ranks) < world:
        return Abstention(ID, f"steps of all {world} ranks: only those of this host are seen")
    found = slowest(window)
    if found is None:
        return Abstention(ID, "how long each rank waits for the others")
    if found.score < WARN:
        return RuledOut(ID, f"no rank is behind by more than {percent(max(0.0, found.score))}")
    if found.same is not None and found.same < SAME:
        return RuledOut(ID, "the slowest rank changes: noise, or sequences of varying length")
    if found.same is None and not found.by_ddp:
        return Abstention(ID, "enough of the run to see whether it is always the same rank")
    return _finding(window, found, world)


def _finding(window: Window, found: Straggler, world: int) -> Finding:
    acc = account(window)
    why = f" It spends it in {WORDS.get(found.cause[0], found.cause[0])}." if found.cause else ""
    loader = _loader(window, found)
    place = Where(loader.file, loader.line, loader.call) if loader is not None else None
    waits = wait_shares(window)
    return Finding(
        id=ID,
        summary=(
            f"Every rank waits for rank {found.rank}: {percent(found.score)} of each step, "
            f"{ms(acc.ms(found.score))} of {ms(acc.step_ms or 0.0)}.{why}"
        ),
        severity=severity(found.score, window.totals.steps),
        confidence=(
            "low"
            if found.cause is None and found.same is None
            else "medium"
            if found.cause is None or found.same is None
            else "high"
        ),
        lost_share=found.score,
        evidence=tuple(
            row
            for row in (
                number("slowest rank", found.rank),
                number("the others wait longer by", found.score, "of wall"),
                number("stretches in which it is the slowest", found.same, "of stretches"),
                number(
                    f"explained by {WORDS.get(found.cause[0], found.cause[0])}",
                    found.cause[1],
                    "of it",
                )
                if found.cause
                else None,
                number("exposed communication of that rank", waits.get(found.rank), "of wall"),
                number("ranks", world),
            )
            if row is not None and row.value is not None
        ),
        where=(place,) if place is not None else (),
        where_missing=None if place is not None else "it is a rank, not a line",
        advice=_advice(window, found, place),
        gain=gain(found.score, "T / (T - D), D = what the others wait longer than this rank"),
    )


def _loader(window: Window, found: Straggler) -> Loader | None:
    if found.cause is None or found.cause[0] != "data_wait":
        return None
    mine = [ld for ld in window.loaders if ld.rank == found.rank and ld.feeds_training]
    return max(mine, key=lambda ld: (ld.wait_ns, -ld.id), default=None)


def _advice(window: Window, found: Straggler, place: Where | None) -> tuple[Advice, ...]:
    cause = found.cause[0] if found.cause else None
    rank = found.rank
    if cause == "data_wait":
        at = f" ({name(place)})" if place is not None else ""
        first = Advice(
            f"Look at the loader of rank {rank} alone{at}: its shard (larger or longer items), its "
            "storage, and the cores its workers may use; the loaders of the other ranks keep up."
        )
    elif cause == "clock":
        clocks = {r: v.clock_mhz for r, v in window.ranks.items() if v.clock_mhz}
        rest = median([c for r, c in clocks.items() if r != rank])
        first = Advice(
            f"The card of rank {rank} runs at {clocks[rank]:.0f} MHz, the others at {rest:.0f}: "
            "look at its heat and power (nvidia-smi -q -d PERFORMANCE), or leave it out."
        )
    elif cause is not None:
        first = Advice(
            f"Look at what rank {rank} does in {WORDS.get(cause, cause)} that the others do not: "
            "code under `if rank == ...`, longer sequences, fewer cores."
        )
    else:
        first = Advice(
            f"Nothing measured explains rank {rank}: compare the lengths of its sequences with the "
            "others', and the cores, memory and network of its place."
        )
    other = min((r for r in window.ranks if r != rank), default=rank)
    return (
        first,
        Advice(
            f"To tell data from machine, swap the shards of ranks {rank} and {other}: does the "
            "slowness move along?"
        ),
    )


RULE = Rule(
    ID,
    54,
    judge,
    probe="swap the shards of two ranks: does slowness follow the data or the device?",
    page=Page(
        number=45,
        title="A slow rank",
        meaning=(
            "Ranks meet at every exchange of gradients, so all are as slow as the slowest. The "
            "others show it as time in backward or in communication, never as their own."
        ),
        looks_at=(
            "time of each rank outside backward, communication and interruptions (CPU)",
            "DDP's own timing of each rank (GPU)",
            "which label the slow rank spends longer in, and the clock of its card",
        ),
        thresholds=(
            Threshold(
                "the others wait longer",
                f">= {percent(WARN)} warn, {percent(CRITICAL)} critical",
                "TraceML 10/20%; gpuprof ratio 1.10/1.30; OSDI'25 S > 1.1",
            ),
            Threshold("the same rank", f">= {percent(SAME)} of the stretches", "gpuprof"),
            Threshold("a cause is named", f"from {percent(COVERAGE)} of it", "TraceML, issue 238"),
            Threshold("a slow clock", f"< {percent(SLOW_CLOCK)} of the others'", "proposed"),
        ),
        mistaken_for=(
            "ranks that take turns: noise, or sequences of varying length",
            "a rank that saves or evaluates while the others wait",
            "comm-bound: all wait equally long",
            "ranks of other hosts, which are not seen: then it abstains",
        ),
        mend=("by cause: shard, loader, cores, clock, network of that rank",),
        test="swap the shards of two ranks",
        gain="T / (T - D), D = what the others wait longer than this rank",
    ),
)
