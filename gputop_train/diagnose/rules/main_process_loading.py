"""``main-process-loading``: the training process prepares its batches itself.

Looks for: ``num_workers=0`` in the loaders of 80% of the wait (``input-bound`` found the cost).
Differential: without a wait 0 workers is right (in-memory tensors); waits at epoch starts only are
what begins an epoch; a slow ``collate_fn`` of the person's own is asked before; a loop without a
DataLoader has no workers to set.
Fix: the number of workers that the model of loading_model.py advises, then kept workers, then
cheaper preparation. Probe: num_workers=2. Gain: T / max(T - E, preparation / workers, cores).
"""

from __future__ import annotations

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.first_workers import FirstWorkers, first_workers
from gputop_train.diagnose.loading_advice import ASKS, at, loader_at, places
from gputop_train.diagnose.loading_model import HAS_CORE, WORTH
from gputop_train.diagnose.rules.base import (
    COVERAGE,
    INFO,
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    ms,
    number,
    percent,
    span,
)
from gputop_train.diagnose.supply import IN_LOOP, Supply, feeding, mean, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Loader, Where

ID = "main-process-loading"
#: From here on an item is many small files (proposed, as for fetch-stall).
READS_PER_ITEM = 16.0
#: From here on it is putting a batch together that costs, as for slow-collate (proposed).
MOSTLY_COLLATE = 0.5


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the training process loads for itself."""
    supply = supply_of(window)
    loaders = feeding(window)
    if supply.loader is None:
        return RuledOut(ID, "no DataLoader feeds this loop: there are no workers to set")
    alone = [ld for ld in loaders if ld.num_workers == 0]
    if not alone:
        return RuledOut(ID, "worker processes load")
    if supply.in_loop:
        return RuledOut(ID, IN_LOOP)
    if supply.waits.at_epoch_starts:
        return RuledOut(ID, "a batch is prepared quickly, what begins an epoch is slow")
    wait = sum(ld.wait_ns for ld in loaders)
    covers = sum(ld.wait_ns for ld in alone) / wait if wait else len(alone) / len(loaders)
    more = first_workers(window, found, alone[0])
    advised = more is None or more.why_not is None
    where = places(window, supply, costly_first=not advised)
    return Refinement(
        ID,
        covers,
        "The training process prepares every batch itself (num_workers=0).",
        evidence=_evidence(window, supply),
        where=where,
        advice=_advice(window, alone[0], more, where),
        gain=more.gain if more is not None and advised else None,
    )


def _evidence(window: Window, supply: Supply) -> tuple[Evidence, ...]:
    fetch = supply.fetch
    if fetch is None:
        return ()
    per_item = _reads_an_item(window, supply)
    return (
        *((number("read calls an item", per_item),) if (per_item or 0.0) >= 1 else ()),
        span("a batch, made in the training process, mean of the run", fetch.batch_ms),
        number("collate_fn", fetch.collate, "of a batch's time"),
    )


def _reads_an_item(window: Window, supply: Supply) -> float | None:
    """Read calls of the training process an item; ``None`` where not counted."""
    calls = mean(p.reads_per_s for p in window.procs if p.role == "trainer")
    items = supply.fetch.items if supply.fetch is not None else None
    step_ms = account(window).step_ms
    if calls is None or not items or not step_ms:
        return None
    return calls * step_ms / 1e3 / (items * supply.batches_per_step)


def _advice(
    window: Window, loader: Loader, more: FirstWorkers | None, where: tuple[Where, ...]
) -> tuple[Advice, ...]:
    line = loader_at(loader)
    if loader.iterable:
        return (
            Advice(
                f"The loader prepares every batch in the training process{line}. Its dataset is an "
                f"IterableDataset: split it by torch.utils.data.get_worker_info() first"
                f"{at(loader.source)}, or every worker repeats all of the data; then set "
                "num_workers."
            ),
        )
    if more is None:
        return (
            Advice(
                f"Load in worker processes{line}: num_workers 0 -> 2, then double it while the "
                "time per sample falls by 3% or more."
            ),
        )
    code = next(
        (p for p in where if (p.file, p.line) != _key(loader) and not ASKS.search(p.what)), None
    )
    reads = _reads_an_item(window, supply_of(window)) or 0.0
    how = (
        f"one file an item instead of {reads:.0f} read calls"
        if reads >= READS_PER_ITEM
        else "vectorise it, or do the fixed part once, offline"
    )
    cheaper = f"Make preparation cheaper{at(code)}: {how}"
    fetch = supply_of(window).fetch
    if loader.collate is None and fetch is not None and fetch.collate >= MOSTLY_COLLATE:
        cheaper = (
            f"Return one array or tensor a field{at(loader.source)}, not lists of numbers: the "
            f"default collate_fn takes {percent(fetch.collate)} of a batch's time"
        )
    if more.why_not is not None:
        return _no_room(window, more, cheaper)
    steps = [more.advice()]
    if loader.epochs > 1:
        steps.append(
            Advice(
                f"Keep the workers between epochs ({loader.epochs} seen): "
                f"persistent_workers=True{line}.",
                {"num_workers": more.plan.workers, "persistent_workers": True},
            )
        )
    still = f"If a batch still takes {ms(more.model.prepare_ms)}"
    steps.append(Advice(f"{still}: {cheaper[0].lower()}{cheaper[1:]}."))
    return tuple(steps)


def _no_room(window: Window, more: FirstWorkers, cheaper: str) -> tuple[Advice, ...]:
    host = window.host[-1] if window.host else None
    total = host.cpus_total if host is not None else None
    line, cores = loader_at(more.loader), more.model.cores
    steps = [Advice(f"{cheaper}. Workers{line} {more.why_not}.")]
    if total is not None and total >= 2 * cores and more.plan.high < 1 + WORTH:
        steps.insert(
            0,
            Advice(
                f"Widen the CPU mask or quota: {cores:.3g} of {total} cores may be used; "
                f"then set num_workers{line} from 0 to 2 and double it while it helps."
            ),
        )
    return tuple(steps)


def _key(loader: Loader) -> tuple[str, int]:
    return loader.file, loader.line


PAGE = Page(
    number=2,
    title="Loading in the training process",
    meaning=(
        "The DataLoader has no worker processes (num_workers=0, the default), so the training "
        "thread prepares each batch itself and the device waits meanwhile. One core is busy, the "
        "others idle."
    ),
    looks_at=(
        "num_workers of the loaders that feed training, and the wait for each",
        "the training thread's lines while it waits, by the sampler",
        "time of a batch, items apart from collate_fn",
        "cores the run may use, and what others take of them",
    ),
    thresholds=(
        Threshold("lost to data wait", f">= {percent(INFO)} of wall", "as for input-bound"),
        Threshold(
            "part of the wait in loaders without workers",
            f">= {percent(COVERAGE)}",
            "TraceML, issue 238 (cause coverage)",
        ),
        Threshold(
            "another worker is worth it",
            f"while the step shortens by {percent(WORTH)} or more",
            "proposed",
        ),
        Threshold(
            "no worker is advised: cores left idle beside other programs, or the lower end of what "
            "it is expected to bring where the CPU trains",
            f"< {HAS_CORE}, or <= {1 + WORTH:.2f}x",
            "proposed; 0.67 to 0.9 times as fast, measured, where 1.0 to 1.2 was expected",
        ),
    ),
    mistaken_for=(
        "in-memory data, where 0 workers is fastest: there is no wait then",
        "what begins an epoch: the waits lie an epoch apart",
        "slow-collate: a collate_fn of the person's own costs it",
        "preparation in the loop, once next() has returned: input-bound names its line",
        "a loop without a DataLoader: the function that makes the batch is named instead",
    ),
    mend=(
        "num_workers as many as keep up, at most the cores that are free",
        "persistent_workers=True where there are several epochs",
        "cheaper preparation",
    ),
    test="the same run with num_workers=2",
    gain="T / max(T - E, preparation / (workers x efficiency), CPU time / cores)",
)
RULE = Rule(
    ID,
    306,
    probe="the same run with num_workers=2",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
