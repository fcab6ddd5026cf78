"""``page-cache-thrashing``: the data does not fit in memory, so every epoch reads it anew.

Looks for: at least two epochs inside the window; the last of them read >= 60% (proposed; VLDB'21:
85% read anew with 35% cacheable) of what the first read from storage; that is >= 256 MB an epoch
(proposed) and more than the memory there is for a cache: available memory, or what the cgroup's
limit leaves. Available memory counts the cache as free (proc_meminfo(5)).
Differential: a first pass (``cold-cache-first-epoch``); data that would fit but is read past the
cache, or computing workers (other causes).
Fix: keep a fixed subset in memory and read the rest in order, smaller data, more memory. Probe: an
epoch of the part that fits. Gain: ceiling only: storage's own rate decides.
"""

from __future__ import annotations

from itertools import pairwise

from gputop_train.diagnose.loading_advice import at, loader_at, places
from gputop_train.diagnose.rules.base import (
    Page,
    Refinement,
    Rule,
    RuledOut,
    Threshold,
    amount,
    gain,
    number,
    percent,
)
from gputop_train.diagnose.rules.cold_cache_first_epoch import storage_rates
from gputop_train.diagnose.supply import BUSY_WORKER, mean, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Finding

ID = "page-cache-thrashing"
#: Of the first epoch's bytes, read again in a later one (proposed, catalogue 5).
REREAD = 0.6
#: Less in an epoch is not worth a cache (proposed).
MIN_EPOCH_BYTES = 256e6


def refine(window: Window, found: Finding) -> Refinement | Abstention | RuledOut:
    """Whether each epoch reads from storage what the one before had read."""
    supply = supply_of(window)
    loader = supply.loader
    if loader is None:
        return RuledOut(ID, "no DataLoader")
    cpu = mean(supply.workers_busy)
    if cpu is not None and cpu >= BUSY_WORKER:
        return RuledOut(ID, "the workers compute all the time")
    rates = storage_rates(window)
    if not rates:
        return Abstention(ID, "bytes read from storage (/proc/PID/io)")
    if loader.epochs < 2:
        return RuledOut(ID, "the data is read for the first time")
    epochs = _bytes_by_epoch(window, loader.epochs, rates)
    if len(epochs) < 2:
        return RuledOut(ID, "fewer than two whole epochs lie in the window")
    first, last = epochs[0], epochs[-1]
    if last < MIN_EPOCH_BYTES or last < REREAD * first:
        return RuledOut(ID, f"the last epoch read {last / 1e6:.3g} MB from storage")
    room = cache_room(window)
    if room is None:
        return Abstention(ID, "memory left for the page cache")
    if max(first, last) <= room:
        return RuledOut(ID, f"an epoch's {last / 1e9:.3g} GB would fit in {room / 1e9:.3g} GB")
    code = at(loader.source) or loader_at(loader)
    fits = room / max(first, last)
    at_least = found.gain is not None and found.gain.at_least
    return Refinement(
        ID,
        supply.part,
        f"Every epoch reads {last / 1e9:.3g} GB from storage again: it does not fit in memory.",
        confidence="high" if supply.fetch is not None else "medium",
        evidence=(
            amount("read from storage in the first epoch seen", first),
            amount("read from storage in the last one", last),
            amount("memory for a cache", room),
            number("of it that would fit", fits, "of an epoch"),
        ),
        where=places(window, supply, costly_first=True),
        advice=(
            Advice(
                f"Keep a fixed {percent(fits)} of the items in memory{code} and read the rest: "
                f"{last / 1e9:.3g} GB an epoch against {room / 1e9:.3g} GB of cache evict each "
                "other in random order. A fixed part is read from storage once only."
            ),
            Advice(
                f"Or shrink an epoch below {room / 1e9:.3g} GB: smaller or compressed copies "
                "(uint8, resized), or shuffle within shards that are read in order."
            ),
            Advice(
                f"If neither can be: {last / 1e9:.3g} GB need that much more memory (or a higher "
                "cgroup limit), or a faster disk for this data set."
            ),
        ),
        gain=gain(
            found.lost_share,
            "T / (T - E); the part that fits saves that part of the reads",
            at_least=at_least,
        ),
    )


def _bytes_by_epoch(window: Window, epochs: int, rates: list[tuple[int, float]]) -> list[float]:
    """Bytes from storage in each whole epoch of the window; epochs are taken to last alike."""
    wall = window.t1_ns - window.t0_ns
    steps = max(1, window.steps_seen)
    inside = epochs * window.totals.steps / steps
    loader = supply_of(window).loader
    if loader is not None and loader.length and loader.batches:
        inside = loader.batches / loader.length * window.totals.steps / steps
    whole = int(inside + 1e-9)
    if whole < 2 or wall <= 0:
        return []
    each = wall / inside
    sums = [0.0] * whole
    for (t0, _), (t1, rate) in pairwise(rates):
        at_epoch = int((t1 - window.t0_ns) / each)
        if 0 <= at_epoch < whole:
            sums[at_epoch] += rate * (t1 - t0) / 1e9
    return sums


def cache_room(window: Window) -> float | None:
    """Bytes of memory there are for a page cache, within the cgroup's limit; ``None`` = unknown."""
    for sample in reversed(window.host):
        bounds = [float(sample.mem_available)] if sample.mem_available is not None else []
        if sample.mem_limit is not None and sample.mem_limit_used is not None:
            bounds.append(float(max(0, sample.mem_limit - sample.mem_limit_used)))
        if bounds:
            return min(bounds)
    return None


PAGE = Page(
    number=5,
    title="The page cache does not hold the data",
    meaning=(
        "An epoch reads more than memory can keep, in random order, so that what one epoch cached "
        "is evicted before the next one comes to it: every epoch is as slow as the first."
    ),
    looks_at=(
        "bytes the run's processes read from storage, by epoch",
        "memory available for a cache, within the cgroup's limit",
        "CPU use of the workers",
    ),
    thresholds=(
        Threshold(
            "read again in the last epoch",
            f">= {percent(REREAD)} of the first",
            "proposed; VLDB'21 (CoorDL): 85% read again with 35% cacheable",
        ),
        Threshold(
            "bytes an epoch",
            f">= {MIN_EPOCH_BYTES / 1e6:.0f} MB, and more than there is for a cache",
            "proposed",
        ),
    ),
    mistaken_for=(
        "cold-cache-first-epoch: only the first epoch reads from storage",
        "fetch-stall: the data would fit, or the workers' calls are what costs",
        "prep-stall: the workers compute all the time",
    ),
    mend=(
        "a fixed subset in memory, the rest read in order (CoorDL's MinIO cache)",
        "smaller data, shuffling within shards",
        "more memory; one cache for jobs that share the data",
    ),
    test="an epoch limited to the part that fits",
    gain="ceiling T / (T - E); F = D / (D x / C + D (1 - x) / S) of DS-Analyzer needs rates alone",
)
RULE = Rule(
    ID,
    308,
    probe="an epoch of the part that fits in memory",
    parent="input-bound",
    refine=refine,
    page=PAGE,
)
