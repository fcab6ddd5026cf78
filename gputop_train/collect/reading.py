"""One interpreted stretch of a training thread's time, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gputop_train.collect.gpu_edges import Exposure
from gputop_train.collect.tiling import Kept
from gputop_train.collect.words import COMPILE, LOGGING, SAVE
from gputop_train.model import LABELS, Interval, Step

#: Shorter logging calls are tallied, but not kept as intervals of their own.
MIN_LOGGING_NS: Final = 5_000_000
_KEPT_LABEL: Final = {SAVE: "checkpoint", COMPILE: "compile", LOGGING: "logging"}


@dataclass(slots=True)
class Reading:
    """One interpreted stretch."""

    t0_ns: int
    t1_ns: int
    tally: list[int]
    eval_tally: list[int] | None
    intervals: list[Interval]
    measured_ns: int
    micro: int
    samples: int | None
    syncs: int
    bad: int
    exposure: Exposure | None = None


def step_of(reading: Reading, rank: int, index: int) -> Step:
    """The record of a reading that is a whole step."""
    found = reading.exposure
    return Step(
        rank=rank,
        index=index,
        t0_ns=reading.t0_ns,
        t1_ns=reading.t1_ns,
        labels=dict(zip(LABELS, reading.tally, strict=True)),
        exposed=dict(found.by_label) if found is not None else None,
        micro=reading.micro,
        samples=reading.samples,
        dry=found.dry if found is not None else None,
        syncs=reading.syncs,
        measured_ns=reading.measured_ns,
    )


def joined(front: Reading, back: Reading) -> Reading:
    """Two readings of one step that was too long to be kept whole, as one."""
    samples = None
    if front.samples is not None or back.samples is not None:
        samples = (front.samples or 0) + (back.samples or 0)
    return Reading(
        t0_ns=front.t0_ns,
        t1_ns=back.t1_ns,
        tally=[a + b for a, b in zip(front.tally, back.tally, strict=True)],
        eval_tally=_added(front.eval_tally, back.eval_tally),
        intervals=_spliced(front.intervals, back.intervals, front.t1_ns),
        measured_ns=front.measured_ns + back.measured_ns,
        micro=front.micro + back.micro,
        samples=samples,
        syncs=front.syncs + back.syncs,
        bad=front.bad + back.bad,
        exposure=back.exposure,
    )


def _added(one: list[int] | None, other: list[int] | None) -> list[int] | None:
    if one is None or other is None:
        return one or other
    return [a + b for a, b in zip(one, other, strict=True)]


def _spliced(front: list[Interval], back: list[Interval], seam_ns: int) -> list[Interval]:
    """Intervals of both parts; an evaluation that was cut at the seam becomes one again."""
    merged = list(front)
    for late in back:
        for index, early in enumerate(merged):
            if early.label == late.label and early.t1_ns == seam_ns == late.t0_ns:
                merged[index] = Interval(
                    early.rank, early.label, early.t0_ns, late.t1_ns, early.site_id, early.bytes
                )
                break
        else:
            merged.append(late)
    return merged


def kept_intervals(rank: int, found: Iterable[Kept]) -> list[Interval]:
    """Saves, compilations and the longer logging calls, as intervals."""
    return [
        Interval(
            rank,
            _KEPT_LABEL[kept.phase],
            kept.t0_ns,
            kept.t1_ns,
            kept.site or None,
            (kept.amount or None) if kept.phase == SAVE else None,
        )
        for kept in found
        if kept.phase != LOGGING or kept.t1_ns - kept.t0_ns >= MIN_LOGGING_NS
    ]
