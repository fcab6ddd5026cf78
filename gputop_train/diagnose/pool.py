"""What torch's CUDA caching allocator told of itself in a window. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_train.diagnose.cards import limit_bytes, mean
from gputop_train.diagnose.told import part
from gputop_train.diagnose.window import Window, once
from gputop_train.model import MemorySample


@dataclass(frozen=True, slots=True)
class Pool:
    """Bytes, and events since the window's first reading.

    Attributes:
        limit: Memory of the card.
        allocated, reserved: Peaks, of the whole run so far.
        split: Mean part of the reserved memory that is free in pieces of larger blocks.
        retries: Times the allocator emptied its cache to find room; ``ooms`` it found none.
    """

    limit: float
    allocated: float
    reserved: float
    split: float | None
    retries: int | None
    ooms: int | None


@once
def pool(window: Window) -> Pool | None:
    """The allocator in this window; ``None`` where it told too little."""
    limit = limit_bytes(window)
    mine = [m for m in window.memory if m.basis == "cuda-allocator" and m.rank == window.rank]
    reserved = [float(m.peak_reserved or m.reserved or 0) for m in mine]
    allocated = [float(m.peak_allocated or m.allocated) for m in mine]
    if limit is None or not any(reserved):
        return None
    return Pool(
        limit=limit,
        allocated=max(allocated),
        reserved=max(reserved),
        split=mean(
            m.inactive_split / m.reserved
            for m in mine
            if m.inactive_split is not None and m.reserved
        ),
        retries=_rise(mine, "retries"),
        ooms=_rise(mine, "ooms"),
    )


def _rise(samples: list[MemorySample], name: str) -> int | None:
    known = [int(v) for m in samples if (v := getattr(m, name)) is not None]
    return known[-1] - known[0] if len(known) >= 2 else None


def ended_by_oom(window: Window) -> Mapping[str, Any] | None:
    """The picture of the out-of-memory error that ended the run, if one did."""
    told = part(window.probe, "oom")
    if not told.get("count") or told.get("steps_after"):
        return None
    failed = window.exit_code is not None and window.exit_code != 0
    return told if window.final and failed and not window.cut_short else None
