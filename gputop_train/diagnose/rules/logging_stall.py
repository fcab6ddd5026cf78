"""``logging-stall``: training stops to print, to call a logging library, or to write previews.

Looks for: time in W&B, TensorBoard, MLflow, tqdm, ``print`` and ``logging`` on the training thread
(the ``logging`` label), and arrays that numpy writes every so many steps (sample grids), with
all that such a step takes longer than the others. Information from 3% (the floor of
interruptions), warn from 5% (XProf warns of debug prints from there; the catalogue proposes 2%).
Differential: a checkpoint (``torch.save``, pickle, a name that says so); an evaluation; a blocking
read inside the logging call counts as a read.
Fix: every N steps; a thread; uncompressed. Probe: switch it off for 50 steps.
Gain: T / (T - E), for previews (nT + c) / (nT + c').
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.advice import Periodic, periodic_gain, rarer
from gputop_train.diagnose.pausing import pause_cost
from gputop_train.diagnose.recurring import Recurring, recurring
from gputop_train.diagnose.rules import eval_stall
from gputop_train.diagnose.rules.base import (
    CRITICAL,
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
    top_sites,
    where,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Site, Where

ID = "logging-stall"
INFO, WARN = 0.03, 0.05
#: An interruption of this share is rare enough.
TARGET = 0.01
#: What a preview may show as beside its writing: pictures come from a forward pass of their own.
AROUND = ("checkpoint", "logging", "other", "eval", "forward", "sync", "gpu_wait", "h2d")
#: What a log every so many steps may show as beside its own label: what it computes to print.
BESIDE = ("logging", "other", "forward", "sync", "gpu_wait", "h2d")
#: So many steps from one log to the next are not every step.
SOME = 2
#: Of the time labelled as saving, savers that are known may hold this much beside previews.
MOSTLY = 0.5
#: Samples of host code that are enough to say where it is (``host-compute``).
MIN_SAMPLES = 10
ARRAYS = re.compile(r"\b(?:np|numpy)\.save(?:z|z_compressed|txt)?\s*\(")
MODEL = re.compile(r"ckpt|checkpoint|weight|state_?dict|resume|optim", re.IGNORECASE)


def judge(window: Window) -> Judgement:
    """Judge one window."""
    shares = account(window).shares
    written = previews(window)
    if written:
        return _previews(window, written)
    host = shares.get("logging", 0.0)
    part = for_logs(window)
    if part >= MOSTLY:
        rare = recurring(window, ("other", "logging"), ("other", "logging", "sync", "gpu_wait"))
        if rare is not None and rare.share >= INFO:
            return _now_and_then(window, rare)
        if not window.on_gpu:
            host += part * shares.get("other", 0.0)
            if host >= INFO:
                return _logging(window, host, host, "host time: the CPU is the device")
    if host < INFO:
        return RuledOut(ID, f"logging takes {percent(host)} of the time")
    lost, basis = pause_cost(window, "logging")
    if lost is None:
        return Abstention(ID, basis)
    if lost < INFO:
        return RuledOut(
            ID, f"logging takes {percent(host)} of the time, the GPU is idle for {percent(lost)}"
        )
    rare = recurring(window, ("logging",), BESIDE)
    if rare is not None and (rare.every or 0) >= SOME and rare.share >= MOSTLY * lost:
        return _now_and_then(window, rare)
    return _logging(window, host, lost, basis)


def previews(window: Window) -> tuple[Site, ...]:
    """Lines where numpy writes arrays that are no checkpoint, if those are most of the saving."""
    share = account(window).shares.get("checkpoint", 0.0)
    mine = [s for s in window.sites if s.rank == window.rank]
    known = sum(s.total_ns for s in mine if s.kind == "save")
    if share <= 0 or known > MOSTLY * share * window.totals.wall_ns:
        return ()
    sampled = [s for s in mine if s.kind == "sample" and s.label == "checkpoint"]
    arrays = [
        s for s in sampled if ARRAYS.search(s.call) and not MODEL.search(f"{s.call} {s.func}")
    ]
    if sum(s.count for s in arrays) < MOSTLY * sum(s.count for s in sampled):
        return ()
    return tuple(top_sites(arrays, by_count=True))


def for_logs(window: Window) -> float:
    """Part (0..1) of the samples of host code that lie on lines that log: what the line prints."""
    mine = [s for s in window.sites if s.rank == window.rank]
    logs = {
        (s.file, s.line)
        for s in mine
        if s.kind == "logging" or (s.kind == "sample" and s.label == "logging")
    }
    sampled = [s for s in mine if s.kind == "sample" and s.label in ("host_compute", "other")]
    total = sum(s.count for s in sampled)
    there = sum(s.count for s in sampled if (s.file, s.line) in logs)
    return there / total if total >= MIN_SAMPLES else 0.0


def _now_and_then(window: Window, rare: Recurring) -> Finding:
    """Log lines every so many steps, with what they compute to print."""
    pattern = _pattern(rare, rare.share, window)
    places, why_none = _places(window)
    at = f" at {name(places[0])}" if places else ""
    every = rarer(pattern)
    takes = f"a log takes {ms(pattern.cost_ms)} now, a step {ms(pattern.step_ms)}."
    advice = [
        Advice(
            f"Read what is printed once{at}: collect it on the device (torch.stack) and take one "
            f".tolist(); {takes}"
        )
        if window.on_gpu
        else Advice(
            f"Write less{at}, or hand a copy to another process (a multiprocessing.Queue), since "
            f"formatting in a thread takes turns with training; {takes}"
        )
    ]
    if every is not None and pattern.every is not None:
        advice.insert(
            0,
            Advice(
                f"Log every {every:,} steps instead of every {pattern.every:,.0f}{at}: at "
                f"{ms(pattern.cost_ms)} each that is {percent(pattern.share_at(every))} of the "
                f"time instead of {percent(pattern.share)}."
            ),
        )
    return Finding(
        id=ID,
        summary=pattern.summary(f"Logging{at}, with what it computes to print,"),
        severity=severity(rare.share, window.totals.steps, warn=WARN),
        confidence="high" if rare.every is not None else "medium",
        lost_share=rare.share,
        evidence=pattern.evidence("logging", "log", "logs"),
        where=places,
        where_missing=why_none,
        advice=tuple(advice),
        gain=periodic_gain(pattern, "logging", at_least=rare.more_goes),
    )


def _previews(window: Window, written: tuple[Site, ...]) -> Judgement:
    evaluates = isinstance(eval_stall.judge(window), Finding)
    around = tuple(label for label in AROUND if not (evaluates and label == "eval"))
    found = recurring(window, ("checkpoint",), around)
    share = found.share if found else account(window).shares.get("checkpoint", 0.0)
    place = name(where(written[0]))
    if share < INFO:
        return RuledOut(ID, f"what {place} writes takes {percent(share)} of the time")
    once = found is None
    places = tuple(where(s) for s in written)
    pattern = _pattern(found, share, window)
    return Finding(
        id=ID,
        summary=pattern.summary(f"Making and writing previews at {place}"),
        severity="info" if once else severity(share, window.totals.steps, warn=WARN),
        confidence="medium" if once else "high",
        lost_share=share,
        evidence=pattern.evidence("making previews", "preview", "previews"),
        where=places,
        advice=_preview_advice(pattern, written[0]),
        gain=periodic_gain(pattern, "previews", at_least=found is not None and found.more_goes),
    )


def _pattern(found: Recurring | None, share: float, window: Window) -> Periodic:
    if found is None:
        wall_ms = share * window.totals.wall_ns / 1e6
        return Periodic(1, wall_ms, None, window.median_ms or 0.0, share)
    return Periodic(found.count, found.cost_ms, found.every, found.step_ms, share)


def _preview_advice(pattern: Periodic, written: Site) -> tuple[Advice, ...]:
    place = name(where(written))
    steps = []
    every = rarer(pattern)
    if every is not None and pattern.every is not None:
        steps.append(
            Advice(
                f"Make previews every {every:,} steps instead of every {pattern.every:,.0f} "
                f"({place}): at {ms(pattern.cost_ms)} each that is "
                f"{percent(pattern.share_at(every))} of the time instead of "
                f"{percent(pattern.share)}."
            )
        )
    if "compressed" in written.call:
        steps.append(
            Advice(
                f"Write them uncompressed ({place}): np.savez in place of np.savez_compressed, "
                "whose zlib runs on the training thread."
            )
        )
    steps.append(
        Advice(
            f"If {ms(pattern.cost_ms)} every so often is still too much, give the arrays to a "
            f"thread: ThreadPoolExecutor(1).submit(write, arrays) in place of {place}."
        )
    )
    return tuple(steps)


def _logging(window: Window, host: float, lost: float, basis: str) -> Finding:
    acc = account(window)
    places, why_none = _places(window)
    calls = _calls(window)
    line = f" ({name(places[0])})" if places else ""
    every = _often_enough(lost)
    advice = [
        Advice(
            f"Log every {every} steps{line}: it costs {ms(acc.ms(lost))} a step now; every "
            f"{every} steps that is {percent(lost / every / (1 - lost + lost / every))} of the "
            f"time instead of {percent(lost)}."
        )
    ]
    if window.on_gpu and window.totals.syncs:
        advice.append(
            Advice(
                "Between two logs keep the values on the GPU: add loss.detach() up and read it "
                f"once; there are {window.totals.syncs / max(1, window.totals.steps):.3g} reads a "
                "step now."
            )
        )
    advice.append(
        Advice(
            f"If every step must be logged, write from a thread{line}: a "
            "logging.handlers.QueueHandler returns at once, and "
            f"{ms(acc.ms(lost))} a step of formatting and writing leave the loop."
        )
    )
    return Finding(
        id=ID,
        summary=(
            f"Logging takes {percent(lost)} of the time: {ms(acc.ms(lost))} of every step of "
            f"{ms(acc.step_ms or 0.0)}."
        ),
        severity=severity(lost, window.totals.steps, warn=WARN),
        confidence="high" if calls or not window.on_gpu else "medium",
        lost_share=lost,
        evidence=(
            number(f"lost to logging ({basis})", lost, "of wall"),
            number("logging calls, host time", host, "of wall"),
            *calls,
            span("step, mean", acc.step_ms),
        ),
        where=places,
        where_missing=why_none,
        advice=tuple(advice),
        gain=gain(lost, f"T / (T - E): {ms(acc.step_ms or 0.0)} less {ms(acc.ms(lost))}"),
    )


def _often_enough(lost: float) -> int:
    """Steps between two logs at which logging takes about 1%."""
    # Every n steps it is lost / n of (1 - lost) + lost / n.
    least = lost * (1 - TARGET) / (TARGET * max(TARGET, 1 - lost))
    return next((n for n in (5, 10, 20, 50, 100, 200) if n >= least), math.ceil(least))


def _places(window: Window) -> tuple[tuple[Where, ...], str | None]:
    mine = [s for s in window.sites if s.rank == window.rank]
    timed = top_sites(s for s in mine if s.kind == "logging")
    sampled = top_sites(
        (s for s in mine if s.kind == "sample" and s.label == "logging"), by_count=True
    )
    places = tuple(dict.fromkeys(where(s) for s in (*timed, *sampled)))[:3]
    return places, None if places else "no line was recorded for the logging calls"


def _calls(window: Window) -> tuple[Evidence, ...]:
    """Calls of each logging library since the run began."""
    told = window.probe.get("logging")
    rows = []
    for library, row in sorted(told.items()) if isinstance(told, Mapping) else ():
        calls = row.get("calls") if isinstance(row, Mapping) else None
        if isinstance(calls, int) and calls:
            rows.append(number(f"calls of {library} in the run", calls))
    return tuple(rows)


RULE = Rule(
    ID,
    12,
    judge,
    probe="switch logging off for 50 steps",
    page=Page(
        number=27,
        title="Training stops to log",
        meaning=(
            "The training thread prints, calls a logging library or writes previews itself, so the "
            "next step waits. A person sees progress bars, floods of lines, or a pause every few "
            "steps."
        ),
        looks_at=(
            "time in wandb, TensorBoard, MLflow, tqdm, `print` and `logging`",
            "arrays that numpy writes, and what such a step takes longer than the others",
            "on a GPU: idle time meanwhile",
        ),
        thresholds=(
            Threshold(
                "time lost, information", f">= {percent(INFO)} of wall", "proposed (2% there)"
            ),
            Threshold("time lost, warn", f">= {percent(WARN)} of wall", "XProf: debug print 5%"),
            Threshold("time lost, critical", f">= {percent(CRITICAL)} of wall", "TraceML's bands"),
        ),
        mistaken_for=(
            "`checkpoint-stall`: torch.save, pickle, or a line that names weights or a checkpoint",
            "`host-sync-stall`: a read of a GPU result inside the call counts as a read",
            "`eval-stall`: evaluation that is logged afterwards",
        ),
        mend=(
            "Every N steps instead of every step.",
            "Keep values on the GPU in between.",
            "Write from a thread, uncompressed.",
        ),
        test="Switch it off for 50 steps",
        gain="ceiling `T / (T - E)`; previews `(nT + c) / (nT + c')`",
    ),
)
