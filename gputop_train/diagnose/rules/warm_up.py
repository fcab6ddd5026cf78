"""``warm-up``: the first steps are slower and are left out. Never a warning.

Looks for: steps the window leaves out (steady.py: at least 10, until the median of 10 steps changes
by less than 10%, catalogue 29, proposed) that took >= 3 times the steady ones (gpuprof). Told, as
information, only where they took a minute or more and >= 10% of a finished run (proposed): a long
first compilation is worth knowing.
Differential: recompilation and a slow first epoch have rules of their own.
Fix: keep the compile cache. Probe: a second run. Gain: of the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping

from gputop_train.diagnose.accounting import shares
from gputop_train.diagnose.rules.base import (
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    ms,
    number,
    percent,
    span,
)
from gputop_train.diagnose.rules.recompilation import TO_DYNAMIC
from gputop_train.diagnose.steady import BLOCK, MAX_PART, SETTLED
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Finding, Gain

ID = "warm-up"
SLOW = 3.0
TELL_S = 60.0


def judge(window: Window) -> Judgement:
    """Judge one window."""
    left_out = window.warmup_excluded
    if not left_out or not window.median_ms:
        return RuledOut(ID, "this window begins after it")
    took_ms = (window.whole.wall_ns - window.totals.wall_ns) / 1e6
    steps = window.whole.steps - window.totals.steps
    why = f"the first {left_out} steps are left out: {window.warmup_why}"
    if steps <= 0 or took_ms / steps < SLOW * window.median_ms:
        return RuledOut(ID, why)
    extra = took_ms - steps * window.median_ms
    part = took_ms / (window.whole.wall_ns / 1e6)
    if extra < TELL_S * 1e3 or part < WARN or not window.final:
        return RuledOut(ID, f"{why}; they took {ms(took_ms / steps)} each")
    dynamo = window.probe.get("dynamo")
    again = dynamo.get("recompiles") if isinstance(dynamo, Mapping) else None
    if isinstance(again, int) and again > TO_DYNAMIC:
        return RuledOut(ID, f"{why}; {again} recompilations explain them")
    compiling = shares(window.whole).get("compile", 0.0)
    return Finding(
        id=ID,
        summary=(
            f"The first {steps} steps took {ms(took_ms)}, {percent(part)} of the run, and are left "
            "out of everything else."
        ),
        severity="info",
        confidence="high",
        lost_share=0.0,
        evidence=(
            number("steps left out", steps),
            span("one of them, mean", took_ms / steps),
            span("a step after them, median", window.median_ms),
            number("compiling, whole run", compiling, "of wall"),
        ),
        where_missing="the first steps as a whole",
        advice=(
            Advice(
                "Keep the compile cache between runs: TORCHINDUCTOR_CACHE_DIR on a disk that "
                f"stays; compilation is {percent(compiling)} of this run."
                if compiling >= WARN
                else f"Nothing to mend in a longer run: it is {ms(extra)} once."
            ),
        ),
        gain=Gain(None, None, f"{ms(extra)} of each run, not of a step"),
    )


RULE = Rule(
    ID,
    152,
    judge,
    probe="a second run",
    page=Page(
        number=29,
        title="The first steps are slower, and are left out",
        meaning=(
            "Caches fill, kernels are chosen, code is compiled in the first steps. They say "
            "nothing of the rest, so every other rule is judged without them."
        ),
        looks_at=("wall times of the first steps against the median of the steady ones",),
        thresholds=(
            Threshold(
                "left out",
                f">= {BLOCK} steps, until the median of {BLOCK} changes by < {percent(SETTLED)}",
                "proposed",
            ),
            Threshold("left out, at most", f"1/{MAX_PART} of the steps", "proposed"),
            Threshold("slow", f">= {SLOW:.0f} x the steady median", "gpuprof"),
            Threshold("told", f">= {TELL_S:.0f} s and {percent(WARN)} of the run", "proposed"),
        ),
        mistaken_for=(
            "`recompilation`: compilation that comes again",
            "`cold-cache-first-epoch`: reads that become faster",
            "`long-initialization`: before the first step",
        ),
        mend=("Keep the compile cache between runs.",),
        test="A second run",
        gain="none of a step",
    ),
)
