"""CUDA events at phase edges of every k-th step, from a pool, on a cached stream.

Recorded, queried and read on the training thread only; never synchronised; never touched while the
current stream is being captured, nor while any thread captures a graph (a query from another thread
invalidates a capture in CUDA's default mode). Costs measured on an H200 (probe-findings.md): a
record with a cached stream 3.4 us, a new event 12 us more, ``query`` 0.7 us, ``elapsed_time`` 1.8.

With the rest of the probe this shares two things: ``on`` says whether the step that runs is
sampled (``gate.step_end`` is told, so that such a step is recorded in detail), and ``mark`` is
called by the hooks of ``probe/hooks`` while it is.
"""

from __future__ import annotations

import collections
import os
from typing import Any

from . import pairs
from . import words as W
from .budget import gate
from .hooks import graphs
from .state import S, append, now

POOL = 1024
MAX_MARKS = 192  # per sampled step
#: Of them for reads and copies: a loop of 4,096 reads must not crowd out the phases.
MAX_READ_MARKS = 128
MARK_MAX_NS = 50_000
START_EVERY = 8
EVENT_BUDGET_SHARE = 0.35  # of the whole overhead budget
MAX_EVERY = 4096
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
        every: One step in so many is, on average; 0 = none any more (``off_reason``).
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
        self._budget = budget * EVENT_BUDGET_SHARE
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
        self._next = START_EVERY
        self.on = False
        self.every = START_EVERY
        self.step_number = 0
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
        self.every = 0

    def step_end(self) -> None:
        """At an optimizer step's end: hand in its events, read older ones, choose k."""
        self.step_number += 1
        if not self.on and not self._queue and self.step_number < self._next:
            return
        started = now()
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
            self._choose_rate(self._cost_ns + until - started)
            self.total_cost_ns += self._cost_ns + until - started
            self._cost_ns, started = 0, until
        if self.every and self.step_number >= self._next:
            self.on = True
            self._next = self.step_number + self._distance()
            self._stream = self._torch.cuda.current_stream()
            self._device = self._stream.device_index
            self._raw = self._stream.cuda_stream
        self._cost_ns += now() - started

    def _distance(self) -> int:
        """Steps to the next sampled one: k on average, and never in step with the loop's own beat.

        Loaders with 16 workers, accumulation and logging all have periods; a fixed k that shares
        a factor with one of them would see only one part of it.
        """
        self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
        spread = self.every // 2
        return self.every - spread + (self._random >> 8) % (2 * spread + 1)

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
        """K such that events cost no more than their part of the budget, from measured cost."""
        mean = self._mean_cost_ns
        self._mean_cost_ns = cost_ns if not mean else mean + 0.2 * (cost_ns - mean)
        if self.sampled < 2 or not gate.mean_step_ns:
            return
        every = int(self._mean_cost_ns / (self._budget * gate.mean_step_ns)) + 1
        if every > MAX_EVERY:
            self.stop("no event fits the overhead budget at this step time")
        else:
            self.every = every

    def report(self) -> dict[str, Any]:
        """For the snapshot."""
        return {
            "every": self.every or None,
            "steps": self.sampled,
            "dropped": self.dropped,
            "errors": self.errors,
            "off_reason": self.off_reason,
            "cost_ns_per_sampled_step": int(self._mean_cost_ns) or None,
        }


def _moved(mean: float | None, newest: float) -> float:
    return newest if mean is None else mean + _NEWEST * (newest - mean)


def create() -> GpuEvents | None:
    """Events for this process, or None without an initialised CUDA device."""
    torch = S.torch
    if not S.config.get("gpu_events", True) or not torch.cuda.is_initialized():
        return None
    return GpuEvents(torch, float(S.config.get("overhead_budget", 0.01)))
