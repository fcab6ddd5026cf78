"""What to change where a loop waits for its data: in numbers from live values, by the pattern."""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.loading_model import WorkerPlan, role_cores
from gputop_train.diagnose.rules.base import ms, name
from gputop_train.diagnose.supply import IDLE_WORKER, QUEUE_EMPTY, Supply, jobless, ready
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Loader, Where


def loading_advice(
    window: Window,
    refined: str | None,
    supply: Supply,
    plan: WorkerPlan | None,
    places: tuple[Where, ...],
) -> tuple[Advice, ...]:
    """Advice for ``input-bound``, the first line first."""
    line = f" ({name(places[0])})" if places else ""
    loader = supply.loader
    if loader is None:
        return (
            Advice(
                f"Prepare the next batch while this one trains{line}: move it into a Dataset with "
                "a DataLoader and workers, or a background thread with a queue of two batches."
            ),
            Advice("Or do the work once, before training: tokenise, decode or resize and store."),
        )
    if refined == "main-process-loading":
        return _main_process_advice(window, loader, plan, line)
    if refined == "prep-stall":
        return _busy_worker_advice(window, loader, line)
    return _unknown_advice(supply, loader, line)


def _main_process_advice(
    window: Window, loader: Loader, plan: WorkerPlan | None, line: str
) -> tuple[Advice, ...]:
    if loader.iterable:
        return (
            Advice(
                f"The loader prepares every batch in the training process{line}. Its dataset is an "
                "IterableDataset: split it by torch.utils.data.get_worker_info() first, or every "
                "worker repeats all of the data; then set num_workers."
            ),
        )
    acc = account(window)
    wait = ms(acc.ms(acc.shares.get("data_wait", 0.0)))
    rest = ms((acc.step_ms or 0.0) * (1 - acc.shares.get("data_wait", 0.0)))
    if plan is None:
        return (
            Advice(
                f"Load in worker processes{line}: num_workers 0 -> 2, then double it while the "
                "time per sample falls by 3% or more."
            ),
        )
    cores = window.cores or 0.0
    steps = [
        Advice(
            f"num_workers 0 -> {plan.workers}{line}: a batch takes {wait} to prepare and {rest} to "
            f"train on; {plan.workers} of {cores:.0f} usable cores keep up as well as this "
            "machine can.",
            {"num_workers": plan.workers},
        )
    ]
    if loader.epochs > 1:
        steps.append(
            Advice(
                f"Keep the workers between epochs ({loader.epochs} seen): persistent_workers=True.",
                {"persistent_workers": True},
            )
        )
    steps.append(
        Advice("Then make preparation cheaper: vectorise it, or do the fixed part once, offline.")
    )
    return tuple(steps)


def _busy_worker_advice(window: Window, loader: Loader, line: str) -> tuple[Advice, ...]:
    steps: list[Advice] = []
    cores = window.cores
    trainer = role_cores(window, "trainer") or 1.0
    spare = 0 if cores is None else int(cores - loader.num_workers - max(1.0, trainer))
    if spare >= 1:
        acc = account(window)
        share = acc.shares.get("data_wait", 0.0)
        # W workers deliver a batch every T; without the wait one is needed every T - W.
        wanted = max(loader.num_workers + 1, round(loader.num_workers / max(0.05, 1 - share)))
        workers = min(loader.num_workers + spare, wanted)
        steps.append(
            Advice(
                f"num_workers {loader.num_workers} -> {workers}{line}: every worker is busy and "
                f"about {spare} of {cores:.0f} usable cores are idle.",
                {"num_workers": workers},
            )
        )
    steps.append(
        Advice(
            "Make preparation cheaper: faster decoding, vectorised transforms, or augmentation on "
            "the device instead of the workers."
        )
    )
    steps.append(Advice("Or do the fixed part of it once, offline, and load the result."))
    return tuple(steps)


def _unknown_advice(supply: Supply, loader: Loader, line: str) -> tuple[Advice, ...]:
    waits = supply.waits
    if ready(supply):
        return (
            Advice(
                f"Batches were ready{line}, so more workers will not help: what is left is handing "
                "them over. Larger or fewer tensors a batch, or cores that other programs leave."
            ),
        )
    if waits.at_epoch_starts:
        return _epoch_advice(loader, line)
    if loader.num_workers == 0:
        return (Advice(f"Two loaders share the wait{line}: look at each with its own workers."),)
    if waits.in_bursts:
        return (
            Advice(
                f"{waits.heavy} of {waits.steps} steps hold most of the wait{line}, the others "
                "hardly wait: more workers will not help. Look for single slow items."
            ),
        )
    idle = jobless(supply.workers_busy)
    if idle:
        return (
            Advice(
                f"{idle} of {len(supply.workers_busy)} workers have nothing to do{line}: more "
                "workers will not help; give each one a part of the data (shards, worker split)."
            ),
        )
    starved = supply.empty_share is None or supply.empty_share >= QUEUE_EMPTY
    if supply.workers_busy and starved and max(supply.workers_busy) < IDLE_WORKER:
        return (
            Advice(
                f"The workers mostly wait{line}: look at storage. Fewer and larger files, a local "
                "copy, or data kept in memory; more workers only if storage has room."
            ),
        )
    return (
        Advice(
            f"Find out what the workers do{line}: time one dataset[i] and one collate_fn call by "
            "hand before changing num_workers."
        ),
    )


def _epoch_advice(loader: Loader, line: str) -> tuple[Advice, ...]:
    if loader.num_workers and not loader.persistent_workers:
        return (
            Advice(
                f"The waits come at epoch starts{line}, where workers are started anew "
                f"({loader.epochs} epochs seen): persistent_workers=True keeps them. More workers "
                "would make each start longer.",
                {"persistent_workers": True},
            ),
            Advice("Or make epochs longer, and what each worker loads when it starts smaller."),
        )
    return (
        Advice(
            f"The waits come at epoch starts{line}, the steps between hardly wait: do what begins "
            "an epoch once (index, shuffle, open files), or make epochs longer."
        ),
    )
