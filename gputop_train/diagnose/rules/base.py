"""What every rule shares: its record, the severity bands, and lines of the user's code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from gputop_train.diagnose.recurring import as_intervals
from gputop_train.diagnose.window import Window
from gputop_train.model import (
    Abstention,
    Advice,
    Evidence,
    Finding,
    Gain,
    Interval,
    Site,
    Where,
)

Severity = Literal["info", "warn", "critical"]
Confidence = Literal["low", "medium", "high"]

#: Bands of lost wall share: TraceML 5/10/20, TensorFlow's profiler 5/20 (catalogue, section 3).
INFO, WARN, CRITICAL = 0.05, 0.10, 0.20
#: Critical needs this many measured steps (proposed here; TraceML 2/20, SageMaker 1000).
CRITICAL_STEPS = 50
#: Part of a cost that a named cause or the listed lines must cover (TraceML, issue 238).
COVERAGE = 0.80


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A diagnosis that was judged and does not hold, with the reason."""

    id: str
    why: str


Judgement = Finding | Abstention | RuledOut


@dataclass(frozen=True, slots=True)
class Refinement:
    """A child's claim on the cost its parent found: the same lost time, a closer cause.

    Attributes:
        covers: Part (0..1) of the parent's cost it explains; below ``COVERAGE`` it is not named.
        why: One sentence that follows the parent's summary.
        evidence: Put before the parent's.
        where, advice, gain: ``None`` leaves the parent's.
        severity: ``None`` leaves the parent's; ``info`` for a cause that ends by itself.
    """

    id: str
    covers: float
    why: str
    confidence: Confidence = "high"
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Where, ...] | None = None
    where_missing: str | None = None
    advice: tuple[Advice, ...] | None = None
    gain: Gain | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number a rule goes by.

    Attributes:
        what: The quantity, such as ``exposed data wait``.
        value: As a person reads it, made from the constant the rule uses: ``>= 10% of wall``.
        source: Who published it; or ``proposed``, with what it was tried on.
    """

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Page:
    """What the documentation says of one diagnosis (docs/diagnoses/ID.md is made from it).

    Attributes:
        number: In the catalogue the diagnoses were collected in.
        title: A few words: ``Loading in the training process``.
        meaning: What it is and what a person sees of it, in two sentences.
        looks_at: Signals, each a short phrase.
        mistaken_for: What it is told apart from, and by which signal.
        mend: In order, as general as the page is; a report says it with the run's own values.
        test: The causal test.
        gain: Formula of the ceiling, and of the forecast where there is one.
    """

    number: int
    title: str
    meaning: str
    looks_at: tuple[str, ...]
    thresholds: tuple[Threshold, ...]
    mistaken_for: tuple[str, ...]
    mend: tuple[str, ...]
    test: str
    gain: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One diagnosis: of its own (``judge``), or a closer cause of its ``parent``'s (``refine``).

    Attributes:
        gate: Place in the engine's order, and among refinements of one parent: the first that
            covers the cost is named. Memory and hardware rules run in parallel (from 100).
        probe: The causal test a person or a trial can run to confirm it.
        refine: Called with the parent's finding.
    """

    id: str
    gate: int
    judge: Callable[[Window], Judgement] | None = None
    probe: str = ""
    parent: str = ""
    refine: Callable[[Window, Finding], Refinement | Abstention | RuledOut] | None = None
    page: Page | None = None


def severity(
    lost: float, steps: int, *, warn: float = WARN, critical: float = CRITICAL
) -> Severity:
    """Severity of a lost wall share; critical only once enough steps were measured."""
    if lost >= critical and steps >= CRITICAL_STEPS:
        return "critical"
    return "warn" if lost >= warn else "info"


def percent(value: float) -> str:
    """A share as a person reads it: ``64%``, ``3.4%``, ``5%``."""
    scaled = value * 100
    text = f"{scaled:.0f}" if abs(scaled) >= 9.95 else f"{scaled:.1f}".removesuffix(".0")
    return f"{text}%"


def ms(value: float) -> str:
    """Milliseconds with three meaningful digits, seconds from one second on."""
    if value >= 1000:
        return f"{value / 1000:.2f} s" if value < 10_000 else f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.3g} ms"


def where(site: Site) -> Where:
    """A site as a place to look at."""
    return Where(site.file, site.line, call_text(site.call) or site.func)


def call_text(line: str) -> str:
    """The call in a line of code: no ``x =`` before it, ``(...)`` where it goes on below."""
    text = re.sub(r"^[\w.]+\s*=\s*(?=[\w.]+\()", "", line.strip())
    return f"{text}...)" if text.endswith("(") else text


def short_call(line: str, room: int = 40) -> str:
    """A line of code cut to share a line with its numbers."""
    text = " ".join(line.split())
    return text if len(text) <= room else text[: room - 3] + "..."


def name(place: Where) -> str:
    """``train.py:41``."""
    return f"{PurePath(place.file).name}:{place.line}"


def top_sites(sites: Iterable[Site], *, limit: int = 3, by_count: bool = False) -> list[Site]:
    """The fewest sites that cover 80% of the time (or of the samples), largest first."""
    ranked = sorted(
        (s for s in sites if (s.count if by_count else s.total_ns) > 0),
        key=lambda s: (-(s.count if by_count else s.total_ns), s.file, s.line),
    )
    total = sum(s.count if by_count else s.total_ns for s in ranked)
    chosen: list[Site] = []
    covered = 0
    for site in ranked[:limit]:
        if covered >= COVERAGE * total:
            break
        chosen.append(site)
        covered += site.count if by_count else site.total_ns
    return chosen


def hook_missing(window: Window, *hooks: str) -> str | None:
    """Why one of these probe hooks gave no data, or ``None`` when all are in place."""
    for hook in hooks:
        if window.hook(hook) is not True:
            reason = window.missing.get(f"hook:{hook}")
            return reason or f"the probe could not place its {hook} hook"
    return None


def ceiling(lost: float) -> float | None:
    """``T / (T - E)`` for a lost share ``E / T``; ``None`` where everything is lost."""
    return 1.0 / (1.0 - lost) if 0 <= lost < 0.995 else None


def gain(lost: float, basis: str, *, at_least: bool = False) -> Gain:
    """A gain with a ceiling only: no rate model says how much of it a mend reaches."""
    return Gain(ceiling(lost), None, basis, at_least)


def occurrences(window: Window, label: str) -> list[Interval]:
    """Interruptions of one kind inside the window, in order of time.

    Where intervals tell less than half of them, as of what only the stack sampler saw, the steps
    that carry the label stand for them.
    """
    found = [i for i in window.intervals if i.label == label and i.rank == window.rank]
    told = sum(i.t1_ns - i.t0_ns for i in found)
    if 2 * told < sum(step.labels.get(label, 0) for step in window.steps):
        found = as_intervals(window, label)
    return sorted(found, key=lambda i: i.t0_ns)


def plain(value: float) -> str:
    """A number as a person writes it: ``1,020``, ``23``, ``1.02``; never ``1.02e+03``."""
    if abs(value) >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.1e}"


def times(count: float) -> str:
    """How often, before "a step": ``once``, ``4,096 times``."""
    return "once" if abs(count - 1) < 0.01 else f"{plain(count)} times"


def number(what: str, value: float | None, unit: str = "", digits: int = 3) -> Evidence:
    """Evidence rounded to meaningful digits (a report is not a log of floats).

    Whole numbers stay whole: 9 saves are no 9.0, and 1,024 reads are no 1,020. A share keeps its
    point, which is how a reader of the report tells it from a count.
    """
    if value is None:
        return Evidence(what, None, unit)
    rounded = float(value) if abs(value) >= 10**digits else float(f"{value:.{digits}g}")
    if not unit.startswith("of ") and (rounded.is_integer() or abs(rounded) >= 10 ** (digits - 1)):
        return Evidence(what, round(rounded), unit)
    return Evidence(what, rounded, unit)


def cores(what: str, used: float | None) -> Evidence:
    """Processor time of a process: ``38% of a core``, ``1.42 cores``."""
    return number(what, used, "cores" if used is not None and used > 1 else "of a core")


def span(what: str, milliseconds: float | None) -> Evidence:
    """A time in the unit a person would use: ``978 ms``, ``2.08 s``."""
    if milliseconds is not None and abs(milliseconds) >= 1000:
        return number(what, milliseconds / 1000, "s")
    return number(what, milliseconds, "ms")


def amount(what: str, count: float, per: str = "") -> Evidence:
    """Bytes in the unit a person would use: ``44 MB a step``, ``40.7 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(count) >= size:
            return number(what, count / size, unit + per)
    return number(what, count / 1e3, "kB" + per)
