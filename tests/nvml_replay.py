"""NVML's boundary, replayed: what a real H200 answered, and the errors real drivers give.

Constants, structures and error classes come from the real ``pynvml``; only the calls that would
reach a driver are replaced. A call this fake does not know is one the package does not have.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

RECORDING: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "nvml_h200.json").read_text()
)

#: nvmlReturn_t (nvml.h)
UNINITIALIZED, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 3, 4, 6
DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 9, 12, 15, 18, 999

#: The driver keeps this many utilisation samples.
DRIVER_BUFFER = 120

WALL_US = 1_796_000_000_000_000  # some day in 2026

_METRIC_COLUMN = {1: 1, 2: 2, 3: 3, 5: 4, 10: 5, 20: 6, 21: 7}


@dataclass
class Card:
    """One card or MIG instance.

    ``samples`` are ``(taken at us, stamp us, percent)``; those taken after ``FakeNvml.now_us`` are
    not there yet. The stamp differs from the time when the wall clock was stepped. ``failing`` maps
    a call's name to the error it gives (``"*"``: every call).
    """

    uuid: str = "GPU-5a4e0f4c-0001-4a6e-9d1c-6f0a7d5b2c11"
    name: str = "NVIDIA H200"
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    rate: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    process_util: list[tuple[int, int, int]] = field(default_factory=list)  # pid, stamp us, percent
    gpm: list[list[float | None]] = field(default_factory=list)
    gpm_at: int = 0
    failing: dict[str, int] = field(default_factory=dict)
    memory: tuple[int, int] = (31 << 30, 143771 << 20)
    parent: Card | None = None
    instances: list[Card] = field(default_factory=list)
    mig_mode: bool = False
    gpu_instance: int = 0


def recorded_card(start_us: int = WALL_US, **changes: Any) -> Card:
    """A card that was busy 500 ms and idle 500 ms, as recorded, from ``start_us`` on."""
    return Card(samples=recorded_samples(start_us), gpm=RECORDING["gpm_steady"], **changes)


def recorded_samples(start_us: int) -> list[tuple[int, int, int]]:
    """The recorded utilisation samples, the recording beginning at ``start_us``."""
    times = [(start_us + round(t * 1e6), util) for t, util in RECORDING["samples"]]
    return [(us, us, util) for us, util in times]


def error(code: int) -> Exception:
    """The exception ``pynvml`` raises for a return code."""
    failure: Exception = pynvml.NVMLError(code)
    return failure


class FakeNvml:
    """A stand-in for the ``pynvml`` module."""

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.now_us = WALL_US
        self.init_error: int | None = None
        self.calls: list[str] = []
        self.started = 0
        self.gpm_buffers = 0
        self.lacking: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacking"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if name.startswith("nvml") and callable(real):
            raise AttributeError(name)
        return real

    def _enter(self, name: str, card: Card | None = None) -> None:
        self.calls.append(name)
        if self.started <= 0:
            raise error(UNINITIALIZED)
        if card is not None:
            for owner in (card, card.parent):
                if owner is not None:
                    code = owner.failing.get(name, owner.failing.get("*"))
                    if code is not None:
                        raise error(code)

    # -- library

    def nvmlInit(self) -> None:
        self.calls.append("nvmlInit")
        if self.init_error is not None:
            raise error(self.init_error)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")
        self.started -= 1

    # -- devices

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._enter("nvmlDeviceGetHandleByIndex", self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        self._enter("nvmlDeviceGetUUID", card)
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        self._enter("nvmlDeviceGetName", card)
        return card.name

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        self._enter("nvmlDeviceGetMigMode", card)
        return [int(card.mig_mode), int(card.mig_mode)]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:
        self._enter("nvmlDeviceGetMaxMigDeviceCount", card)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, slot: int) -> Card:
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", card)
        if slot >= len(card.instances):
            raise error(NOT_FOUND)
        return card.instances[slot]

    def nvmlDeviceGetGpuInstanceId(self, card: Card) -> int:
        self._enter("nvmlDeviceGetGpuInstanceId", card)
        return card.gpu_instance

    # -- utilisation

    def nvmlDeviceGetSamples(self, card: Card, kind: int, last_seen_us: int) -> tuple[int, list]:
        self._enter("nvmlDeviceGetSamples", card)
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        buffer = [s for s in card.samples if s[0] <= self.now_us][-DRIVER_BUFFER:]
        fresh = [s for s in buffer if s[1] > last_seen_us]
        if not fresh:
            raise error(NOT_FOUND)
        answer = []
        for _, stamp_us, util in fresh:
            sample = pynvml.c_nvmlSample_t()
            sample.timeStamp = stamp_us
            sample.sampleValue.uiVal = util
            answer.append(sample)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, answer

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        self._enter("nvmlDeviceGetUtilizationRates", card)
        return SimpleNamespace(gpu=card.rate, memory=0)

    # -- readings

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:
        self._enter("nvmlDeviceGetMemoryInfo", card)
        used, total = card.memory
        reserved = 600 << 20
        return SimpleNamespace(used=used if version else used + reserved, total=total)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        self._enter("nvmlDeviceGetPowerUsage", card)
        return int(RECORDING["poll"][0][2])

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        self._enter("nvmlDeviceGetEnforcedPowerLimit", card)
        return 700_000

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        self._enter("nvmlDeviceGetClockInfo", card)
        return {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetMaxClockInfo(self, card: Card, kind: int) -> int:
        self._enter("nvmlDeviceGetMaxClockInfo", card)
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        self._enter("nvmlDeviceGetTemperature", card)
        return {pynvml.NVML_TEMPERATURE_GPU: 47}[sensor]

    def nvmlDeviceGetCurrentClocksEventReasons(self, card: Card) -> int:
        self._enter("nvmlDeviceGetCurrentClocksEventReasons", card)
        return int(pynvml.nvmlClocksEventReasonSwPowerCap)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons", card)
        return int(pynvml.nvmlClocksThrottleReasonSwPowerCap)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card: Card) -> int:
        self._enter("nvmlDeviceGetCurrPcieLinkGeneration", card)
        return 4

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card: Card) -> int:
        self._enter("nvmlDeviceGetMaxPcieLinkGeneration", card)
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: Card) -> int:
        self._enter("nvmlDeviceGetCurrPcieLinkWidth", card)
        return 8

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: Card) -> int:
        self._enter("nvmlDeviceGetMaxPcieLinkWidth", card)
        return 16

    def nvmlDeviceGetPcieThroughput(self, card: Card, counter: int) -> int:
        self._enter("nvmlDeviceGetPcieThroughput", card)
        return {pynvml.NVML_PCIE_UTIL_TX_BYTES: 2_000, pynvml.NVML_PCIE_UTIL_RX_BYTES: 9_000}[
            counter
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        self._enter("nvmlDeviceGetComputeRunningProcesses", card)
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in card.processes]

    def nvmlDeviceGetProcessUtilization(self, card: Card, since_us: int) -> list[Any]:
        self._enter("nvmlDeviceGetProcessUtilization", card)
        rows = [row for row in card.process_util if row[1] > since_us]
        if not rows:
            raise error(NOT_FOUND)
        return [SimpleNamespace(pid=p, timeStamp=us, smUtil=sm) for p, us, sm in rows]

    # -- GPM: a sample holds which recorded reading it was taken at; one reading passes per sample

    def nvmlGpmQueryDeviceSupport(self, card: Card) -> Any:
        self._enter("nvmlGpmQueryDeviceSupport", card)
        return SimpleNamespace(isSupportedDevice=int(bool(card.gpm)))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._enter("nvmlGpmSampleAlloc")
        self.gpm_buffers += 1
        self._buffers = [*getattr(self, "_buffers", []), (ctypes.c_longlong * 2)()]
        return ctypes.cast(self._buffers[-1], pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self._enter("nvmlGpmSampleFree")
        self.gpm_buffers -= 1

    def nvmlGpmSampleGet(self, card: Card, sample: Any) -> Any:
        self._enter("nvmlGpmSampleGet", card)
        content = ctypes.cast(sample, ctypes.POINTER(ctypes.c_longlong))
        content[0], content[1] = card.gpm_at, self.cards.index(card)
        card.gpm_at += 1
        return sample

    def nvmlGpmMigSampleGet(self, card: Card, gpu_instance: int, sample: Any) -> Any:
        self._enter("nvmlGpmMigSampleGet", card)
        assert [i.gpu_instance for i in card.instances].count(gpu_instance) == 1
        return self.nvmlGpmSampleGet(card, sample)

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        self._enter("nvmlGpmMetricsGet")
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        older, newer = (
            ctypes.cast(s, ctypes.POINTER(ctypes.c_longlong))
            for s in (request.sample1, request.sample2)
        )
        rows = self.cards[newer[1]].gpm[older[0] + 1 : newer[0] + 1]
        moved = [row for row in rows if any(row[1:])]
        for metric in request.metrics[: request.numMetrics]:
            column = _METRIC_COLUMN[metric.metricId]
            metric.nvmlReturn = 0
            values = [row[column] for row in moved or rows]
            known = [v for v in values if v is not None]
            metric.value = sum(known) / len(known) if known else float("nan")
        return request
