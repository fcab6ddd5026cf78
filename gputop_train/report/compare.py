"""Runs side by side, phase by phase, and where the difference between them came from. Pure.

Runs that were made one after the other are not a trial: a host's speed drifts by up to 1.5x between
minutes, so a small difference between them means nothing. What can be told apart is judged by how
much each run wavered by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gputop_train.model import EXPOSED_LABELS, LABELS
from gputop_train.report import format as fmt
from gputop_train.report.compare_difference import (
    FEW_STEPS,
    OTHER_BATCH,
    Difference,
    Part,
    Unit,
    difference,
)
from gputop_train.report.compare_side import RunSide, Times, readable, side

__all__ = [
    "Comparison",
    "Difference",
    "Part",
    "Phase",
    "Row",
    "RunSide",
    "Times",
    "compare",
    "readable",
    "side",
]


@dataclass(frozen=True, slots=True)
class Phase:
    """One label of host wall time over all runs. ``None`` = not measured there.

    Attributes:
        ms: Milliseconds a step, by run.
        us: Microseconds a sample, by run; ``None`` where nobody counted samples.
        shares: Of the run's mean step (0..1).
    """

    label: str
    ms: tuple[float | None, ...]
    us: tuple[float | None, ...]
    shares: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One number over all runs.

    Attributes:
        key: Of the JSON, such as ``step_median_ms``.
        label: In words.
        unit: ``ms``, ``us``, ``bytes``, ``share``, ``percent``, ``count``, ``per_s`` or ``price``.
        values: By run; ``None`` = not measured there.
    """

    key: str
    label: str
    unit: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two or more runs; the first one is the reference.

    Attributes:
        basis: What times are of: the ``steady`` part of each run, or the ``whole`` of it where a
            run has no store; ``None`` where nothing was measured.
        phases: Labels of which any run spent time.
        exposed: GPU idle time by what it waited for, where any run measured it.
        rows: Everything else, in the order to show it.
        warnings: Sentences on why the runs may not be comparable.
        note: What a comparison of separate runs is not.
    """

    runs: tuple[RunSide, ...]
    basis: Literal["steady", "whole"] | None
    unit: Unit
    phases: tuple[Phase, ...]
    exposed: tuple[Row, ...]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]
    note: str

    def times(self, index: int) -> Times | None:
        """The times of a run on the basis all of them are compared by."""
        return _on(self.runs[index], self.basis)


NOTE = (
    "These runs were made one after the other, and hosts drift: a small difference between them "
    "means nothing. Prove a change with: gputop-train trial"
)


def compare(runs: Sequence[RunSide], *, price_per_hour: float | None = None) -> Comparison:
    """Put runs side by side.

    Args:
        runs: Two or more; the first is the reference.
        price_per_hour: Of all that a run occupies, in any currency.

    Raises:
        ValueError: Fewer than two runs.
    """
    if len(runs) < 2:
        raise ValueError("a comparison needs two runs")
    basis = _basis(runs)
    times = [_on(run, basis) for run in runs]
    unit = _unit(runs, times)
    return Comparison(
        runs=tuple(runs),
        basis=basis,
        unit=unit,
        phases=tuple(p for label in LABELS if (p := _phase(label, times)) is not None),
        exposed=tuple(
            Row(label, fmt.label(label), "ms", values)
            for label in EXPOSED_LABELS
            if any(values := tuple(run.exposed_ms.get(label) for run in runs))
        ),
        rows=tuple(_rows(runs, times, price_per_hour)),
        differences=tuple(difference(i, runs, times, unit, basis) for i in range(1, len(runs))),
        warnings=tuple(_warnings(runs, times, unit, basis)),
        note=NOTE,
    )


def _basis(runs: Sequence[RunSide]) -> Literal["steady", "whole"] | None:
    if all(run.steady is not None for run in runs):
        return "steady"
    return "whole" if any(run.whole is not None for run in runs) else None


def _on(run: RunSide, basis: str | None) -> Times | None:
    return run.steady if basis == "steady" else run.whole if basis == "whole" else None


def _unit(runs: Sequence[RunSide], times: Sequence[Times | None]) -> Unit:
    counts = [t.samples for t in times if t is not None]
    known = [c for c in counts if c]
    if len(known) < len(counts):
        # A report alone tells the time a sample took, but not how many a step had.
        return "sample" if all(run.samples_per_s for run in runs) else "step"
    if not known:
        return "step"
    return "sample" if max(known) - min(known) > OTHER_BATCH * min(known) else "step"


def _phase(label: str, times: Sequence[Times | None]) -> Phase | None:
    ms = tuple(None if t is None else t.phases_ms.get(label) for t in times)
    if not any(ms):
        return None
    return Phase(
        label,
        ms,
        tuple(_per_sample(v, t) for v, t in zip(ms, times, strict=True)),
        tuple(
            None if v is None or t is None else v / t.step_ms
            for v, t in zip(ms, times, strict=True)
        ),
    )


def _per_sample(ms: float | None, times: Times | None) -> float | None:
    if ms is None or times is None or not times.samples:
        return None
    return ms * 1e3 / times.samples


def _rows(runs: Sequence[RunSide], times: Sequence[Times | None], price: float | None) -> list[Row]:
    def row(key: str, label: str, unit: str, of: Callable[[RunSide], float | None]) -> Row:
        return Row(key, label, unit, tuple(of(run) for run in runs))

    rows = [
        row("steps", "steps", "count", lambda r: r.steps),
        Row("step_mean_ms", "step, mean", "ms", tuple(t.step_ms if t else None for t in times)),
        row("step_median_ms", "step, median", "ms", lambda r: r.step_median_ms),
        row("step_p95_ms", "step, p95", "ms", lambda r: r.step_p95_ms),
        Row("batch", "samples a step", "count", tuple(t.samples if t else None for t in times)),
        row("time_per_sample_us", "time a sample", "us", lambda r: r.time_per_sample_us),
        row("samples_per_s", "samples/s", "per_s", lambda r: r.samples_per_s),
        row("gpu_busy", "GPU busy", "share", lambda r: r.gpu_busy),
        row("util_mean", "utilisation", "percent", lambda r: r.util_mean),
        row("syncs", "syncs a step", "count", lambda r: r.syncs),
        row("peak_allocated", "peak allocated", "bytes", lambda r: r.peak_allocated),
        row("peak_reserved", "peak reserved", "bytes", lambda r: r.peak_reserved),
    ]
    if price is not None:
        rows.append(
            row("cost_per_million", "cost a million", "price", lambda r: cost_per_million(r, price))
        )
    return [r for r in rows if any(v is not None for v in r.values)]


def cost_per_million(run: RunSide, price_per_hour: float) -> float | None:
    """What a million samples cost: ``1e6 / samples_per_s`` seconds at the price of an hour."""
    if not run.samples_per_s:
        return None
    return price_per_hour / 3600 * 1e6 / run.samples_per_s


def _warnings(
    runs: Sequence[RunSide], times: Sequence[Times | None], unit: Unit, basis: str | None
) -> list[str]:
    found = []
    for what, of in _SAME.items():
        values = [of(run) for run in runs]
        if len({v for v in values if v}) > 1:
            told = ", ".join(
                f"{r.title}: {v or 'not known'}" for r, v in zip(runs, values, strict=True)
            )
            found.append(f"They differ in {what} ({told}).")
    if any(t is not None and t.samples is None for t in times):
        found.append(
            "Not every run tells its samples a step: times are compared per sample as a whole."
            if unit == "sample"
            else "Samples were not counted in every run: times are compared per step, which "
            "misleads where batch sizes differ."
        )
    elif unit == "sample":
        told = ", ".join(
            f"{r.title}: {t.samples:,.4g}"
            for r, t in zip(runs, times, strict=True)
            if t and t.samples
        )
        found.append(f"They differ in batch size ({told}): times are compared per sample.")
    if basis == "whole":
        found.append(
            "Not every run has its store: times are those of whole runs, warm-up included."
        )
    for run, t in zip(runs, times, strict=True):
        found += _warnings_of(run, t)
    return found


_SAME: Mapping[str, Callable[[RunSide], str]] = {
    "command": lambda r: " ".join(r.command[1:]),
    "host": lambda r: r.host or "",
    "cards": lambda r: ", ".join(r.gpus),
    "torch": lambda r: r.torch or "",
    "Python": lambda r: r.python or "",
}


def _warnings_of(run: RunSide, times: Times | None) -> list[str]:
    found = []
    if times is not None and times.steps < FEW_STEPS:
        found.append(f"{run.title} has {times.steps} measured steps: too short to compare.")
    if run.what_if:
        found.append(
            f"{run.title} is a what-if ({', '.join(run.what_if)}): what it computed means nothing."
        )
    if run.changes_results:
        changed = ", ".join(run.changes_results)
        found.append(f"{run.title} computes something else ({changed} changes results).")
    if run.exit_code not in (0, None):
        found.append(f"{run.title} ended with exit code {run.exit_code}.")
    return found
