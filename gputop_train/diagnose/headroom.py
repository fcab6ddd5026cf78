"""What room a larger batch has in the device's memory, from the allocator's own numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputop_train.diagnose.window import Window

#: Part of the device a larger batch may fill (practitioners' guides leave 15 to 20%).
FILL = 0.80


@dataclass(frozen=True, slots=True)
class Headroom:
    """Bytes on the device.

    Attributes:
        peak: Peak of allocated memory.
        total: Of the device.
        fixed: Of the peak, what does not grow with the batch: parameters, gradients, optimizer.
    """

    peak: int
    total: int
    fixed: int

    def at(self, factor: float) -> float:
        """Peak with a batch ``factor`` times as large: activations grow with it."""
        return self.fixed + factor * (self.peak - self.fixed)

    def factor(self, most: int = 1024) -> int:
        """Largest power of two, at most ``most``, that keeps the peak within 80% of the device."""
        factor = 1
        while 2 * factor <= most and self.at(2 * factor) <= FILL * self.total:
            factor *= 2
        return factor

    @property
    def used(self) -> float:
        """Peak as a part (0..1) of the device."""
        return self.peak / self.total


def headroom(window: Window) -> Headroom | None:
    """The room of this window's device; ``None`` where the peak or the device is not known."""
    peaks = [m.peak_allocated or m.allocated for m in window.memory if m.basis == "cuda-allocator"]
    told = _bytes(window.probe.get("memory"), "peak_allocated")
    if told is not None:
        peaks.append(told)
    total = _bytes(window.probe.get("cuda"), "total")
    if total is None:
        sizes = [g.memory_total for g in window.gpu if g.memory_total]
        total = sizes[-1] if sizes else None
    if not peaks or not total:
        return None
    peak = max(peaks)
    held = window.probe.get("held")
    kinds = [_bytes(held, k) or 0 for k in ("parameters", "gradients", "optimizer_state")]
    return Headroom(peak=peak, total=total, fixed=min(peak, sum(kinds)))


def _bytes(told: object, key: str) -> int | None:
    value = told.get(key) if isinstance(told, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
