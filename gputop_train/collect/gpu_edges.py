"""GPU idle time of one step, from the CUDA events the probe recorded at phase edges.

An event right before and one right after a host interval: the device time between them is an upper
bound of the GPU's idle time in that interval, and near zero while it was still working through its
queue (diagnosis-catalogue, sections 0b and 2).

After a blocking read the queue is empty by definition: the time from its return to the next launch
is idle time of the read's, too. Launches are not seen, so it is counted only up to the begin of the
next host wait, and only where the probe found the stream idle there; scripts launch next to nothing
between a read and the loader, a save or another read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gputop_train.collect.words import (
    BACKWARD,
    DATA,
    DATA_NOGRAD,
    H2D,
    LABEL_INDEX,
    LOGGING,
    OPTIMIZER,
    SAVE,
    SYNC,
)

MAX_EDGES: Final = 8192
_FLAG_DRY: Final = 1
_FLAG_IDLE: Final = 2
#: From one read to the next a script may launch more than it seems: this much is the read's.
MAX_BETWEEN_READS_NS: Final = 50_000
_LABEL: Final = {
    DATA: "data_wait",
    DATA_NOGRAD: "eval",
    SAVE: "checkpoint",
    LOGGING: "logging",
    SYNC: "sync",
    H2D: "h2d",
}


@dataclass(slots=True)
class GpuStep:
    """The events of one sampled step: ``(offset_ns, edge code, flags)`` in recording order."""

    t_ns: int
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Exposure:
    """GPU idle nanoseconds by label, and the share of edges that found the queue empty.

    ``blocked_ns`` is the part of ``by_label["sync"]`` in which the host was blocked; the rest
    followed its return. ``None`` where no read was measured.
    """

    by_label: Mapping[str, int]
    dry: float | None
    sync_pairs: int
    blocked_ns: int | None = None


def exposure(step: GpuStep, sync_host_ns: list[int]) -> Exposure:
    """Read one sampled step.

    Args:
        step: Its events.
        sync_host_ns: Host durations of the step's blocking reads, in order. A read's idle time
            cannot exceed the time the host was blocked in it.

    A label that is absent had no event pair. Where the probe ran out of events, the blocking reads
    it did see stand for the rest (in proportion to host time).
    """
    totals: dict[str, int] = {}
    opened: list[tuple[int, int, bool]] = []
    inside = 0
    evaluating = False
    sync_ns: list[int] = []
    followed_ns = 0
    returned: int | None = None
    for offset, code, flags in step.edges[:MAX_EDGES]:
        phase = code >> 1
        if returned is not None:
            followed_ns += _followed(offset - returned, code, flags)
            returned = None
        if phase in (DATA, BACKWARD, OPTIMIZER):
            evaluating = False
        elif phase == DATA_NOGRAD:
            evaluating = True
        if phase not in _LABEL:
            continue
        if not code & 1:
            opened.append((phase, offset, inside == 0))
            inside += 1
            continue
        while opened:
            begun, since, outermost = opened.pop()
            inside -= 1
            if begun != phase:
                continue  # its end was dropped
            if outermost:
                idle = max(0, offset - since)
                if phase == SYNC and not evaluating:
                    sync_ns.append(idle)
                    returned = offset
                else:
                    label = "eval" if evaluating else _LABEL[phase]
                    totals[label] = totals.get(label, 0) + idle
            break
    blocked = None
    if sync_ns:
        blocked = _exposed_sync(sync_ns, sync_host_ns, dropped=step.dropped > 0)
        totals["sync"] = blocked + max(0, followed_ns)
    return Exposure(totals, _dry_share(step), len(sync_ns), blocked)


def _followed(gap_ns: int, code: int, flags: int) -> int:
    """Idle time from a read's return to the edge that came next."""
    phase = code >> 1
    if code & 1 or phase not in _LABEL or phase == DATA_NOGRAD or not flags & _FLAG_IDLE:
        return 0
    return min(gap_ns, MAX_BETWEEN_READS_NS) if phase == SYNC else gap_ns


def _exposed_sync(idle_ns: list[int], host_ns: list[int], *, dropped: bool) -> int:
    if len(idle_ns) == len(host_ns):
        return sum(min(idle, host) for idle, host in zip(idle_ns, host_ns, strict=True))
    total = sum(host_ns)
    if dropped and len(idle_ns) < len(host_ns):
        seen = host_ns[: len(idle_ns)]
        exposed = sum(min(idle, host) for idle, host in zip(idle_ns, seen, strict=True))
        return exposed * total // sum(seen) if sum(seen) else 0
    return min(sum(idle_ns), total)


def _dry_share(step: GpuStep) -> float | None:
    """Share of edges that found their predecessor complete.

    Left out are the edges where that says nothing about the launches before them: those that end
    a wait of the host, and those that follow such an end (the queue is empty after a wait).
    """
    counted = dry = 0
    after_wait = True  # the first event has no predecessor
    for _, code, flags in step.edges[:MAX_EDGES]:
        ends_wait = bool(code & 1) and code >> 1 in _LABEL
        if not after_wait and not ends_wait:
            counted += 1
            dry += flags & _FLAG_DRY
        after_wait = ends_wait
    return dry / counted if counted else None


def complete(found: Exposure, tally: list[int], wall_ns: int) -> Exposure:
    """Bound every label by the step, and add a measured zero where the host spent no time at all.

    A label with host time but without an event pair stays absent: it was not measured.
    """
    by_label = {label: min(idle, wall_ns) for label, idle in found.by_label.items()}
    for label in ("data_wait", "h2d", "sync", "checkpoint", "eval", "logging"):
        if label not in by_label and not tally[LABEL_INDEX[label]]:
            by_label[label] = 0
    return Exposure(by_label, found.dry, found.sync_pairs, found.blocked_ns)
