"""The driver's own utilisation samples of one card, each exactly once, on the monotonic clock.

``nvmlDeviceGetSamples`` hands out one sample per driver window (200 ms on an H200; between 1/6 s
and 1 s by NVML's documentation) with the wall time it was taken; polling ``GetUtilizationRates``
only repeats those values. Where a card or driver has no samples, the rates are polled and repeats
are taken out as well as can be.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gputop_train.collect.clock import WallMap
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure

#: NVML documents the window as between 1/6 s and 1 s: an unchanged rate is fresh after the latter.
LONGEST_WINDOW_NS = 1_000_000_000
SHORTEST_WINDOW_NS = 1_000_000_000 // 6

#: Three of the longest windows without a sample: this driver has none to give, poll instead.
SILENCE_NS = 3_000_000_000

#: A stamp may lie this far ahead of now: clocks are read a moment before the call.
_AHEAD_NS = 50_000_000

_GPU_UTILIZATION_SAMPLES = 1  # nvmlSamplingType_t
_UNION_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t


class UtilReader:
    """Reads the utilisation series of one card.

    Args:
        since_ns: Samples stamped earlier are not of interest (the run had not begun).
    """

    def __init__(self, since_ns: int) -> None:
        self._last_ns = since_ns
        self._heard_ns = since_ns
        self._seen_us: deque[int] = deque(maxlen=512)  # the driver's buffer holds about 120
        self._no_samples = False
        self._silent = False
        self._poll = _PollFilter()

    @property
    def polls(self) -> bool:
        """Whether the rate is polled, for want of samples the driver keeps."""
        return self._no_samples or self._silent

    def read(
        self, api: NvmlApi, handle: Any, now_ns: int, wall: WallMap
    ) -> list[tuple[int, float]]:
        """Samples since the last call, as ``(t_ns, percent)`` in order of time.

        Raises:
            NvmlFailure: The card has had no samples for a while and does not tell its rate either
                (``unsupported`` for a MIG instance), or the card or NVML is gone.
        """
        samples = [] if self._no_samples else self._driver_samples(api, handle, now_ns, wall)
        if samples:
            self._last_ns = samples[-1][0]
            self._heard_ns = now_ns
        self._silent = now_ns - self._heard_ns > SILENCE_NS
        if not samples and self.polls:
            samples = self._polled(api, handle, now_ns)
        return samples

    def _driver_samples(
        self, api: NvmlApi, handle: Any, now_ns: int, wall: WallMap
    ) -> list[tuple[int, float]]:
        # Asking for what is newer than the last stamp would fail after a step of the wall clock:
        # set back, the driver would be silent until the clock has caught up; set forward, what it
        # took just before the step would be left out. What it repeats is known by its stamp.
        last_us = max(0, wall.earliest_wall_ns(self._last_ns) // 1000)
        kind = api.constant("NVML_GPU_UTILIZATION_SAMPLES", _GPU_UTILIZATION_SAMPLES)
        try:
            value_type, raw = api.call("nvmlDeviceGetSamples", handle, kind, last_us)
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            self._no_samples = failure.kind in ("unsupported", "refused")
            return []
        found: list[tuple[int, float]] = []
        for sample in raw:
            stamp_us = int(sample.timeStamp)
            t_ns = wall.to_monotonic(stamp_us * 1000, self._last_ns, now_ns + _AHEAD_NS)
            value = _value(sample, value_type)
            if stamp_us in self._seen_us or t_ns is None or value is None:
                continue
            self._seen_us.append(stamp_us)
            found.append((t_ns, value))
        found.sort()
        return found

    def _polled(self, api: NvmlApi, handle: Any, now_ns: int) -> list[tuple[int, float]]:
        value = float(api.call("nvmlDeviceGetUtilizationRates", handle).gpu)
        if not 0 <= value <= 100 or now_ns <= self._last_ns or not self._poll.fresh(value, now_ns):
            return []
        self._last_ns = now_ns
        return [(now_ns, value)]


def _value(sample: Any, value_type: int) -> float | None:
    if not 0 <= value_type < len(_UNION_FIELDS):
        return None
    value = float(getattr(sample.sampleValue, _UNION_FIELDS[value_type]))
    return value if 0 <= value <= 100 else None


class _PollFilter:
    """Tells a fresh rate from a repeated one.

    A changed value is fresh. An unchanged one is fresh once the driver's window has surely passed:
    the shortest time seen between two changes, at first the longest a window can be.
    """

    def __init__(self) -> None:
        self._value: float | None = None
        self._taken_ns = 0
        self._changed_ns: int | None = None
        self._window_ns = LONGEST_WINDOW_NS

    def fresh(self, value: float, now_ns: int) -> bool:
        """Whether this reading is a sample of its own."""
        changed = self._value is None or value != self._value
        if changed:
            if self._changed_ns is not None:
                gap_ns = max(SHORTEST_WINDOW_NS, now_ns - self._changed_ns)
                self._window_ns = min(self._window_ns, gap_ns)
            self._changed_ns = now_ns
        elif now_ns - self._taken_ns < self._window_ns:
            return False
        self._value = value
        self._taken_ns = now_ns
        return True
