"""How batches come to be: the loader, its queue, its workers, and where the waits lie. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.fetching import Fetching, fetching
from gputop_train.diagnose.waits import Waits, in_next, pattern
from gputop_train.diagnose.window import Window, once
from gputop_train.model import Fetch, Finding, Loader, ProcSample

QUEUE_EMPTY, MIN_POLLS = 0.5, 5
#: With workers and batches ready at this part of the polls, the wait is not for supply: next()
#: itself is slow, or other programs took the core. Worth a line, no warning (proposed here).
MOSTLY_READY = 0.75
#: Batch time over the workers as a part of T - E: below it the supply keeps up (proposed).
WELL_AHEAD = 0.7
#: Part of the wait from which on queues that are thrown away tell nothing (proposed).
RESTART_PART = 0.5
BUSY_WORKER = 0.85
IDLE_WORKER = 0.4
#: A worker that uses less than this has nothing to do; half of them: the split is at fault.
JOBLESS_WORKER = 0.1
#: Uninterruptible sleep at this part of the samples of a worker is waiting for storage (proposed).
BLOCKED_PART = 0.2
#: Less than this from storage is what any process reads by the way (proposed).
STORAGE_BYTES_PER_S = 1e6
#: Why no cause in the loader is named where the loop prepares its batches itself.
IN_LOOP = "the loop's own preparation takes most of the time, not next() of the loader"


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What one worker process did over the window: means; ``None`` = not measured.

    Attributes:
        cpu: Cores it used.
        kernel: Of them, in the kernel.
        delay: Cores its main thread was ready for and did not get.
        reads_per_s: Read calls, of files and pipes, page cache included.
        storage_per_s: Bytes a second that came from storage.
        blocked: Part (0..1) of the samples in which it waited for storage (state D).
        threads: The most threads it had.
        allowed: CPUs it may run on.
    """

    pid: int
    cpu: float
    kernel: float | None = None
    delay: float | None = None
    reads_per_s: float | None = None
    rchar_per_s: float | None = None
    storage_per_s: float | None = None
    blocked: float | None = None
    threads: int | None = None
    allowed: int | None = None

    @property
    def wants(self) -> float:
        """Cores it used or waited for."""
        return self.cpu + (self.delay or 0.0)


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known about how batches come to be.

    Attributes:
        loader: The loader waited for longest, of those that feed training.
        part: Its part (0..1) of the wait: of that of all of them, and where the loop prepares data
            itself, of that too.
        empty_share: Polls that found no batch ready; ``None`` with too few polls.
        batches_per_step: Of this loader.
        built: Times a loader was constructed at its line; together they count as one.
        in_next: Part (0..1) of the data wait in next() of the loaders; 1 unless most is elsewhere.
    """

    loader: Loader | None
    empty_share: float | None
    workers: tuple[WorkerUse, ...]
    waits: Waits
    part: float = 1.0
    fetch: Fetching | None = None
    batches_per_step: float = 1.0
    built: int = 1
    in_next: float = 1.0

    @property
    def workers_busy(self) -> tuple[float, ...]:
        """Mean cores of each of its worker processes."""
        return tuple(worker.cpu for worker in self.workers)

    @property
    def in_loop(self) -> bool:
        """Whether most of the wait is what the loop itself does to batches it was handed."""
        return self.in_next < 1.0

    @property
    def starved(self) -> bool:
        """Whether the queue was found empty; true where it was not polled."""
        return self.empty_share is None or self.empty_share >= QUEUE_EMPTY


@once
def supply_of(window: Window) -> Supply:
    """What is known about the supply of this window."""
    groups = _groups(window)
    if not groups:
        return Supply(None, None, (), pattern(window, None))
    group = groups[0]
    loader = _together(group)
    ids = {ld.id for ld in group}
    polls = [d.ready for d in window.depths if d.loader_id in ids]
    empty = sum(1 for r in polls if r == 0) / len(polls) if len(polls) >= MIN_POLLS else None
    wait = sum(ld.wait_ns for rows in groups for ld in rows)
    here = in_next(window, [_together(rows) for rows in groups])
    return Supply(
        loader,
        empty,
        _workers(window, group),
        pattern(window, loader),
        part=here * (loader.wait_ns / wait if wait else 1.0),
        fetch=fetching(loader),
        # Below one: steps of which the probe recorded the end alone, or several steps a batch.
        batches_per_step=max(1.0, loader.batches / max(1, window.steps_seen)),
        built=len(group),
        in_next=here,
    )


def feeding(window: Window) -> tuple[Loader, ...]:
    """Loaders that feed training, the one waited for longest first; one for each line of code."""
    return tuple(_together(group) for group in _groups(window))


def _groups(window: Window) -> list[list[Loader]]:
    """A loader that is constructed anew in each epoch is many rows of one line.

    Not each of them was seen to feed a backward; one that is built like one that was, at the same
    line, does. What a helper builds for evaluation differs in its length.
    """
    found: dict[tuple[object, ...], list[Loader]] = {}
    for ld in sorted(window.loaders, key=lambda ld: ld.id):
        if ld.rank == window.rank and (ld.feeds_training or ld.length is not None):
            key = (ld.file, ld.line, ld.dataset, ld.num_workers, ld.batch_size, ld.length)
            found.setdefault(key, []).append(ld)
    groups = [rows for rows in found.values() if any(ld.feeds_training for ld in rows)]
    return sorted(groups, key=lambda rows: (-sum(ld.wait_ns for ld in rows), rows[0].id))


def _together(group: list[Loader]) -> Loader:
    if len(group) == 1:
        return group[0]
    return replace(
        group[-1],
        feeds_training=True,
        worker_pids=tuple(pid for ld in group for pid in ld.worker_pids),
        batches=sum(ld.batches for ld in group),
        wait_ns=sum(ld.wait_ns for ld in group),
        epochs=sum(max(1, ld.epochs) for ld in group),
        starts=sum(ld.starts for ld in group),
        start_ns=sum(ld.start_ns for ld in group),
        first_waits=sum(ld.first_waits for ld in group),
        first_wait_ns=sum(ld.first_wait_ns for ld in group),
        fetch=_sum_of(row for ld in group for row in ld.fetch),
    )


def _sum_of(rows: Iterable[Fetch]) -> tuple[Fetch, ...]:
    sums: dict[int, Fetch] = {}
    for row in rows:
        have = sums.get(row.worker, Fetch(row.worker, starts=0))
        sums[row.worker] = Fetch(
            row.worker,
            row.pid,
            have.batches + row.batches,
            have.fetch_ns + row.fetch_ns,
            have.collate_ns + row.collate_ns,
            max(have.longest_ns, row.longest_ns),
            have.items + row.items,
            have.starts + row.starts,
        )
    return tuple(sums[worker] for worker in sorted(sums))


def _workers(window: Window, group: list[Loader]) -> tuple[WorkerUse, ...]:
    """A loader's workers; those of an evaluation's loader idle by design."""
    rows: dict[int, list[ProcSample]] = {}
    for p in window.procs:
        if p.role == "worker" and p.cpu is not None:
            rows.setdefault(p.pid, []).append(p)
    ids = {ld.id for ld in group}
    mine = {pid for ld in group for pid in ld.worker_pids}
    others = {
        pid
        for ld in window.loaders
        if ld.rank != window.rank or ld.id not in ids
        for pid in ld.worker_pids
    }
    kept = [pid for pid in sorted(rows) if pid not in others - mine and len(rows[pid]) >= 2]
    if mine & set(kept):
        kept = [pid for pid in kept if pid in mine]
    return tuple(_use(pid, rows[pid]) for pid in kept)


def _use(pid: int, rows: list[ProcSample]) -> WorkerUse:
    states = [p.state for p in rows if p.state is not None]
    return WorkerUse(
        pid,
        cpu=mean(p.cpu for p in rows) or 0.0,
        kernel=mean(p.cpu_sys for p in rows),
        delay=mean(p.run_delay for p in rows),
        reads_per_s=mean(p.reads_per_s for p in rows),
        rchar_per_s=mean(p.rchar_per_s for p in rows),
        storage_per_s=mean(p.read_bytes_per_s for p in rows),
        blocked=sum(1 for s in states if s == "D") / len(states) if states else None,
        threads=max((p.threads for p in rows if p.threads is not None), default=None),
        allowed=rows[-1].cpus_allowed,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured; ``None`` where nothing was."""
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def total(workers: Iterable[WorkerUse], of: Callable[[WorkerUse], float | None]) -> float | None:
    """Sum over workers; ``None`` where one of them was not measured, or there is none."""
    values = [of(worker) for worker in workers]
    known = [v for v in values if v is not None]
    return sum(known) if known and len(known) == len(values) else None


def ready(supply: Supply) -> bool:
    """Batches wait for the trainer, and not only between bursts.

    Where waits are few, polls between them tell nothing: of workers that deliver in rounds as well.
    """
    empty = supply.empty_share
    return empty is not None and empty <= 1 - MOSTLY_READY and not supply.waits.few


def ahead(supply: Supply, pace: Pace) -> bool:
    """Whether the workers make batches well before they are due, so that none can be lacking.

    Not where the wait is in a few steps: what is fast in the mean may be late at times.
    """
    loader = supply.loader
    if loader is None or loader.num_workers == 0 or supply.waits.few or pace.supply_ms is None:
        return False
    return pace.supply_ms <= WELL_AHEAD * pace.floor_ms


def lacking(supply: Supply, pace: Pace) -> bool:
    """Whether batches are not there when they are due: by rates, else by the queue."""
    if ready(supply):
        return False
    if pace.supply_ms is not None:
        return pace.supply_ms > pace.floor_ms
    return supply.starved


def restarts(loader: Loader | None) -> bool:
    """Whether most of the wait is for workers that were started anew, more than once."""
    if loader is None or loader.num_workers == 0 or min(loader.starts, loader.first_waits) < 2:
        return False
    return loader.start_ns + loader.first_wait_ns >= RESTART_PART * loader.wait_ns


def jobless(workers: tuple[float, ...]) -> int:
    """How many workers idle beside busy ones; 0 where the work is shared."""
    idle = sum(1 for v in workers if v < IDLE_WORKER)
    if any(v >= BUSY_WORKER for v in workers):
        return idle
    jobless = sum(1 for v in workers if v < JOBLESS_WORKER)
    return jobless if 2 * jobless >= len(workers) and max(workers, default=0) >= IDLE_WORKER else 0


@dataclass(frozen=True, slots=True)
class Pace:
    """The loop's pace beside its supply's, in milliseconds a step.

    Attributes:
        step_ms: The mean step ``T``.
        floor_ms: It without the wait: ``T - E``.
        fetch_ms: What one process takes for the batches of a step; ``None`` = not timed.
        supply_ms: ``fetch_ms`` over the workers that make batches: a step's share if they fetch
            all the time.
    """

    step_ms: float
    floor_ms: float
    fetch_ms: float | None
    supply_ms: float | None

    def covers(self, step_ms: float) -> float:
        """Part (0..1) of the wait that is gone when the supply allows steps of ``step_ms``."""
        lost = self.step_ms - self.floor_ms
        left = max(self.floor_ms, min(self.step_ms, step_ms))
        return (self.step_ms - left) / lost if lost > 0 else 0.0

    def speedup(self, step_ms: float) -> float:
        """``T`` over the step that a supply of ``step_ms`` allows."""
        return self.step_ms / max(self.floor_ms, min(self.step_ms, step_ms), 1e-9)


def pace_of(window: Window, found: Finding, supply: Supply) -> Pace:
    """The pace of a window whose wait costs ``found.lost_share``."""
    return pace_at(window, found.lost_share, supply)


def pace_at(window: Window, lost: float, supply: Supply) -> Pace:
    """The pace of a window whose wait costs this share of it."""
    step_ms = account(window).step_ms or 0.0
    loader, fetch = supply.loader, supply.fetch
    each = fetch.batch_ms * supply.batches_per_step if fetch is not None else None
    workers = max(1, loader.num_workers) if loader is not None else 1
    if fetch is not None and loader is not None and loader.num_workers:
        workers = max(1, fetch.makers)  # idle ones bring nothing
    return Pace(
        step_ms=step_ms,
        floor_ms=step_ms * (1 - lost),
        fetch_ms=each,
        supply_ms=each / workers if each is not None else None,
    )
