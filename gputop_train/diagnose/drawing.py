"""A sampler's own work in next(): drawing, sorting or grouping indices. Pure.

Samplers run in the training process whatever ``num_workers`` is, so neither workers nor deeper
queues take their work off the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.loading_advice import ASKS, at, distinct, loader_line
from gputop_train.diagnose.rules.base import COVERAGE, ms, top_sites, where
from gputop_train.diagnose.supply import Supply, restarts
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Site, Where

#: Fewer samples of the training thread in next() than this tell nothing of its parts (proposed).
MIN_SAMPLES = 5
#: The part of the wait from which on the sampler is what is waited for (proposed).
MOST = 0.5
#: A wait so many times the longest batch of any worker is not for a batch (proposed).
BEYOND_ANY_BATCH = 2.0
MAX_LINES = 2
#: Less than this part of what an epoch draws is used: the rest is drawn for nothing (proposed).
USED = 0.5
#: Why no closer cause is named then.
DRAWS = "the sampler, which runs in the training process, is what takes the time"
#: Functions that belong to training have samples of these.
_TRAINS = frozenset({"forward", "backward", "optimizer"})


@dataclass(frozen=True, slots=True)
class Drawing:
    """The part (0..1) of a loader's wait that its sampler takes, and the sampler's lines."""

    part: float
    lines: tuple[Where, ...]


def drawing(window: Window, supply: Supply) -> Drawing | None:
    """What the loader's own sampler costs; ``None`` where it is not most of the wait.

    With workers, the only code of the person's that runs in next() is the sampler's: it is known
    by samples outside the loop that asks, or by waits for the first batch of an epoch that no
    worker took that long for. Without workers, it is what next() takes beside the batch itself.
    """
    loader = supply.loader
    if (
        loader is None
        or supply.in_loop
        or not (loader.custom_batch_sampler or "sampler" in loader.call)
    ):
        return None
    met = [
        s
        for s in window.sites
        if s.rank == window.rank and s.kind == "sample" and s.label == "data_wait"
    ]
    own = _own(window, met)
    parts = [_at_epoch_starts(window, supply)]
    samples = sum(s.count for s in met)
    if loader.num_workers == 0:
        made = sum(row.fetch_ns for row in loader.fetch)
        if made and loader.wait_ns:
            parts.append(1.0 - min(1.0, made / loader.wait_ns))
    elif samples >= MIN_SAMPLES:
        parts.append(sum(s.count for s in own) / samples)
    part = max(parts)
    if part < MOST:
        return None
    lines = distinct(where(s) for s in top_sites(own, limit=MAX_LINES, by_count=True))
    if loader.num_workers == 0 and loader.source is not None:
        lines = tuple(p for p in lines if p.file == loader.source.file)
    return Drawing(part, (*lines, loader_line(loader)))


def _own(window: Window, met: list[Site]) -> list[Site]:
    loops = {(s.file, s.func) for s in window.sites if s.kind == "sample" and s.label in _TRAINS}
    return [s for s in met if (s.file, s.func) not in loops and not ASKS.search(s.call)]


def _at_epoch_starts(window: Window, supply: Supply) -> float:
    """The wait at epoch starts, where it is longer than any batch took to make."""
    waits, fetch = supply.waits, supply.fetch
    if not waits.at_epoch_starts or fetch is None or restarts(supply.loader):
        return 0.0
    beyond = waits.heavy_ms >= BEYOND_ANY_BATCH * fetch.longest_ms
    return max(COVERAGE, waits.held) if beyond else 0.0


def drawing_advice(drawn: Drawing, supply: Supply, lost_ms: float) -> tuple[Advice, ...]:
    """What to change in a sampler.

    Args:
        drawn: Its lines.
        supply: The loader and where its waits lie.
        lost_ms: Of every step.
    """
    loader, waits = supply.loader, supply.waits
    line = at(drawn.lines[0])
    cost = f"{ms(lost_ms)} of every step"
    if waits.at_epoch_starts:
        cost = f"{ms(waits.heavy_ms)} at the start of an epoch"
    steps = []
    if loader is not None and loader.length and loader.epochs > 1:
        used = loader.batches / loader.epochs
        if used < USED * loader.length:
            size = f" (num_samples={round(used) * loader.batch_size})" if loader.batch_size else ""
            steps.append(
                Advice(
                    f"Draw only what an epoch uses{line}{size}: the sampler draws the indices of "
                    f"{loader.length} batches for each of {loader.epochs} epochs, about "
                    f"{used:.0f} of them are used."
                )
            )
    workers = loader.num_workers if loader is not None else 0
    steps.append(
        Advice(
            f"Make the order of the indices cheaper{line}: the sampler takes {cost} in the "
            f"training process; num_workers stays {workers}. Compute lengths, weights or groups "
            "once, before training; sort and draw whole arrays."
        )
    )
    steps.append(
        Advice(
            f"If it stays at {cost}: keep one order for several epochs, or draw those of the "
            "next ones before training."
        )
    )
    return tuple(steps)
