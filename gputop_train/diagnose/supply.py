"""How batches come to be: the loader, its queue, its workers, and where the waits lie. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.waits import Waits, pattern
from gputop_train.diagnose.window import Window
from gputop_train.model import Loader

QUEUE_EMPTY, MIN_POLLS = 0.5, 5
#: With workers and batches ready at this part of the polls, the wait is not for supply: next()
#: itself is slow, or other programs took the core. Worth a line, no warning (proposed here).
MOSTLY_READY = 0.75
BUSY_WORKER = 0.85
IDLE_WORKER = 0.4
#: A worker that uses less than this has nothing to do; half of them: the split is at fault.
JOBLESS_WORKER = 0.1


@dataclass(frozen=True, slots=True)
class Supply:
    """What is known about how batches come to be."""

    loader: Loader | None
    empty_share: float | None  # polls that found no batch ready
    workers_busy: tuple[float, ...]  # mean cores of each of its worker processes
    waits: Waits


def supply_of(window: Window) -> Supply:
    """What is known about the supply of this window."""
    feeding = window.feeding_loaders
    loader = feeding[0] if feeding else None
    polls = [d.ready for d in window.depths if loader is not None and d.loader_id == loader.id]
    empty = sum(1 for r in polls if r == 0) / len(polls) if len(polls) >= MIN_POLLS else None
    return Supply(loader, empty, _workers_busy(window, loader), pattern(window, loader))


def _workers_busy(window: Window, loader: Loader | None) -> tuple[float, ...]:
    """Mean cores of this loader's workers; those of an evaluation's loader idle by design."""
    usage: dict[int, list[float]] = {}
    for p in window.procs:
        if p.role == "worker" and p.cpu is not None:
            usage.setdefault(p.pid, []).append(p.cpu)
    mine = set(loader.worker_pids) if loader is not None else set()
    others = {pid for ld in window.loaders if ld is not loader for pid in ld.worker_pids}
    kept = [pid for pid in sorted(usage) if pid not in others - mine and len(usage[pid]) >= 2]
    if mine & set(kept):
        kept = [pid for pid in kept if pid in mine]
    return tuple(sum(usage[pid]) / len(usage[pid]) for pid in kept)


def ready(supply: Supply) -> bool:
    """Batches wait for the trainer, and not only between bursts."""
    empty = supply.empty_share
    return empty is not None and empty <= 1 - MOSTLY_READY and not supply.waits.in_bursts


def jobless(workers: tuple[float, ...]) -> int:
    """How many workers idle beside busy ones; 0 where the work is shared."""
    idle = sum(1 for v in workers if v < IDLE_WORKER)
    if any(v >= BUSY_WORKER for v in workers):
        return idle
    jobless = sum(1 for v in workers if v < JOBLESS_WORKER)
    return jobless if 2 * jobless >= len(workers) and max(workers, default=0) >= IDLE_WORKER else 0
