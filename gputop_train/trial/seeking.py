"""Begins a search from what the baseline's first leg showed, and tells it what was tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from gputop_train.diagnose.loading_model import rank_cores
from gputop_train.launch.options import WhatIf
from gputop_train.trial.measure import FirstLook
from gputop_train.trial.plan import Search as Kind
from gputop_train.trial.predict import Forecast
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.search import Search, Status, Tried, WorkerSearch
from gputop_train.trial.search_advice import AdviceSearch, advised
from gputop_train.trial.search_batch import BatchSearch
from gputop_train.trial.standing import Candidate

_NO_LOADER = "No DataLoader feeds this script's training, so there is nothing to search."
#: What asks of the loader whether it is guilty, once a report accuses it.
REPLAY = Arm("replay_batch=8", what_if=(WhatIf("replay_batch", 8),))


def begin(
    kind: Kind, first: LegResult, look: FirstLook, forecast: Forecast
) -> tuple[Search | None, str]:
    """A search, or ``None`` and why there can be none.

    Args:
        kind: What is searched.
        first: The baseline's first leg.
        look: What its run showed.
        forecast: For the usable cores.
    """
    report = first.report or {}
    if kind == "suggestions":
        return AdviceSearch(advised(report)), ""
    loader = look.loaders[0] if look.loaders else None
    if loader is None:
        return None, _NO_LOADER
    if kind == "workers":
        cores = rank_cores(forecast.window) if forecast.window is not None else None
        if cores is None:
            return None, "How many cores the run may use was not measured, which bounds the search."
        return WorkerSearch(int(loader["num_workers"]), cores), ""
    batch = loader["batch_size"]
    if not isinstance(batch, int):
        return None, "The loader takes its batches from a sampler: their size cannot be set."
    mean = first.step_mean_ns
    memory = report.get("memory") or {}
    total = memory.get("device_total")
    return BatchSearch(
        batch,
        step_ms=mean / 1e6 if mean is not None else None,
        peak_bytes=first.peak_reserved,
        device_bytes=total if isinstance(total, int) and first.peak_reserved else None,
    ), ""


def accuses_loader(report: Mapping[str, Any] | None) -> bool:
    """Whether a report's verdict is that training waits for its data."""
    return ((report or {}).get("verdict") or {}).get("id") == "input-bound"


def history(candidates: Sequence[Candidate]) -> list[Tried]:
    """What a search is told of the candidates that are over, in order; what-ifs are no change."""
    return [_tried(one) for one in candidates if one.legs and not one.arm.what_if]


def _tried(one: Candidate) -> Tried:
    legs = one.measured
    means = [leg.step_mean_ns for leg in legs if leg.step_mean_ns is not None]
    peaks = [leg.peak_reserved for leg in legs if leg.peak_reserved is not None]
    busy = [leg.cpu_busy for leg in legs if leg.cpu_busy is not None]
    status: Status = "stopped"
    if one.status != "waiting" and one.status != "running":
        status = one.status
    return Tried(
        one.arm,
        one.compared.speedup if one.compared is not None else None,
        status,
        one.why or (one.compared.why if one.compared and one.compared.speedup is None else ""),
        cpu_busy=fmean(busy) if busy else None,
        step_ms=median(means) / 1e6 if means else None,
        peak_bytes=max(peaks, default=None),
    )
