"""``startup-scan``: minutes before the first step go to one function that goes through the data.

Looks for: a long start (``long-initialization``) in which the lines met at garbage collections lie
in one function for >= 80% of the looks, and the looks cover half of the time (both proposed): a
length scan, a tokenisation, a count (catalogue 56; transformers 28069). It is not stuck.
Differential: few looks say nothing (waiting and C code are not met); imports.
Fix: keep its result. Probe: start with a small subset. Gain: of the whole run.
"""

from __future__ import annotations

from gputop_train.diagnose.rules.base import (
    COVERAGE,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    name,
    number,
    percent,
)
from gputop_train.diagnose.rules.long_initialization import MIN_LOOKS, start_of, taken
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "startup-scan"
#: Looks times their distance, as a part of the start.
SEEN = 0.5


def refine(window: Window, parent: Finding) -> Refinement | Abstention | RuledOut:
    """Judge it as the closer cause of a long start."""
    start = start_of(window)
    if start is None or start.looks < MIN_LOOKS or not start.lines:
        return Abstention(ID, "lines of the start: too few looks were taken")
    if start.looks * start.look_s < SEEN * start.total_s:
        return RuledOut(ID, "most of the start was not spent making Python objects")
    functions: dict[tuple[str, str], int] = {}
    for place, function, looks in start.lines:
        key = (place.file, function)
        functions[key] = functions.get(key, 0) + looks
    (file, function), most = max(functions.items(), key=lambda item: (item[1], item[0]))
    places = tuple(p for p, f, _ in start.lines if (p.file, f) == (file, function))[:2]
    took = taken(most * start.look_s)
    return Refinement(
        ID,
        covers=most / start.looks,
        why=f"It goes through the data in {function} ({name(places[0])}): it is not stuck.",
        confidence="medium",
        evidence=(number(f"looks that met {function}", most / start.looks, "of looks"),),
        where=places,
        advice=(
            Advice(
                f"Keep what {function} ({name(places[0])}) makes: write it beside the data and "
                f"load it, which saves about {took} at each start."
            ),
            Advice(
                f"If it must run, in parallel: datasets.map(num_proc=N) or a process pool over the "
                f"files; it keeps one core for {took} now."
            ),
        ),
    )


RULE = Rule(
    ID,
    151,
    parent="long-initialization",
    refine=refine,
    probe="start with a small subset",
    page=Page(
        number=56,
        title="A scan of the data before the first step",
        meaning=(
            "Lengths are counted, texts tokenised or files listed for minutes in one Python "
            "function before training begins. A person thinks the run is stuck."
        ),
        looks_at=("lines met at garbage collections before the first step, by function",),
        thresholds=(
            Threshold("looks in one function", f">= {percent(COVERAGE)}", "proposed"),
            Threshold("time the looks cover", f">= {percent(SEEN)} of the start", "proposed"),
            Threshold("looks", f">= {MIN_LOOKS}", "proposed"),
        ),
        mistaken_for=(
            "waiting and computing in C, which is not met: few looks are not judged",
            "imports: several functions",
        ),
        mend=("Keep its result beside the data.", "Run it in parallel."),
        test="Start with a small subset",
        gain="of the whole run: what the function takes, at each start",
    ),
)
