"""A card or MIG instance that is watched, and the records waiting to be fetched."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gputop_train.collect.devices import Device
from gputop_train.collect.gpm import GpmReader
from gputop_train.collect.gpu_readings import CardReader
from gputop_train.collect.pacing import Pace
from gputop_train.collect.utilisation import UtilReader
from gputop_train.model import GpmSample, GpuSample, UtilSample

#: Asking for PCIe throughput blocks 21 ms a direction on an H200. Where GPM counts PCIe traffic
#: its rate serves, which is a mean of all the time and not of 20 ms.
THROUGHPUT_PERIOD_NS = 10_000_000_000
#: Parts of one core that GPM and PCIe throughput may cost, all cards together.
GPM_SHARE, THROUGHPUT_SHARE = 0.005, 0.002
_LONGEST_GPM_NS = 4_000_000_000
_LONGEST_THROUGHPUT_NS = 60_000_000_000
_MIB = 1 << 20

#: About 8 cards x 5 samples/s x 100 s that nobody fetched; a stuck reader must not cost memory.
_OUTBOX = 4096


@dataclass(slots=True)
class Watched:
    """What is known of a card, how it is read, and how often."""

    device: Device
    handle: Any
    reader: CardReader
    util: UtilReader
    card: Any
    gpu_instance: int | None
    util_off: bool = False
    gpm_off: bool = False
    gpm: GpmReader | None = None
    gpm_retry_ns: int = 0
    gpm_pace: Pace = field(default_factory=lambda: Pace(GPM_SHARE, longest_ns=_LONGEST_GPM_NS))
    throughput: tuple[float | None, float | None] = (None, None)
    throughput_until_ns: int = 0
    throughput_pace: Pace = field(
        default_factory=lambda: Pace(
            THROUGHPUT_SHARE,
            shortest_ns=THROUGHPUT_PERIOD_NS,
            longest_ns=_LONGEST_THROUGHPUT_NS,
        )
    )
    gpm_counts_pcie: bool | None = None  # not known before the first pair

    def recent_throughput(self, now_ns: int) -> tuple[float | None, float | None]:
        """PCIe rates of late; none if the slow thread is held up."""
        return self.throughput if now_ns <= self.throughput_until_ns else (None, None)

    def note_gpm(self, sample: GpmSample, now_ns: int, fresh_ns: int) -> None:
        """Take the PCIe rates from GPM, for ``fresh_ns``.

        A MIG instance has none: the link is its neighbours' too.
        """
        rates = (sample.pcie_rx_mib_per_s, sample.pcie_tx_mib_per_s)
        self.gpm_counts_pcie = rates[0] is not None
        if self.gpm_counts_pcie and not self.device.is_mig:
            rx, tx = (None if rate is None else rate * _MIB for rate in rates)
            self.throughput = (rx, tx)
            self.throughput_until_ns = now_ns + fresh_ns


@dataclass(slots=True)
class Outbox:
    """Records waiting to be fetched; the oldest are dropped when nobody fetches."""

    util: deque[UtilSample] = field(default_factory=lambda: deque(maxlen=_OUTBOX))
    gpu: deque[GpuSample] = field(default_factory=lambda: deque(maxlen=_OUTBOX))
    gpm: deque[GpmSample] = field(default_factory=lambda: deque(maxlen=_OUTBOX))
