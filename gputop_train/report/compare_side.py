"""One run as it is compared with others: what its report says and, where there is one, its store.

The report's shares cover the whole run with its warm-up; the store tells the steady part alone,
which is what two runs can be compared by. Pure but for the reader that is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gputop_train.diagnose import evidence
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import LABELS, Step
from gputop_train.report import settings
from gputop_train.report.schema import SCHEMA
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup

#: A run is cut into so many stretches of equally many steps to see how much it wavers by itself,
#: none of fewer steps than ``STRETCH_STEPS`` (proposed here: a mean of ten steps is one of a block,
#: as in diagnose/steady.py).
STRETCHES, STRETCH_STEPS = 8, 10


@dataclass(frozen=True, slots=True)
class Times:
    """Mean time of a step over some stretch of a run. ``None`` = not measured.

    Attributes:
        steps: Steps it was taken over.
        step_ms: Mean wall time of a step, stalls included.
        phases_ms: Host wall milliseconds a step by label of ``model.LABELS``; adds up to
            ``step_ms``.
        samples: Samples a step.
    """

    steps: int
    step_ms: float
    phases_ms: Mapping[str, float]
    samples: float | None = None


@dataclass(frozen=True, slots=True)
class RunSide:
    """What is known of one run. ``None`` = not measured.

    Attributes:
        title: Its name, else its id.
        gpus: Names (UUIDs where there is no name), in the report's order.
        whole: From the first step to the last one.
        steady: Its steady part, warm-up left out; needs the store.
        stretches_ms: Mean step of equal stretches of the steady part, in order.
        exposed_ms: GPU idle milliseconds a step by label, of the steady part; only what was
            measured.
        samples_per_s: Of the steady part.
        syncs: Blocking reads of CUDA tensors a step; ``None`` where no GPU trained.
        peak_basis: ``cuda-allocator`` or ``rss-anon``; of another basis no ratio is made.
        verdict: In a few words.
        settings: Overrides with what became of them, in words.
        changes_results: Overrides in force after which a seeded run computes something else.
        what_if: What a trial falsified.
    """

    id: str
    title: str
    command: tuple[str, ...] = ()
    started: str | None = None
    host: str | None = None
    torch: str | None = None
    python: str | None = None
    gpus: tuple[str, ...] = ()
    exit_code: int | None = None
    steps: int = 0
    warmup_excluded: int = 0
    step_median_ms: float | None = None
    step_p95_ms: float | None = None
    samples_per_s: float | None = None
    whole: Times | None = None
    steady: Times | None = None
    stretches_ms: tuple[float, ...] = ()
    exposed_ms: Mapping[str, float] = field(default_factory=dict)
    syncs: float | None = None
    gpu_busy: float | None = None
    util_mean: float | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    peak_basis: str = ""
    verdict: str = ""
    settings: tuple[str, ...] = ()
    changes_results: tuple[str, ...] = ()
    what_if: tuple[str, ...] = ()

    @property
    def time_per_sample_us(self) -> float | None:
        """Wall time a sample over the steady part."""
        return 1e6 / self.samples_per_s if self.samples_per_s else None


def side(
    report: Mapping[str, Any], reader: RunReader | None = None, *, title: str | None = None
) -> RunSide:
    """Return a run as a side of a comparison.

    Args:
        report: A report of schema 1; what is absent or of another form counts as not measured.
        reader: The run's store; ``None`` leaves out all that only a store tells.
        title: What to call it; ``None`` = its name as its store has it, else its id.

    Raises:
        StoreError: If the store cannot be read.
    """
    window = None if reader is None else evidence.build(reader, final=True)
    run, steps, memory, gpu = (_mapping(report.get(k)) for k in ("run", "steps", "memory", "gpu"))
    known = _mapping(window.run if window is not None else None)
    id_ = _text(run, "id") or "run"
    # A report of an older release does not say what became of its settings.
    became = _rows(run, "settings") or settings.outcomes(run, ())
    return RunSide(
        id=id_,
        title=title or _text(known, "name") or id_,
        command=_texts(run.get("command")),
        started=_text(run, "started"),
        host=_text(run, "host"),
        torch=_text(run, "torch"),
        python=_text(run, "python"),
        gpus=_texts(_mapping(g).get("name") or _mapping(g).get("uuid") for g in _rows(run, "gpus")),
        exit_code=_whole(run, "exit_code"),
        steps=_whole(steps, "count") or 0,
        warmup_excluded=_whole(steps, "warmup_excluded") or 0,
        step_median_ms=_number(steps, "median_ms"),
        step_p95_ms=_number(steps, "p95_ms"),
        samples_per_s=_number(steps, "samples_per_s"),
        whole=_times(window.whole) if window is not None else _of_report(report),
        steady=None if window is None else _times(window.totals),
        stretches_ms=() if window is None or reader is None else _stretches(window, reader),
        exposed_ms={} if window is None else _exposed(window.totals),
        syncs=None if window is None else _syncs(window),
        gpu_busy=_number(gpu, "busy_share"),
        util_mean=_number(gpu, "util_mean"),
        peak_allocated=_whole(memory, "peak_allocated"),
        peak_reserved=_whole(memory, "peak_reserved"),
        peak_basis=_text(memory, "basis") or "",
        verdict=_verdict(report),
        settings=tuple(settings.words(setting) for setting in became if settings.is_one(setting)),
        changes_results=_texts(run.get("changes_results")),
        what_if=_texts(known.get("what_if")),
    )


def readable(report: object) -> bool:
    """Whether something is a report that can be compared, of whatever release of schema 1."""
    if not isinstance(report, Mapping) or report.get("schema") != SCHEMA:
        return False
    parts = [report.get(key) for key in ("run", "steps", "time", "gpu", "memory")]
    return all(isinstance(part, Mapping) for part in parts)


def _times(totals: Totals) -> Times | None:
    if not totals.steps or totals.wall_ns <= 0:
        return None
    n = totals.steps
    return Times(
        steps=n,
        step_ms=totals.wall_ns / n / 1e6,
        phases_ms={label: totals.labels.get(label, 0) / n / 1e6 for label in LABELS},
        samples=None if totals.samples is None else totals.samples / n,
    )


def _of_report(report: Mapping[str, Any]) -> Times | None:
    """The whole run by its report: shares of the time from the first step to the last."""
    time = _mapping(report.get("time"))
    shares = _mapping(time.get("shares"))
    known = {label: share for label in LABELS if (share := _number(shares, label)) is not None}
    training_s, steps = _number(time, "training_s"), _whole(_mapping(report.get("steps")), "count")
    if not training_s or not steps or not known:
        return None
    step_ms = training_s * 1e3 / steps
    phases = {label: known.get(label, 0.0) * step_ms for label in LABELS}
    return Times(steps=steps, step_ms=step_ms, phases_ms=phases)


def _stretches(window: Window, reader: RunReader) -> tuple[float, ...]:
    """Mean step of equal stretches; of whole seconds where single steps are kept no longer."""
    parts: Sequence[Step | StepRollup] = window.steps
    if len(window.steps) < window.totals.steps:
        parts = reader.step_rollups(window.t0_ns, window.t1_ns, window.rank)
    counts = [part.n if isinstance(part, StepRollup) else 1 for part in parts]
    wanted = min(STRETCHES, sum(counts) // STRETCH_STEPS)
    if wanted < 2:
        return ()
    found: list[float] = []
    ns = steps = seen = 0
    for part, count in zip(parts, counts, strict=True):
        ns, steps, seen = ns + part.wall_ns, steps + count, seen + count
        if seen * wanted >= sum(counts) * (len(found) + 1):
            found.append(ns / steps / 1e6)
            ns = steps = 0
    return tuple(found)


def _exposed(totals: Totals) -> dict[str, float]:
    """GPU idle time a step: its share of the steps that carried events, of the mean step."""
    if not totals.steps:
        return {}
    step_ms = totals.wall_ns / totals.steps / 1e6
    return {
        label: idle / wall * step_ms for label, (idle, wall) in totals.exposed.items() if wall > 0
    }


def _syncs(window: Window) -> float | None:
    on_gpu = window.on_gpu and window.hook("sync")
    return window.totals.syncs / window.totals.steps if on_gpu and window.totals.steps else None


def _verdict(report: Mapping[str, Any]) -> str:
    found = _mapping(report.get("verdict"))
    named = _text(found, "refined") or _text(found, "id")
    return named or (_text(report, "status") or "").replace("-", " ")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(of: Mapping[str, Any], key: str) -> list[Any]:
    value = of.get(key)
    return value if isinstance(value, list) else []


def _text(of: Mapping[str, Any], key: str) -> str | None:
    value = of.get(key)
    return value if isinstance(value, str) and value else None


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str):
        return ()
    return tuple(value for value in values if isinstance(value, str))


def _number(of: Mapping[str, Any], key: str) -> float | None:
    value = of.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def _whole(of: Mapping[str, Any], key: str) -> int | None:
    value = of.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


__all__ = ["RunSide", "Times", "readable", "side"]
