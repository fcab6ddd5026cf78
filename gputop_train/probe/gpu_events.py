"""CUDA events at phase edges of every k-th step, from a pool, on a cached stream.

Recorded, queried and read on the training thread only; never synchronised; never touched while the
current stream is being captured, nor while any thread captures a graph (a query from another thread
invalidates a capture in CUDA's default mode). Costs measured on an H200 (probe-findings.md): a
record with a cached stream 3.4 us, a new event 12 us more, ``query`` 0.7 us, ``elapsed_time`` 1.8.

With the rest of the probe this shares two things: ``on`` says whether the step that runs is
sampled (``gate.step_end`` is told, so that such a step is recorded in detail), and ``mark`` is
called by the hooks of ``probe/hooks`` while it is. Only steps recorded in detail end here; k counts
all of them.
"""

from __future__ import annotations

import collections
import os
from typing import Any

from . import pairs
from . import words as W
from .budget import EVENTS_SHARE, duty, gate
from .hooks import graphs
from .state import S, append, now

POOL = 1024
MAX_MARKS = 192  # per sampled step
#: Of them for reads and copies: a loop of 4,096 reads must not crowd out the phases.
MAX_READ_MARKS = 128
MARK_MAX_NS = 50_000
#: Before the cost is known a step is sampled about so often ...
START_NS = 50_000_000
#: ... and if what is then known allows it less often than this, never again.
MAX_INTERVAL_NS = 60_000_000_000
#: What one step end may add to the cost: longer than this is a wait for the interpreter lock.
END_MAX_NS = 1_000_000
#: Flags of a mark: its predecessor was complete; the whole stream was idle (asked after reads).
DRY, IDLE = 1, 2
#: Steps waiting to be read back.
MAX_PENDING = 16

_SYNC_END = W.SYNC_EDGE * 2 + 1
_DATA_BEGIN, _DATA_END = W.DATA * 2, W.DATA * 2 + 1
#: Phases in which the host waits or pauses; from a read to their begin a script launches little.
_WAITS = (W.DATA, W.DATA_NOGRAD, W.SAVE, W.LOGGING, W.SYNC_EDGE, W.H2D_EDGE)
#: Weight of the newest sampled step in the running means.
_NEWEST = 0.2

Marks = list[tuple[int, Any, int, int]]


class GpuEvents:
    """Event sampling of one training thread on one device.

    Attributes:
        on: The step that runs is sampled.
        interval_ns: A step is sampled about so often; 0 = never again (``off_reason``). A time, not
            a number of steps: a loop whose steps become longer is sampled more densely at once.
        sampled: Steps read back.
        total_cost_ns: Host time spent here, reading back included.
        dry_mean: Running mean share of phase edges that found the queue empty.
        wait_mean: Running mean share of a step's device time spent behind loader waits.
    """

    def __init__(self, torch: Any, budget: float) -> None:
        self._torch = torch
        self._event = torch.cuda.Event
        self._capturing = torch.cuda.is_current_stream_capturing
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._budget = budget * EVENTS_SHARE
        self._pool: list[Any] = []
        self._made = 0
        self._marks: Marks = []
        self._queue: collections.deque[tuple[int, Marks, int]] = collections.deque()
        self._stream: Any = None
        self._raw = 0
        self._device = -1
        self._dropped_here = 0
        self._host_ns = 0
        self._cost_ns = 0
        self._mean_cost_ns = 0.0
        self._random = (os.getpid() * 2654435761) & 0x7FFFFFFF  # our own: never the script's RNG
        self._next_ns = 0
        self.on = False
        self.interval_ns = START_NS
        self.sampled = 0
        self.dropped = 0
        self.errors = 0
        self.total_cost_ns = 0
        self.off_reason: str | None = None
        self.dry_mean: float | None = None
        self.wait_mean: float | None = None

    def mark(self, edge: int, site: int = 0) -> None:
        """Record one event for this edge of the step being sampled. Never raises."""
        if not self.on:
            return
        started = now()
        evaluator = S.set_eval_frame(None)
        try:
            self._record(edge, site, started)
        except Exception:
            self.errors += 1
            self._abandon()
        finally:
            S.set_eval_frame(evaluator)
        # Longer than this is a full launch queue, where the script's next launch would have waited.
        self._cost_ns += min(now() - started, MARK_MAX_NS)

    def _record(self, edge: int, site: int, started: int) -> None:
        marks = self._marks
        frequent = edge >> 1 >= W.SYNC_EDGE
        if len(marks) >= (MAX_READ_MARKS if frequent else MAX_MARKS):
            self._dropped_here += 1
            return
        if graphs.capturing[0] or self._capturing():
            self._abandon()
            return
        if self._raw_stream is not None and self._raw_stream(self._device) != self._raw:
            # Work on another stream: an event on ours would over-state idle time.
            self._dropped_here += 1
            return
        flags = 0
        if marks and marks[-1][1].query():
            flags = DRY
            if marks[-1][0] == _SYNC_END and not edge & 1 and edge >> 1 in _WAITS:
                flags |= IDLE * bool(self._stream.query())
        if self._pool:
            event = self._pool.pop()
        elif self._made < POOL:
            event = self._event(enable_timing=True)
            self._made += 1
        else:
            self._dropped_here += 1
            return
        event.record(self._stream)
        if not marks:
            self._host_ns = started
        marks.append((edge, event, flags, site))

    def _abandon(self) -> None:
        """Give this step's events back: the capture or an error makes them worthless."""
        self._pool.extend(mark[1] for mark in self._marks)
        self._marks = []
        self._dropped_here = 0
        self.dropped += 1
        self.on = False
        if self.errors > 20:
            self.stop("CUDA events failed repeatedly")

    def stop(self, reason: str) -> None:
        """Record no more events in this process."""
        self.off_reason = reason
        self.on = False
        self.interval_ns = 0

    def step_end(self) -> None:
        """At an optimizer step's end: hand in its events, read older ones, choose k."""
        started = now()
        if not self.on and not self._queue and (started < self._next_ns or not self.interval_ns):
            return
        evaluator = S.set_eval_frame(None)
        try:
            self._step_end(started)
        except Exception:
            self.errors += 1
            self._abandon()
        finally:
            S.set_eval_frame(evaluator)

    def _step_end(self, started: int) -> None:
        if graphs.capturing[0] or self._capturing():
            if self._marks:
                self._abandon()
            self.on = False
            return
        was_on, self.on = self.on, False
        if self._marks:
            self._queue.append((self._host_ns, self._marks, self._dropped_here))
            self._marks = []
            self._dropped_here = 0
        for _ in range(2):  # bounded work per step
            if not self._resolve_oldest():
                break
        if was_on:
            # All that was spent since the sampled step before this one, reading back included.
            until = now()
            cost = self._cost_ns + min(until - started, END_MAX_NS)
            self._choose_rate(cost)
            self.total_cost_ns += cost
            self._cost_ns, started = 0, until
        if self.interval_ns and started >= self._next_ns:
            self.on = True
            self._next_ns = started + self._distance_ns()
            self._stream = self._torch.cuda.current_stream()
            self._device = self._stream.device_index
            self._raw = self._stream.cuda_stream
        self._cost_ns += min(now() - started, END_MAX_NS)

    def _distance_ns(self) -> int:
        """Time to the next sampled step: half to one and a half intervals, at random.

        Loaders with 16 workers, accumulation and logging all have periods; a fixed distance that
        shares a factor with one of them would see only one part of it.
        """
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        return self.interval_ns // 2 + self.interval_ns * (self._random >> 8) // (1 << 23)

    def _resolve_oldest(self) -> bool:
        """Emit the oldest sampled step if its last event is done; True when it was."""
        if not self._queue:
            return False
        host_ns, marks, dropped = self._queue[0]
        if not marks[-1][1].query():
            if len(self._queue) > MAX_PENDING:
                self._queue.popleft()
                self._pool.extend(mark[1] for mark in marks)
                self.dropped += 1
            return False
        first = marks[0][1]
        offsets = []
        append(host_ns << W.CODE_BITS | W.GPU_STEP)
        for edge, event, flags, site in marks:
            offset = max(0, int(first.elapsed_time(event) * 1e6))
            offsets.append(offset)
            append((offset << 12 | edge << 6 | flags) << W.CODE_BITS | W.GPU_EDGE)
            if site:
                append(site << W.CODE_BITS | W.ARG_SITE)
        append(dropped << W.CODE_BITS | W.GPU_END)
        self._queue.popleft()
        self._pool.extend(mark[1] for mark in marks)
        self.sampled += 1
        self._learn(marks, offsets)
        pairs.note(marks, offsets)
        return True

    def _learn(self, marks: Marks, offsets: list[int]) -> None:
        """Running means of how dry the queue was and how much was waited for data."""
        counted = dry = waited = begun = 0
        after_wait = True
        for (edge, _, flags, _), offset in zip(marks, offsets):
            ends_wait = bool(edge & 1) and edge >> 1 in _WAITS
            if not after_wait and not ends_wait:
                counted += 1
                dry += flags & DRY
            after_wait = ends_wait
            if edge == _DATA_BEGIN:
                begun = offset
            elif edge == _DATA_END:
                waited += offset - begun
        span = offsets[-1]
        if not counted or not span:
            return
        self.dry_mean = _moved(self.dry_mean, dry / counted)
        self.wait_mean = _moved(self.wait_mean, waited / span)

    def _choose_rate(self, cost_ns: int) -> None:
        """As often as keeps events within their part of the budget, from measured cost."""
        mean = self._mean_cost_ns
        self._mean_cost_ns = (
            cost_ns if not mean else mean + _NEWEST * (min(cost_ns, 4 * mean) - mean)
        )
        if self.sampled < 2:
            return
        interval = int(self._mean_cost_ns / (self._budget * duty.left()))
        if interval > MAX_INTERVAL_NS:
            self.stop("no event fits the overhead budget at what they cost here")
        else:
            self.interval_ns = interval

    def report(self) -> dict[str, Any]:
        """For the snapshot."""
        return {
            "every": _every_steps(self.interval_ns, gate.mean_step_ns),
            "steps": self.sampled,
            "dropped": self.dropped,
            "errors": self.errors,
            "off_reason": self.off_reason,
            "cost_ns_per_sampled_step": int(self._mean_cost_ns) or None,
        }


def _every_steps(interval_ns: int, step_ns: float) -> int | None:
    """One step in so many, on average, of steps this long."""
    return max(1, round(interval_ns / step_ns)) if interval_ns and step_ns else None


def _moved(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _NEWEST * (newest - mean)


def create() -> GpuEvents | None:
    """Events for this process, or None without an initialised CUDA device."""
    torch = S.torch
    if not S.config.get("gpu_events", True) or not torch.cuda.is_initialized():
        return None
    return GpuEvents(torch, float(S.config.get("overhead_budget", 0.01)))
