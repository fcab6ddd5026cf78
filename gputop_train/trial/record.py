"""What a trial knows, as frozen records: what was asked, what each leg measured, what it proved.

``trial.json`` in the trial's directory is this, rewritten whole after every change, so that a
screen, a person with ``cat`` and ``trial --json`` read the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from gputop_train.launch.options import Setting, Target, WhatIf

LegStatus = Literal["measured", "failed", "refused", "inconclusive", "stopped"]
Verdict = Literal["faster", "slower", "no difference", "inconclusive"]
#: How what became of a change is told where it is none that was measured.
WAS_REFUSED, HAD_NO_EFFECT = "was refused", "had no effect"


def status_word(status: str, why: str) -> str:
    """A status for a table: what met nothing that it could change was not refused."""
    none = status == "refused" and HAD_NO_EFFECT in why and WAS_REFUSED not in why
    return "no effect" if none else status


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison: what is changed against the script as it is.

    Attributes:
        name: Short and unique within the trial, such as ``baseline`` or ``num_workers=4``.
        settings: Empty with ``what_if`` empty is the baseline.
        cwd: Where it runs, for sides that are other versions of the code; ``None`` = here.
        target: What it runs, for such sides; ``None`` = what the trial runs.
        environ: Variables that differ from the trial's environment, for such sides.
        over: As in ``TrialLeg``: older code laid over the place it belongs to.
    """

    name: str
    settings: tuple[Setting, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    cwd: str | None = None
    target: Target | None = None
    environ: tuple[tuple[str, str], ...] = ()
    over: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LegResult:
    """One run of one arm, after its warm-up was cut off. ``None`` = not measured.

    Attributes:
        arm: Name of the arm.
        status: Only ``measured`` legs count.
        why: One sentence for any other status.
        step_ns: Durations of the measured steps, in order.
        samples_per_step: Mean over the measured steps.
        peak_allocated: Bytes, of the caching allocator; on a CPU ``None``.
        gpu_busy: Share of time (0..1), by the driver.
        cpu_busy: Share (0..1) of the usable cores that was busy.
        first_losses: Of the first warm-up steps, as the script computed them.
        loss_finite: Whether no loss was NaN or infinite.
        applied: Whether every setting and what-if of the arm took effect.
        refused: Why not, in words.
        invariants: What does not drift with the host, such as ``h2d_bytes_per_step``.
        report: The run's report (schema 1 of the report).
        phases_ms: Mean milliseconds of the measured steps by label of host time.
        warmup: Steps that were cut off before the measured ones.
        run: Id of the leg's run, in the trial's ``runs``.
        duration_s: From launch to report.
        note: One sentence about a measured leg that a person should know.
        cut_short: We ended it before its steps were made; ``why`` says what for.
    """

    arm: str
    status: LegStatus
    why: str = ""
    step_ns: tuple[int, ...] = ()
    samples_per_step: float | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    gpu_busy: float | None = None
    first_losses: tuple[float, ...] = ()
    loss_finite: bool | None = None
    applied: bool = True
    refused: str | None = None
    invariants: dict[str, float] | None = None
    report: dict[str, Any] | None = None
    phases_ms: dict[str, float] | None = None
    warmup: int = 0
    run: str | None = None
    duration_s: float | None = None
    note: str = ""
    cpu_busy: float | None = None
    cut_short: bool = False

    @property
    def step_mean_ns(self) -> float | None:
        """Wall time per measured step, stalls included: a median would hide every n-th step's."""
        return sum(self.step_ns) / len(self.step_ns) if self.step_ns else None

    @property
    def time_per_sample_us(self) -> float | None:
        """Wall time per sample; ``None`` where nobody counted samples."""
        mean = self.step_mean_ns
        return mean / self.samples_per_step / 1e3 if mean and self.samples_per_step else None


@dataclass(frozen=True, slots=True)
class Compared:
    """One arm against the baseline, over pairs of legs that ran next to each other.

    Attributes:
        speedup: Baseline's time per sample over the arm's; above 1 is faster.
        interval: Of ``speedup``, 95%.
        pairs: How many pairs it rests on.
        why: One sentence where the verdict is ``inconclusive``.
    """

    speedup: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    pairs: int
    why: str = ""
