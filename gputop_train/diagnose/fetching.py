"""What a batch costs where it is made, from the loader's own counters. Pure.

The counters run since the loader was built: a mean over the whole run, not over a window.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.model import Loader

#: Fewer batches than this say nothing about a mean (proposed).
MIN_BATCHES = 5
#: A worker with less than this part of the busiest one's batches makes next to none (proposed).
MAKES_NONE = 0.1


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker (or the training process, ``worker == -1``) made of a loader's batches."""

    worker: int
    batches: int
    batch_ms: float  # mean; 0 where it made none


@dataclass(frozen=True, slots=True)
class Fetching:
    """The cost of a loader's batches.

    Attributes:
        batches: Batches timed, of all processes.
        batch_ms: Mean time one process takes for one batch, items and ``collate_fn``.
        usual_ms: The same without the longest batch of each process that was started: the first
            one opens files and fills caches. ``None`` where nothing is left.
        collate: Part (0..1) of that time in ``collate_fn``.
        longest_ms: The longest batch.
        items: Items a batch; ``None`` where they were not counted.
        workers: One entry for each worker, also for those that made nothing.
    """

    batches: int
    batch_ms: float
    usual_ms: float | None
    collate: float
    longest_ms: float
    items: float | None
    workers: tuple[Share, ...]

    @property
    def makers(self) -> int:
        """Workers that make batches; those that were dealt next to none do not."""
        made = [share.batches for share in self.workers]
        return sum(1 for n in made if n >= MAKES_NONE * max(made))


def fetching(loader: Loader | None) -> Fetching | None:
    """What this loader's batches cost; ``None`` where no process was seen making enough of them."""
    if loader is None:
        return None
    wanted = range(loader.num_workers) if loader.num_workers else range(-1, 0)
    rows = {row.worker: row for row in loader.fetch if row.worker in wanted}
    batches = sum(row.batches for row in rows.values())
    total = sum(row.fetch_ns for row in rows.values())
    if batches < MIN_BATCHES or total <= 0:
        return None
    usual_ns, usual_n = 0, 0
    for row in rows.values():
        first = min(max(1, row.starts), row.batches)
        usual_ns += max(0, row.fetch_ns - first * row.longest_ns)
        usual_n += row.batches - first
    items = sum(row.items for row in rows.values())
    return Fetching(
        batches=batches,
        batch_ms=total / batches / 1e6,
        usual_ms=usual_ns / usual_n / 1e6 if usual_n else None,
        collate=min(1.0, sum(row.collate_ns for row in rows.values()) / total),
        longest_ms=max(row.longest_ns for row in rows.values()) / 1e6,
        items=items / batches if items else None,
        workers=tuple(_share(rows.get(worker), worker) for worker in wanted),
    )


def _share(row: object, worker: int) -> Share:
    batches = getattr(row, "batches", 0)
    spent = getattr(row, "fetch_ns", 0)
    return Share(worker, batches, spent / batches / 1e6 if batches else 0.0)


#: Why there is no ``Fetching``, in words for an abstention.
NOT_TIMED = "what a batch costs in the workers (they were not forked, or the store is older)"
