"""The search for the batch size: doubling to the memory margin, the knee, the learning rate. Pure.

While the launch overhead fills a step, a larger batch is free; once the kernels do, step time grows
in proportion and only memory is spent. Between lies the knee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputop_train.diagnose.headroom import FILL
from gputop_train.launch.options import Setting
from gputop_train.report.format import milliseconds, size
from gputop_train.trial.record import Arm
from gputop_train.trial.search import Done, Proposal, Tried, frugal, is_better
from gputop_train.trial.stats import NEGLIGIBLE

#: Doublings beyond which a batch is another training: 64 times the batch (proposed).
MOST_DOUBLINGS = 6
#: Step time of a doubled batch below which overhead fills the step (Horace He, *Making Deep
#: Learning Go Brrrr*, and the catalogue's ``launch-bound``: T(2b)/T(b) <= 1.3).
OVERHEAD_RATIO = 1.3
#: How the learning rate is usually carried over.
LEARNING_RATE = (
    "A larger batch is another training: revisit the learning rate and its warm-up. Common "
    "starting points are {times:g}x the rate for SGD (linear scaling, Goyal et al. 2017) and "
    "{root:.3g}x for Adam (square root, Malladi et al. 2022)."
)


@dataclass(frozen=True, slots=True)
class Knee:
    """Where step time starts to grow in proportion to the batch.

    Attributes:
        batch: There half of the step is fixed cost: ``a / c`` of ``step = a + c * batch``;
            ``None`` = outside of what was measured.
        text: In words.
    """

    batch: int | None
    text: str


def knee(points: Sequence[tuple[int, float]]) -> Knee | None:
    """Find the knee of measured step times.

    The elasticity of the step, ``d log(step) / d log(batch)``, is 0 where overhead fills it and 1
    where the batch does. It crosses one half at the knee; between two measured batches it is taken
    as linear in ``log(batch)``.

    Args:
        points: Batch size and mean step in milliseconds, two different sizes at least.
    """
    order = sorted(dict(points).items())
    if len(order) < 2:
        return None
    rungs = []
    for (b0, t0), (b1, t1) in pairwise(order):
        if t0 > 0 and t1 > 0:
            middle = (math.log(b0) + math.log(b1)) / 2
            rungs.append((middle, math.log(t1 / t0) / math.log(b1 / b0)))
    if not rungs:
        return None
    flat = math.log2(OVERHEAD_RATIO)
    if rungs[0][1] >= 0.5:
        return Knee(
            None,
            f"Step time grows with the batch from {order[0][0]} on: launch overhead does not fill "
            "the step at any size measured.",
        )
    for (x0, e0), (x1, e1) in pairwise(rungs):
        if e0 < 0.5 <= e1:
            at = round(math.exp(x0 + (0.5 - e0) / (e1 - e0) * (x1 - x0)))
            text = f"The knee is near a batch of {at}: below it a step costs much the same"
            if rungs[0][1] <= flat:
                text += f", so launch overhead fills it; it ends there, at {_step_near(order, at)}"
            return Knee(at, f"{text}.")
    return Knee(
        None,
        f"Up to a batch of {order[-1][0]} step time grows less than the batch does: fixed cost, "
        "such as launch overhead, still makes most of it.",
    )


def _step_near(order: Sequence[tuple[int, float]], batch: int) -> str:
    """Step time at a batch size, between the measured ones."""
    for (b0, t0), (b1, t1) in pairwise(order):
        if b0 <= batch <= b1:
            return f"about {milliseconds(t0 + (t1 - t0) * (batch - b0) / (b1 - b0))} a step"
    return f"about {milliseconds(order[-1][1])} a step"


@dataclass(frozen=True, slots=True)
class BatchSearch:
    """Double while the time per sample falls by 3% and the next peak keeps 20% of the device free.

    Attributes:
        current: Batch size the script has now, which the baseline measures.
        step_ms: Mean step of the baseline.
        peak_bytes: Its peak of reserved memory; ``None`` on a CPU.
        device_bytes: The device's memory; ``None`` = unknown, then only a failed leg ends it.
        loader: ``FILE:LINE`` of the loader meant; ``None`` = the one that feeds training.
    """

    current: int
    step_ms: float | None = None
    peak_bytes: int | None = None
    device_bytes: int | None = None
    loader: str | None = None

    def arm(self, batch: int) -> Arm:
        """The arm with such a batch."""
        setting = Setting("batch_size", batch, self.loader)
        return Arm(f"{setting.label}={batch}", (setting,))

    def propose(self, history: Sequence[Tried]) -> Proposal:
        """What to try next, given everything tried so far in order."""
        tried = {size_: one for size_, one in _by_batch(history) if size_ != self.current}
        speeds = {b: one.speedup or 0.0 for b, one in tried.items() if one.counts}
        speeds[self.current] = 1.0
        top = max(speeds)
        wanted = 2 * top
        if wanted in tried:
            lost = tried[wanted]
            if len(speeds) == 1 and lost.status == "refused":
                return Done(f"The batch size cannot be changed. {lost.why}".strip())
            return self._done(
                speeds, tried, f"A batch of {wanted} could not be measured. {lost.why}".strip()
            )
        below = [speed for b, speed in speeds.items() if b < top]
        if below and top > self.current and not is_better(speeds[top], max(below)):
            reason = (
                f"At a batch of {top} the time per sample falls by under {NEGLIGIBLE:.0%} more."
            )
            return self._done(speeds, tried, reason)
        if top >= self.current * 2**MOST_DOUBLINGS:
            return self._done(
                speeds, tried, f"A batch of {top} is {2**MOST_DOUBLINGS}x what it was."
            )
        ahead = self.peak_at(wanted, tried)
        if ahead is None or self.device_bytes is None or ahead <= FILL * self.device_bytes:
            return (self.arm(wanted),)
        half = self.current // 2
        if top == self.current and half >= 1 and half not in tried:
            # One point does not tell weights from activations; half the batch does, and is safe.
            return (self.arm(half),)
        reason = (
            f"A batch of {wanted} would take about {size(ahead)} of {size(self.device_bytes)}; "
            f"{1 - FILL:.0%} is kept free for what varies."
        )
        return self._done(speeds, tried, reason)

    def peak_at(self, batch: int, tried: dict[int, Tried]) -> float | None:
        """Peak of a larger batch: the growth per sample of the two largest measured goes on.

        With one size measured all of its peak is taken to grow: never too little.
        """
        peaks = {b: one.peak_bytes for b, one in tried.items() if one.counts and one.peak_bytes}
        if self.peak_bytes:
            peaks[self.current] = self.peak_bytes
        if not peaks:
            return None
        order = sorted(peaks)
        top = order[-1]
        most = float(peaks[top] or 0)
        if len(order) == 1:
            return most * batch / top
        before = order[-2]
        growth = max(0.0, (most - float(peaks[before] or 0)) / (top - before))
        return most + growth * (batch - top)

    def _done(self, speeds: dict[int, float], tried: dict[int, Tried], reason: str) -> Done:
        points = [(b, one.step_ms) for b, one in tried.items() if one.counts and one.step_ms]
        if self.step_ms:
            points.append((self.current, self.step_ms))
        found = knee(points)
        notes = [found.text] if found is not None else []
        best = frugal({b: speed for b, speed in speeds.items() if b >= self.current})
        if best == self.current:
            return Done(f"{reason} The batch of {best}, as it is, is best.", None, tuple(notes))
        times = best / self.current
        notes.append(LEARNING_RATE.format(times=times, root=math.sqrt(times)))
        return Done(
            f"{reason} A batch of {best} is best: {speeds[best]:.2f}x per sample.",
            self.arm(best),
            tuple(notes),
        )


def _by_batch(history: Sequence[Tried]) -> Iterator[tuple[int, Tried]]:
    for one in history:
        for setting in one.arm.settings:
            if setting.key == "batch_size" and isinstance(setting.value, int):
                yield setting.value, one
