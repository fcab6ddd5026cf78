"""Loaders and their worker processes as the workers page shows them."""

from __future__ import annotations

from dataclasses import dataclass

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process.

    Attributes:
        number: Its worker id.
        cpu: Cores it used over the last second.
        state: Of the kernel's letters (proc_pid_stat(5)): ``R`` runs, ``S`` sleeps, ``D`` waits for
            storage, ``Z`` is dead; ``None`` = the process was not seen.
        delay: Cores it was ready for and did not get.
        reads_per_s: Bytes a second that came from storage.
        memory: Bytes that it alone holds, as far as they are told apart.
        batches: Batches it has made; ``batch_ms`` is what one took on average.
        history: Cores used, a value per bin.
    """

    number: int
    pid: int | None = None
    cpu: float | None = None
    state: str | None = None
    delay: float | None = None
    reads_per_s: float | None = None
    memory: int | None = None
    batches: int | None = None
    batch_ms: float | None = None
    history: Values = ()


@dataclass(frozen=True, slots=True)
class LoaderPage:
    """One DataLoader.

    Attributes:
        place: ``train.py:41``.
        items: Items of its dataset, where that is known.
        settings: Key and value in words, in the order of a call.
        feeds: Whether a backward followed its batches.
        ready: Batches that stand in its queue, of ``capacity``.
        depth: Batches in the queue, a value per bin.
        made_ms: What one process takes for one batch.
        gives_ms: Time from one batch to the next that its processes can keep up.
        wants_ms: The same of training when it need not wait.
        collate: Part of ``made_ms`` in ``collate_fn``.
        wait_ms: Mean wait of the training thread in ``next()``.
    """

    place: str
    dataset: str
    settings: tuple[tuple[str, str], ...]
    num_workers: int
    feeds: bool = False
    items: int | None = None
    epochs: int = 0
    batches: int = 0
    ready: int | None = None
    capacity: int | None = None
    depth: Values = ()
    made_ms: float | None = None
    gives_ms: float | None = None
    wants_ms: float | None = None
    collate: float | None = None
    wait_ms: float | None = None
    workers: tuple[WorkerView, ...] = ()


@dataclass(frozen=True, slots=True)
class CoresView:
    """Who has the cores. All in cores.

    Attributes:
        each: Percent busy of each CPU.
        allowed: Cores this run may use.
        trainer, main_thread: The training processes, and their main threads of it.
        workers: All loader workers.
        others: Programs that are none of this run.
        denied: What the run's processes were ready for and did not get.
        trainer_history: A value per bin.
    """

    each: tuple[int | None, ...] = ()
    busy: float | None = None
    total: int | None = None
    allowed: float | None = None
    trainer: float | None = None
    main_thread: float | None = None
    workers: float | None = None
    others: float | None = None
    denied: float | None = None
    trainer_history: Values = ()


@dataclass(frozen=True, slots=True)
class WorkersPageView:
    """The page. ``chosen`` is the loader shown in full."""

    loaders: tuple[LoaderPage, ...] = ()
    chosen: int = 0
    cores: CoresView | None = None
