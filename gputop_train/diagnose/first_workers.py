"""Workers for a loader that has none: how many, what they bring, or why none. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gputop_train.diagnose.loading_advice import bounded, loader_at
from gputop_train.diagnose.loading_model import (
    WORTH,
    LoadModel,
    WorkerPlan,
    crowded_out,
    load_model,
    plan_workers,
)
from gputop_train.diagnose.rules.base import ms, percent
from gputop_train.diagnose.window import Window
from gputop_train.model import Advice, Finding, Gain, Loader


@dataclass(frozen=True, slots=True)
class FirstWorkers:
    """A number of workers by the model of rates, and whether to advise it.

    Attributes:
        trainer, others: Cores that training and other programs keep busy, of ``model.cores``.
        gain: What that number of workers is expected to bring.
        why_not: Why it is not advised, a sentence's second half; ``None`` where it is.
    """

    loader: Loader
    model: LoadModel
    plan: WorkerPlan
    trainer: float
    others: float
    gain: Gain
    why_not: str | None

    @property
    def needed(self) -> float:
        """Workers that make batches as fast as training takes them."""
        return self.model.prepare_ms / max(self.model.floor_ms, 0.02 * self.model.step_ms)

    def advice(self) -> Advice:
        """In words, with the arithmetic and the setting."""
        model, plan = self.model, self.plan
        back = " If the step stays as long, set it back." if plan.low < 1 else ""
        return Advice(
            f"num_workers 0 -> {plan.workers}{loader_at(self.loader)}: {self._room()}; a batch "
            f"takes {ms(model.prepare_ms)} to prepare and {ms(model.floor_ms)} to train on, so "
            f"{self.needed:.1f} workers keep up{self._why()}.{back}",
            {"num_workers": plan.workers},
        )

    def _room(self) -> str:
        busy = min(self.model.cores, self.trainer + self.others)
        text = f"{self.model.cores:.0f} cores, {busy:.1f} busy"
        return text + (f" ({self.others:.1f} by other programs)" if self.others >= 0.05 else "")

    def _why(self) -> str:
        """Why the number advised is not the number needed."""
        plan, needed = self.plan, self.needed
        if plan.workers + 1 <= needed:
            return f"; beyond {plan.workers} another one brings less than {percent(WORTH)} here"
        return "; a worker is slower than the training process" if plan.workers > needed + 1 else ""


def first_workers(window: Window, found: Finding, loader: Loader) -> FirstWorkers | None:
    """What workers would bring this loader; ``None`` where the usable cores are unknown.

    Also for an IterableDataset: its workers would each read the whole of it.
    """
    model = load_model(window, found.lost_share)
    if model is None or loader.iterable:
        return None
    plan = plan_workers(model)
    trainer = 1.0 if model.trainer_cores is None else model.trainer_cores
    # Of what others keep busy a rank feels its part.
    others = model.foreign_cores * min(1.0, model.cores / (window.cores or model.cores))
    text = f"slowest of trainer, {plan.workers} worker{'s' * (plan.workers > 1)}, cores as measured"
    gain = bounded(found, plan.low, plan.high, text)
    found_workers = FirstWorkers(loader, model, plan, trainer, others, gain, None)
    return replace(found_workers, why_not=_why_not(found_workers, crowded=crowded_out(window)))


def _why_not(found: FirstWorkers, *, crowded: bool) -> str | None:
    model, plan = found.model, found.plan
    cores = f"{model.cores:.3g} core{'s' * (model.cores >= 2)}"
    if plan.high < 1 + WORTH:
        return f"bring nothing on the {cores} this run may use"
    if crowded and model.prepare_cpu >= 1.0:  # one that sleeps needs no core of its own
        return (
            f"would have no core of their own: of {cores} other programs keep {found.others:.1f} "
            f"busy and training {found.trainer:.1f}"
        )
    low, high = found.gain.expected or (1.0, 1.0)
    if model.shared and low <= 1 + WORTH:
        return (
            f"are no sure gain: the cores that would prepare batches are those that train, and "
            f"num_workers={plan.workers} is expected to bring {low:.2f}x to {high:.2f}x"
        )
    return None
