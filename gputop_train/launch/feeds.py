"""Rings of one run, each turned into records of one rank.

A run may hold several training processes, at once (ranks) or one after the other (a restart by
torchrun, a sweep). Each writes a ring of its own; here they become numbered ranks with one
continuous count of steps each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import OUR_LIMITS, Ring, RingError, rings
from gputop_train.collect.timeline import Batch, Timeline
from gputop_train.collect.words import never_written
from gputop_train.launch import identity
from gputop_train.launch.identity import ProcessId, boot_id
from gputop_train.launch.processes import read_process, runs_code
from gputop_train.model import Interval, Step

#: More training processes than this on one host are not followed; a ring costs 1.3 MB and a poll.
MAX_FEEDS = 256

#: A word may be written between our look at the clock and at the ring.
_SLACK_NS = 1_000_000_000

#: `dataclasses.replace` costs more than twice as much as a step made from these.
_after_index = attrgetter(*(field.name for field in fields(Step)[2:]))


def choose_rank(header_rank: int | None, living: Collection[int]) -> int:
    """The rank under which a new training process is kept.

    Its own if it has one and no living process holds it; otherwise the lowest free one. A process
    outside ``torch.distributed`` (``None``) is rank 0, unless another one is training beside it.
    """
    if header_rank is not None and header_rank not in living:
        return header_rank
    rank = 0
    while rank in living:
        rank += 1
    return rank


@dataclass(slots=True)
class RankState:
    """What continues from one process of a rank to the next, and across supervisors.

    Attributes:
        steps: Steps counted so far, the index of the next one.
        until_ns: End of the newest step; older ones are already stored.
        attempts: Processes seen for this rank.
        process: Process id and start time of the newest of them.
        position: Words of its ring read so far, or given up.
    """

    steps: int = 0
    until_ns: int = 0
    attempts: int = 0
    process: tuple[int, int] | None = None
    position: int = 0


class Feed:
    """One ring, read to its end."""

    def __init__(self, path: Path, ring: Ring, rank: int, state: RankState) -> None:
        self.path = path
        self.ring = ring
        self.rank = rank
        self.pid: int = ring.header.pid
        self.start_ticks: int = ring.header.start_ticks
        self.snapshot: dict[str, Any] | None = None
        self.snapshot_seen_ns = -1
        self.closed = False
        self._state = state
        self._timeline = Timeline(rank)
        self._restarted_from_ns: int | None = None
        if state.process != (self.pid, self.start_ticks):
            if state.attempts:
                self._restarted_from_ns = state.until_ns
            state.attempts += 1
            state.process = (self.pid, self.start_ticks)
            state.position = 0
        # The probe numbers sites per process (16 bits on the wire); a restarted rank's places are
        # new ones, with counters that start at zero.
        self.site_base = (state.attempts - 1) << 16
        self.eval_ns: dict[str, int] = {}
        self.tail: dict[str, Any] | None = None
        self._read_before = state.position
        self._delivered = 0
        self._lost_told = 0
        self._spoiled = 0

    def alive(self) -> bool:
        """Whether the process that writes this ring still runs."""
        process = read_process(self.pid)
        if process is None:
            return identity.out_of_sight(self.pid)
        return process.start_ticks == self.start_ticks and runs_code(process)

    @property
    def lost(self) -> int:
        """Words nobody has read: this reader came too late for them, and so did any before it."""
        return max(self.ring.lost - self._read_before, 0) if self.ring.lost else 0

    @property
    def bad(self) -> int:
        """Words that made no sense."""
        return self._timeline.bad

    @property
    def spoiled(self) -> int:
        """Words left out because others beside them were written by no probe."""
        return self._spoiled + self.ring.spoiled

    def pull(self, now_ns: int | None = None) -> Batch:
        """Whatever is new in the ring, as records; bounded by the ring's size."""
        words = self.ring.poll()
        if self.ring.lost != self._lost_told:
            self._lost_told = self.ring.lost
            self._timeline.lost()
        self._delivered += len(words)
        # A clock that began anew since (the ring outlived a boot) is behind the last sign of life.
        clock_ns = max(time.monotonic_ns(), self.ring.heartbeat_ns)
        if never_written(words, clock_ns + _SLACK_NS):
            # A step put together from what is left would be one that never was.
            self._spoiled += len(words)
            self._timeline.lost()
            words = words[:0]
        self._state.position = max(self._state.position, self._delivered + self.ring.lost)
        if now_ns is not None:
            # Not past the last sign of life: a dead process spends no time on anything.
            now_ns = min(now_ns, self.ring.heartbeat_ns)
        return self._numbered(self._timeline.feed(words, now_ns))

    def drain(self) -> list[Batch]:
        """Everything that is left, and what was still open."""
        batches = []
        # Bounded: a ring that is overwritten while we read (a process that outlives its parent)
        # must not keep the run from being concluded.
        for _ in range(64):
            batches.append(self.pull())
            if self.ring.behind == 0:
                break
        last = self._timeline.finish()
        if last.tail is not None and last.tail_ns is not None:
            self.tail = {
                "labels": dict(last.tail),
                "t0_ns": last.tail_ns[0],
                "t1_ns": last.tail_ns[1],
            }
        batches.append(self._numbered(last))
        return batches

    def refresh_snapshot(self) -> bool:
        """Read the probe's state; ``True`` when it is newer than the last one."""
        snapshot = self.ring.snapshot()
        t_ns = snapshot.get("t_ns") if snapshot is not None else None
        if not isinstance(t_ns, int) or t_ns == self.snapshot_seen_ns:
            return False
        self.snapshot, self.snapshot_seen_ns = snapshot, t_ns
        return True

    def close(self) -> None:
        """Let go of the ring."""
        if not self.closed:
            self.closed = True
            self.ring.close()

    def _numbered(self, batch: Batch) -> Batch:
        """Give steps their place in the rank's count; drop those an earlier reader stored."""
        state = self._state
        fresh: list[Step] = []
        for found in batch.steps:
            step = found
            # A step that began before the newest one ended is one that is stored already, seen
            # again by a supervisor that started reading in the middle of it.
            if step.t0_ns < state.until_ns:
                continue
            if step.index != state.steps:  # not the rank's first process, or not its first reader
                step = Step(step.rank, state.steps, *_after_index(step))
            fresh.append(step)
            state.steps += 1
            state.until_ns = step.t1_ns
        for part, ns in (batch.eval_sub or {}).items():
            self.eval_ns[part] = self.eval_ns.get(part, 0) + ns
        intervals = [self._placed(interval) for interval in batch.intervals]
        return replace(batch, steps=tuple(fresh), intervals=(*self._restart(fresh), *intervals))

    def _placed(self, interval: Interval) -> Interval:
        if not self.site_base or interval.site_id is None:
            return interval
        return replace(interval, site_id=interval.site_id + self.site_base)

    def _restart(self, fresh: list[Step]) -> list[Interval]:
        if self._restarted_from_ns is None or not fresh:
            return []
        begin, self._restarted_from_ns = self._restarted_from_ns, None
        return [Interval(self.rank, "restart", begin, fresh[0].t0_ns)] if begin else []


class Feeds:
    """All rings in a run's directory.

    Args:
        directory: Where the probe makes its rings.
        known: State per rank from an earlier supervisor of this run.
        refuse: Called with a sentence about each ring that cannot be used.
    """

    def __init__(
        self, directory: Path, known: dict[int, RankState], refuse: Callable[[str], None]
    ) -> None:
        self._directory = directory
        self._ranks = known
        self._refuse = refuse
        self._seen: set[str] = set()
        self._read_out: list[Path] = []
        self.active: list[Feed] = []
        self.ever = 0

    def attempts(self) -> dict[int, tuple[int, int, int, int]]:
        """Per rank: processes seen; process id, start time and words read of the newest."""
        return {
            rank: (state.attempts, *state.process, state.position)
            for rank, state in self._ranks.items()
            if state.process is not None
        }

    def steps(self, rank: int | None = None) -> int:
        """Steps so far of a rank; of the lowest one here, which on a second node is not 0."""
        if rank is None:
            rank = min(self._ranks, default=0)
        state = self._ranks.get(rank)
        return state.steps if state is not None else 0

    def discover(self) -> list[Feed]:
        """Open rings that appeared, oldest first.

        Raises:
            OSError: We ourselves are short of something just now; ask again.
        """
        found = [path for path in rings(self._directory) if path.name not in self._seen]
        opened = []
        short: OSError | None = None
        for path in found[: max(MAX_FEEDS - len(self.active), 0)]:
            self._seen.add(path.name)
            try:
                opened.append((path, Ring.open(path)))
            except (RingError, OSError) as error:
                why = error.__cause__ if isinstance(error, RingError) else error
                if isinstance(why, OSError) and why.errno in OUR_LIMITS:
                    self._seen.discard(path.name)
                    short = why
                else:
                    self._refuse(str(error))
        opened.sort(key=lambda item: item[1].header.armed_mono_ns)
        fresh = [feed for path, ring in opened if (feed := self._admit(path, ring)) is not None]
        if short is not None and not fresh:
            raise short
        return fresh

    def gone(self) -> list[Feed]:
        """The feeds whose process is gone."""
        return [feed for feed in self.active if not feed.alive()]

    def drop(self, feed: Feed) -> list[Batch]:
        """Drain a feed and follow it no longer; the caller closes it."""
        self.active.remove(feed)
        feed.refresh_snapshot()
        batches = feed.drain()
        self._read_out.append(feed.path)
        return batches

    def remove_read(self) -> None:
        """Give back the shared memory of dropped feeds: their data is safe in the store by now.

        Before that a supervisor that replaces this one would need them.
        """
        while self._read_out:
            with contextlib.suppress(OSError):
                self._read_out.pop().unlink()

    def request_burst(self) -> int:
        """Ask every training process for a profiler burst; how many could be asked."""
        # Another supervisor may have asked before us: the probe heeds a number that is new to it.
        number = time.monotonic_ns() // 1_000_000 % 0xFFFFFFFF + 1
        return sum(feed.ring.request_burst(number) for feed in list(self.active))

    def pids(self) -> set[int]:
        """Processes that train."""
        return {feed.pid for feed in self.active}

    def processes(self) -> list[ProcessId]:
        """Processes that train, by what they are known by for ever."""
        boot = boot_id() or ""
        return [ProcessId(feed.pid, feed.start_ticks, boot) for feed in self.active]

    def ranks(self) -> dict[int, int]:
        """Training process -> rank."""
        return {feed.pid: feed.rank for feed in self.active}

    def _admit(self, path: Path, ring: Ring) -> Feed | None:
        """Follow a ring; ``None`` while the process it replaces still has to be drained.

        Its steps come after that process's, which must be counted first.
        """
        living = {feed.rank for feed in self.active if feed.alive()}
        rank = choose_rank(ring.header.rank, living)
        if any(feed.rank == rank for feed in self.active):
            ring.close()
            self._seen.discard(path.name)
            return None
        feed = Feed(path, ring, rank, self._ranks.setdefault(rank, RankState()))
        self.active.append(feed)
        self.ever += 1
        return feed
