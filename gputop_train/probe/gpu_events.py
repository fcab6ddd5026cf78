"""CUDA events at phase edges of every k-th step, from a pool, on a cached stream.

Recorded, queried and read on the training thread only; never synchronised; never touched while the
current stream is being captured. Costs measured on an H200 (probe-findings.md): a record with a
cached stream 3.4 us, a new event 12 us more, ``query`` 0.7 us, ``elapsed_time`` 1.8 us.
"""

from __future__ import annotations

import collections
from typing import Any

from . import sites
from . import words as W
from .budget import gate
from .state import S, append, now

POOL = 1024
MAX_MARKS = 192  # per sampled step
#: Of them for reads and copies: a loop of 4,096 reads must not crowd out the phases.
MAX_READ_MARKS = 128
MARK_MAX_NS = 50_000
START_EVERY = 8
EVENT_BUDGET_SHARE = 0.35  # of the whole overhead budget
MAX_EVERY = 4096
DRY = 1


class GpuEvents:
    """Event sampling of one training thread on one device."""

    def __init__(self, torch: Any, budget: float) -> None:
        self._torch = torch
        self._event = torch.cuda.Event
        self._capturing = torch.cuda.is_current_stream_capturing
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._budget = budget * EVENT_BUDGET_SHARE
        self._pool: list[Any] = []
        self._made = 0
        self._marks: list[tuple[int, Any, int, int]] = []
        self._queue: collections.deque[tuple[int, list[tuple[int, Any, int, int]], int]] = (
            collections.deque()
        )
        self._stream: Any = None
        self._raw = 0
        self._device = -1
        self._dropped_here = 0
        self._host_ns = 0
        self._cost_ns = 0
        self._mean_cost_ns = 0.0
        self.on = False
        self.every = START_EVERY
        self.step_number = 0
        self.sampled = 0
        self.dropped = 0
        self.errors = 0
        self.total_cost_ns = 0
        self.off_reason: str | None = None

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
        took = min(now() - started, MARK_MAX_NS)
        self._cost_ns += took
        self.total_cost_ns += took

    def _record(self, edge: int, site: int, started: int) -> None:
        marks = self._marks
        frequent = edge >> 1 >= W.SYNC_EDGE
        if len(marks) >= (MAX_READ_MARKS if frequent else MAX_MARKS):
            self._dropped_here += 1
            return
        if self._capturing():
            self._abandon()
            return
        if self._raw_stream is not None and self._raw_stream(self._device) != self._raw:
            # Work on another stream: an event on ours would over-state idle time.
            self._dropped_here += 1
            return
        flags = 0
        if marks and marks[-1][1].query():
            flags = DRY
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
        evaluator = S.set_eval_frame(None)
        try:
            self._step_end()
        except Exception:
            self.errors += 1
            self._abandon()
        finally:
            S.set_eval_frame(evaluator)

    def _step_end(self) -> None:
        started = now()
        self.step_number += 1
        if not self.every:
            return
        if self._capturing():
            if self._marks:
                self._abandon()
            self.on = False
            return
        if self._marks:
            self._queue.append((self._host_ns, self._marks, self._dropped_here))
            self._marks = []
            self._dropped_here = 0
        was_on = self.on
        for _ in range(2):  # bounded work per step
            if not self._resolve_oldest():
                break
        if was_on:
            self._choose_rate(self._cost_ns + now() - started)
        self._cost_ns = 0
        self.on = bool(self.every) and self.step_number % self.every == 0
        if self.on:
            begun = now()
            self._stream = self._torch.cuda.current_stream()
            self._device = self._stream.device_index
            self._raw = self._stream.cuda_stream
            self._cost_ns = now() - begun

    def _resolve_oldest(self) -> bool:
        """Emit the oldest sampled step if its last event is done; True when it was."""
        if not self._queue:
            return False
        host_ns, marks, dropped = self._queue[0]
        if not marks[-1][1].query():
            if len(self._queue) > 16:
                self._queue.popleft()
                self._pool.extend(mark[1] for mark in marks)
                self.dropped += 1
            return False
        first = marks[0][1]
        append(host_ns << W.CODE_BITS | W.GPU_STEP)
        before, begun = -1, 0
        for edge, event, flags, site in marks:
            offset = max(0, int(first.elapsed_time(event) * 1e6))
            if site and before == edge - 1 and edge >> 1 >= W.SYNC_EDGE:
                sites.pair(site, offset - begun)
            before, begun = edge, offset
            append((offset << 12 | edge << 6 | flags) << W.CODE_BITS | W.GPU_EDGE)
            if site:
                append(site << W.CODE_BITS | W.ARG_SITE)
        append(dropped << W.CODE_BITS | W.GPU_END)
        self._queue.popleft()
        self._pool.extend(mark[1] for mark in marks)
        self.sampled += 1
        return True

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


def create() -> GpuEvents | None:
    """Events for this process, or None without an initialised CUDA device."""
    torch = S.torch
    if not S.config.get("gpu_events", True) or not torch.cuda.is_initialized():
        return None
    return GpuEvents(torch, float(S.config.get("overhead_budget", 0.01)))
