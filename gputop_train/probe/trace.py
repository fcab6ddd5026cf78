"""A Kineto trace of a few steps: driven below the public profiler, and reduced to a few numbers.

``torch.profiler`` synchronises the device and sets a flag that other parts of torch look at; this
does neither. Kineto's messages are kept off the script's stderr for as long as our trace lasts, by
its own severity level, which is put back to exactly what it was.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

#: ``libkineto::Logger::severityLevel_``, the level below which Kineto says nothing.
_SEVERITY = "_ZN9libkineto6Logger14severityLevel_E"
_SILENT = 99
#: The helper lets the training thread run after so many events: a trace holds tens of thousands.
_CHUNK = 256
#: With fewer of the launched kernels in the trace the device was still at older ones.
CAUGHT_UP = 0.97
_COPY = ("Memcpy", "Memset")
_WAITS = ("Synchronize", "cudaMemcpy", "cuMemcpy")


class _Leaving:
    """How a forked child leaves: past Kineto's destructors, which wait for a thread it lacks.

    Kineto starts a thread at its first use. A child forked later that ends by ``exit`` (not by
    ``os._exit``, as workers do) would join that thread for ever: seen with torch 2.13, with
    ``torch.profiler`` as with us. glibc's ``on_exit`` hands the status to ``_exit`` itself; what C
    streams still hold is written first.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._register = libc.on_exit
        self._last = ctypes.cast(libc._exit, ctypes.c_void_p)
        self._flush = ctypes.cast(libc.fcloseall, ctypes.c_void_p)

    def arrange(self) -> None:
        """In the child. Called last first: what is registered first runs last."""
        self._register(self._last, None)
        self._register(self._flush, None)


_leaving: list[_Leaving] = []


def leave_in_child() -> None:
    """After a fork, in the child of a process that was traced."""
    try:
        if _leaving:
            _leaving[0].arrange()
    except Exception:
        pass


class TraceError(Exception):
    """This torch cannot be traced silently; the message says why."""


class Trace:
    """One trace of the calling thread's process. ``start`` and ``stop`` on the same thread.

    Attributes:
        start_ns: Host time that starting took.
        stop_ns: Host time that stopping took; CUPTI's buffers are flushed in it.
    """

    def __init__(self, torch: Any, *, cuda: bool) -> None:
        profiler, self._autograd = torch._C._profiler, torch._C._autograd
        kinds = profiler.ProfilerActivity
        self._severity = _severity(torch)
        if not _leaving:
            try:
                _leaving.append(_Leaving())
            except (OSError, AttributeError):
                raise TraceError("children forked later could not leave the profiler") from None
        self._activities = {kinds.CUDA if cuda else kinds.CPU}
        self._config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO, False, False, False, False, False,
            profiler._ExperimentalConfig(),
        )  # fmt: skip
        self._level = 0
        self.start_ns = self.stop_ns = 0

    def start(self) -> None:
        """Begin. Nothing is left running when this raises."""
        begun = time.monotonic_ns()
        # The first preparation of a process sets the level itself, to one that hides its own words.
        self._autograd._prepare_profiler(self._config, self._activities)
        self._level = self._severity.value
        self._severity.value = _SILENT
        try:
            self._autograd._enable_profiler(self._config, self._activities)
        except BaseException:
            self._severity.value = self._level
            raise
        self.start_ns = time.monotonic_ns() - begun

    def stop(self) -> Any:
        """End; the result is for ``reduce``."""
        begun = time.monotonic_ns()
        try:
            return self._autograd._disable_profiler()
        finally:
            self._severity.value = self._level
            self.stop_ns = time.monotonic_ns() - begun


def _severity(torch: Any) -> Any:
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(path), _SEVERITY)
    except (OSError, ValueError):
        raise TraceError("the profiler's own messages would show in the script's output") from None


def reduce(result: Any, begin_ns: int, end_ns: int) -> dict[str, Any]:
    """The numbers of one trace, from what lies between two moments of ``CLOCK_REALTIME``.

    Returns:
        ``launches`` made, and ``kernels`` that ran of them before the trace ended; ``caught_up``,
        whether (nearly) all did: else the device was behind, and idle and busy time of this window
        are not in the trace; ``kernel_us``, their mean length; ``busy_ns``, the union of kernels;
        ``copy_ns``, of copies and sets; ``host_idle_ns``, idle time of the device that ended with
        work launched only after its last work had ended (HTA's criterion of an idle gap that is
        the host's); ``sync_idle_ns``, the part of that from the begin of a blocking call on;
        ``cpu_ops``, operators on a CPU-only trace.

    Idle time before the first and after the last work of the window has no launch to blame; it is
    in none of these.
    """
    ran: list[tuple[int, int, int]] = []
    copies: list[tuple[int, int, int]] = []
    launched: dict[int, int] = {}
    waits: list[tuple[int, int]] = []
    launches = cpu_ops = 0
    for number, event in enumerate(result.events()):
        if number % _CHUNK == _CHUNK - 1:
            time.sleep(0.0005)
        begin = _start_ns(event)
        name = event.name()
        if str(event.device_type()).endswith("CUDA"):
            where = copies if name.startswith(_COPY) else ran
            where.append((begin, begin + _duration_ns(event), _correlation(event)))
            continue
        if not name.startswith("cu"):
            cpu_ops += 1
            continue
        launched[_correlation(event)] = begin
        if begin_ns <= begin < end_ns:
            launches += "Launch" in name
            if _blocks(name):
                waits.append((begin, begin + _duration_ns(event)))
    kernels = [k for k in ran if begin_ns <= launched.get(k[2], k[0]) < end_ns]
    inside = [w for w in ran + copies if begin_ns <= w[0] < end_ns]
    host_idle, sync_idle = _idle(inside, launched, waits)
    lengths = sum(end - begin for begin, end, _ in kernels)
    return {
        "kernels": len(kernels),
        "launches": launches,
        "caught_up": len(kernels) >= CAUGHT_UP * launches,
        "kernel_us": round(lengths / len(kernels) / 1e3, 3) if kernels else None,
        "busy_ns": _union([k[:2] for k in ran], begin_ns, end_ns),
        "copy_ns": _union([c[:2] for c in copies], begin_ns, end_ns),
        "host_idle_ns": host_idle,
        "sync_idle_ns": sync_idle,
        "cpu_ops": cpu_ops,
    }


def _blocks(name: str) -> bool:
    """Whether this call of CUDA's runtime waits for the device."""
    waits = name.startswith("cuda") and any(part in name for part in _WAITS)
    return waits and "Async" not in name


def _start_ns(event: Any) -> int:
    return int(event.start_ns() if hasattr(event, "start_ns") else event.start_us() * 1000)


def _duration_ns(event: Any) -> int:
    if hasattr(event, "duration_ns"):
        return int(event.duration_ns())
    return int(event.duration_us() * 1000)


def _correlation(event: Any) -> int:
    return int(event.correlation_id())


def _union(spans: list[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    total, reached = 0, begin_ns
    for begin, end in sorted(spans):
        begin, end = max(begin, reached), min(end, end_ns)
        if end > begin:
            total += end - begin
            reached = end
    return total


def _idle(
    work: list[tuple[int, int, int]], launched: dict[int, int], waits: list[tuple[int, int]]
) -> tuple[int, int]:
    """Idle time that is the host's, and the part of it that a blocking call began."""
    host = sync = reached = 0
    waits = sorted(waits)
    at = 0
    for begin, end, correlation in sorted(work):
        if reached and begin > reached:
            launch = launched.get(correlation)
            if launch is not None and launch > reached:
                host += begin - reached
                while at < len(waits) and waits[at][1] <= reached:
                    at += 1
                if at < len(waits) and waits[at][0] < launch:
                    sync += begin - max(reached, waits[at][0])
        reached = max(reached, end)
    return host, sync
