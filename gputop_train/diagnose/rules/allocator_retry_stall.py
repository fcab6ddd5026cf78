"""``allocator-retry-stall``: the allocator runs out, gives its cache back and tries again.

Looks for: ``num_alloc_retries`` that rise after warm-up (catalogue 33, proposed: any), and what the
steps in which they rose take longer than the others. Each retry waits for the device and frees
every cached block. Information; a warning where it costs >= 5% of the wall.
Differential: the first steps and their new shapes; memory that grows step by step is a leak.
Fix: 5 to 10% less batch, or expandable segments. Probe: a batch 10% smaller. Gain: T / (T - E).
"""

from __future__ import annotations

from itertools import pairwise

from gputop_train.diagnose.headroom import headroom
from gputop_train.diagnose.rules.base import (
    INFO,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    gain,
    name,
    number,
    percent,
    severity,
)
from gputop_train.diagnose.stats import MIN_ARM, median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, MemorySample, Where

ID = "allocator-retry-stall"


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes")
    samples = [m for m in window.memory if m.retries is not None and m.t_ns >= window.t0_ns]
    if len(samples) < 2:
        return Abstention(ID, "the allocator's count of retries")
    more = (samples[-1].retries or 0) - (samples[0].retries or 0)
    if more <= 0:
        return RuledOut(ID, "the allocator never had to try again")
    lost, longer = _cost(window, samples)
    room = headroom(window)
    size = next((ld.batch_size for ld in window.feeding_loaders if ld.batch_size), None)
    loader = window.feeding_loaders[:1]
    at = f" ({name(Where(loader[0].file, loader[0].line, ''))})" if loader else ""
    used = f", which peaks at {percent(room.used)} of the device" if room is not None else ""
    smaller = (
        f"batch_size {size} -> {max(1, int(size * 0.9))}{at}" if size else "a batch 10% smaller"
    )
    return Finding(
        id=ID,
        summary=(
            f"The allocator ran out {more} times after warm-up and gave its cache back each time: "
            "the device is waited for and memory asked for anew."
        ),
        severity=severity(lost, window.totals.steps, warn=INFO),
        confidence="high" if longer is not None else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                number("retries of the allocator, after warm-up", more),
                number("a step with one is longer by", longer, "ms"),
                number("lost to them", lost if longer is not None else None, "of wall"),
                amount("memory allocated, peak", room.peak) if room is not None else None,
                amount("memory of the device", room.total) if room is not None else None,
            )
            if row is not None and row.value is not None
        ),
        where_missing="any allocation of the step may be the one that fails",
        advice=(
            Advice(
                "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF in an older "
                f"torch): {more} retries mean that free memory is in pieces too small{used}."
            ),
            Advice(
                f"If retries go on, {smaller}: 5 to 10% less is often enough to keep the cache; "
                f"watch whether the {more} retries of this stretch become 0. It changes the global "
                "batch."
            ),
        ),
        gain=gain(lost, "T / (T - E), E = what the steps with a retry take longer"),
    )


def _cost(window: Window, samples: list[MemorySample]) -> tuple[float, float | None]:
    """Wall share, and extra milliseconds of a step in whose time the count rose."""
    spans = [(a.t_ns, b.t_ns) for a, b in pairwise(samples) if (b.retries or 0) > (a.retries or 0)]
    inside = [s for s in window.steps if any(s.t1_ns > a and s.t0_ns < b for a, b in spans)]
    marked = {s.index for s in inside}
    usual = median([s.wall_ns / 1e6 for s in window.steps if s.index not in marked])
    if usual is None or len(window.steps) - len(inside) < MIN_ARM:
        return 0.0, None
    # Readings come a few a second: of the steps in between, only the longer ones had it.
    extra = [s.wall_ns / 1e6 - usual for s in inside if s.wall_ns / 1e6 > 1.5 * usual]
    whole = sum(s.wall_ns for s in window.steps) / 1e6
    return (sum(extra) / whole, sum(extra) / len(extra)) if extra and whole else (0.0, None)


RULE = Rule(
    ID,
    115,
    judge,
    probe="a batch 10% smaller",
    page=Page(
        number=33,
        title="The allocator runs out and tries again",
        meaning=(
            "An allocation fails, the allocator waits for the device, gives its whole cache back "
            "and tries again. A person sees single slow steps near a full card."
        ),
        looks_at=(
            "`num_alloc_retries` at step ends",
            "steps in which it rose beside the others",
            "peak memory against the device",
        ),
        thresholds=(
            Threshold("retries after warm-up, information", ">= 1", "proposed"),
            Threshold("time lost, warn", f">= {percent(INFO)} of wall", "TraceML's bands"),
        ),
        mistaken_for=(
            "the first steps, whose sizes are new",
            "`memory-leak`: memory that grows until the end",
            "`oom-risk`: a full card without retries",
        ),
        mend=("Expandable segments.", "5 to 10% less batch."),
        test="A batch 10% smaller",
        gain="ceiling `T / (T - E)`",
    ),
)
