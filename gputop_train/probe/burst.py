"""A profiler burst: kernel statistics of three steps, on demand or once launches are suspected.

What no event can tell (how many kernels a step launches, how short they are, for how long they
truly ran) takes a trace. Kineto is started and stopped at step ends on the training thread, for one
step of settling in and three that count; the helper thread reduces the result. Nothing is
synchronised: what Kineto's stop costs is CUPTI's flush, and all of it is counted as our cost.

Never while something else may hold CUPTI or may be harmed by it: the script's own profiler, an
attached one, a CUDA graph capture. A script that starts its profiler while a burst runs finds ours
ended first. Unasked only where nothing stays behind: unless Kineto detaches CUPTI afterwards
(``TEARDOWN_CUPTI=1``), later launches stay slower, by 16 to 20% of a launch-bound step on an H200
(benchmarks/results/gpu_truth_h200.md).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from typing import Any

from . import trace
from .budget import gate
from .hooks import graphs
from .state import S, ident, note_error, now

STEPS = 3
#: Steps timed before the trace, so that its shares can be told of steps as they are without it.
TIMED = 9
#: An automatic burst waits for a steady loop: so many steps, and their mean within 10% of itself.
STEADY_STEPS, STEADY = 60, 0.10
#: ... in which so many of the phase edges of sampled steps found the queue empty, seen this often,
#: while loader waits made up less than a fifth of the time (they would explain it).
DRY, MIN_SAMPLED, MAX_WAIT = 0.5, 5, 0.2
#: Longer steps fill CUPTI's buffers, and a trace of them costs what it tells.
MAX_STEP_NS, MAX_AUTOMATIC_STEP_NS = 10_000_000_000, 1_000_000_000
#: Whoever listens to CUPTI says so in the environment (Nsight, daemons, NVTX collectors).
#: Since CUDA 12.6 Kineto may detach CUPTI when a trace ends, if TEARDOWN_CUPTI=1 asks it to.
DETACHABLE_SINCE = (12, 6)
_LISTENERS = ("NSYS_", "CUDA_INJECTION", "NVTX_INJECTION", "NV_NSIGHT", "KINETO_USE_DAEMON")

IDLE, WANTED, RUNNING, STOPPED = range(4)


class Burst:
    """The bursts of this process. ``step_end`` and ``abort`` on the training thread.

    Attributes:
        cost_ns: Host time of the training thread that bursts took so far.
    """

    def __init__(self) -> None:
        self.cost_ns = 0
        self._state = IDLE
        self._request = 0
        self._automatic = False
        self._tried = False
        self._trace: Any = None
        self._result: Any = None
        self._ends: list[tuple[int, int]] = []
        self._before: list[int] = []
        self._step_ns = 0
        self._means: list[float] = []
        self._report: dict[str, Any] | None = None
        self._hooked = False
        self._kept: dict[str, Any] = {}

    # -- on the helper thread --------------------------------------------------------------------

    def poll(self, request: int) -> None:
        """About once a second: a request of a reader, a suspicion, a result to be read."""
        if self._state == STOPPED:
            self._read()
        if self._state != IDLE:
            return
        if request and request != self._request:
            self._request = request
            self._want(automatic=False)
        elif not self._tried and S.config.get("burst") and self._suspected():
            self._tried = self._automatic = True
            if _detaches():
                self._want(automatic=True)
            else:
                self._refuse(
                    "a trace would leave launches slower; TEARDOWN_CUPTI=1 lets the profiler detach"
                )

    def report(self) -> dict[str, Any] | None:
        """For the snapshot; None before there was anything to tell."""
        return self._report

    def _want(self, *, automatic: bool) -> None:
        self._automatic = automatic
        self._before = []
        self._state = WANTED
        S.burst = self

    def _suspected(self) -> bool:
        gpu = S.gpu
        if gpu is None or gpu.sampled < MIN_SAMPLED or not gate.mean_step_ns:
            return False
        means = self._means
        means.append(gate.mean_step_ns)
        del means[:-3]
        steady = len(means) == 3 and max(means) - min(means) <= STEADY * min(means)
        return (
            steady
            and S.steps >= STEADY_STEPS
            and gpu.dry_mean is not None
            and gpu.dry_mean >= DRY
            and gpu.wait_mean < MAX_WAIT
        )

    def _read(self) -> None:
        """Reduce the trace; the result is freed here too, away from the training thread."""
        ends, result, traced = self._ends, self._result, self._trace
        self._result = self._trace = None
        self._state = IDLE
        try:
            begun = time.thread_time_ns()
            found = trace.reduce(result, ends[0][1], ends[-1][1])
            del result
            self._report = self._told(found, ends[-1][0] - ends[0][0], traced)
            self._report["read_ms"] = round((time.thread_time_ns() - begun) / 1e6, 2)
        except Exception as error:
            note_error("burst", error)
            self._refuse("the trace could not be read")

    def _told(self, found: dict[str, Any], span_ns: int, traced: Any) -> dict[str, Any]:
        """Shares of the *untraced* step: tracing makes the host slower, not the kernels longer."""
        whole = max(1, STEPS * self._step_ns)
        alone = len(S.optimizers) <= 1
        on_gpu = S.gpu is not None and found["launches"] > 0
        told = on_gpu and found["caught_up"] and found["kernels"] > 0
        slowed_ns = max(0, span_ns - whole)
        cost_ns = traced.start_ns + traced.stop_ns + slowed_ns
        self.cost_ns += cost_ns
        return {
            "state": "done",
            "automatic": self._automatic,
            "request": self._request or None,
            "t_ns": now(),
            "steps": STEPS,
            "step_ms": round(self._step_ns / 1e6, 4),
            "span_ms": round(span_ns / 1e6, 4),
            "kernels": found["kernels"] if on_gpu else None,
            "kernels_per_step": found["kernels"] / STEPS if on_gpu and alone else None,
            "launches_per_step": found["launches"] / STEPS if on_gpu and alone else None,
            "kernel_us": found["kernel_us"] if on_gpu else None,
            "busy_share": min(1.0, found["busy_ns"] / whole) if told else None,
            "copy_share": min(1.0, found["copy_ns"] / whole) if told else None,
            "traced_busy_share": found["busy_ns"] / span_ns if told else None,
            "host_idle_share": found["host_idle_ns"] / span_ns if told else None,
            "sync_idle_share": found["sync_idle_ns"] / span_ns if told else None,
            "caught_up": found["caught_up"] if on_gpu else None,
            "cpu_ops_per_step": None if on_gpu else found["cpu_ops"] / STEPS,
            "start_ms": round(traced.start_ns / 1e6, 3),
            "stop_ms": round(traced.stop_ns / 1e6, 3),
            "slowed_ms": round(slowed_ns / 1e6, 3),
            "cost_ms": round(cost_ns / 1e6, 3),
        }

    # -- on the training thread ------------------------------------------------------------------

    def step_end(self) -> None:
        """At an optimizer step's end, while a burst is wanted or runs. Never raises."""
        if ident() != S.thread_id:
            return
        evaluator = S.set_eval_frame(None)
        try:
            if self._state == WANTED:
                self._before.append(now())
                if len(self._before) > TIMED:
                    self._begin()
            elif self._state == RUNNING:
                self._ends.append((now(), time.time_ns()))
                if len(self._ends) > STEPS:
                    self._end()
        except trace.TraceError as error:
            self._refuse(str(error))
        except Exception as error:
            note_error("burst", error)
            self._give_up("the profiler failed")
        finally:
            S.set_eval_frame(evaluator)

    def abort(self) -> None:
        """End a running burst without a result: something else needs the profiler's place."""
        if self._state != RUNNING or ident() != S.thread_id or S.pid != os.getpid():
            return
        self._give_up("the script needed the profiler, a fork or a graph capture meanwhile")

    def _begin(self) -> None:
        begins = self._before
        walls = sorted(begins[i + 1] - begins[i] for i in range(TIMED))
        self._step_ns = walls[len(walls) // 2]
        reason = refusal(self._step_ns, automatic=self._automatic)
        if reason is not None:
            self._refuse(reason)
            return
        started = trace.Trace(S.torch, cuda=S.gpu is not None)
        self._ends = []
        self._make_way()
        self._trace = started
        self._state = RUNNING
        started.start()

    def _end(self) -> None:
        traced, self._trace = self._trace, None
        self._restore()
        S.burst = None
        self._result = traced.stop()
        self._trace = traced
        self._state = STOPPED

    def _give_up(self, reason: str) -> None:
        traced, self._trace = self._trace, None
        self._restore()
        if traced is not None and self._state == RUNNING:
            try:
                traced.stop()
                self.cost_ns += traced.start_ns + traced.stop_ns
            except Exception as error:
                note_error("burst", error)
        self._refuse(reason)

    def _refuse(self, reason: str) -> None:
        S.burst = None
        self._state = IDLE
        self._report = {
            "state": "refused",
            "reason": reason,
            "automatic": self._automatic,
            "request": self._request or None,
        }

    def _make_way(self) -> None:
        """Until the burst ends: whoever needs the profiler's place ends the burst first."""
        profiler: Any = S.torch.autograd.profiler
        for name in ("_prepare_profiler", "_enable_profiler"):
            original = getattr(profiler, name, None)
            if original is not None:
                self._kept[name] = original
                setattr(profiler, name, self._ended_first(original))
        if not self._hooked:
            self._hooked = True
            graphs.before_capture.append(self.abort)
            os.register_at_fork(before=self.abort, after_in_child=trace.leave_in_child)
            atexit.register(self.abort)

    def _ended_first(self, original: Any) -> Any:
        def begin(*args: Any, **kwargs: Any) -> Any:
            self.abort()
            return original(*args, **kwargs)

        return begin

    def _restore(self) -> None:
        profiler: Any = S.torch.autograd.profiler
        for name, original in self._kept.items():
            setattr(profiler, name, original)
        self._kept = {}


def refusal(step_ns: int, *, automatic: bool) -> str | None:
    """Why no burst may begin now, in words; None when it may."""
    torch = S.torch
    if torch._C._autograd._profiler_enabled() or getattr(
        torch.autograd.profiler, "_is_profiler_enabled", False
    ):
        return "the script's own profiler runs"
    for name in os.environ:
        if name.startswith(_LISTENERS):
            return "another profiler listens (%s is set)" % name
    if S.forks:
        return "this process was forked from one that may have used the profiler"
    if graphs.capturing[0]:
        return "a CUDA graph is being captured"
    if automatic and graphs.seen[0]:
        return "this process captures CUDA graphs"
    if step_ns > MAX_STEP_NS:
        return "the steps are too long"
    if automatic and step_ns > MAX_AUTOMATIC_STEP_NS:
        return "the steps are too long for a burst nobody asked for"
    if automatic and _several_ranks():
        return "other ranks would wait for this one"
    return None


def _detaches() -> bool:
    version = str(S.torch.version.cuda or "0").split(".")
    known = tuple(int(part) for part in version if part.isdigit())
    return os.environ.get("TEARDOWN_CUPTI") == "1" and known >= DETACHABLE_SINCE


def _several_ranks() -> bool:
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdigit() and int(size) > 1:
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        return bool(distributed.is_initialized() and distributed.get_world_size() > 1)
    except Exception:
        return False
