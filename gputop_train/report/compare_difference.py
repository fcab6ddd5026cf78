"""Where the difference between two runs came from, and whether there is one at all. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gputop_train.model import LABELS
from gputop_train.report import format as fmt
from gputop_train.report.compare_side import RunSide, Times

Unit = Literal["step", "sample"]

#: A run of fewer steady steps than a verdict needs is too short to compare (diagnose: 20 steps).
FEW_STEPS = 20
#: Batch sizes that differ by more than this make times per sample the ones to compare; a last,
#: smaller batch of an epoch does not (proposed here).
OTHER_BATCH = 0.005
#: Below this two separate runs are not told apart even if neither wavered: the floor below which
#: the diagnosis says nothing of lost time either (catalogue, section 3).
FLOOR = 0.05
#: A part of a difference is worth words from this share of it on.
WORTH = 0.02
#: A difference is given in percent by part only where the parts do not cancel out.
NET = 0.20


@dataclass(frozen=True, slots=True)
class Part:
    """What one label adds to a difference.

    Attributes:
        delta: Milliseconds a step or microseconds a sample; negative = time saved.
        share: Of the whole difference; ``None`` where parts cancel out, so that shares would
            mislead.
    """

    label: str
    delta: float
    share: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One run against the reference.

    Attributes:
        index: Of the run in ``Comparison.runs``.
        unit: What times are per: a ``step``, or a ``sample`` where batch sizes differ.
        before: The reference's mean time: milliseconds a step, microseconds a sample.
        after: This run's.
        speedup: ``before / after``; above 1 = this run is faster. ``None`` = not comparable.
        parts: By size, largest first; they add up to ``after - before``.
        apart: Whether the two can be told apart; ``None`` where that is not known.
        why: One sentence on ``apart``.
        sentence: Where the difference came from, in words.
    """

    index: int
    unit: Unit
    before: float | None
    after: float | None
    speedup: float | None
    parts: tuple[Part, ...]
    apart: bool | None
    why: str
    sentence: str


def difference(
    index: int,
    runs: Sequence[RunSide],
    times: Sequence[Times | None],
    unit: Unit,
    basis: str | None,
) -> Difference:
    """Hold one run against the first.

    Args:
        index: Of the run.
        runs: All runs.
        times: Their times on one basis, in the same order.
        unit: What to compare by.
        basis: ``steady`` or ``whole``.
    """
    reference, this = times[0], times[index]
    if reference is None or this is None:
        lacking = runs[0] if reference is None else runs[index]
        why = f"{lacking.title} has no measured step."
        return Difference(index, unit, None, None, None, (), None, why, why)
    before, after = _in(unit, reference.step_ms, reference), _in(unit, this.step_ms, this)
    parts = _parts(unit, reference, this)
    if unit == "sample" and not (reference.samples and this.samples):
        # Of a report alone, the time its samples took is all there is.
        told = runs[0].time_per_sample_us, runs[index].time_per_sample_us
        before, after, parts = told[0] or before, told[1] or after, ()
    apart, why = _apart(runs[0], runs[index], unit, reference, this, basis)
    return Difference(
        index=index,
        unit=unit,
        before=before,
        after=after,
        speedup=before / after,
        parts=parts,
        apart=apart,
        why=why,
        sentence=_sentence(unit, before, after, parts),
    )


def explain(before: Times, after: Times) -> str:
    """Say where the difference between two means came from, without judging whether there is one.

    Per sample where the samples a step differ and are known on both sides.
    """
    unit: Unit = "step"
    if before.samples and after.samples:
        low, high = sorted((before.samples, after.samples))
        unit = "sample" if high - low > OTHER_BATCH * low else "step"
    parts = _parts(unit, before, after)
    return _sentence(
        unit, _in(unit, before.step_ms, before), _in(unit, after.step_ms, after), parts
    )


def _in(unit: Unit, ms: float, times: Times) -> float:
    """Milliseconds a step, or microseconds a sample of them."""
    return ms if unit == "step" or not times.samples else ms * 1e3 / times.samples


def _parts(unit: Unit, reference: Times, this: Times) -> tuple[Part, ...]:
    deltas = {
        label: _in(unit, this.phases_ms.get(label, 0.0), this)
        - _in(unit, reference.phases_ms.get(label, 0.0), reference)
        for label in LABELS
    }
    net, gross = sum(deltas.values()), sum(abs(d) for d in deltas.values())
    tells = gross > 0 and abs(net) >= NET * gross
    parts = [Part(k, d, d / net if tells else None) for k, d in deltas.items() if d]
    return tuple(sorted(parts, key=lambda part: -abs(part.delta)))


def _apart(
    reference: RunSide,
    run: RunSide,
    unit: Unit,
    before: Times,
    after: Times,
    basis: str | None,
) -> tuple[bool | None, str]:
    """Whether two runs differ by more than either wavered by itself."""
    short = [r for r, t in ((reference, before), (run, after)) if t.steps < FEW_STEPS]
    if short:
        names = " and ".join(r.title for r in short)
        return None, f"{names}: fewer than {FEW_STEPS} measured steps, too few to compare."
    if basis != "steady" or not reference.stretches_ms or not run.stretches_ms:
        return None, "How much the runs wavered by themselves is not known without their stores."
    a = [_in(unit, ms, before) for ms in reference.stretches_ms]
    b = [_in(unit, ms, after) for ms in run.stretches_ms]
    spans = f"{_span(unit, a)} in {reference.title}, {_span(unit, b)} in {run.title}"
    ratio = _in(unit, before.step_ms, before) / _in(unit, after.step_ms, after)
    if min(a) <= max(b) and min(b) <= max(a):
        return False, f"They cannot be told apart: stretches took {spans}."
    if max(ratio, 1 / ratio) - 1 < FLOOR:
        return (
            False,
            f"They cannot be told apart: below {fmt.percent(FLOOR)} a host's drift decides.",
        )
    return True, f"More than either wavered by itself: stretches took {spans}."


def _span(unit: Unit, values: Sequence[float]) -> str:
    return f"{time_of(unit, min(values))} to {time_of(unit, max(values))}"


def time_of(unit: Unit, value: float) -> str:
    """A time per step (given in ms) or per sample (given in us), in words."""
    return fmt.milliseconds(value) if unit == "step" else time_a_sample(value)


def time_a_sample(us: float) -> str:
    """A time per sample: ``0.42 us``, ``8.3 us``, ``268 us``, ``1.32 ms``."""
    if us >= 999.5:
        return fmt.milliseconds(us / 1e3)
    return f"{us:.0f} us" if us >= 99.5 else f"{us:.1f} us" if us >= 0.995 else f"{us:.2f} us"


def _sentence(unit: Unit, before: float, after: float, parts: Sequence[Part]) -> str:
    """``268 ms -> 112 ms a step (2.4x faster): data wait -151 ms (97%), ...``."""
    ratio = before / after
    if abs(ratio - 1) < 0.0005:
        said = "the same"
    elif ratio >= 1:
        said = f"{_factor(ratio)} faster"
    else:
        said = f"{_factor(1 / ratio)} slower"
    head = f"{time_of(unit, before)} -> {time_of(unit, after)} a {unit} ({said})"
    net = abs(after - before)
    worth = [p for p in parts if abs(p.delta) >= WORTH * net and abs(p.delta) >= 0.001 * before]
    if not worth:
        return head
    shown = ", ".join(_part(unit, part) for part in worth[:4])
    left = (after - before) - sum(part.delta for part in worth[:4])
    rest = f", all else {signed(unit, left)}" if abs(left) >= WORTH * net else ""
    return f"{head}: {shown}{rest}"


def _factor(value: float) -> str:
    return f"{value:.2f}x" if value < 1.995 else fmt.factor(value)


def _part(unit: Unit, part: Part) -> str:
    share = "" if part.share is None else f" ({part.share * 100:.0f}%)"
    return f"{fmt.label(part.label)} {signed(unit, part.delta)}{share}"


def signed(unit: Unit, delta: float) -> str:
    """A change of a time, with its sign."""
    return f"{'-' if delta < 0 else '+'}{time_of(unit, abs(delta))}"
