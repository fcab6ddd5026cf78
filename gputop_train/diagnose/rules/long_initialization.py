"""``long-initialization``: a long time passes before the first step.

Looks for: time from the start of the process to its first batch (to the first step where that is
not known): information from 60 s (proposed), a warning from 20 minutes (SageMaker's MaxInit) or
from 30% of a finished run of at least 10 minutes (proposed; ICSE'24 counts installs of 10 minutes).
Differential: compilation and the first batch come later and are warm-up; a short demonstration.
Fix: by the part that is longest: imports, set-up, building the loader. Probe: time a start with a
warm cache. Gain: of the whole run, not of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    name,
    number,
    percent,
    span,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain, Where

ID = "long-initialization"
INFO_S, WARN_S = 60.0, 1200.0
#: Of a finished run that is no demonstration.
PART, PART_OF_S = 0.30, 600.0
#: Looks at garbage collections; fewer say nothing of where the time went.
MIN_LOOKS = 40


@dataclass(frozen=True, slots=True)
class Start:
    """How a process came to its first batch, seconds.

    Attributes:
        parts: What, seconds; in order of time.
        looks: Looks taken at the training thread meanwhile, ``look_s`` apart at least.
        lines: Line of the person's, function, looks; most first.
    """

    total_s: float
    parts: tuple[tuple[str, float], ...]
    looks: int
    look_s: float
    lines: tuple[tuple[Where, str, int], ...]


def taken(seconds: float) -> str:
    """A stretch of time as a person says it: ``42 s``, ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def start_of(window: Window) -> Start | None:
    """The start of this run's process; ``None`` where its times are not known."""
    told = window.probe.get("startup")
    if not isinstance(told, Mapping):
        return None

    def at(key: str) -> int | None:
        value = told.get(key)
        return value if isinstance(value, int) and value > 0 else None

    begin, end = at("process_ns"), at("iter_ns") or at("armed_ns") or at("step_ns")
    if begin is None or end is None or end < begin:
        return None
    marks = [
        ("until torch was imported", at("torch_ns")),
        ("until a loader was built", at("loader_ns")),
    ]
    parts, last = [], begin
    for what, when in marks:
        if when is not None and last <= when <= end:
            parts.append((what, (when - last) / 1e9))
            last = when
    parts.append(("from there to the first batch", (end - last) / 1e9))
    rows = told.get("lines")
    lines = tuple(
        (Where(str(r[0]), int(r[1]), str(r[2])), str(r[2]), int(r[3]))
        for r in (rows if isinstance(rows, list) else [])
        if isinstance(r, list) and len(r) == 4
    )
    looks, each = told.get("looks"), told.get("look_ns")
    return Start(
        total_s=(end - begin) / 1e9,
        parts=tuple(parts),
        looks=looks if isinstance(looks, int) else 0,
        look_s=each / 1e9 if isinstance(each, int) else 0.0,
        lines=lines,
    )


def judge(window: Window) -> Judgement:
    """Judge one window."""
    start = start_of(window)
    if start is None:
        return Abstention(ID, "when the process started and came to its first batch")
    if start.total_s < INFO_S:
        return RuledOut(ID, f"{taken(start.total_s)} passed before the first batch")
    run_s = start.total_s + window.whole.wall_ns / 1e9
    part = start.total_s / run_s
    finished = window.final and not window.cut_short
    long = start.total_s >= WARN_S or (finished and run_s >= PART_OF_S and part >= PART)
    longest, seconds = max(start.parts, key=lambda p: p[1])
    places = tuple(place for place, _, _ in start.lines[:2]) if start.looks >= MIN_LOOKS else ()
    at = f" ({name(places[0])})" if places else ""
    return Finding(
        id=ID,
        summary=(
            f"{taken(start.total_s)} pass before the first batch, {percent(part)} of the run so "
            f"far: {taken(seconds)} of them {longest}."
        ),
        severity="warn" if long else "info",
        confidence="high",
        lost_share=0.0,
        evidence=(
            number("from process start to the first batch", start.total_s, "s"),
            *(span(what, s * 1e3) for what, s in start.parts),
            number("the run so far", run_s, "s"),
        ),
        where=places,
        where_missing=None if places else "too few looks at that part say which line it was",
        advice=_advice(longest, seconds, at),
        gain=Gain(None, None, f"{taken(start.total_s)} of each start, not of a step"),
    )


def _advice(longest: str, seconds: float, at: str) -> tuple[Advice, ...]:
    took = taken(seconds)
    if "torch" in longest:
        return (
            Advice(
                f"{took} go by before torch is imported{at}: python -X importtime names which; "
                "an environment on local disk or in the image loads faster than one on a share."
            ),
        )
    if "loader" in longest:
        return (
            Advice(
                f"{took} of set-up before the first DataLoader{at}: keep what it makes (tokens, "
                "file lists, statistics) on disk and load it, instead of making it at each start."
            ),
            Advice(
                f"If those {took} are weights: from local disk, with mmap=True in torch.load; on a "
                "requeue they are read again."
            ),
        )
    return (
        Advice(
            f"{took} pass between the loader and its first batch{at}: __len__, a sampler or worker "
            "start-up there runs over the whole data set; do that once and keep it."
        ),
    )


RULE = Rule(
    ID,
    150,
    judge,
    probe="time a second start",
    page=Page(
        number=28,
        title="A long time before the first step",
        meaning=(
            "Imports, downloads, weights or data preparation take minutes before training begins. "
            "A person sees memory held and a GPU at 0%."
        ),
        looks_at=(
            "when the process started, torch was imported, a loader was built and first iterated",
            "lines met at garbage collections in between",
        ),
        thresholds=(
            Threshold("information", f">= {INFO_S:.0f} s", "proposed"),
            Threshold("warn", f">= {WARN_S / 60:.0f} min", "SageMaker Debugger, MaxInit"),
            Threshold(
                "warn, part of a finished run",
                f">= {percent(PART)} of at least {PART_OF_S / 60:.0f} min",
                "proposed; ICSE'24: installs of 10 min",
            ),
        ),
        mistaken_for=(
            "`warm-up`: compilation and the first batches come after it",
            "`startup-scan`: one line that goes through the data is named as that",
        ),
        mend=(
            "Keep prepared data, tokens and statistics on disk.",
            "Weights and environment on local disk or in the image.",
        ),
        test="Time a second start",
        gain="of the whole run: what a start takes, at each start",
    ),
)
