"""Does a cause hold against chance? Circular shifts, a natural experiment, persistence. Pure.

Directly measured causes (GPU event pairs, a CPU that waits) need no test that they coincide; a
cause whose share of the GPU's idle time was only bounded by the driver's utilisation does. A test
without the power to tell says nothing: a 10 ms step starved half the time reads a flat 50, which
neither shows nor refutes that the idle time lies where the data was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gputop_train.diagnose.accounting import (
    INTERRUPTIONS,
    account,
    carries,
    largest_ns,
    natural_experiment,
    without_largest,
)
from gputop_train.diagnose.causes import label_of
from gputop_train.diagnose.rules.base import (
    INFO,
    Confidence,
    RuledOut,
    ms,
    number,
    percent,
)
from gputop_train.diagnose.stats import SEED, Floats
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import Abstention, Evidence, Finding

#: Catalogue, section 7, step 4: 200 random shifts, their 99th percentile.
SHIFTS, PERCENTILE = 200, 0.99
#: A shift that leaves the label this much alike is no null: a cycle falls onto itself.
ALIKE = 0.5
#: Driver samples, and shifts that differ, without which nothing is said (proposed here).
MIN_SAMPLES, MIN_SHIFTS = 60, 50
#: Standard deviation without which a series is flat: 3 points, and this of the label's cover.
FLAT_IDLE, FLAT_LABEL = 0.03, 0.05
#: ... and this part of the label's mean: of a wait that nearly fills every sample (0.87 +- 0.07 on
#: an H200, where one run of five was refuted so) shifts are as good as it is in its place.
FLAT_PART = 0.25
#: Labels of every step, whose cause must idle the GPU where the label is.
PER_STEP = ("data_wait", "h2d", "sync", "comm")
#: A claim rests on a label's time when that is this part of it at least.
OWN_PART = 0.5
#: A step waits when it does so for this part of the usual step (the warn band).
WAITS = 0.10
#: Where fewer steps than this part do without the wait, they are odd ones and no control.
CONTROLS = 0.25
_LOWER: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


@dataclass(frozen=True, slots=True)
class Shifted:
    """Overlap of a label with idle time, against the same label shifted in time.

    Attributes:
        beaten: Shifts (0..1) with less overlap than the label in its place.
        shifts: Shifts compared.
    """

    beaten: float
    shifts: int

    @property
    def holds(self) -> bool:
        """Whether the overlap exceeds the 99th percentile of the shifted ones."""
        return self.beaten >= PERCENTILE


def circular_shift(label: Floats, idle: Floats) -> Shifted | None:
    """Null test of an attribution.

    Args:
        label: Part (0..1) of each sample of time that the label covers.
        idle: Part (0..1) of the same sample in which the GPU was idle.

    Returns:
        ``None`` when it cannot be told: too few samples, a flat series, or one whose shifts all
        look alike.
    """
    n = len(label)
    if n < MIN_SAMPLES or n != len(idle):
        return None
    flat = max(FLAT_LABEL, FLAT_PART * float(np.mean(label)))
    if float(np.std(label)) < flat or float(np.std(idle)) < FLAT_IDLE:
        return None
    x, y = label - label.mean(), idle - idle.mean()
    spectrum = np.fft.rfft(x)
    # Overlap, and likeness to itself, at every shift at once.
    overlap = np.fft.irfft(np.conj(spectrum) * np.fft.rfft(y), n)
    likeness = np.fft.irfft(np.abs(spectrum) ** 2, n) / float(x @ x)
    offsets = np.flatnonzero(likeness < ALIKE)
    if len(offsets) < MIN_SHIFTS:
        return None
    drawn = np.random.default_rng(SEED).choice(offsets, SHIFTS, replace=len(offsets) < SHIFTS)
    # One sample either way: a driver's sample ends up to 200 ms after what it saw.
    here = float(max(overlap[0], overlap[1], overlap[-1]))
    return Shifted(float(np.mean(overlap[drawn] < here)), SHIFTS)


def idle_follows(window: Window, label: str) -> Shifted | None:
    """Whether driver samples are idle where the label is; ``None`` when it cannot be told."""
    series = sorted(window.util, key=lambda s: s.t_ns)
    steps = window.steps
    if len(series) < MIN_SAMPLES + 1 or not steps:
        return None
    times = np.array([s.t_ns for s in series], dtype=float)
    first, last = steps[0].t0_ns, steps[-1].t1_ns
    inside = (times[:-1] >= first) & (times[1:] <= last)
    # Cumulated over the run and spread evenly over each step, then read at the samples' edges.
    edges = np.array([first, *(s.t1_ns for s in steps)], dtype=float)
    spent = np.cumsum([0.0, *(float(carries(s, label)) for s in steps)])
    at = np.interp(times, edges, spent)
    length = np.maximum(1.0, np.diff(times))
    cover = np.clip(np.diff(at) / length, 0.0, 1.0)
    idle = 1.0 - np.array([s.util for s in series], dtype=float)[1:] / 100
    return circular_shift(cover[inside], idle[inside])


def tested(window: Window, finding: Finding) -> Finding | RuledOut | Abstention:
    """A finding with what its tests say; or what it becomes when it fails one."""
    label = label_of(finding)
    if label is None or finding.lost_share <= 0 or finding.severity == "info":
        return finding
    if account(window).shares.get(label, 0.0) < OWN_PART * finding.lost_share:
        return finding  # it was told by other means than the label's time
    found = finding
    if label in PER_STEP:
        left = without_largest(window, label, largest_ns(window, label))
        if left < INFO <= account(window).shares.get(label, 0.0):
            return RuledOut(finding.id, "a single wait, not a pattern")
        if window.on_gpu and account(window).exposed.get(label) is None:
            shifted = idle_follows(window, label)
            if shifted is not None and not shifted.holds:
                return Abstention(
                    finding.id,
                    f"GPU events: driver utilisation is no lower where the wait is than in "
                    f"{percent(1 - shifted.beaten)} of {shifted.shifts} random shifts of it",
                )
            if shifted is not None:
                what = "utilisation lower where it is than in random shifts of it"
                found = _more(found, number(what, shifted.beaten, f"of {shifted.shifts}"))
        if label != "sync":  # its rule compares steps by the reads they make
            found = _contrasted(window, label, found)
    return _persistent(window, label, found)


def _contrasted(window: Window, label: str, finding: Finding) -> Finding:
    """Steps that waited against steps that did not, where the run offers enough of either."""
    wall = (window.median_ms or 0.0) * 1e6
    waited = [carries(step, label) >= WAITS * wall for step in window.steps]
    if wall <= 0 or len(waited) - sum(waited) < CONTROLS * len(waited):
        return finding
    found = natural_experiment(window, waited)
    if found is None:
        return finding
    row = number(
        f"{found.n_with} steps with such a wait against {found.n_without} without, median longer "
        f"by (95%: {ms(max(0.0, found.low))} to {ms(max(0.0, found.high))})",
        found.difference,
        "ms",
    )
    if found.low <= 0:
        return _more(finding, row, weaker=True)
    return _more(finding, row)


def _persistent(window: Window, label: str, finding: Finding) -> Finding:
    """Weaker where only one half of the window shows it."""
    if window.halves is None or label not in window.totals.labels:
        return finding
    first, second = (_share(half, label) for half in window.halves)
    least = INFO if label not in INTERRUPTIONS else 0.0
    if min(first, second) > least or len(window.regimes) > 1:
        return finding
    row = Evidence(
        "host time, first and second half of the window", f"{percent(first)}, {percent(second)}"
    )
    return _more(finding, row, weaker=True)


def _share(totals: Totals, label: str) -> float:
    return totals.labels.get(label, 0) / totals.wall_ns if totals.wall_ns > 0 else 0.0


def _more(finding: Finding, row: Evidence, *, weaker: bool = False) -> Finding:
    confidence = _LOWER[finding.confidence] if weaker else finding.confidence
    return replace(finding, confidence=confidence, evidence=(*finding.evidence, row))
