"""``slow-collate``: putting the items of a batch together costs more than making them.

Looks for: time in ``collate_fn`` as a part of the whole fetch, counted where batches are made: at
least half (then it outweighs all items together), and enough that without it 80% of the wait would
be gone. Only a ``collate_fn`` of the person's own is named: torch's stacks tensors once already.
Differential: slow items (``prep-stall``), slow hand-over (``loader-ipc-overhead``).
Fix: where the samples of collate_fn show it, one ``np.stack`` and ``from_numpy`` instead of
``torch.tensor`` of a list of arrays (1.97 s against 0.063 s, pytorch #57467; #13918); else less
Python there. Never more workers than there are: each would do the same. The first ones, where cores
are free, by the model of main-process-loading.
Gain: T over the step whose fetch lacks collate_fn; a forecast leaves up to a fifth of it, and is
that of workers, if any, where it is Python code.
"""

from __future__ import annotations

import re

from gputop_train.diagnose.fetching import NOT_TIMED, Fetching
from gputop_train.diagnose.first_workers import FirstWorkers, first_workers
from gputop_train.diagnose.loading_advice import (
    ASKS,
    at,
    bounded,
    ceiling_of,
    loader_at,
    places,
    sampled,
)
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
from gputop_train.diagnose.supply import IN_LOOP, Pace, Supply, pace_of, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding, Gain, Loader, Where

ID = "slow-collate"
#: From half on it costs more than all items together (proposed).
COLLATE_PART = 0.5
#: Of its time, what a stack of arrays may still take: 0.063 of 1.97 s (pytorch #57467) is 3%.
STAYS = 0.2
#: Calls that make one tensor of many arrays, as a line's text shows them.
STACKS = re.compile(
    r"\b(?:default_collate|pad_sequence|from_numpy"
    r"|(?:torch|np|numpy)\.(?:tensor|as_tensor|stack|array|asarray|concatenate))\s*\("
)
#: Most of the samples in it are on such a line (proposed); fewer samples tell nothing.
MOSTLY_STACKS, MIN_SAMPLES = 0.5, 5
#: Below this part of a batch items take next to nothing: they are an index, or a row in memory.
NEXT_TO_NOTHING = 0.05


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether the batches wait for ``collate_fn``."""
    supply = supply_of(window)
    loader, fetch = supply.loader, supply.fetch
    if loader is None:
        return RuledOut(ID, "no DataLoader")
    if supply.in_loop:
        return RuledOut(ID, IN_LOOP)
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
    where = "a worker" if loader.num_workers else "the training process"
    stacks = _stacks(window, loader)
    # A stack mended is a line, and then workers have little left to do.
    python = stacks is False and loader.num_workers == 0
    more = first_workers(window, found, loader) if python else None
    return Refinement(
        ID,
        supply.part * pace.covers(_without(pace, found, loader, fetch.collate, 1.0)),
        f"{code.what} takes {ms(collate_ms)} of the {ms(fetch.batch_ms)} a batch costs {where}.",
        evidence=(
            span("collate_fn, mean", collate_ms),
            span("items of a batch, mean", items_ms),
            number("collate_fn", fetch.collate, "of a batch's time"),
        ),
        where=_lines(window, supply, code),
        advice=_advice(loader, code, fetch, stacks, more),
        gain=_gain(found, loader, fetch, pace, stacks, more),
    )


def _gain(
    found: Finding,
    loader: Loader,
    fetch: Fetching,
    pace: Pace,
    stacks: bool | None,
    more: FirstWorkers | None,
) -> Gain:
    """Of the first advice."""
    if stacks is False:
        if more is not None and more.why_not is None:
            return more.gain
        at_least = found.gain is not None and found.gain.at_least
        basis = "T / (T - E): what its Python code comes down to is not known"
        return Gain(ceiling_of(found), None, basis, at_least)
    items_ms = fetch.batch_ms * (1 - fetch.collate)
    return bounded(
        found,
        pace.speedup(_without(pace, found, loader, fetch.collate, 1 - STAYS)),
        pace.speedup(_without(pace, found, loader, fetch.collate, 1.0)),
        f"a batch of {ms(items_ms)} instead of {ms(fetch.batch_ms)}, at most what training allows",
    )


def _advice(
    loader: Loader, code: Where, fetch: Fetching, stacks: bool | None, more: FirstWorkers | None
) -> tuple[Advice, ...]:
    collate_ms = fetch.batch_ms * fetch.collate
    items_ms = fetch.batch_ms - collate_ms
    cost = f"{ms(collate_ms)} of the {ms(fetch.batch_ms)} of a batch"
    if stacks:
        mend = (
            f"it takes {cost}. np.stack the arrays once and torch.from_numpy the result, instead "
            "of torch.tensor on a list of arrays or a loop over elements."
        )
    elif stacks is None:  # nobody saw its lines: both are possible
        mend = (
            f"its own code takes {cost}. Whole arrays at once instead of a loop over elements, and "
            "one np.stack where it makes a tensor of a list of arrays."
        )
    else:
        mend = (
            f"its own Python code takes {cost}. Vectorise it, whole arrays at once instead of a "
            "loop over elements, or compute what does not change once, before training."
        )
    if loader.num_workers:
        mend += f" num_workers stays {loader.num_workers}: each worker would spend it too."
    elif stacks is not False:
        mend += " num_workers stays 0 until then."
    steps = [Advice(f"Mend {code.what}{at(code)}: {mend}")]
    if more is not None and more.why_not is None:
        steps.insert(0, more.advice())  # a setting is less work than code to rewrite
    elif more is not None:
        steps.append(Advice(f"num_workers stays 0: workers{loader_at(loader)} {more.why_not}."))
    size = loader.batch_size or fetch.items
    if items_ms >= NEXT_TO_NOTHING * fetch.batch_ms:
        each = f"{ms(items_ms / size)} an item" if size else ms(items_ms)
        steps.append(
            Advice(
                f"If it stays above {ms(items_ms)}, move per-item work (padding, conversion, "
                f"tokenising) from {code.what} into __getitem__{at(loader.source)}, where items "
                f"take {each} now."
            )
        )
    return tuple(steps)


def _stacks(window: Window, loader: Loader) -> bool | None:
    """Whether collate_fn mostly makes tensors of lists of arrays; ``None`` = its lines not seen.

    Only the training process is sampled. Items of a range are indices, no arrays.
    """
    if loader.dataset == "range":
        return False
    if loader.num_workers:
        return None
    seen = [
        s
        for s in window.sites
        if s.rank == window.rank and s.kind == "sample" and s.label == "data_wait"
    ]
    met = [s for s in seen if not ASKS.search(s.call)]
    samples = sum(s.count for s in met)
    if samples < MIN_SAMPLES:
        return None
    return sum(s.count for s in met if STACKS.search(s.call)) >= MOSTLY_STACKS * samples


def _lines(window: Window, supply: Supply, code: Where) -> tuple[Where, ...]:
    """The function's line, those in it that the sampler met, and the loader's."""
    first, *rest = places(window, supply, costly=code, costly_first=True)
    inside = () if supply.loader is None or supply.loader.num_workers else sampled(window, limit=2)
    known = {(p.file, p.line) for p in (first, *rest)}
    return (first, *(p for p in inside if (p.file, p.line) not in known), *rest)


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
        "its lines that the stack sampler met, without workers: stacking, or Python",
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
        Threshold(
            "np.stack is advised: samples in it on lines that make tensors of lists",
            f">= {percent(MOSTLY_STACKS)} of {MIN_SAMPLES} or more",
            "proposed",
        ),
    ),
    mistaken_for=(
        "prep-stall: the items are slow, collate_fn is not",
        "main-process-loading: torch's own collate_fn, which workers take along",
        "loader-ipc-overhead: both are fast, handing the batch over is not",
    ),
    mend=(
        "a list of arrays: np.stack once, then torch.from_numpy (pytorch #13918, #57467: 1.97 s "
        "against 0.063 s)",
        "Python code: whole arrays at once; what does not change once, before training",
        "with num_workers=0 workers as for main-process-loading, where cores are free",
        "per-item work in __getitem__, where items cost something",
    ),
    test="call collate_fn on one list of items by hand and time it",
    gain="T / max(T - E, T x (1 - collate's part)), with up to a fifth of it left; "
    "of Python code that of the workers advised, else none",
)
RULE = Rule(
    ID,
    303,
    probe="collate_fn on one list of items, timed by hand",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
