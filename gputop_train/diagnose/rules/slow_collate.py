"""``slow-collate``: putting the items of a batch together costs more than making them.

Looks for: time in ``collate_fn`` as a part of the whole fetch, counted where batches are made: at
least half (then it outweighs all items together), and enough that without it 80% of the wait would
be gone. Only a ``collate_fn`` of the person's own is named: torch's stacks tensors once already.
Differential: slow items (``prep-stall``), slow hand-over (``loader-ipc-overhead``).
Fix: one ``np.stack`` and ``from_numpy`` instead of ``torch.tensor`` of a list of arrays (1.97 s
against 0.063 s, pytorch #57467; #13918). Never more workers: each would do the same.
Gain: T over the step whose fetch lacks collate_fn; a forecast leaves up to a fifth of it.
"""

from __future__ import annotations

from gputop_train.diagnose.fetching import NOT_TIMED, Fetching
from gputop_train.diagnose.loading_advice import at, bounded, places
from gputop_train.diagnose.rules.base import (
    COVERAGE,
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
from gputop_train.diagnose.supply import Pace, Supply, pace_of, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Loader, Where

ID = "slow-collate"
#: From half on it costs more than all items together (proposed).
COLLATE_PART = 0.5
#: Of its time, what a stack of arrays may still take: 0.063 of 1.97 s (pytorch #57467) is 3%.
STAYS = 0.2


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the batches wait for ``collate_fn``."""
    supply = supply_of(window)
    loader, fetch = supply.loader, supply.fetch
    if loader is None:
        return RuledOut(ID, "no DataLoader")
    if fetch is None:
        return Abstention(ID, NOT_TIMED)
    if fetch.collate < COLLATE_PART:
        return RuledOut(ID, f"collate_fn takes {percent(fetch.collate)} of a batch's time")
    if loader.collate is None:
        return RuledOut(ID, "the batches are put together by torch or a library")
    if supply.waits.at_epoch_starts:
        return RuledOut(ID, "the waits lie at epoch starts only")
    return _named(window, found, supply, loader, loader.collate, fetch)


def _named(
    window: Window, found: Finding, supply: Supply, loader: Loader, code: Where, fetch: Fetching
) -> Refinement:
    pace = pace_of(window, found, supply)
    collate_ms = fetch.batch_ms * fetch.collate
    items_ms = fetch.batch_ms - collate_ms
    size = loader.batch_size or fetch.items
    each = f"{ms(items_ms / size)} an item" if size else ms(items_ms)
    where = "a worker" if loader.num_workers else "the training process"
    if loader.num_workers:
        more = f"num_workers stays {loader.num_workers}: each worker would spend it too."
    else:
        more = "num_workers stays 0 until then: a worker would spend the same."
    first = (
        f"Mend {code.what}{at(code)}: it takes {ms(collate_ms)} of the {ms(fetch.batch_ms)} of a "
        f"batch. np.stack the arrays once and torch.from_numpy the result, instead of torch.tensor "
        f"on a list of arrays or a loop over elements. {more}"
    )
    second = (
        f"If it stays above {ms(items_ms)}, move per-item work (padding, conversion, tokenising) "
        f"from {code.what} into __getitem__{at(loader.source)}, where items take {each} now."
    )
    return Refinement(
        ID,
        supply.part * pace.covers(_without(pace, found, loader, fetch.collate, 1.0)),
        f"{code.what} takes {ms(collate_ms)} of the {ms(fetch.batch_ms)} a batch costs {where}.",
        evidence=(
            span("collate_fn, mean", collate_ms),
            span("items of a batch, mean", items_ms),
            number("collate_fn", fetch.collate, "of a batch's time"),
        ),
        where=places(window, supply, costly=code, costly_first=True),
        advice=(Advice(first), Advice(second)),
        gain=bounded(
            found,
            pace.speedup(_without(pace, found, loader, fetch.collate, 1 - STAYS)),
            pace.speedup(_without(pace, found, loader, fetch.collate, 1.0)),
            f"a batch of {ms(items_ms)} instead of {ms(fetch.batch_ms)}, at most what training "
            "allows",
        ),
    )


def _without(pace: Pace, found: Finding, loader: Loader, collate: float, mended: float) -> float:
    """Milliseconds a step when ``mended`` (0..1) of collate_fn's time is gone."""
    if loader.num_workers:
        return pace.step_ms * (1 - collate * mended)  # the workers' batches set the pace
    lost = pace.step_ms * found.lost_share
    return pace.step_ms - lost * collate * mended


PAGE = Page(
    number=47,
    title="Putting batches together is slow",
    meaning=(
        "The loader's collate_fn costs more than making all items of the batch: typically "
        "torch.tensor of a list of arrays, or Python loops over elements. A look at __getitem__ "
        "alone says that the data is fast."
    ),
    looks_at=(
        "time of each batch where it is made, items apart from collate_fn",
        "whether collate_fn is the person's own, and its line",
    ),
    thresholds=(
        Threshold(
            "collate_fn",
            f">= {percent(COLLATE_PART)} of a batch's time",
            "proposed: from there it costs more than all items together",
        ),
        Threshold(
            "the wait that would be gone without it",
            f">= {percent(COVERAGE)} of it",
            "TraceML, issue 238 (cause coverage)",
        ),
    ),
    mistaken_for=(
        "prep-stall: the items are slow, collate_fn is not",
        "main-process-loading: torch's own collate_fn, which workers take along",
        "loader-ipc-overhead: both are fast, handing the batch over is not",
    ),
    mend=(
        "np.stack once, then torch.from_numpy (pytorch #13918, #57467: 1.97 s against 0.063 s)",
        "per-item work in __getitem__",
    ),
    test="call collate_fn on one list of items by hand and time it",
    gain="T / max(T - E, T x (1 - collate's part)), with up to a fifth of it left",
)
RULE = Rule(
    ID,
    303,
    probe="collate_fn on one list of items, timed by hand",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
