"""All NVML work of a run, without threads: which cards, their readings, and what went wrong.

One thread calls ``fast`` and another ``slow``; both may be held up by a driver in trouble for as
long as it likes, which is why neither is the thread that drives the monitor (see ``nvml.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gputop_train.collect.clock import WallMap, measure_offset_ns
from gputop_train.collect.devices import Device
from gputop_train.collect.gpm import GpmReader
from gputop_train.collect.gpu_readings import (
    CardReader,
    in_initial_pid_namespace,
    split_processes,
)
from gputop_train.collect.nvml_api import NvmlApi, NvmlFailure
from gputop_train.collect.nvml_devices import Found, choose_devices, find_devices
from gputop_train.collect.nvml_watched import Outbox, Watched
from gputop_train.collect.utilisation import UtilReader
from gputop_train.model import UtilSample

GPU_PERIOD_NS = 1_000_000_000
#: The driver keeps its utilisation samples for us (24 s of them on an H200); where there are none
#: the rate is polled, more often than it changes (NVML: every 1/6 s to 1 s).
FAST_PERIOD_S, POLLING_PERIOD_S = 1.0, 0.25
#: A pair of GPM samples, about 1.5 ms each on an H200, and the pause where there is no GPM.
GPM_PERIOD_S, IDLE_PERIOD_S = 0.5, 1.0

#: First wait before a driver or card in trouble is asked again; doubled up to the longest.
RETRY_NS = 30_000_000_000
LONGEST_RETRY_NS = 600_000_000_000


class NvmlSession:
    """NVML for the cards of one run.

    Args:
        uuids: The cards' UUIDs, or ``None``: those ``env`` shows to CUDA.
        module: What to call in place of ``pynvml``.
        env: Environment of the training process.
        since_ns: Utilisation samples stamped earlier are left out.
        offset_ns: Measures wall time minus ``CLOCK_MONOTONIC``.
    """

    def __init__(
        self,
        uuids: Iterable[str] | None,
        module: Any,
        env: Mapping[str, str],
        since_ns: int,
        offset_ns: Callable[[], int] = measure_offset_ns,
    ) -> None:
        self.out = Outbox()
        self.missing: dict[str, str] = {}
        self.ours: frozenset[int] = frozenset()
        self.devices: tuple[Device, ...] = ()
        self._api = NvmlApi(module)
        self._env = env
        self._since_ns = since_ns
        self._offset_ns = offset_ns
        self._wanted = None if uuids is None else tuple(uuids)
        self._chosen_for: object = self  # no choice made yet
        self._found: tuple[Found, ...] = ()
        self._watched: tuple[Watched, ...] = ()
        # Kept for ever: a card that comes back must not repeat samples it has given before.
        self._series: dict[str, UtilReader] = {}
        self._lost: dict[str, Device] = {}
        self._up = False
        self._retry_ns = 0
        self._wait_ns = RETRY_NS
        self._wall = WallMap()
        self._matched = False
        self._host_pids = in_initial_pid_namespace()
        self._gpu_due_ns = 0
        self.stretch = 1.0
        # Held for a whole round of the slow thread, and while NVML is torn down or cards change:
        # handles and GPM buffers must not go away under a call.
        self._slow_lock = threading.Lock()

    def set_uuids(self, uuids: Iterable[str] | None) -> None:
        """Watch these cards from the next round on; ``None`` = what ``env`` shows."""
        wanted = None if uuids is None else tuple(uuids)
        if wanted != self._wanted:
            self._wanted = wanted

    @property
    def fast_period_s(self) -> float:
        """Pause between two rounds of ``fast``."""
        polls = any(w.util.polls and not w.util_off for w in self._watched)
        return POLLING_PERIOD_S if polls else FAST_PERIOD_S

    @property
    def slow_period_s(self) -> float:
        """Pause between two rounds of ``slow``."""
        return GPM_PERIOD_S if any(not w.gpm_off for w in self._watched) else IDLE_PERIOD_S

    def fast(self, now_ns: int) -> None:
        """One round of utilisation, and once a second of everything else that is quick."""
        if not self._ready(now_ns):
            return
        self._wall = self._wall.observed(self._offset_ns(), now_ns)
        gpu_due = now_ns >= self._gpu_due_ns
        if gpu_due:
            self._gpu_due_ns = now_ns + GPU_PERIOD_NS
        for watched in self._watched:
            failure = self._round(watched, now_ns, gpu_due)
            if failure is not None:
                self._trouble(watched, failure, now_ns)
            elif gpu_due and watched.device.uuid in self._lost:
                self._found_again(watched.device.uuid)
            if not self._up:
                return

    def slow(self, now_ns: int) -> None:
        """One round of GPM, and of PCIe throughput, which blocks, where GPM does not count it."""
        with self._slow_lock:
            if not self._up:
                return
            for watched in self._watched:
                if watched.gpm_pace.is_due(now_ns):
                    watched.gpm_pace.run(
                        now_ns, partial(self._read_gpm, watched, now_ns), self._share_out
                    )
                if watched.throughput_pace.is_due(now_ns):
                    self._read_throughput(watched, now_ns)

    @property
    def _share_out(self) -> float:
        """Factor on paces: the cards share what one may cost."""
        return self.stretch * max(1, len(self._watched))

    def close(self) -> None:
        """Free what the driver holds for us."""
        with self._slow_lock:
            self._tear_down()

    def _tear_down(self) -> None:
        for watched in self._watched:
            if watched.gpm is not None:
                watched.gpm.close()
        self._watched = ()
        if self._up:
            self._up = False
            self._api.stop()

    def _ready(self, now_ns: int) -> bool:
        retry = now_ns >= self._retry_ns
        if not self._up:
            if not (retry and self._start(now_ns)):
                return False
        elif self._lost and retry:
            self._retry_later(now_ns)
            if not self._find(now_ns):
                return False
        if self._chosen_for is not self._wanted:
            self._choose(now_ns)
        return True

    def _start(self, now_ns: int) -> bool:
        try:
            self._api.start()
        except NvmlFailure as failure:
            self._down(failure.why, now_ns)
            return False
        self._up = True
        if not self._find(now_ns):
            return False
        self._wait_ns = RETRY_NS
        return True

    def _find(self, now_ns: int) -> bool:
        try:
            self._found = find_devices(self._api)
        except NvmlFailure as failure:
            self._fell_down(failure, now_ns)
            return False
        self._chosen_for = self
        return True

    def _round(self, watched: Watched, now_ns: int, gpu_due: bool) -> NvmlFailure | None:
        try:
            self._read_util(watched, now_ns)
            if gpu_due:
                self._read_gpu(watched, now_ns)
        except NvmlFailure as failure:
            return failure
        return None

    def _choose(self, now_ns: int) -> None:
        """Watch the wanted cards, keeping the readers of those that were watched before."""
        wanted = self._wanted
        known = {f.device.uuid: f for f in self._found}
        chosen, unclear = choose_devices(self._found, wanted, self._env)
        if not self._lost:  # the loss of a card is what there is to say, until it is back
            self.missing.pop("nvml", None)
            if unclear is not None:
                self.missing["nvml"] = unclear
        with self._slow_lock:
            kept = {w.device.uuid: w for w in self._watched if w.device.uuid in chosen}
            for watched in self._watched:
                if watched.device.uuid not in kept and watched.gpm is not None:
                    watched.gpm.close()
            self._watched = tuple(kept.get(u) or self._watch(known[u]) for u in chosen)
        gone = [d for d in self._lost.values() if d.uuid not in chosen]
        self.devices = (*(w.device for w in self._watched), *gone)
        self._chosen_for = wanted
        self._gpu_due_ns = now_ns

    def _watch(self, found: Found) -> Watched:
        return Watched(
            device=found.device,
            handle=found.handle,
            reader=CardReader(self._api, found.device.uuid, found.handle, found.card),
            util=self._series.setdefault(found.device.uuid, UtilReader(self._since_ns)),
            card=found.card,
            gpu_instance=found.gpu_instance,
        )

    def _read_util(self, watched: Watched, now_ns: int) -> None:
        if watched.util_off:
            return
        try:
            samples = watched.util.read(self._api, watched.handle, now_ns, self._wall)
        except NvmlFailure as failure:
            if failure.kind in ("lost", "down"):
                raise
            watched.util_off = failure.kind in ("unsupported", "refused")
            self.missing["util"] = _no_util(watched.device)
            return
        if samples and not any(w.util_off for w in self._watched):
            self.missing.pop("util", None)
        uuid = watched.device.uuid
        self.out.util.extend(UtilSample(t_ns, uuid, value) for t_ns, value in samples)

    def _read_gpu(self, watched: Watched, now_ns: int) -> None:
        share = self._share_out
        sample = watched.reader.read(now_ns, watched.recent_throughput(now_ns), share)
        listed = watched.reader.processes(now_ns, share)
        if watched.reader.processes_refused is not None:
            self.missing.setdefault(
                "gpu_processes",
                "The driver does not tell which processes use the GPU "
                f"({watched.reader.processes_refused}); run the monitor as root to see them.",
            )
        ours = self.ours
        self._matched |= any(pid in ours for pid, _ in listed or ())
        memory, foreign = split_processes(
            listed, ours, matched=self._matched, host_pids=self._host_pids
        )
        busy: float | None = None if foreign is None else 0.0
        if foreign:
            busy = watched.reader.foreign_util(now_ns, ours, share)
            sample = replace(sample, foreign=watched.reader.foreign(listed or (), ours))
        theirs = replace(sample, foreign_processes=foreign, foreign_util=busy)
        self.out.gpu.append(replace(theirs, memory_ours=memory))

    def _read_gpm(self, watched: Watched, now_ns: int) -> None:
        if watched.gpm_off or now_ns < watched.gpm_retry_ns:
            return
        try:
            if watched.gpm is None:
                uuid = watched.device.uuid
                watched.gpm = GpmReader(self._api, watched.card, uuid, watched.gpu_instance)
            sample = watched.gpm.read(time.monotonic_ns)
        except NvmlFailure as failure:
            if watched.gpm is not None:
                watched.gpm.close()
                watched.gpm = None
            watched.gpm_retry_ns = now_ns + RETRY_NS
            watched.gpm_off = failure.kind in ("unsupported", "refused")
            if watched.gpm_off:
                self.missing["gpm"] = _no_gpm(watched.device, failure)
            return
        if sample is not None:
            self.out.gpm.append(sample)
            usual_ns = int(GPM_PERIOD_S * 1e9) + watched.gpm_pace.wait_ns(self._share_out)
            watched.note_gpm(sample, now_ns, 3 * usual_ns)

    def _read_throughput(self, watched: Watched, now_ns: int) -> None:
        by_gpm = watched.gpm_counts_pcie is not False and not watched.gpm_off
        if by_gpm or not watched.reader.has_throughput:
            return
        pace = watched.throughput_pace
        try:
            watched.throughput = pace.run(now_ns, watched.reader.throughput, self._share_out)
            # The next one is due by then, and its round may be a little late.
            watched.throughput_until_ns = now_ns + 2 * pace.wait_ns(self._share_out)
        except NvmlFailure:  # lost or down: the fast thread meets it too and says so
            watched.throughput = (None, None)

    def _trouble(self, watched: Watched, failure: NvmlFailure, now_ns: int) -> None:
        if failure.kind == "down":
            self._fell_down(failure, now_ns)
            return
        self.missing["nvml"] = (
            f"The driver lost {_called(watched.device)} ({failure.why}); look for Xid in dmesg."
        )
        with self._slow_lock:
            self._watched = tuple(w for w in self._watched if w is not watched)
            if watched.gpm is not None:
                watched.gpm.close()
        self._lost[watched.device.uuid] = watched.device
        self._retry_later(now_ns)

    def _found_again(self, uuid: str) -> None:
        del self._lost[uuid]
        if not self._lost:
            self.missing.pop("nvml", None)
            self._wait_ns = RETRY_NS

    def _fell_down(self, failure: NvmlFailure, now_ns: int) -> None:
        with self._slow_lock:
            self._tear_down()
        self._down(
            f"The NVIDIA driver stopped answering ({failure.why}); check nvidia-smi.", now_ns
        )

    def _down(self, why: str, now_ns: int) -> None:
        self.missing["nvml"] = why
        self._retry_later(now_ns)

    def _retry_later(self, now_ns: int) -> None:
        self._retry_ns = now_ns + self._wait_ns
        self._wait_ns = min(LONGEST_RETRY_NS, 2 * self._wait_ns)


def _called(device: Device) -> str:
    return f"GPU {device.index} ({device.name or device.uuid})"


def _no_util(device: Device) -> str:
    if device.is_mig:
        return (
            "The driver measures no utilisation of a MIG instance; "
            "only a whole card shows the curve."
        )
    return f"{_called(device)} does not tell its utilisation; check it with nvidia-smi."


def _no_gpm(device: Device, failure: NvmlFailure) -> str:
    if failure.kind == "refused":
        return "The driver refuses us the GPM counters; run the monitor as root to see SM activity."
    return f"{_called(device)} has no GPM counters; SM activity needs a Hopper card or newer."
