"""Where the wall time of a window went, and how much of the GPU's idle time each label explains.

The model is that of docs/diagnoses.md: host wall time of the training thread is tiled by labels,
GPU idle time is attributed to what the GPU waited for ("exposed"). A value nobody measured is
``None``, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gputop_train.diagnose.stats import Contrast, contrast
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import EXPOSED_LABELS, LABELS, Step

#: Host labels during which the training thread runs no step at all.
INTERRUPTIONS: tuple[str, ...] = ("checkpoint", "eval", "logging", "gc", "compile", "restart")
#: Waits that some steps have and others have not: the few steps with events may over- or under-
#: represent them (a loader of 15 workers is waited for every 15th step, events come every 16th).
IRREGULAR: tuple[str, ...] = ("data_wait", "checkpoint", "eval", "logging")
#: A wait of this share that no step with events had was not measured.
SEEN_FROM = 0.01
#: Utilisation agrees with kernel intervals within 10 to 30% of its value (measured on an H200).
UTIL_ERROR = 0.30


@dataclass(frozen=True, slots=True)
class Account:
    """Shares (0..1) of the steady wall time.

    Attributes:
        step_ms: Mean wall time per step, interruptions included; ``None`` without steps.
        shares: Host wall share of each of the 15 labels; they sum to 1 (empty without steps).
        coverage: Part of the wall that was measured by an edge rather than apportioned.
        exposed: GPU idle share of each exposed label; ``None`` = not measured.
        util_mean: Mean driver utilisation, percent.
        busy_share: Share of the wall the GPU computed; ``None`` when it cannot be told.
        busy_basis: Where ``busy_share`` comes from, or why there is none.
        dry: Share of event edges that found the GPU's queue empty.
    """

    step_ms: float | None
    shares: dict[str, float] = field(default_factory=dict)
    coverage: float | None = None
    exposed: dict[str, float | None] = field(default_factory=dict)
    util_mean: float | None = None
    busy_share: float | None = None
    busy_basis: str = ""
    dry: float | None = None

    @property
    def idle_share(self) -> float | None:
        """Share of the wall the GPU stood idle."""
        return None if self.busy_share is None else max(0.0, 1.0 - self.busy_share)

    def ms(self, share: float) -> float:
        """A share of the mean step in milliseconds (0 without steps)."""
        return share * (self.step_ms or 0.0)


def shares(totals: Totals) -> dict[str, float]:
    """Wall share of every label, summing to 1; empty when no time was recorded.

    Nanoseconds that no label claims (a torn record) go to ``other`` so that the sum holds.
    """
    known = {label: max(0, int(totals.labels.get(label, 0))) for label in LABELS}
    wall = max(totals.wall_ns, sum(known.values()))
    if wall <= 0:
        return {}
    known["other"] += wall - sum(known.values())
    return {label: ns / wall for label, ns in known.items()}


@lru_cache(maxsize=8)
def account(window: Window) -> Account:
    """The account of a window's steady part."""
    totals = window.totals
    found = shares(totals)
    exposed = _exposed(window, found)
    busy, basis = _busy(window, exposed)
    if busy is not None and any(v is not None for v in exposed.values()):
        explained = sum(v for k, v in exposed.items() if v is not None and k != "unattributed")
        exposed["unattributed"] = max(0.0, 1.0 - busy - explained)
    return Account(
        step_ms=totals.wall_ns / totals.steps / 1e6 if totals.steps else None,
        shares=found,
        coverage=min(1.0, totals.measured_ns / totals.wall_ns) if totals.wall_ns > 0 else None,
        exposed=exposed,
        util_mean=window.util_mean,
        busy_share=busy,
        busy_basis=basis,
        dry=totals.dry,
    )


def _exposed(window: Window, found: dict[str, float]) -> dict[str, float | None]:
    """GPU idle share of each label, from the steps that carried events to all of them.

    An irregular label is cut by its host time where the steps with events had more of it than the
    others: idle over host time where both were measured, times its host share everywhere. Where
    they had less, nothing is added (the idle time need not grow with the wait), but a data wait
    longer than the GPU was busy is idle time by itself, whatever the few steps with events saw.
    """
    exposed: dict[str, float | None] = dict.fromkeys(EXPOSED_LABELS)
    for label, (ns, wall) in window.totals.exposed.items():
        if label in exposed and wall > 0:
            exposed[label] = min(1.0, max(0, ns) / wall)
    for label in IRREGULAR:
        share, direct = found.get(label, 0.0), exposed[label]
        if direct is None or share <= 0:
            continue
        timed = [s for s in window.steps if s.exposed is not None and label in s.exposed]
        host = sum(carries(s, label) for s in timed)
        if host > 0:
            idle = sum((s.exposed or {})[label] for s in timed)
            exposed[label] = min(direct, share * max(0, idle) / host)
        elif timed and share >= SEEN_FROM:
            exposed[label] = None
    util = _own_util(window)[0]
    if util is not None and exposed["data_wait"] is not None:
        bound = found.get("data_wait", 0.0) - (1 + UTIL_ERROR) * util
        exposed["data_wait"] = max(exposed["data_wait"], bound)
    return exposed


def _busy(window: Window, exposed: dict[str, float | None]) -> tuple[float | None, str]:
    """GPU busy share from the driver, refused where the number is not about this run alone.

    Measured on an H200: utilisation agrees with the union of kernel intervals within 10 to 30% of
    its value, over-states tiny kernels, and does not count copies. Event pairs bound the idle time
    from the other side, so a driver value above ``1 - exposed`` is cut to it.
    """
    busy, basis = _own_util(window)
    idle = sum(share for share in exposed.values() if share is not None)
    if busy is not None and 1.0 - idle < busy:
        return max(0.0, 1.0 - idle), "driver utilisation, bounded by GPU event pairs"
    return busy, basis


def _own_util(window: Window) -> tuple[float | None, str]:
    """Driver utilisation as a share, where it is about this run alone."""
    if window.util_mean is None:
        return None, window.missing.get("gpu_util", "no driver utilisation")
    if any((g.foreign_processes or 0) > 0 for g in window.gpu):
        return None, "other processes use the same GPU"
    return min(1.0, window.util_mean / 100), "driver utilisation"


def lost_share(window: Window, label: str) -> tuple[float | None, str]:
    """Wall share a label costs: exposed GPU idle time, or host time where the CPU is the device.

    Returns:
        (share, basis), with ``None`` and the reason when neither was measured.
    """
    acc = account(window)
    host = acc.shares.get(label)
    if host is None:
        return None, "no steps"
    if not window.on_gpu:
        return host, "host time: the CPU is the device"
    exposed = acc.exposed.get(label)
    if exposed is not None:
        # An event pair can only overstate the idle time (side streams), never beyond the wait.
        return min(exposed, host) if host > 0 else exposed, "GPU event pairs"
    return None, window.missing.get("gpu_events", "GPU events were not recorded")


def carries(step: Step, label: str) -> int:
    """Nanoseconds of a label in one step."""
    return int(step.labels.get(label, 0))


def undisturbed(steps: Sequence[Step]) -> list[Step]:
    """Steps without a save, an evaluation or another interruption in them."""
    return [s for s in steps if not any(carries(s, label) for label in INTERRUPTIONS)]


def natural_experiment(window: Window, with_event: Sequence[bool]) -> Contrast | None:
    """Compare step times (ms) with and without an event seen per step, interruptions left out."""
    chosen = [
        (step.wall_ns / 1e6, flag)
        for step, flag in zip(window.steps, with_event, strict=True)
        if not any(carries(step, label) for label in INTERRUPTIONS)
    ]
    return contrast([t for t, f in chosen if f], [t for t, f in chosen if not f])


def without_largest(window: Window, label: str, largest_ns: int) -> float:
    """Host share of a label when its single largest occurrence is not counted (persistence)."""
    wall = window.totals.wall_ns
    total = int(window.totals.labels.get(label, 0))
    rest = wall - largest_ns
    return max(0.0, (total - largest_ns) / rest) if rest > 0 else 0.0


def largest_ns(window: Window, label: str) -> int:
    """The longest a label lasted in one kept step."""
    return max((carries(step, label) for step in window.steps), default=0)
