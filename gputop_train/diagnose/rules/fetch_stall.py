"""``fetch-stall``: the workers wait for files, or spend their time opening and reading many.

Two kinds. *Blocked*: workers at <= 40% of a core (proposed) with the queue empty, which wait for
storage (state D in >= 20% of the samples, or >= 1 MB/s of reads that reach storage), or, with fetch
times, that spend the fetch asleep: network, a lock, a file system that shows no state. *Many small
reads*: >= 16 read calls an item and >= 5,000 a second for each core the workers use, at <= 64 KiB a
call; the page cache may serve all of them, so storage shows nothing and a faster disk brings
nothing (tried on np.load of 4 KB files from the page cache: 4 read calls each, 73,000 a second and
core, 16% of the CPU time in the kernel, so that share alone tells nothing).
Differential: absolute MB/s differ 100-fold by device, so none is asked for; page-cache hits raise
``rchar``, not ``read_bytes``; sleeping workers of a full queue; CPU-bound decoding.
Fix: pack small files; stage or cache; more workers where they sleep. Probe: the same run from an
already cached subset. Gain: ceiling only for packing; T x workers now / workers then on storage;
no forecast for sleep of another kind, which may be for a lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.diagnose.loading_advice import (
    SETS_THE_PACE,
    at,
    bounded,
    ceiling_of,
    loader_at,
    more_workers,
    places,
)
from gputop_train.diagnose.rules.base import (
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    amount,
    cores,
    ms,
    number,
    percent,
    plain,
    span,
)
from gputop_train.diagnose.rules.main_process_loading import READS_PER_ITEM
from gputop_train.diagnose.supply import (
    BLOCKED_PART,
    IDLE_WORKER,
    IN_LOOP,
    QUEUE_EMPTY,
    STORAGE_BYTES_PER_S,
    Pace,
    Supply,
    lacking,
    mean,
    pace_of,
    supply_of,
    total,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Loader

ID = "fetch-stall"
#: Read calls a second for each core the workers use (proposed, tried on np.load).
READS_PER_CORE_S = 5_000.0
#: A call that brings more than this is no small read (proposed).
SMALL_READ = 65_536.0
#: Ready to run without a core for more than this, a worker does not sleep by choice (proposed).
DENIED = 0.2


@dataclass(frozen=True, slots=True)
class Reads:
    """What the workers read.

    Attributes:
        per_item: Read calls an item; ``None`` where items are not counted.
        per_core_s: Read calls a second for each core they use.
        size: Bytes a call.
        kernel: Part (0..1) of their CPU time in the kernel.
    """

    per_batch: float
    per_item: float | None
    per_core_s: float
    size: float | None
    kernel: float | None


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the workers wait for, or mostly call, storage."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None or loader.num_workers == 0:
        return RuledOut(ID, "there are no workers")
    if supply.in_loop:
        return RuledOut(ID, IN_LOOP)
    pace = pace_of(window, found, supply)
    if supply.waits.in_bursts or not lacking(supply, pace):
        return RuledOut(ID, "batches were ready, or the wait is in a few steps")
    if len(supply.workers) < loader.num_workers:
        return Abstention(ID, "CPU use of the workers")
    if pace.supply_ms is not None and pace.supply_ms < SETS_THE_PACE * pace.step_ms:
        return RuledOut(ID, "the workers make batches faster than they are used")
    reads = _reads(supply, loader, pace)
    if reads is not None and _many_small(reads):
        return _small_reads(window, found, supply, loader, pace, reads)
    cpu = mean(worker.cpu for worker in supply.workers) or 0.0
    if cpu > IDLE_WORKER:
        if reads is None:
            return Abstention(ID, "read calls of the workers")
        return RuledOut(ID, f"the workers compute ({percent(cpu)} of a core) and read little")
    denied = mean(worker.delay for worker in supply.workers)
    if denied is not None and denied > DENIED:
        return RuledOut(ID, "the workers are ready to run but have no core")
    if denied is None and not _on_disk(supply):
        return Abstention(ID, "time the workers waited for a core (run_delay of schedstat)")
    return _blocked(window, found, supply, loader, pace, cpu)


def small_reads(supply: Supply, loader: Loader, pace: Pace) -> Reads | None:
    """What the workers read, where that is many small reads an item; else ``None``."""
    reads = _reads(supply, loader, pace)
    return reads if reads is not None and _many_small(reads) else None


def _reads(supply: Supply, loader: Loader, pace: Pace) -> Reads | None:
    calls = total(supply.workers, lambda w: w.reads_per_s)
    cpu = total(supply.workers, lambda w: w.cpu)
    if calls is None or cpu is None or pace.step_ms <= 0:
        return None
    volume = total(supply.workers, lambda w: w.rchar_per_s)
    kernel = total(supply.workers, lambda w: w.kernel)
    per_batch = calls * pace.step_ms / 1e3 / supply.batches_per_step
    items = supply.fetch.items if supply.fetch is not None else None
    items = items or loader.batch_size
    return Reads(
        per_batch=per_batch,
        per_item=per_batch / items if items else None,
        per_core_s=calls / max(cpu, 0.05),
        size=volume / calls if volume is not None and calls > 0 else None,
        kernel=kernel / cpu if kernel is not None and cpu > 0 else None,
    )


def _many_small(reads: Reads) -> bool:
    return (
        reads.per_item is not None
        and reads.per_item >= READS_PER_ITEM
        and reads.per_core_s >= READS_PER_CORE_S
        and (reads.size is None or reads.size <= SMALL_READ)
    )


def _small_reads(
    window: Window, found: Finding, supply: Supply, loader: Loader, pace: Pace, reads: Reads
) -> Refinement:
    storage = total(supply.workers, lambda w: w.storage_per_s)
    cached = storage is not None and storage < STORAGE_BYTES_PER_S
    code = at(loader.source) or loader_at(loader)
    per_item = reads.per_item or 0.0
    from_cache = (
        f" {_rate(storage)} from storage, the page cache serves the rest: a faster disk changes "
        "nothing."
        if cached and storage is not None
        else ""
    )
    more = more_workers(window, supply, pace, each_cores=_each(supply))
    steps = [
        Advice(
            f"Pack the files of an item into one{code}: it takes {plain(per_item)} read calls now, "
            f"{plain(reads.per_batch)} a batch. One array per item (np.savez, LMDB, a tar or "
            f"Parquet shard, one np.memmap for all) needs 1 or 2.{from_cache}"
        )
    ]
    if more is not None:
        steps.append(more.advice(window, supply, pace, ", half a cure: packing first"))
    steps.append(
        Advice(
            f"Or keep items once read{code}: {plain(per_item)} calls an item are paid in every "
            "epoch; a dict in each worker, or one file written at the first pass, pays them once."
        )
    )
    return Refinement(
        ID,
        supply.part,
        f"The workers make {plain(per_item)} read calls an item, {plain(reads.per_batch)} a batch.",
        confidence="high" if supply.fetch is not None and reads.size is not None else "medium",
        evidence=tuple(
            row
            for row in (
                number("read calls an item", per_item),
                number("read calls a second and core", reads.per_core_s),
                number("bytes a call", reads.size),
                number("workers' CPU in the kernel", reads.kernel, "of it"),
                _storage(storage),
            )
            if row.value is not None
        ),
        where=places(window, supply, costly_first=True),
        advice=tuple(steps[:3]),
        gain=_ceiling(found, "T / (T - E): reads of one file an item are not forecast"),
    )


def _on_disk(supply: Supply) -> bool:
    """Whether the workers were seen to wait for storage, or to read much from it."""
    states = mean(worker.blocked for worker in supply.workers)
    storage = total(supply.workers, lambda w: w.storage_per_s)
    return (states or 0.0) >= BLOCKED_PART or (storage or 0.0) >= STORAGE_BYTES_PER_S


def _blocked(
    window: Window, found: Finding, supply: Supply, loader: Loader, pace: Pace, cpu: float
) -> Refinement | Abstention | RuledOut:
    states = mean(worker.blocked for worker in supply.workers)
    storage = total(supply.workers, lambda w: w.storage_per_s)
    on_disk = _on_disk(supply)
    if not on_disk and supply.fetch is None:
        return Abstention(ID, "fetch times: the workers sleep, but not seen to be in storage")
    line, code = loader_at(loader), at(loader.source)
    more = more_workers(window, supply, pace, each_cores=max(0.05, cpu))
    batch = f"{ms(supply.fetch.batch_ms)} a batch, " if supply.fetch is not None else ""
    if on_disk:
        what = "wait for storage"
        rate = "" if storage is None else f" at {storage / 1e6:.3g} MB/s"
        first = (
            f"Bring the data nearer{code or line}: the workers read{rate} and use {percent(cpu)} "
            f"of a core each ({batch}most of it waiting). Stage it on a local disk or in /dev/shm, "
            "or pack it into large files read in order."
        )
    else:
        what = "sleep inside the fetch"
        first = (
            f"Find what the fetch waits for{code or line}: {batch}{percent(cpu)} of a core, and "
            "next to nothing from local storage: a network read, a lock, a remote store. Read "
            "ahead there, fetch a batch's items in one request, or keep a local copy."
        )
    steps = [Advice(first)]
    # What a lock holds back comes no faster from more workers. Two for each one tell it at once.
    if not on_disk and more is not None and more.workers < 2 * loader.num_workers:
        more = None
        steps = [Advice(f"{first} Behind one lock more workers only wait longer.")]
    if more is not None:
        why = f"; sleeping workers cost {percent(cpu)} of a core each"
        if not on_disk:
            why = f"; asleep at {percent(cpu)} of a core, unless one lock holds them all"
        steps.append(more.advice(window, supply, pace, why))
    unknown = "what storage allows" if on_disk else "what the fetch waits for"
    depth = loader.prefetch_factor or 2
    steps.append(
        Advice(
            f"If the first epoch alone is slow, wait for it: later ones read from memory. A deeper "
            f"queue{line} (prefetch_factor {depth} now) evens out bursts and does not raise the "
            "mean."
        )
    )
    return Refinement(
        ID,
        supply.part,
        f"Its {loader.num_workers} workers {what}: {percent(cpu)} of a core each.",
        confidence="high" if on_disk and supply.fetch is not None else "medium",
        evidence=tuple(
            row
            for row in (
                cores("a worker, mean", cpu),
                number("samples of workers that wait for storage", states, "of samples"),
                _storage(storage),
                span("a batch, made in a worker", supply.fetch.batch_ms if supply.fetch else None),
            )
            if row.value is not None
        ),
        where=places(window, supply, costly_first=True),
        advice=tuple(steps),
        gain=bounded(
            found,
            more.low,
            more.high,
            f"T x {loader.num_workers} / {more.workers} workers if storage keeps up, at most what "
            "training allows",
        )
        if more is not None and on_disk
        else _ceiling(found, f"T / (T - E): {unknown} is not known"),
    )


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s < 1e3:
        return "Nothing comes"
    return f"Only {bytes_per_s / 1e6:.2g} MB/s come"


def _each(supply: Supply) -> float:
    return max(0.05, mean(worker.wants for worker in supply.workers) or 1.0)


def _storage(rate: float | None) -> Evidence:
    if rate is None:
        return Evidence("read from storage", None)
    return amount("read from storage", rate, "/s")


def _ceiling(found: Finding, basis: str) -> Gain:
    at_least = found.gain is not None and found.gain.at_least
    return Gain(ceiling_of(found), None, basis, at_least)


PAGE = Page(
    number=4,
    title="Fetching items is slow",
    meaning=(
        "The workers wait for storage or a network, or they open and read a great many small "
        "files. In the second kind the page cache may hold all of it: no disk is busy, and only "
        "the number of read calls and the time in the kernel show it."
    ),
    looks_at=(
        "CPU use of each worker, in the kernel too",
        "read calls, bytes read and bytes read from storage, of each worker (/proc/PID/io)",
        "samples in uninterruptible sleep (state D)",
        "time of a batch in a worker; batches ready in the queue",
    ),
    thresholds=(
        Threshold("workers blocked: CPU", f"<= {percent(IDLE_WORKER)} of a core", "proposed"),
        Threshold(
            "and state D, or bytes from storage",
            f">= {percent(BLOCKED_PART)} of samples, or >= {STORAGE_BYTES_PER_S / 1e6:.0f} MB/s",
            "proposed",
        ),
        Threshold(
            "small reads: calls an item", f">= {READS_PER_ITEM:.0f}", "proposed, tried on np.load"
        ),
        Threshold(
            "calls a second for each core used",
            f">= {READS_PER_CORE_S:,.0f}, of <= {SMALL_READ / 1024:.0f} KiB",
            "proposed; np.load of 4 KB files from the page cache makes 73,000",
        ),
        Threshold("queue found empty", f">= {percent(QUEUE_EMPTY)} of polls", "proposed"),
    ),
    mistaken_for=(
        "prep-stall: the workers compute",
        "cold-cache-first-epoch: only until everything was read once",
        "page-cache-thrashing: read anew in every epoch because memory does not hold it",
        "sleeping workers of a full queue: batches are ready then",
        "cpu-oversubscription: ready to run, without a core",
    ),
    mend=(
        "pack small files into large ones read in order",
        "stage the data on a local disk or in /dev/shm (only where bytes come from storage)",
        "more workers where they sleep",
    ),
    test="the same run from a subset that is already in the page cache",
    gain=(
        "ceiling T / (T - E); with more workers that wait for storage T x workers now / workers "
        "then; no forecast where what they sleep for, a lock perhaps, is not known"
    ),
)
RULE = Rule(
    ID,
    309,
    probe="the same run from a cached subset",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
