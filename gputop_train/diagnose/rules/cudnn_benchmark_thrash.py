"""``cudnn-benchmark-thrash``: cuDNN searches for the fastest kernel again for every new shape.

Looks for, on a GPU: ``cudnn.benchmark`` on, batches of >= 8 shapes, and steps whose forward and
backward take >= 3 times the median, about as many as there were shapes, fewer later where shapes
come again, which cost >= 5% of the wall (all proposed; catalogue 23 has no threshold).
Differential: recompilation explains such steps first; the first shapes are warm-up; longer batches
are longer by their length, rarely three times, and not only once a shape.
Fix: benchmark off, or buckets. Probe: toggle it. Gain: T / (T - E).
"""

from __future__ import annotations

from collections.abc import Mapping

from gputop_train.diagnose.accounting import account, undisturbed
from gputop_train.diagnose.rules.base import (
    INFO,
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
    span,
)
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Where

ID = "cudnn-benchmark-thrash"
SHAPES = 8
LONG = 3.0
#: Long steps against new shapes.
MATCH = 2.0
#: Fewer shapes than this part of the batches looked at: they come again, and searches end.
REPEAT = 0.7
SEARCHED = ("forward", "backward")


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes")
    flags = window.probe.get("flags")
    on = flags.get("cudnn_benchmark") if isinstance(flags, Mapping) else None
    if on is None:
        return Abstention(ID, "whether cudnn.benchmark is on")
    if not on:
        return RuledOut(ID, "cudnn.benchmark is off")
    rows = window.probe.get("shapes")
    seen = [r for r in rows if isinstance(r, list) and len(r) == 3] if rows else []
    if not seen:
        return Abstention(ID, "shapes of the batches")
    _, shapes, looked = max(seen, key=lambda row: row[1])
    if shapes < SHAPES:
        return RuledOut(ID, f"batches have {shapes} shapes")
    if account(window).shares.get("compile", 0.0) >= INFO:
        return RuledOut(ID, "compilation explains the long steps")
    calm = undisturbed(window.steps)
    times = [sum(s.labels.get(k, 0) for k in SEARCHED) / 1e6 for s in calm]
    usual = median(times)
    if not usual:
        return RuledOut(ID, "no forward and backward to compare")
    long = [t - usual for t in times if t >= LONG * usual]
    # Each shape is searched for once. One batch in about 16 is looked at: there are at least as
    # many shapes as were seen, and at most as many more as batches were not looked at.
    most = shapes * max(1.0, len(calm) / max(1, looked))
    lost = sum(long) / max(1.0, sum(s.wall_ns for s in window.steps) / 1e6)
    if lost < INFO:
        return RuledOut(ID, f"long steps cost {percent(lost)} of the time")
    if not shapes / (2 * MATCH) <= len(long) <= most * MATCH:
        return RuledOut(ID, f"{len(long)} long steps do not match {shapes} shapes or more")
    early = sum(1 for t in times[: len(times) // 2] if t >= LONG * usual)
    if shapes < REPEAT * looked and early < len(long) - early:
        return RuledOut(ID, "shapes come again, and long steps do not become fewer")
    feeding = window.feeding_loaders[:1]
    places = tuple(Where(ld.file, ld.line, ld.call) for ld in feeding)
    at = f" ({name(places[0])})" if places else ""
    each = sum(long) / len(long)
    return Finding(
        id=ID,
        summary=(
            f"cudnn.benchmark searches anew for each shape: {len(long)} steps were longer by "
            f"{ms(each)}, {percent(lost)} of the time, and batches had {shapes} shapes."
        ),
        severity=severity(lost, window.totals.steps, warn=WARN),
        confidence="medium",
        lost_share=lost,
        evidence=(
            number("lost to long steps", lost, "of wall"),
            number("shapes of batches", shapes, f"in {looked:,} looked at"),
            number(f"steps of {LONG:.0f} times the median", len(long)),
            span("one is longer by", each),
            span("forward and backward, median", usual),
        ),
        where=places,
        where_missing=None if places else "no loader was seen",
        advice=(
            Advice(
                "torch.backends.cudnn.benchmark = False: it is True now, and pays where shapes "
                f"stay; {len(long)} searches cost {ms(sum(long))} here."
            ),
            Advice(
                f"Or keep it and make shapes few{at}: {shapes} now; resize, or pad to at most "
                f"{SHAPES // 2} sizes, drop_last=True for the last batch."
            ),
        ),
        gain=gain(lost, "T / (T - E), E = what the long steps take beyond the median"),
    )


RULE = Rule(
    ID,
    63,
    judge,
    probe="torch.backends.cudnn.benchmark = False",
    page=Page(
        number=23,
        title="cuDNN searches again for every new shape",
        meaning=(
            "`cudnn.benchmark` tries every kernel for each new shape of a convolution, and shapes "
            "keep changing. A person sees single steps several times as long."
        ),
        looks_at=(
            "`torch.backends.cudnn.benchmark`",
            "distinct shapes of batches",
            "steps whose forward and backward stand out, and how many there are",
        ),
        thresholds=(
            Threshold("shapes", f">= {SHAPES}", "proposed"),
            Threshold("a long step", f">= {LONG:.0f} x the median", "proposed"),
            Threshold(
                "long steps to shapes",
                f"1/{2 * MATCH:.0f} of those seen to {MATCH:.0f} x those there may be",
                "proposed",
            ),
            Threshold("where shapes come again", "long steps become fewer", "proposed"),
            Threshold("time lost", f">= {percent(INFO)} of wall", "TraceML's bands"),
        ),
        mistaken_for=(
            "`recompilation`: compilation has a label of its own",
            "the first shapes of a run: warm-up",
            "batches of different length: their steps vary, and rarely by three times",
        ),
        mend=("Switch it off.", "Resize or pad to a few shapes."),
        test="Switch it off for 200 steps",
        gain="ceiling `T / (T - E)`",
    ),
)
