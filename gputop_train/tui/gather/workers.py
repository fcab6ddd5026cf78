"""What the workers page reads. A pure function of the store and the view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from gputop_train.diagnose.fetching import fetching
from gputop_train.model import HostSample, Loader, ProcSample
from gputop_train.store.rollup import LoaderDepth, StepRollup
from gputop_train.tui import series
from gputop_train.tui.build import allowed_cores
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.snapshot import Axis
from gputop_train.tui.views.workers import (
    CoresView,
    LoaderPage,
    Values,
    WorkersPageView,
    WorkerView,
)

NS = 1_000_000_000


def parts(asked: Asked) -> dict[str, Any]:
    """The page's field of the snapshot."""
    return {"workers_page": workers_page(asked)}


def workers_page(asked: Asked) -> WorkersPageView:
    """Every loader of the rank that is shown, one of them with its processes."""
    reader, axis = asked.reader, asked.axis
    now = min(axis.t1_ns, asked.now_ns)
    if asked.over_ns is not None:
        # Workers that have gone say nothing about the training that is over.
        now = max(axis.t0_ns + 1, min(now, asked.over_ns))
    rank = asked.rank if asked.rank is not None else 0
    loaders = [one for one in reader.loaders() if one.rank == rank]
    loaders.sort(key=lambda one: (not one.feeds_training, -one.batches, one.id))
    procs = asked.recent.procs(reader, axis.t0_ns - NS, now)
    depths = reader.loader_depths(axis.t0_ns - NS, now)
    rollups = asked.recent.step_rollups(reader, rank, axis.t0_ns, now)
    hosts = reader.host(now - 30 * NS, now)
    wanted = asked.view.loader
    chosen = wanted if wanted is not None and wanted < len(loaders) else 0
    wants_ms = _wants_ms(rollups)
    return WorkersPageView(
        loaders=tuple(
            _loader(
                one,
                [d for d in depths if d.loader_id == one.id and d.rank == one.rank],
                procs if position == chosen else (),
                wants_ms if one.feeds_training else None,
                axis,
            )
            for position, one in enumerate(loaders)
        ),
        chosen=chosen,
        cores=_cores(hosts[-1] if hosts else None, procs, axis),
    )


def _wants_ms(rollups: Sequence[StepRollup]) -> float | None:
    """How often training would take a batch if it never waited for one."""
    batches = sum(rollup.micro for rollup in rollups)
    busy_ns = sum(
        sum(rollup.labels.values()) - rollup.labels.get("data_wait", 0) for rollup in rollups
    )
    return busy_ns / batches / 1e6 if batches and busy_ns > 0 else None


def _loader(
    loader: Loader,
    depths: Sequence[LoaderDepth],
    procs: Sequence[ProcSample],
    wants_ms: float | None,
    axis: Axis,
) -> LoaderPage:
    found = fetching(loader)
    made_ms = None if found is None else found.usual_ms or found.batch_ms
    capacity = loader.num_workers * (loader.prefetch_factor or 0) or None
    known = [(d.t_ns, float(d.ready)) for d in depths if d.ready is not None]
    return LoaderPage(
        place=f"{PurePath(loader.file).name}:{loader.line}",
        dataset=loader.dataset,
        settings=_settings(loader),
        num_workers=loader.num_workers,
        feeds=loader.feeds_training,
        items=loader.dataset_length,
        epochs=loader.epochs,
        batches=loader.batches,
        ready=depths[-1].ready if depths else loader.ready,
        capacity=capacity,
        depth=_values(known, axis),
        made_ms=made_ms,
        gives_ms=None if made_ms is None or found is None else made_ms / max(1, found.makers),
        wants_ms=wants_ms,
        collate=found.collate if found is not None else None,
        wait_ms=loader.wait_ns / loader.batches / 1e6 if loader.batches else None,
        workers=_workers(loader, procs, axis),
    )


def _settings(loader: Loader) -> tuple[tuple[str, str], ...]:
    def yes(value: bool) -> str:
        return "yes" if value else "no"

    rows = [
        ("num_workers", str(loader.num_workers)),
        ("batch_size", "none" if loader.batch_size is None else str(loader.batch_size)),
        ("pin_memory", yes(loader.pin_memory)),
    ]
    if loader.num_workers:
        rows.append(("persistent_workers", yes(loader.persistent_workers)))
        if loader.prefetch_factor is not None:
            rows.append(("prefetch_factor", str(loader.prefetch_factor)))
        if loader.in_order is False:
            rows.append(("in_order", "no"))
        if loader.context:
            rows.append(("started by", loader.context))
    return tuple(rows)


def _workers(loader: Loader, procs: Sequence[ProcSample], axis: Axis) -> tuple[WorkerView, ...]:
    """One view for each worker of a loader, also for those that were not seen."""
    by_pid: dict[int, list[ProcSample]] = {}
    for sample in procs:
        by_pid.setdefault(sample.pid, []).append(sample)
    last = max((p.t_ns for p in procs), default=0)
    fetch = {row.worker: row for row in loader.fetch}
    out = []
    for number in range(loader.num_workers):
        pid = loader.worker_pids[number] if number < len(loader.worker_pids) else None
        samples = by_pid.get(pid, []) if pid is not None else []
        now = samples[-1] if samples and samples[-1].t_ns == last else None
        row = fetch.get(number)
        out.append(
            WorkerView(
                number=number,
                pid=pid,
                cpu=now.cpu if now else None,
                state=now.state if now else None,
                delay=now.run_delay if now else None,
                reads_per_s=now.read_bytes_per_s if now else None,
                memory=(now.uss if now.uss is not None else now.rss_anon) if now else None,
                batches=row.batches if row is not None else None,
                batch_ms=row.fetch_ns / row.batches / 1e6 if row and row.batches else None,
                history=_values([(p.t_ns, p.cpu) for p in samples if p.cpu is not None], axis),
            )
        )
    return tuple(out)


def _cores(host: HostSample | None, procs: Sequence[ProcSample], axis: Axis) -> CoresView | None:
    last = max((p.t_ns for p in procs), default=None)
    now = [p for p in procs if p.t_ns == last]
    if host is None and not now:
        return None
    trainers = [p for p in now if p.role == "trainer"]
    run = _sum(now, lambda p: p.cpu)
    busy = host.cpu_busy if host else None
    return CoresView(
        each=(host.cores or ()) if host else (),
        busy=busy,
        total=host.cpus_total if host else None,
        allowed=allowed_cores(host),
        trainer=_sum(trainers, lambda p: p.cpu),
        main_thread=_sum(trainers, lambda p: p.main_cpu),
        workers=_sum([p for p in now if p.role == "worker"], lambda p: p.cpu),
        others=max(0.0, busy - run) if busy is not None and run is not None else None,
        denied=_sum(now, lambda p: p.run_delay),
        trainer_history=_trainer_history(procs, axis),
    )


def _sum(
    samples: Sequence[ProcSample], value: Callable[[ProcSample], float | None]
) -> float | None:
    known = [got for sample in samples if (got := value(sample)) is not None]
    return sum(known) if known else None


def _trainer_history(procs: Sequence[ProcSample], axis: Axis) -> Values:
    sums: dict[int, float] = {}
    for p in procs:
        if p.role == "trainer" and p.cpu is not None:
            sums[p.t_ns] = sums.get(p.t_ns, 0.0) + p.cpu
    return _values(sorted(sums.items()), axis)


def _values(readings: Sequence[tuple[int, float]], axis: Axis) -> Values:
    if not readings:
        return ()
    times = [t for t, _ in readings]
    return series.mean_by_bin(series.spans_of(times), times, [v for _, v in readings], axis)
