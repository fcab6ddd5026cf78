"""What a change is expected to bring, said before it is tried, from the baseline's first leg.

A setting that an advice names carries the gain of its finding; other numbers of workers come from
the rate models of the diagnosis; a what-if takes the exposed part of what it removes, ``T / (T -
E)``. Where no model speaks, nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train.diagnose import evidence
from gputop_train.diagnose.accounting import lost_share, most_lost
from gputop_train.diagnose.loading_advice import widened
from gputop_train.diagnose.loading_model import (
    MAX_WORKERS,
    WORST_EFFICIENCY,
    load_model,
    rank_cores,
)
from gputop_train.diagnose.supply import pace_at, supply_of
from gputop_train.diagnose.window import Window
from gputop_train.launch import runfile
from gputop_train.launch.runs import store_path
from gputop_train.store.reader import RunReader
from gputop_train.trial.record import Arm, LegResult
from gputop_train.trial.standing import Prediction

#: Settings that change how batches are handed over, not how fast they are made.
_BESIDE_WORKERS = {"persistent_workers", "prefetch_factor"}
#: What-ifs that take one label of host time away.
_REMOVES = {"replay_batch": "data_wait", "skip_checkpoint": "checkpoint", "no_eval": "eval"}
_WORDS = {"data_wait": "data wait", "checkpoint": "saves", "eval": "evaluations"}
#: Passes over the loader within one leg up to which the start of workers is no matter.
_PASSES = 2
#: A what-if never leaves less than this of a step: what is left is not measured well.
_LEAST = 0.005


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the baseline's first leg lets us say of changes.

    Attributes:
        leg: That leg.
        window: Its run as the diagnosis sees it; ``None`` where it cannot be read.
    """

    leg: LegResult
    window: Window | None

    def of(self, arm: Arm) -> Prediction | None:
        """The prediction for an arm; ``None`` where no model speaks."""
        if arm.what_if:
            return self._what_if(arm) if not arm.settings and len(arm.what_if) == 1 else None
        if not arm.settings:
            return None
        asked = {setting.key: setting.value for setting in arm.settings}
        found = _advised(self.leg.report or {}, asked)
        if found is not None and found.interval is not None:
            return found
        workers = asked.get("num_workers")
        if isinstance(workers, int) and set(asked) <= {"num_workers", *_BESIDE_WORKERS}:
            return self._workers(workers) or found
        return found

    def _what_if(self, arm: Arm) -> Prediction | None:
        """``T / (T - E)`` of what the what-if takes away."""
        asked = arm.what_if[0]
        if asked.key == "sync_every":
            share = self._lost("sync") if self.window and self.window.on_gpu else None
            if share is None or not isinstance(asked.value, int):
                return None
            share *= 1 - 1 / max(1, asked.value)
            return Prediction(1 / max(_LEAST, 1 - share), None, "T / (T - E), E of reads left out")
        label = _REMOVES.get(asked.key)
        if label is None:
            return None
        share = self._lost(label) if label == "data_wait" else self._measured(label)
        if share is None:
            return None
        return Prediction(1 / max(_LEAST, 1 - share), None, f"T / (T - E), E of {_WORDS[label]}")

    def _lost(self, label: str) -> float | None:
        """Share of the wall it costs: a GPU's exposed idle time, host time where the CPU trains."""
        return lost_share(self.window, label)[0] if self.window is not None else None

    def _measured(self, label: str) -> float | None:
        """Share of the measured steps' host time."""
        mean, phases = self.leg.step_mean_ns, self.leg.phases_ms
        if not mean or phases is None:
            return None
        return min(1.0, phases.get(label, 0.0) / (mean / 1e6))

    def _workers(self, workers: int) -> Prediction | None:
        window = self.window
        if window is None or workers < 0:
            return None
        lost = self._lost("data_wait")
        supply = supply_of(window)
        loader = supply.loader
        if lost is None or loader is None or loader.iterable or lost >= 1:
            return None
        kept = loader.num_workers > 0 and loader.persistent_workers
        if not kept and max(loader.epochs, supply.built) > _PASSES:
            return None  # each pass would start its workers anew, which no rate tells
        if loader.num_workers == 0:
            return _from_none(window, lost, workers)
        return _from_some(window, lost, loader.num_workers, workers)


def forecast(run_dir: Path, leg: LegResult) -> Forecast:
    """Look at the first leg of the baseline. A store that cannot be read predicts nothing."""
    run = runfile.read_json(run_dir / "run.json") or {}
    window: Window | None = None
    try:
        with RunReader(store_path(run_dir, run)) as reader:
            window = evidence.build(reader, final=True)
    except Exception:  # a prediction is an extra: whatever a store holds, the trial goes on
        window = None
    return Forecast(leg, window)


def _from_none(window: Window, lost: float, workers: int) -> Prediction | None:
    model = load_model(window, lost)
    if model is None or workers == 0 or workers > MAX_WORKERS * 4:
        return None
    ends = [model.step_ms / model.step_with(workers, optimistic=o) for o in (False, True)]
    s = "s" if workers > 1 else ""
    basis = f"slowest of trainer, {workers} worker{s}, cores as measured"
    return _widened(window, lost, ends, basis)


def _from_some(window: Window, lost: float, now: int, workers: int) -> Prediction | None:
    """Workers make a step's batches in ``fetch / workers``; training takes the rest."""
    pace, cores = pace_at(window, lost, supply_of(window)), rank_cores(window)
    if pace.fetch_ms is None or cores is None or workers == 0:
        return None
    usable = max(1.0, min(float(workers), cores))
    best = max(pace.floor_ms, pace.fetch_ms / usable)
    if workers > now:
        grown = now + (usable - now) * WORST_EFFICIENCY if usable > now else float(now)
        worst = max(pace.floor_ms, pace.step_ms * now / grown)
        worst = min(worst, pace.step_ms)
    else:
        worst = max(pace.step_ms, pace.fetch_ms / workers)
    ends = (pace.step_ms / worst, pace.step_ms / max(best, 1e-9))
    basis = (
        f"batches of {pace.fetch_ms:.3g} ms from {workers} workers, training {pace.floor_ms:.3g} ms"
    )
    return _widened(window, lost, ends, basis)


def _widened(
    window: Window, lost: float, ends: tuple[float, float] | list[float], basis: str
) -> Prediction:
    most = most_lost(window, "data_wait", lost)
    allowed, top = (1 / max(_LEAST, 1 - share) for share in (lost, most))
    low, high = widened(min(ends), max(ends), allowed, top)
    return Prediction.between(low, high, basis)


def _advised(report: Mapping[str, Any], asked: Mapping[str, Any]) -> Prediction | None:
    """The gain of the finding whose advice is exactly this change.

    A finding's expected gain is that of its first advice; others have its ceiling in common.
    """
    verdict = report.get("verdict")
    ceiling: Prediction | None = None
    for finding in [*([verdict] if verdict else []), *(report.get("also") or [])]:
        gain = finding.get("gain") or {}
        for place, advice in enumerate(finding.get("advice") or []):
            if advice.get("setting") != dict(asked):
                continue
            basis = str(gain.get("basis") or "")
            expected = gain.get("expected")
            if place == 0 and expected:
                return Prediction.between(float(expected[0]), float(expected[1]), basis)
            top = gain.get("ceiling")
            if ceiling is None and isinstance(top, (int, float)):
                ceiling = Prediction(float(top), None, basis, bool(gain.get("at_least")))
    return ceiling
