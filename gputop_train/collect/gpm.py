"""GPM, the hardware counters of Hopper and newer cards: what the SMs did between two samples.

A reading comes from a pair of samples and costs about 1.5 ms, so it belongs in a slow thread.
Measured on an H200: the counters move on only every 50 to 100 ms; a pair inside one such period
has nothing in it and reads as 0 everywhere with DRAM as NaN (0/0). That is "not measured", not
idle: an idle pair reads DRAM 0.0 and some PCIe traffic.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.model import GpmSample

#: Field of ``GpmSample`` -> nvmlGpmMetricId_t (nvml.h).
METRICS: dict[str, int] = {
    "graphics": 1,
    "sm": 2,
    "sm_occupancy": 3,
    "tensor": 5,
    "dram": 10,
    "pcie_tx_mib_per_s": 20,
    "pcie_rx_mib_per_s": 21,
}

#: The counters surely moved in this time (5 of the longest periods seen): a pair that still reads
#: as empty comes from a card that never tells DRAM, and its zeros are real.
LONGEST_PERIOD_NS = 500_000_000

_VERSION = 1  # NVML_GPM_METRICS_GET_VERSION


class GpmReader:
    """Reads GPM of one card, or of one MIG instance of it.

    Args:
        api: Started NVML.
        card: Handle of the whole card.
        uuid: What the samples are to be filed under.
        gpu_instance: GPU instance id of a MIG device, else ``None``.

    Raises:
        NvmlFailure: ``unsupported`` if the card has no GPM, or NVML did not answer.
    """

    def __init__(self, api: NvmlApi, card: Any, uuid: str, gpu_instance: int | None = None) -> None:
        if not api.call("nvmlGpmQueryDeviceSupport", card).isSupportedDevice:
            raise NvmlFailure("unsupported", "the card has no GPM counters")
        self._api = api
        self._card = card
        self._uuid = uuid
        self._gpu_instance = gpu_instance
        self._request = api.call("c_nvmlGpmMetricsGet_t")
        self._samples: list[Any] = [api.call("nvmlGpmSampleAlloc")]
        try:
            self._samples.append(api.call("nvmlGpmSampleAlloc"))
        except NvmlFailure:
            self.close()
            raise
        self._older_ns: int | None = None

    def read(self, clock: Callable[[], int]) -> GpmSample | None:
        """What happened since the previous reading; ``None`` the first time and for an empty pair.

        Args:
            clock: ``time.monotonic_ns``; called right after the counters were read.

        Raises:
            NvmlFailure: NVML did not answer.
        """
        older, newer = self._samples
        self._take(newer)
        t_ns = clock()
        older_ns = self._older_ns
        if older_ns is None:
            self._older_ns = t_ns
            self._samples.reverse()
            return None
        request = self._request
        request.version = self._api.constant("NVML_GPM_METRICS_GET_VERSION", _VERSION)
        request.numMetrics = len(METRICS)
        request.sample1, request.sample2 = older, newer
        for slot, metric_id in enumerate(METRICS.values()):
            request.metrics[slot].metricId = metric_id
        self._api.call("nvmlGpmMetricsGet", request)
        raw = [_raw(request.metrics[slot]) for slot in range(len(METRICS))]
        if is_empty_pair(raw) and t_ns - older_ns < LONGEST_PERIOD_NS:
            return None  # keep the older sample: the next pair then spans both periods
        self._older_ns = t_ns
        self._samples.reverse()
        fields = dict(zip(METRICS, map(_finite, raw), strict=True))
        return GpmSample(t_ns, self._uuid, **fields)

    def close(self) -> None:
        """Free the driver's sample buffers."""
        for sample in self._samples:
            with contextlib.suppress(NvmlFailure):
                self._api.call("nvmlGpmSampleFree", sample)
        self._samples = []

    def _take(self, sample: Any) -> None:
        if self._gpu_instance is None:
            self._api.call("nvmlGpmSampleGet", self._card, sample)
        else:
            self._api.call("nvmlGpmMigSampleGet", self._card, self._gpu_instance, sample)


def _raw(metric: Any) -> float | None:
    return float(metric.value) if metric.nvmlReturn == 0 else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def is_empty_pair(values: Iterable[float | None]) -> bool:
    """Whether the counters did not move between the two samples: NaN somewhere, 0 elsewhere."""
    measured = [v for v in values if v is not None]
    return any(math.isnan(v) for v in measured) and all(v == 0 or math.isnan(v) for v in measured)
