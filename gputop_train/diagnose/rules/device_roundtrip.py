"""``device-roundtrip``: data leaves the GPU and comes back within the step.

Looks for: a line that reads more than 1 MB a step from the device (catalogue 17, proposed) and a
line after it in the same function that copies about as many bytes up again.
Differential: scalars read for a log; outputs read for a metric or a preview, which do not come back
(then it is a blocking read); the batch's own copy, which stands before the read; optimizers that
keep their state on the host on purpose (ZeRO-Offload) are exempt.
Fix: stay on the device. Probe: leave the two lines out. Gain: T / (T - E), E of both lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.copies import copy_cost
from gputop_train.diagnose.rules.base import (
    CRITICAL,
    INFO,
    WARN,
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    amount,
    gain,
    hook_missing,
    ms,
    name,
    number,
    percent,
    severity,
    short_call,
    where,
)
from gputop_train.diagnose.told import rows
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Abstention, Advice, Finding, Site

ID = "device-roundtrip"
MIN_BYTES = 1_000_000
#: What comes back is between these parts of what left: half a float32 is a float16.
LEAST, MOST = 0.4, 2.5
#: Optimizers that keep their state on the host on purpose, by a part of the class's name.
OFFLOADING = ("CPUAdam", "Offload", "DeepSpeed", "CPUAdagrad", "CPULion")


@dataclass(frozen=True, slots=True)
class Trip:
    """A read and the copy back, with bytes a step and the wall share each costs."""

    down: Site
    up: Site
    down_bytes: float
    up_bytes: float
    down_share: float | None
    up_share: float | None

    @property
    def lost(self) -> float | None:
        """Wall share of both; ``None`` where neither was measured."""
        known = [s for s in (self.down_share, self.up_share) if s is not None]
        return sum(known) if known else None


@once
def trip(window: Window) -> Trip | None:
    """The dearest round trip of this window."""
    steps = window.totals.steps
    if not window.on_gpu or not steps:
        return None
    mine = [s for s in window.sites if s.rank == window.rank and s.bytes]
    downs = [s for s in mine if s.kind == "sync" and (s.bytes or 0) / steps >= MIN_BYTES]
    found = []
    for down in sorted(downs, key=lambda s: (-(s.bytes or 0), s.file, s.line)):
        ups = [
            s
            for s in mine
            if s.kind == "h2d"
            and (s.file, s.func) == (down.file, down.func)
            and s.line >= down.line
            and LEAST <= (s.bytes or 0) / (down.bytes or 1) <= MOST
        ]
        if ups:
            up = min(ups, key=lambda s: (s.line - down.line, s.id))
            found.append(_trip(window, down, up))
    return max(found, key=lambda t: (t.lost or 0.0, t.down_bytes), default=None)


def _trip(window: Window, down: Site, up: Site) -> Trip:
    acc = account(window)
    steps = window.totals.steps
    wall = window.totals.wall_ns

    def share(site: Site, limit: float | None) -> float | None:
        if site.pairs and site.pair_ns is not None:
            mean = (site.pair_ns + (site.after_ns or 0)) / site.pairs
            return min(1.0, mean * site.count / wall)
        if limit is None:
            return None
        of_kind = sum(s.total_ns for s in window.sites if s.kind == site.kind)
        return limit * site.total_ns / of_kind if of_kind else None

    copies = copy_cost(window)
    up_share = share(up, copies.lost if copies is not None else None)
    return Trip(
        down=down,
        up=up,
        down_bytes=(down.bytes or 0) / steps,
        up_bytes=(up.bytes or 0) / steps,
        down_share=share(down, acc.exposed.get("sync")),
        up_share=up_share,
    )


def returned_share(window: Window) -> float:
    """Wall share of copies that only bring back what came down: no copy rule claims it again."""
    if not isinstance(judge(window), Finding):
        return 0.0
    found = trip(window)
    return found.up_share or 0.0 if found is not None else 0.0


def read_share(window: Window) -> float:
    """Wall share of the reads of such a trip: no rule on blocking reads claims it again."""
    if not isinstance(judge(window), Finding):
        return 0.0
    found = trip(window)
    return found.down_share or 0.0 if found is not None else 0.0


def judge(window: Window) -> Judgement:
    """Judge one window."""
    if not window.on_gpu:
        return RuledOut(ID, "the CPU computes: nothing leaves a GPU")
    missing = hook_missing(window, "sync", "h2d")
    if missing:
        return Abstention(ID, missing)
    optimizers = [str(o.get("cls")) for o in rows(window.probe, "optimizers")]
    kept = [c for c in optimizers if any(part in c for part in OFFLOADING)]
    if kept:
        return RuledOut(ID, f"{kept[0]} keeps its state on the host on purpose")
    found = trip(window)
    if found is None:
        return RuledOut(ID, "no line brings back what another one read from the GPU")
    if found.lost is None:
        return Abstention(ID, window.missing.get("gpu_events", "GPU events around the copies"))
    if found.lost < INFO:
        return RuledOut(ID, f"data goes to the host and back in {percent(found.lost)} of the time")
    return _finding(window, found, found.lost)


def _finding(window: Window, found: Trip, lost: float) -> Finding:
    acc = account(window)
    down, up = where(found.down), where(found.up)
    size = amount("", found.down_bytes)
    same = abs(found.up_bytes / found.down_bytes - 1) <= 0.05
    return Finding(
        id=ID,
        summary=(
            f"{size.value} {size.unit} leave the GPU at {name(down)} and come back at {name(up)} "
            f"in every step: {ms(acc.ms(lost))} of {ms(acc.step_ms or 0.0)}."
        ),
        severity=severity(lost, window.totals.steps),
        confidence="high" if same and found.down.pairs and found.up.pairs else "medium",
        lost_share=lost,
        evidence=tuple(
            row
            for row in (
                amount(f"read, {name(down)} {short_call(down.what)}", found.down_bytes, " a step"),
                amount(f"copied up, {name(up)} {short_call(up.what)}", found.up_bytes, " a step"),
                number("GPU idle around the read", found.down_share, "of wall"),
                number("device time of the copy up", found.up_share, "of wall"),
            )
            if row.value is not None
        ),
        where=(down,) if down == up else (down, up),
        advice=(
            Advice(
                f"Do on the GPU what is done between {name(down)} and {name(up)}: the torch "
                "counterpart of the numpy call (torch.where, torch.cat, index_select, topk)."
            ),
            Advice(
                "If it can only run on the host, send less: only the rows or values it needs, "
                f"not all {size.value} {size.unit}."
            ),
            Advice(
                "Or leave the GPU work meanwhile: read with non_blocking=True into pinned memory "
                "and use the result of the step before."
            ),
        ),
        gain=gain(lost, "T / (T - E), E of both lines", at_least=True),
    )


RULE = Rule(
    ID,
    38,
    judge,
    probe="leave the two lines out for 50 steps",
    page=Page(
        number=17,
        title="To the host and back",
        meaning=(
            "A tensor is read to the host in every step, changed there, and copied up again. Both "
            "copies hold the step, and the GPU has nothing queued while the host works on it."
        ),
        looks_at=(
            "bytes and line of each blocking read",
            "bytes and line of each copy to the device",
            "device time between the GPU events around them",
        ),
        thresholds=(
            Threshold("bytes read a step", f">= {MIN_BYTES / 1e6:.0f} MB", "proposed"),
            Threshold(
                "bytes that come back", f"{LEAST:g} to {MOST:g} times those that left", "proposed"
            ),
            Threshold(
                "cost of both",
                f">= {percent(INFO)} info, {percent(WARN)} warn, {percent(CRITICAL)} critical",
                "proposed for the 5%; bands of TraceML and TensorFlow's profiler",
            ),
        ),
        mistaken_for=(
            "scalars read for a log: too few bytes",
            "outputs read for a metric or a preview: nothing comes back after them",
            "the batch's own copy: it stands before the read",
            "ZeRO-Offload and other optimizers that keep their state on the host on purpose",
        ),
        mend=(
            "stay on the device (torch.cat, torch.where, index_select)",
            "send only what the host needs",
            "use the result of the step before, read without blocking",
        ),
        test="leave the two lines out for 50 steps",
        gain="T / (T - E), E of both lines; at least",
    ),
)
