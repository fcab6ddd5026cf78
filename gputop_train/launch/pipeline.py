"""From the probe's rings and the collectors to the store, a tick at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gputop_train.collect.timeline import Batch, loaders_from_snapshot, sites_from_snapshot
from gputop_train.launch.feeds import Feed, Feeds, RankState
from gputop_train.launch.guard import Guard
from gputop_train.launch.host_oom import KillCount
from gputop_train.launch.sampling import Sampling, uses_cuda
from gputop_train.launch.secrets import mask_code, mask_told
from gputop_train.model import Loader, MemorySample, Site
from gputop_train.store.errors import StoreFull
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

#: A little less than the supervisor's tick, so that no tick is skipped by a hair.
_SNAPSHOT_NS = 400_000_000
_COMMIT_NS = 400_000_000
#: The probe beats ten times a second; silence this long in a live process is worth a note.
STALE_NS = 15_000_000_000
#: Parts of a snapshot that are stored as records of their own.
_OF_SITES = ("sites", "site_stats", "loaders")

_Placed = TypeVar("_Placed", Site, Loader)


class Pipeline:
    """Owns the rings, the collectors and the store's writer. One thread.

    Args:
        ring_dir: Where the probe makes its rings.
        sid: Session of the run, ``None`` when nothing is to be sampled any more (a run that ended).
        writer: The run's store.
        known: State per rank that an earlier supervisor left in the store.
    """

    def __init__(
        self,
        ring_dir: Path,
        sid: int | None,
        writer: RunWriter,
        known: dict[int, RankState],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.writer = writer
        self.guard = Guard(self.note, clock)
        self.feeds = Feeds(ring_dir, known, self._refused)
        self.memory_kills: KillCount | None = None
        self._clock = clock
        self._sampling: Sampling | None = None
        if sid is not None:
            since_ns = max((state.until_ns for state in known.values()), default=clock())
            self._sampling = Sampling(sid, self.feeds, writer, self.guard, since_ns=since_ns)
        self._snapshots_due_ns = 0
        self._commit_due_ns = 0
        self._full_since_ns: int | None = None
        self._told: set[tuple[str, int]] = set()
        self._lost_told: dict[int, int] = {}
        self._eval_ns: dict[str, dict[str, int]] = {}
        self._tails: dict[str, Any] = {}
        self._ranks_told: dict[int, tuple[int, int, int, int]] = {}

    def tick(self, now_ns: int, *, stretch: float = 1.0) -> None:
        """Take what is new everywhere; never raises.

        Args:
            now_ns: ``CLOCK_MONOTONIC`` nanoseconds.
            stretch: Factor on the periods of what is sampled from outside.
        """
        # The dead first: a process that takes a rank over is followed once its forerunner is done.
        for feed in self.guard.run("rings", self.feeds.gone) or ():
            self._drop(feed)
        self.guard.run("rings", self.feeds.discover)
        for feed in self.feeds.active:
            batch = self.guard.run(f"ring {feed.path.name}", partial(feed.pull, now_ns))
            self._store([batch] if batch is not None else ())
        if now_ns >= self._snapshots_due_ns:
            self._snapshots_due_ns = now_ns + _SNAPSHOT_NS
            for feed in self.feeds.active:
                self._take_snapshot(feed, now_ns)
        if self._sampling is not None:
            self._sampling.tick(now_ns, stretch=stretch)
        if now_ns >= self._commit_due_ns:
            self._commit_due_ns = now_ns + _COMMIT_NS
            self.commit(now_ns)

    def finish(self, now_ns: int) -> None:
        """Read every ring to its end and flush what was open: the run is over."""
        self.guard.retry_now("rings")
        while self.guard.run("rings", self.feeds.discover) or self.feeds.active:
            for feed in list(self.feeds.active):
                self._take_snapshot(feed, now_ns)
                self._drop(feed)
        self.stop_sampling()
        self.commit(now_ns)

    def stop_sampling(self) -> None:
        """End the collectors, keeping what they gathered last."""
        if self._sampling is not None:
            self._sampling.tick(self._clock())
            self._sampling.close()
            self._sampling = None

    def commit(self, now_ns: int) -> None:
        """Make it visible; a full disk is waited out, and told once it is over."""
        self._tell_ranks()
        try:
            self.guard.run("store", self.writer.commit)
            self.guard.run("store", lambda: self.writer.prune(now_ns))
        except StoreFull as error:
            if self._full_since_ns is None:
                self._full_since_ns = now_ns
                self.guard.log(str(error))
            return
        if not self.writer.waiting_rows:
            self.feeds.remove_read()
        if self._full_since_ns is not None:
            seconds = (now_ns - self._full_since_ns) / 1e9
            self._full_since_ns = None
            self.note(
                "store-full",
                {"text": f"The disk was full for {seconds:.0f} s; what was measured meanwhile "
                 "is kept as far as memory allowed.", "seconds": seconds},
            )  # fmt: skip

    @property
    def is_full(self) -> bool:
        """Whether the disk took nothing at the last commit."""
        return self._full_since_ns is not None

    def note(self, kind: str, body: Mapping[str, Any]) -> None:
        """Store a one-off fact."""
        self.writer.add_note(self._clock(), kind, body)

    def note_once(self, kind: str, body: Mapping[str, Any], rank: int = 0) -> None:
        """Store a fact the first time it is seen (per rank)."""
        if (kind, rank) not in self._told:
            self._told.add((kind, rank))
            self.note(kind, body)

    def _tell_ranks(self) -> None:
        """What a supervisor that replaces this one needs to go on counting."""
        ranks = self.feeds.attempts()
        if ranks and ranks != self._ranks_told:
            self._ranks_told = ranks
            self.writer.set_meta("ranks", {str(rank): seen for rank, seen in ranks.items()})
            self.writer.set_meta("attempts", max(seen[0] for seen in ranks.values()))

    def _refused(self, text: str) -> None:
        self.guard.log(text)
        self.note("ring-refused", {"text": text})

    def _store(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.writer.add_steps(batch.steps)
            self.writer.add_intervals(batch.intervals)
            self.writer.add_memory(batch.memory)

    def _drop(self, feed: Feed) -> None:
        """Read a ring to its end; one that cannot be read takes no other with it."""
        part = f"ring {feed.path.name} at its end"
        batches = self.guard.run(part, partial(self.feeds.drop, feed))
        if batches is not None:
            self.guard.run(part, lambda: self._end_of(feed, batches))

    def _end_of(self, feed: Feed, batches: Iterable[Batch]) -> None:
        self._store(batches)
        self._put_state(feed)
        if feed.tail is not None:
            self._tails[str(feed.rank)] = feed.tail
            self.writer.set_meta("tails", self._tails)
        feed.close()

    def _take_snapshot(self, feed: Feed, now_ns: int) -> None:
        fresh = self.guard.run(f"state of {feed.path.name}", feed.refresh_snapshot)
        if fresh and feed.snapshot is not None:
            self.guard.run(f"state of {feed.path.name}", lambda: self._put_state(feed))
        self.guard.run("probe health", lambda: self._check_health(feed, now_ns))

    def _put_state(self, feed: Feed) -> None:
        if feed.snapshot is None:
            return
        snapshot = feed.snapshot
        t_ns = feed.snapshot_seen_ns
        sites = sites_from_snapshot(feed.rank, snapshot)
        if feed.site_base:
            sites = [replace(site, id=site.id + feed.site_base) for site in sites]
        self.writer.put_sites(map(_without_secrets, sites), t_ns)
        loaders = loaders_from_snapshot(feed.rank, snapshot)
        self.writer.put_loaders(map(_without_secrets, loaders), t_ns)
        self.writer.add_memory(_allocator(feed.rank, snapshot, t_ns))
        ring = {
            "pid": feed.pid,
            "lost": feed.lost,
            "bad": feed.bad,
            "spoiled": feed.spoiled,
            "probe_lost": feed.ring.probe_lost,
            "heartbeat_ns": feed.ring.heartbeat_ns,
            "finished": feed.ring.finished,
            "failed": feed.ring.failed,
        }
        state = {k: v if k in _OF_SITES else mask_told(v) for k, v in snapshot.items()}
        self.writer.put_probe_state(feed.rank, {**state, "ring": ring}, t_ns)
        if feed.eval_ns != self._eval_ns.get(str(feed.rank), {}):
            self._eval_ns[str(feed.rank)] = dict(feed.eval_ns)
            self.writer.set_meta("eval_sub", self._eval_ns)

    def _check_health(self, feed: Feed, now_ns: int) -> None:
        ring, rank = feed.ring, feed.rank
        if ring.failed:
            text = f"The probe of rank {rank} gave up; training goes on unmeasured."
            self.note_once("probe-failed", {"rank": rank, "text": text}, rank)
        lost = feed.lost + ring.probe_lost
        if lost and lost >= 2 * self._lost_told.get(feed.pid, 0):
            self._lost_told[feed.pid] = lost
            text = f"{lost:,} records of rank {rank} were overwritten before they could be read."
            self.note("words-lost", {"rank": rank, "text": text, "words": lost})
        if feed.spoiled:
            text = f"Something wrote into the ring of rank {rank}; what it spoiled is left out."
            self.note_once("ring-spoiled", {"rank": rank, "text": text}, rank)
        silent_ns = now_ns - ring.heartbeat_ns
        if ring.heartbeat_ns and silent_ns > STALE_NS and not ring.finished and feed.alive():
            text = (
                f"The probe of rank {rank} has been silent for {silent_ns // 10**9} s: its process "
                "is suspended, or holds the interpreter's lock in a long call."
            )
            self.note_once("probe-silent", {"rank": rank, "text": text}, rank)


def _without_secrets(place: _Placed) -> _Placed:
    """A place whose call, as the person wrote it, holds no token that was written into it."""
    call = mask_code(place.call)
    return place if call == place.call else replace(place, call=call)


def known_ranks(reader: RunReader) -> dict[int, RankState]:
    """What an earlier supervisor of this run counted, from the store."""
    told = reader.meta("ranks", {})
    ranks: dict[int, RankState] = {}
    for rank in reader.ranks():
        last = reader.steps_tail(1, rank)
        if last:
            ranks[rank] = RankState(steps=last[-1].index + 1, until_ns=last[-1].t1_ns)
            seen = told.get(str(rank)) if isinstance(told, dict) else None
            if isinstance(seen, list) and len(seen) == 4:
                ranks[rank].attempts, ranks[rank].process = seen[0], (seen[1], seen[2])
                ranks[rank].position = seen[3]
    return ranks


def _allocator(rank: int, snapshot: Mapping[str, Any], t_ns: int) -> list[MemorySample]:
    """The allocator's counters of a snapshot: peaks and retries travel nowhere else."""
    memory = snapshot.get("memory")
    if not isinstance(memory, dict) or not isinstance(memory.get("allocated"), int):
        return []
    names = ("reserved", "peak_allocated", "peak_reserved", "retries", "ooms", "inactive_split")
    rest = {name: memory[name] for name in names if isinstance(memory.get(name), int)}
    if not uses_cuda(snapshot):
        return []
    return [MemorySample(rank, t_ns, None, "cuda-allocator", memory["allocated"], **rest)]
