"""What copies to the GPU cost, where from, and how fast the link could be. Pure.

NVML counts no copies: a loop of them reads 15% busy while the copy engine works 68% of the time
(measured on an H200). What they cost is the device time between the two GPU events around each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.rules.base import top_sites
from gputop_train.diagnose.window import Window
from gputop_train.model import GpuSample, Site

#: GB/s of one PCIe lane and direction, by generation (PCI-SIG: transfer rate less line coding).
LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
#: Part of that which a large pinned copy reaches (proposed here; packet headers take the rest).
REACHED = 0.80
#: No copy is this slow: bytes/s from pageable memory (3 to 10 GB/s on an H200's host, 2026-11), and
#: seconds for the call itself (proposed, both with room for a crowded host).
SLOWEST, CALL_S = 0.5e9, 0.2e-3
#: From this part of the bytes on, copies count as made from pageable memory.
MOSTLY = 0.50
#: Where a cost comes from.
PAIRS, BEYOND = "GPU event pairs", "host time in copies beyond GPU busy time"


@dataclass(frozen=True, slots=True)
class CopyCost:
    """What copies to the device cost a window.

    Attributes:
        lost: Wall share: device time of the copies, at most the host's where the host waits.
        host: Wall share the training thread spent in the calls.
        measured: By GPU event pairs; else a lower bound from host time beyond GPU busy time.
        basis: The same in words.
        pageable: Part (0..1) of the bytes from pageable memory; ``None`` where no line was seen.
        bytes_per_step: Bytes a step; ``None`` where no line was seen.
        calls_per_step: Copies a step.
        rate: Bytes/s between the events.
    """

    lost: float
    host: float
    measured: bool
    basis: str
    pageable: float | None
    bytes_per_step: float | None
    calls_per_step: float | None
    rate: float | None


def longest_share(window: Window, cost: CopyCost) -> float | None:
    """Wall share that copies of these bytes and calls can take at most; ``None`` = not known."""
    step_ms = account(window).step_ms
    if cost.bytes_per_step is None or cost.calls_per_step is None or not step_ms:
        return None
    return (cost.bytes_per_step / SLOWEST + cost.calls_per_step * CALL_S) / (step_ms / 1e3)


def copy_sites(window: Window) -> list[Site]:
    """Lines that copied to the device in this window."""
    return [s for s in window.sites if s.kind == "h2d" and s.rank == window.rank and s.bytes]


def copy_cost(window: Window) -> CopyCost | None:
    """The cost of this window's copies; ``None`` where nothing measured it."""
    acc = account(window)
    host = acc.shares.get("h2d", 0.0)
    sites = copy_sites(window)
    total = sum(s.bytes or 0 for s in sites)
    unpinned = [s.unpinned_bytes for s in sites if s.unpinned_bytes is not None]
    pageable = min(1.0, sum(unpinned) / total) if total and unpinned else None
    exposed = acc.exposed.get("h2d")
    beyond = None if acc.busy_most is None else max(0.0, host - acc.busy_most)
    if exposed is not None:
        # Pageable copies hold the host until they are done: an event pair beyond that is another's.
        blocking = pageable is not None and pageable >= MOSTLY
        lost = min(exposed, host) if blocking else exposed
        basis = PAIRS
        if blocking and beyond is not None and beyond > lost:
            # Thousands of copies of a few bytes: the calls cost, between the events.
            lost, basis = beyond, BEYOND
    elif beyond is not None:
        lost, basis = beyond, BEYOND
    elif host == 0.0 and acc.shares:
        lost, basis = 0.0, "no time in copies"
    else:
        return None
    steps = window.totals.steps
    pair_ns = sum(s.pair_ns or 0 for s in sites)
    pair_bytes = sum(s.pair_bytes or 0 for s in sites)
    return CopyCost(
        lost=lost,
        host=host,
        measured=basis == PAIRS,
        basis=basis,
        pageable=pageable,
        bytes_per_step=total / steps if total and steps else None,
        calls_per_step=sum(s.count for s in sites) / steps if sites and steps else None,
        rate=pair_bytes / pair_ns * 1e9 if pair_ns and pair_bytes else None,
    )


def link_rate(sample: GpuSample, *, best: bool = False) -> float | None:
    """Bytes/s the PCIe link carries in one direction by its generation and width.

    Args:
        sample: A reading of the card.
        best: Of the best link that card and slot can have.
    """
    gen = sample.pcie_gen_max if best else sample.pcie_gen
    width = sample.pcie_width_max if best else sample.pcie_width
    if gen is None or not width:
        return None
    lane = LANE_GB_S.get(gen)
    return None if lane is None else lane * width * 1e9


def best_link(window: Window) -> float | None:
    """Bytes/s of the fastest link seen: a card at rest turns it down."""
    rates = [rate for g in window.gpu if (rate := link_rate(g)) is not None]
    return max(rates, default=None)


def pinned_share(window: Window, cost: CopyCost) -> float | None:
    """Wall share the same bytes would take from pinned memory; ``None`` where the link is unknown.

    Never more than they take now.
    """
    link = best_link(window)
    step_ms = account(window).step_ms
    if link is None or cost.bytes_per_step is None or not step_ms:
        return None
    return min(cost.lost, cost.bytes_per_step / (REACHED * link) / (step_ms / 1e3))


def costly(sites: Sequence[Site]) -> list[Site]:
    """The lines of most of the time, else of most of the bytes."""
    by_time = top_sites(sites)
    if by_time:
        return by_time
    return sorted(sites, key=lambda s: (-(s.bytes or 0), s.file, s.line))[:3]
