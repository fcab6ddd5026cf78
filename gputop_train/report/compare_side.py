"""One run as it is compared with others: what its report says and, where there is one, its store.

The report's shares cover the whole run with its warm-up; the store tells the steady part alone,
which is what two runs can be compared by. Pure but for the reader that is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gputop_train.diagnose import evidence
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import LABELS, Step
from gputop_train.report import settings
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
        report: A valid report of schema 1 (``report/schema.py``).
        reader: The run's store; ``None`` leaves out all that only a store tells.
        title: What to call it; ``None`` = its name as its store has it, else its id.

    Raises:
        StoreError: If the store cannot be read.
    """
    window = None if reader is None else evidence.build(reader, final=True)
    run, steps, memory = report["run"], report["steps"], report["memory"]
    known = _mapping(window.run if window is not None else None)
    name = known.get("name")
    became = run.get("settings") or settings.outcomes(run, ())
    return RunSide(
        id=run["id"],
        title=title or (name if isinstance(name, str) and name else run["id"]),
        command=tuple(run["command"]),
        started=run["started"],
        host=run["host"],
        torch=run["torch"],
        python=run["python"],
        gpus=tuple(gpu["name"] or gpu["uuid"] for gpu in run["gpus"]),
        exit_code=run["exit_code"],
        steps=steps["count"],
        warmup_excluded=steps["warmup_excluded"],
        step_median_ms=steps["median_ms"],
        step_p95_ms=steps["p95_ms"],
        samples_per_s=steps["samples_per_s"],
        whole=_times(window.whole) if window is not None else _of_report(report),
        steady=None if window is None else _times(window.totals),
        stretches_ms=() if window is None or reader is None else _stretches(window, reader),
        exposed_ms={} if window is None else _exposed(window.totals),
        syncs=None if window is None else _syncs(window),
        gpu_busy=report["gpu"]["busy_share"],
        util_mean=report["gpu"]["util_mean"],
        peak_allocated=memory["peak_allocated"],
        peak_reserved=memory["peak_reserved"],
        peak_basis=memory["basis"],
        verdict=_verdict(report),
        settings=tuple(settings.words(setting) for setting in became),
        changes_results=tuple(run["changes_results"]),
        what_if=tuple(str(label) for label in known.get("what_if") or ()),
    )


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
    time, steps = report["time"], report["steps"]["count"]
    shares = time["shares"]
    if time["training_s"] is None or not steps or all(v is None for v in shares.values()):
        return None
    step_ms = time["training_s"] * 1e3 / steps
    return Times(
        steps=steps,
        step_ms=step_ms,
        phases_ms={label: (shares[label] or 0.0) * step_ms for label in LABELS},
    )


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
    found = report["verdict"]
    if found is None:
        return str(report["status"]).replace("-", " ")
    refined = found["refined"]
    return str(refined if refined and refined != found["id"] else found["id"])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


__all__ = ["RunSide", "Times", "side"]
