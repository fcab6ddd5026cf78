"""On a CPU-only run: what loader workers take of the cores that training wants. Pure.

The queue is full then and next() returns at once, yet every core second of a worker is one that
training does not get. Seen with 96 small files an item, 4 workers and 2 cores: no wait, workers at
1.13 cores, the training process at 0.85 and kept from a core for 0.56; without that work the same
loop took a third of the time (2026-11-30, two CPU cores).
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.loading_advice import at, loader_at
from gputop_train.diagnose.loading_model import role_cores, torch_threads
from gputop_train.diagnose.rules.base import cores, gain, ms, number, percent, plain, span
from gputop_train.diagnose.rules.fetch_stall import small_reads
from gputop_train.diagnose.rules.slow_collate import COLLATE_PART
from gputop_train.diagnose.supply import Supply, mean, pace_at, total
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Evidence, Gain

#: This run keeps at least this part of its cores busy, or it is other programs that crowd them
#: (proposed; PyTorch's own warning goes by the number of workers alone).
FULL = 0.85
#: The training process was ready for at least so many cores and did not get them (proposed).
DENIED = 0.1
#: Some loading there must be: below a third of the work it is worth a word, no warning (proposed;
#: 57% with the fault above, 20% once its files were packed).
INFO, WARN, CRITICAL = 0.10, 1 / 3, 0.50
#: Threads of a worker that the loader's own queues start, the main one included (torch 2.13).
LOADER_THREADS = 3


@dataclass(frozen=True, slots=True)
class Crowd:
    """Cores in use.

    Attributes:
        workers, trainer: Cores used by each.
        denied: Cores the training process was ready for and did not get.
        lost: Wall share gone if training had the workers' cores too, as far as it has threads.
    """

    workers: float
    trainer: float
    denied: float
    lost: float


def crowd_of(window: Window, supply: Supply) -> Crowd | None:
    """Who has the cores; ``None`` on a GPU, with cores to spare, or where it was not measured."""
    loader = supply.loader
    if window.on_gpu or loader is None or not loader.num_workers or not window.cores:
        return None
    trainer, workers = role_cores(window, "trainer"), total(supply.workers, lambda w: w.cpu)
    denied = mean(p.run_delay for p in window.procs if p.role == "trainer")
    if trainer is None or workers is None or denied is None or trainer <= 0:
        return None
    if len(supply.workers) < loader.num_workers or denied < DENIED:
        return None
    if trainer + workers < FULL * window.cores:
        return None
    threads = torch_threads(window)
    most = trainer if threads is None else max(trainer, float(threads))
    usable = min(trainer + workers, most)
    return Crowd(workers, trainer, denied, 1 - trainer / usable)


def closer_cause(window: Window, supply: Supply) -> str | None:
    """What the workers are busy with: ``slow-collate``, ``fetch-stall`` or ``prep-stall``.

    ``None`` where workers run threads of their own: which part of it is work and which is threads
    that fight each other cannot be told apart.
    """
    loader, fetch = supply.loader, supply.fetch
    if any((w.threads or 0) > LOADER_THREADS + (window.cores or 0.0) for w in supply.workers):
        return None
    if fetch is not None and fetch.collate >= COLLATE_PART and loader and loader.collate:
        return "slow-collate"
    if loader is not None and small_reads(supply, loader, pace_at(window, 0.0, supply)):
        return "fetch-stall"
    return "prep-stall"


def crowd_summary(window: Window, crowd: Crowd) -> str:
    """Two sentences."""
    return (
        f"Making batches takes {crowd.workers:.2g} of the {window.cores:.3g} cores that training "
        f"wants: {percent(crowd.lost)} of every step. No batch is late, but the training process "
        f"has {crowd.trainer:.2g} cores and waits for more."
    )


def crowd_evidence(window: Window, crowd: Crowd, supply: Supply) -> tuple[Evidence, ...]:
    """Its numbers."""
    rows = [
        number("lost to workers on the same cores", crowd.lost, "of wall"),
        cores("workers, together", crowd.workers),
        cores("trainer process", crowd.trainer),
        number("trainer ready to run without a core", crowd.denied, "cores"),
        number("cores the run may use", window.cores, "cores"),
    ]
    if supply.fetch is not None:
        rows.append(span("a batch, made in a worker", supply.fetch.batch_ms))
        rows.append(number("collate_fn", supply.fetch.collate, "of a batch's time"))
    return tuple(row for row in rows if row.value is not None)


def crowd_advice(
    window: Window, crowd: Crowd, supply: Supply, cause: str | None
) -> tuple[Advice, ...]:
    """Cheaper batches first; a number of workers changes nothing."""
    loader, fetch = supply.loader, supply.fetch
    if loader is None:
        return ()
    stays = (
        f"num_workers stays {loader.num_workers}: they share {window.cores or 0:.3g} cores with "
        "training whatever their number."
    )
    code = at(loader.source) or loader_at(loader)
    batch = f" A batch takes {ms(fetch.batch_ms)} in a worker." if fetch is not None else ""
    if cause == "slow-collate" and loader.collate is not None and fetch is not None:
        first = (
            f"Mend {loader.collate.what}{at(loader.collate)}: {percent(fetch.collate)} of the "
            f"{ms(fetch.batch_ms)} of a batch. np.stack the arrays once and torch.from_numpy the "
            "result."
        )
    elif cause == "fetch-stall":
        reads = small_reads(supply, loader, pace_at(window, 0.0, supply))
        calls = plain(reads.per_item or 0.0) if reads is not None else "many"
        first = (
            f"Pack the files of an item into one{code}: it takes {calls} read calls now; one array "
            "per item (np.savez, LMDB, a tar shard, one np.memmap) needs 1 or 2."
        )
    else:
        first = (
            f"Make preparation cheaper{code}: vectorised transforms, faster decoding, fewer bytes."
            f"{batch}"
        )
    return (
        Advice(f"{first} {stays}"),
        Advice(
            f"Or do its fixed part once, offline{code}: the workers' {crowd.workers:.2g} cores "
            "then go to training."
        ),
    )


def crowd_gain(crowd: Crowd) -> Gain:
    """By cores alone. Threads that no longer wait for each other at a crowded barrier bring more.

    Measured where 4 workers read small files on two cores: 2.3 by cores, 3.2 with the files packed
    (2026-11-30).
    """
    text = f"T / (T - E): {crowd.trainer:.2g} cores train now, {crowd.workers:.2g} make batches"
    return gain(crowd.lost, text, at_least=True)
