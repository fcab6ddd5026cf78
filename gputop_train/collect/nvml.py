"""The NVML collector: two threads that talk to the driver, and a ``sample`` that never waits.

A driver in trouble can hold a call for minutes, and a mere start takes seconds on a node without
persistence mode. The thread that drives the monitor also reads the ring and stops the run, so it
never calls NVML: one thread reads utilisation and the rest once a second (four times where the
driver keeps no samples for us); another does what is slow (PCIe throughput blocks 21 ms a call, GPM
takes 1.5 ms). What any of it may cost is bounded: see ``pacing``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gputop_train.collect.devices import Device
from gputop_train.collect.nvml_session import NvmlSession
from gputop_train.model import GpmSample, GpuSample, UtilSample

#: A round that takes longer is a driver that does not answer; starting NVML on eight cards without
#: persistence mode stays below it.
STALL_NS = 30_000_000_000

_CLOSE_WAIT_S = 2.0

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class GpuBatch:
    """What one call of ``NvmlCollector.sample`` fetched."""

    util: tuple[UtilSample, ...] = ()
    gpu: tuple[GpuSample, ...] = ()
    gpm: tuple[GpmSample, ...] = ()


class NvmlCollector:
    """Collects GPU records of the cards a run uses.

    Args:
        uuids: UUIDs of those cards as the probe reported them (``GPU-...`` or bare), or ``None``
            until it has: then the cards ``env`` shows to CUDA. Empty: none at all.
        pids: Gives the PIDs of the run; called by ``sample`` on the caller's thread.
        nvml: A module to call in place of ``pynvml``, for tests.
        env: Environment of the training process (``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER``).
        since_ns: Driver samples stamped earlier are left out; default: those before now. The
            driver keeps about 24 s, so a supervisor that took over can fetch what it missed.
    """

    def __init__(
        self,
        uuids: Iterable[str] | None,
        pids: Callable[[], set[int]],
        nvml: Any = None,
        *,
        env: Mapping[str, str] | None = None,
        since_ns: int | None = None,
    ) -> None:
        self._pids = pids
        since_ns = time.monotonic_ns() if since_ns is None else since_ns
        session = self._session = NvmlSession(uuids, nvml, dict(env or {}), since_ns)
        self._stalled: str | None = None
        self._stop = threading.Event()
        self._closed = False
        self._loops = (
            _Loop("gputop-nvml", lambda: session.fast_period_s, session.fast, self._stop),
            _Loop("gputop-nvml-slow", lambda: session.slow_period_s, session.slow, self._stop),
        )

    @property
    def missing(self) -> dict[str, str]:
        """Signals that are absent (``nvml``, ``util``, ``gpm``, ``gpu_processes``) and why."""
        missing = dict(self._session.missing)
        for loop in self._loops:
            if loop.error is not None:
                missing.setdefault("nvml", f"Reading the GPU failed ({loop.error!r}).")
        if self._stalled is not None:
            missing["nvml"] = self._stalled
        return missing

    @property
    def devices(self) -> tuple[Device, ...]:
        """The cards being watched, in CUDA's order; empty until the driver has answered."""
        return self._session.devices

    def set_uuids(self, uuids: Iterable[str] | None) -> None:
        """Watch these cards from now on (the probe has told which the script uses)."""
        self._session.set_uuids(uuids)

    def stretch(self, factor: float) -> None:
        """Read what is dear so much less often."""
        self._session.stretch = factor

    def sample(self, now_ns: int) -> GpuBatch:
        """Everything gathered since the last call. Never waits, never raises."""
        with contextlib.suppress(Exception):  # the PIDs of a moment ago serve as well
            self._session.ours = frozenset(self._pids())
        self._stalled = self._stall(now_ns)
        out = self._session.out
        return GpuBatch(_drain(out.util), _drain(out.gpu), _drain(out.gpm))

    def close(self) -> None:
        """End the threads and release the driver. Records left can still be fetched."""
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if all(loop.ended(_CLOSE_WAIT_S) for loop in self._loops):
            self._session.close()
        # Else a call is stuck in the driver: its thread is a daemon and shutting NVML down under
        # it could crash us.

    def _stall(self, now_ns: int) -> str | None:
        waited_ns = max(loop.busy_ns(now_ns) for loop in self._loops)
        if waited_ns < STALL_NS:
            return None
        return (
            f"The NVIDIA driver has not answered for {waited_ns // 1_000_000_000} s; "
            "GPU readings pause until it does, look for Xid in dmesg."
        )


class _Loop:
    """A daemon thread that runs a round, then pauses as long as it is told.

    Attributes:
        error: What the last round ended with that it should not have.
    """

    def __init__(
        self,
        name: str,
        period_s: Callable[[], float],
        work: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        self.error: Exception | None = None
        self._period_s = period_s
        self._work = work
        self._stop = stop
        self._began_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def busy_ns(self, now_ns: int) -> int:
        """How long the current round has been going on; 0 between rounds."""
        began_ns = self._began_ns
        return 0 if began_ns is None else max(0, now_ns - began_ns)

    def ended(self, wait_s: float) -> bool:
        """Wait for the thread to end; whether it did."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._began_ns = time.monotonic_ns()
            try:
                self._work(self._began_ns)
                self.error = None
            except Exception as error:  # an oddity of a driver must not end the series for good
                self.error = error
            self._began_ns = None
            self._stop.wait(self._period_s())


def _drain(queue: deque[_Record]) -> tuple[_Record, ...]:
    """Take out what is there now; the other thread may go on adding."""
    return tuple(queue.popleft() for _ in range(len(queue)))
