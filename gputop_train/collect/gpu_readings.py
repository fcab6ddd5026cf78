"""The slow-changing NVML readings of one card: memory, power, clocks, link, who else is on it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.pacing import Pace
from gputop_train.collect.procfs import read_text
from gputop_train.model import GpuProcess, GpuSample

#: Part of one core that any one reading may cost. Power takes up to 1.7 ms on an H200 and comes
#: every 3.4 s then, the quick ones (tens of microseconds) with every record; between two calls a
#: record repeats the last answer, which is at most 10 s old.
READING_SHARE = 0.0005
SETTLED_NS = 10_000_000_000
#: So many times nothing new of any process's utilisation: ask for all the driver keeps.
SILENT_READS = 30

#: Processes of others named on a card.
MAX_NAMED = 8

_CLOCK_SM = 1  # nvmlClockType_t
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t
_PCIE_TX, _PCIE_RX = 0, 1  # nvmlPcieUtilCounter_t

#: Inode of the initial PID namespace (PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class _Reading:
    """One field of ``GpuSample``: the call that answers it and the scale to its unit."""

    field: str
    names: str | tuple[str, ...]
    args: tuple[int, ...] = ()
    scale: float | None = None
    whole_card_only: bool = False  # of a MIG instance's card it would tell the neighbours' share
    settled: bool = False  # a limit of the card: hardly ever changes


_READINGS: tuple[_Reading, ...] = (
    _Reading("power_w", "nvmlDeviceGetPowerUsage", scale=1e-3, whole_card_only=True),
    _Reading(
        "power_limit_w",
        "nvmlDeviceGetEnforcedPowerLimit",
        scale=1e-3,
        whole_card_only=True,
        settled=True,
    ),
    _Reading("sm_clock_mhz", "nvmlDeviceGetClockInfo", (_CLOCK_SM,)),
    _Reading("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (_CLOCK_SM,), settled=True),
    _Reading("temperature_c", "nvmlDeviceGetTemperature", (_TEMPERATURE_GPU,)),
    _Reading(
        "throttle_reasons",
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    _Reading("pcie_gen", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _Reading("pcie_gen_max", "nvmlDeviceGetMaxPcieLinkGeneration", settled=True),
    _Reading("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    _Reading("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", settled=True),
)


class CardReader:
    """Reads ``GpuSample`` records of one card, or of one MIG instance and the card around it.

    Attributes:
        processes_refused: Why the list of processes is withheld, once it is.
    """

    def __init__(self, api: NvmlApi, uuid: str, handle: Any, card: Any) -> None:
        self._api = api
        self._uuid = uuid
        self._handle = handle
        self._card = card
        self._is_mig = handle is not card
        self._off: set[str] = set()
        self._paces = {
            reading.field: Pace(READING_SHARE, shortest_ns=SETTLED_NS if reading.settled else 0)
            for reading in _READINGS
        }
        self._answers: dict[str, Any] = {}
        self._processes_pace = Pace(READING_SHARE)
        self._listed: list[tuple[int, int | None]] | None = None
        self.processes_refused: str | None = None
        self._util_pace = Pace(READING_SHARE)
        self._util_off = self._is_mig  # an instance's part is not told
        self._util_stamp_us = 0
        self._util_silent = 0
        self._foreign_util: float | None = None
        self._names: dict[int, str | None] = {}

    def read(
        self, now_ns: int, throughput: tuple[float | None, float | None], stretch: float = 1.0
    ) -> GpuSample:
        """All but the processes, which ``processes`` reads.

        Args:
            now_ns: Time to put on the record.
            throughput: PCIe receive and transmit rate in bytes/s, from the slow thread.
            stretch: Factor on the time for which a dear reading is not made anew.

        Raises:
            NvmlFailure: The card or NVML is gone.
        """
        used, total = self._memory()
        values: dict[str, Any] = {
            reading.field: self._paced(reading, now_ns, stretch)
            for reading in _READINGS
            if not (reading.whole_card_only and self._is_mig)
        }
        return GpuSample(
            t_ns=now_ns,
            uuid=self._uuid,
            memory_used=used,
            memory_total=total,
            pcie_rx_bytes_per_s=throughput[0],
            pcie_tx_bytes_per_s=throughput[1],
            **values,
        )

    def processes(
        self, now_ns: int = 0, stretch: float = 1.0
    ) -> list[tuple[int, int | None]] | None:
        """Compute processes on the card as ``(pid, bytes)``; ``None`` when they are not told.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            stretch: Factor on the time for which the list is not read anew.

        Raises:
            NvmlFailure: The card or NVML is gone.
        """
        if self.processes_refused is not None:
            return None
        if self._processes_pace.is_due(now_ns):
            self._listed = self._processes_pace.run(now_ns, self._list_processes, stretch)
        return self._listed

    def _list_processes(self) -> list[tuple[int, int | None]] | None:
        try:
            listed = self._api.call(
                (
                    "nvmlDeviceGetComputeRunningProcesses",
                    "nvmlDeviceGetComputeRunningProcesses_v2",
                ),
                self._handle,
            )
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            if failure.kind in ("unsupported", "refused"):
                self.processes_refused = failure.why
            return [] if failure.kind == "empty" else None
        return [(int(p.pid), p.usedGpuMemory) for p in listed]

    def foreign_util(
        self, now_ns: int, ours: Collection[int], stretch: float = 1.0
    ) -> float | None:
        """Percent of the time that other processes kept the card busy; ``None`` if not told.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            ours: PIDs of the run, in the same PID namespace as the driver's.
            stretch: Factor on the time for which it is not read anew.

        Raises:
            NvmlFailure: The card or NVML is gone.
        """
        if not self._util_off and self._util_pace.is_due(now_ns):
            by_pid = self._util_pace.run(now_ns, self._read_process_util, stretch)
            if by_pid is None:
                self._foreign_util = None
            else:
                used = sum(value for pid, value in by_pid.items() if pid not in ours)
                self._foreign_util = min(100.0, used)
        return None if self._util_off else self._foreign_util

    def _read_process_util(self) -> dict[int, float] | None:
        """Mean SM utilisation of each process since the last call."""
        try:
            rows = self._api.call(
                "nvmlDeviceGetProcessUtilization", self._card, self._util_stamp_us
            )
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            self._util_off = failure.kind in ("unsupported", "refused")
            rows = []
        seen: dict[int, list[float]] = {}
        for row in rows:
            if int(row.timeStamp) > self._util_stamp_us:
                seen.setdefault(int(row.pid), []).append(float(row.smUtil))
        if not seen:
            # A wall clock set back leaves the driver's stamps behind ours: begin anew.
            self._util_silent += 1
            if self._util_silent >= SILENT_READS:
                self._util_stamp_us = self._util_silent = 0
            return None
        self._util_silent = 0
        self._util_stamp_us = max(int(row.timeStamp) for row in rows)
        return {pid: sum(values) / len(values) for pid, values in seen.items()}

    def foreign(
        self, listed: Sequence[tuple[int, int | None]], ours: Collection[int]
    ) -> tuple[GpuProcess, ...]:
        """Processes of others by name, the largest first; a name is asked for once.

        Args:
            listed: From ``processes``, whose PIDs are known to be those of our PID namespace.
            ours: PIDs of the run.
        """
        theirs = {pid: used for pid, used in listed if pid not in ours}
        self._names = {pid: name for pid, name in self._names.items() if pid in theirs}
        ordered = sorted(theirs.items(), key=lambda item: (-(item[1] or 0), item[0]))
        return tuple(GpuProcess(pid, self._name(pid), used) for pid, used in ordered[:MAX_NAMED])

    def _name(self, pid: int) -> str | None:
        if pid not in self._names:
            name = (read_text(f"/proc/{pid}/comm") or "").strip()
            # Anybody may call a process anything: it goes to a terminal some day.
            self._names[pid] = "".join(c if c.isprintable() else "?" for c in name) or None
        return self._names[pid]

    def throughput(self) -> tuple[float | None, float | None]:
        """PCIe receive and transmit rate in bytes/s over 20 ms each. Blocks for 40 ms.

        Raises:
            NvmlFailure: The card or NVML is gone.
        """
        return self._rate("pcie_rx", _PCIE_RX), self._rate("pcie_tx", _PCIE_TX)

    @property
    def has_throughput(self) -> bool:
        """Whether the card counts PCIe traffic, as far as it was asked."""
        return not self._is_mig and not {"pcie_rx", "pcie_tx"} <= self._off

    def _rate(self, field: str, counter: int) -> float | None:
        reading = _Reading(field, "nvmlDeviceGetPcieThroughput", (counter,), scale=1000.0)  # kB/s
        return None if self._is_mig else self._value(reading)

    def _paced(self, reading: _Reading, now_ns: int, stretch: float) -> Any:
        """A reading, or its last answer while it is not due; a failure is no answer to keep."""
        pace, known = self._paces[reading.field], self._answers.get(reading.field)
        if known is not None and not pace.is_due(now_ns):
            return known
        answer = pace.run(now_ns, lambda: self._value(reading), stretch)
        self._answers[reading.field] = answer
        return answer

    def _value(self, reading: _Reading) -> Any:
        if reading.field in self._off:
            return None
        try:
            value = self._api.call(reading.names, self._card, *reading.args)
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            if failure.kind in ("unsupported", "refused"):
                self._off.add(reading.field)
            return None
        return int(value) if reading.scale is None else float(value) * reading.scale

    def _memory(self) -> tuple[int | None, int | None]:
        # Version 2 leaves the driver's own reserve out of "used", as nvidia-smi does.
        version = self._api.constant("nvmlMemory_v2", None)
        memory = None
        if version is not None:
            memory = self._api.maybe("nvmlDeviceGetMemoryInfo", self._handle, version)
        if memory is None:
            memory = self._api.maybe("nvmlDeviceGetMemoryInfo", self._handle)
        return (None, None) if memory is None else (int(memory.used), int(memory.total))


def in_initial_pid_namespace() -> bool:
    """Whether our PIDs are the host's, which is what NVML counts in."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE  # noqa: PTH115
    except OSError:
        return False


def split_processes(
    listed: Sequence[tuple[int, int | None]] | None,
    ours: Collection[int],
    *,
    matched: bool,
    host_pids: bool,
) -> tuple[int | None, int | None]:
    """The run's memory on a card, and how many other processes compute there.

    In a container NVML may list host PIDs, none of which we know. Then our own process looks like
    a stranger's, so nothing can be said until one of ours was recognised.

    Args:
        listed: Processes on this card with their memory, ``None`` when not told.
        ours: PIDs of the run.
        matched: One of ours was recognised on some card, so NVML's PIDs are our PIDs.
        host_pids: We run in the host's PID namespace.

    Returns:
        ``(bytes, count)``, each ``None`` when it cannot be known.
    """
    if listed is None:
        return None, None
    foreign = len({pid for pid, _ in listed if pid not in ours}) if matched or host_pids else None
    if not matched:
        return None, foreign
    total = 0
    for pid, used in listed:
        if pid in ours:
            if used is None:
                return None, foreign
            total += int(used)
    return total, foreign
