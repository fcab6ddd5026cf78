"""Where the wall time of a window went, and how much of the GPU's idle time each label explains.

The model is that of docs/diagnoses.md: host wall time of the training thread is tiled by labels,
GPU idle time is attributed to what the GPU waited for ("exposed"). A value nobody measured is
``None``, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputop_train.diagnose.stats import Contrast, contrast
from gputop_train.diagnose.window import Totals, Window, once
from gputop_train.model import EXPOSED_LABELS, LABELS, GpuSample, Step

#: Host labels during which the training thread runs no step at all.
INTERRUPTIONS: tuple[str, ...] = ("checkpoint", "eval", "logging", "gc", "compile", "restart")
#: Waits that some steps have and others have not: the few steps with events may over- or under-
#: represent them (a loader of 15 workers is waited for every 15th step, events come every 16th).
IRREGULAR: tuple[str, ...] = ("data_wait", "checkpoint", "eval", "logging")
#: A wait of this share that no step with events had was not measured.
SEEN_FROM = 0.01
#: Up to this share of edges, in so many steps with events, the queue counts as never found empty.
NEVER_DRY, MIN_TIMED = 0.02, 8
#: Utilisation agrees with kernel intervals within 10 to 30% of its value (measured on an H200).
UTIL_ERROR, UTIL_USUAL_ERROR = 0.30, 0.20
#: The driver's utilisation is of up to its last second (NVML: "between 1 second and 1/6 second"):
#: of steps that took less in all it tells as much of what was before them.
UTIL_SPAN_S = 1.0
#: Percent of the time below which others on the card leave its utilisation this run's (proposed).
FOREIGN_AT_REST = 5.0
#: Kernels whose SM activity is below this part of the utilisation are too short for the driver,
#: which counts the time around them as busy (9% read for 4.5%, 22% for 6%, SM activity 0 to 0.7%).
SM_PART = 0.10
#: A burst speaks for steps whose median is within this of those it traced (proposed here), in a run
#: that spends less than this in interruptions, of which a burst of three steps sees nothing.
SAME_REGIME, FEW_INTERRUPTIONS = 0.20, 0.05


@dataclass(frozen=True, slots=True)
class Burst:
    """What a profiler burst of three steps read; shares are of the steps as they run untraced.

    Attributes:
        busy: Union of kernel intervals.
        copies: Union of copies and memory sets.
        sync: Idle time from a blocking call to the next launch.
        host: Other idle time that ended with a launch made only after the last work had ended (the
            criterion of Meta's HTA): the host was late.
        kernels: Kernels a step.
        kernel_us: Mean length of a kernel.
    """

    busy: float
    copies: float
    sync: float
    host: float
    kernels: float
    kernel_us: float


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
        busy_most: Upper bound of it where it cannot be told; else the same.
        busy_basis: Where ``busy_share`` comes from, or why there is none.
        dry: Share of event edges that found the GPU's queue empty.
        burst: A profiler burst of the steps the run makes now; ``None`` without one.
    """

    step_ms: float | None
    shares: dict[str, float] = field(default_factory=dict)
    coverage: float | None = None
    exposed: dict[str, float | None] = field(default_factory=dict)
    util_mean: float | None = None
    busy_share: float | None = None
    busy_most: float | None = None
    busy_basis: str = ""
    dry: float | None = None
    burst: Burst | None = None

    @property
    def idle_share(self) -> float | None:
        """Share of the wall the GPU stood idle, at least."""
        return None if self.busy_most is None else max(0.0, 1.0 - self.busy_most)

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


@once
def account(window: Window) -> Account:
    """The account of a window's steady part."""
    totals = window.totals
    found = shares(totals)
    exposed = _exposed(window, found)
    burst = _burst(window, found)
    busy, basis = _busy(window, found, exposed, burst)
    if burst is not None and busy is not None:
        _bound_by(burst, busy, exposed)
    most = busy
    if busy is not None and burst is None and _too_short(window):
        busy, basis = None, "the kernels are too short for the driver's utilisation to tell"
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
        busy_most=most,
        busy_basis=basis,
        dry=totals.dry,
        burst=burst,
    )


def _burst(window: Window, found: dict[str, float]) -> Burst | None:
    """The burst of this run, where the steps are still those it traced."""
    told = window.probe.get("burst")
    told = told if isinstance(told, Mapping) else {}
    keys = (
        "busy_share",
        "traced_busy_share",
        "copy_share",
        "host_idle_share",
        "sync_idle_share",
        "kernels_per_step",
        "kernel_us",
        "step_ms",
    )
    values = {key: _number(told.get(key)) for key in keys}
    known = {key: value for key, value in values.items() if value is not None and value >= 0}
    if told.get("state") != "done" or len(known) < len(keys) or not window.median_ms:
        return None
    if abs(window.median_ms - known["step_ms"]) > SAME_REGIME * known["step_ms"]:
        return None
    if sum(found.get(label, 0.0) for label in INTERRUPTIONS) >= FEW_INTERRUPTIONS:
        return None
    # Tracing slows the host: of the idle time then, the same parts are taken of the idle time now.
    busy, copies = min(1.0, known["busy_share"]), min(1.0, known["copy_share"])
    idle, traced_idle = max(0.0, 1 - busy - copies), 1 - known["traced_busy_share"]
    scale = idle / traced_idle if traced_idle > 0 else 0.0
    sync = min(known["sync_idle_share"], known["host_idle_share"])
    return Burst(
        busy=busy,
        copies=copies,
        sync=min(idle, sync * scale),
        host=min(idle, (known["host_idle_share"] - sync) * scale),
        kernels=known["kernels_per_step"],
        kernel_us=known["kernel_us"],
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _bound_by(burst: Burst, busy: float, exposed: dict[str, float | None]) -> None:
    """Event pairs over-state idle time; a trace does not. What is left of it is launch idle.

    ``launch`` is the host's idle time less all that a label explains.
    """
    explained = sum(v for v in exposed.values() if v is not None)
    room = max(0.0, 1.0 - busy)
    if explained > room:
        for label, share in exposed.items():
            if share is not None:
                exposed[label] = share * room / explained
        explained = room
    others = sum(v for k, v in exposed.items() if v is not None and k != "sync")
    exposed["launch"] = min(room - explained, max(0.0, burst.host - others))


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
    data = found.get("data_wait", 0.0)
    if exposed["sync"] is not None and exposed["data_wait"] is None and data >= SEEN_FROM:
        # A wait that only samples of the stack show has no edges: of the idle time from a read to
        # the next launch nobody knows which part is that wait, so reads get what it cannot be.
        room = (1.0 if util is None else 1.0 - util) - data
        exposed["sync"] = min(exposed["sync"], max(0.0, room))
    return exposed


def _busy(
    window: Window,
    found: dict[str, float],
    exposed: dict[str, float | None],
    burst: Burst | None,
) -> tuple[float | None, str]:
    """GPU busy share: of a burst, else from the driver where that is about this run alone.

    Measured on an H200: utilisation agrees with the union of kernel intervals within 10 to 30% of
    its value, over-states tiny kernels, and does not count copies. Event pairs bound the idle time
    from the other side: a driver value above ``1 - exposed`` is cut to it. While a read waits for
    the GPU (``gpu_wait``, by event pairs too) the GPU is busy, for that share at least; and where
    the queue was never found empty it was busy but for the waits. By the driver and by kernel
    intervals on an H200 (2026-11-29): a read each step 0.80 and 0.95, a large model 0.85 and 1.00.
    """
    if burst is not None:
        return burst.busy, "union of kernels in a profiler burst"
    busy, basis = _own_util(window)
    idle = sum(share for share in exposed.values() if share is not None)
    waited = found.get("gpu_wait", 0.0)
    if busy is not None and busy < waited:
        busy, basis = waited, "time that reads waited for the GPU, by GPU event pairs"
    if busy is not None and busy < 1.0 - idle and _never_dry(window, exposed):
        busy, basis = 1.0 - idle, "GPU event pairs: the queue was not found empty"
    if busy is not None and 1.0 - idle < busy:
        return max(0.0, 1.0 - idle), "driver utilisation, bounded by GPU event pairs"
    return busy, basis


def _never_dry(window: Window, exposed: dict[str, float | None]) -> bool:
    """Whether the GPU had work at every edge but for the waits whose idle time is measured.

    An event still pending when the next one is recorded means that the GPU was busy until then.
    """
    timed = sum(1 for step in window.steps if step.exposed is not None)
    dry = window.totals.dry
    measured = all(exposed[label] is not None for label in ("data_wait", "h2d", "sync"))
    return dry is not None and dry <= NEVER_DRY and timed >= MIN_TIMED and measured


def _too_short(window: Window) -> bool:
    """Whether the driver calls time busy in which next to no SM did anything."""
    active = [g.sm for g in window.gpm if g.sm is not None]
    if not active or not window.util_mean:
        return False
    return sum(active) / len(active) < SM_PART * window.util_mean


def _own_util(window: Window) -> tuple[float | None, str]:
    """Driver utilisation as a share, where it is about this run alone."""
    if window.util_mean is None:
        return None, window.missing.get("gpu_util", "no driver utilisation")
    if any((g.foreign_processes or 0) > 0 and not _at_rest(g) for g in window.gpu):
        return None, "other processes use the same GPU"
    if 0 < window.totals.wall_ns < UTIL_SPAN_S * 1e9:
        took = window.totals.wall_ns / 1e9
        return None, f"driver utilisation looks back {UTIL_SPAN_S:g} s, the steps took {took:.2g} s"
    return min(1.0, window.util_mean / 100), "driver utilisation"


def _at_rest(sample: GpuSample) -> bool:
    """Whether the other programs on the card are known to compute next to nothing."""
    return sample.foreign_util is not None and sample.foreign_util < FOREIGN_AT_REST


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
    if exposed is not None and label == "h2d":
        return exposed, "GPU event pairs"  # an asynchronous copy holds the GPU and not the host
    if exposed is not None:
        # An event pair can only overstate the idle time (side streams), never beyond the wait.
        return min(exposed, host) if host > 0 else exposed, "GPU event pairs"
    return None, window.missing.get("gpu_events", "GPU events were not recorded")


def most_lost(window: Window, label: str, lost: float) -> float:
    """The largest wall share that a label may cost, which is ``lost`` or more.

    While the host waited it launched nothing, so all of that time may go, down to what the GPU
    computes. Of a wait in bursts the few steps with events see too much or too little, and work
    that the GPU still had when a wait began overlaps with the launches of the next step once
    nobody waits. Measured on an H200 (2026-11-30): four workers in rounds, 20% by events, 45% of
    the host's time, mended 2.1 times as fast; batches made in the loop, 89% and 90%, 10.3 times.
    """
    acc = account(window)
    host = acc.shares.get(label, 0.0)
    if not window.on_gpu:
        return max(lost, host)
    busy = (acc.busy_share or 0.0) / (1 + UTIL_USUAL_ERROR)
    return max(lost, min(host, 1.0 - busy))


def carries(step: Step, label: str) -> int:
    """Nanoseconds of a label in one step."""
    return int(step.labels.get(label, 0))


def undisturbed(steps: Sequence[Step]) -> list[Step]:
    """Steps without a save, an evaluation or another interruption in them."""
    return [s for s in steps if not any(map(s.labels.get, INTERRUPTIONS))]


def natural_experiment(window: Window, with_event: Sequence[bool]) -> Contrast | None:
    """Compare step times (ms) with and without an event seen per step, interruptions left out."""
    chosen = [
        (step.wall_ns / 1e6, flag)
        for step, flag in zip(window.steps, with_event, strict=True)
        if not any(map(step.labels.get, INTERRUPTIONS))
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
    return max((int(step.labels.get(label, 0)) for step in window.steps), default=0)
