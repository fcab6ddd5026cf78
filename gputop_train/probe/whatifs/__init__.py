"""What-ifs: changes that falsify a run to learn from it. Placed in a leg of a trial alone.

Nothing here is imported where ``config.json`` names no trial. All of it lies below the probe's own
hooks, so that these measure what is left.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from ..state import S, note_error
from . import feeding, losses, outcomes, seed, skip_save

#: Modules whose import matters to a what-if, beside those the probe looks at anyway.
WATCHED = (
    "numpy",
    "transformers.trainer",
    "lightning.pytorch.trainer.trainer",
    "pytorch_lightning.trainer.trainer",
)


class Leg:
    """This process's part in one leg of a trial.

    Attributes:
        asked: What-ifs of this leg, key to value.
        warmup: Optimizer steps before the measured ones.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.asked = {str(row["key"]): row["value"] for row in config.get("what_if") or ()}
        self.warmup = int(config.get("warmup") or 0)
        self.seed = int(config.get("seed") or 0)
        self.outcomes = outcomes.Outcomes(self.asked)
        self.losses = losses.Losses(self.warmup)
        self.feeding = feeding.Feeding()
        self.loaders: Any = None
        self.calls: Any = None  # batches that come from no DataLoader, where they are replayed
        self.reads: Any = None  # once there is a GPU
        self._pid = os.getpid()

    def place(self, torch: Any) -> None:
        """Seed, and hook what this leg's what-ifs need."""
        _each("seed", seed.plant, torch, self.seed)
        _each("losses", self.losses.place, torch)
        listeners = [self.losses.note]
        if "replay_batch" in self.asked:
            from . import calls, streams

            self.calls = calls.Calls(self)
            listeners.append(self.calls.listen)
            _each("streams", streams.place, torch, self.calls)
        _each("backward", feeding.place, torch, self.feeding, listeners)
        if "replay_batch" in self.asked or "no_eval" in self.asked:
            from . import passes

            _each("passes", passes.place, torch, self)
        if "skip_checkpoint" in self.asked:
            _each("skip_checkpoint", skip_save.place, torch, self)
        _watch(WATCHED)

    def on_cuda(self, torch: Any) -> None:
        """CUDA is in use: hook its reads, above the probe's own hooks."""
        if "sync_every" in self.asked and self.reads is None:
            from . import reads

            self.reads = reads.place(torch, self)

    def on_import(self, name: str, module: Any) -> None:
        """A watched module has just been imported."""
        if name == "numpy":
            seed.plant_numpy(module, self.seed)
        elif name == "torchdata.stateful_dataloader.stateful_dataloader":
            if self.loaders is not None:
                from . import passes

                passes.watch_class(module.StatefulDataLoader, self)
        elif "skip_checkpoint" in self.asked:
            skip_save.on_import(name, module)

    def report(self) -> dict[str, Any]:
        """For the snapshot."""
        told = self.losses.report()
        if told["finite"] is False:
            self.outcomes.spoilt = "a loss was NaN or infinite"
        if self.calls is not None:
            self.calls.report()
        self._say_what_was_not_met()
        return {"what_if": self.outcomes.report(), "losses": told}

    def _say_what_was_not_met(self) -> None:
        unmet = self.outcomes.unmet
        if self.calls is not None:
            unmet["replay_batch"] = self.calls.not_met()
        unmet["sync_every"] = (
            self.reads.not_met()
            if self.reads is not None
            else "no GPU was used, so there was no read to leave out"
        )
        unmet["no_eval"] = (
            "an evaluation was seen, but its batches come from no DataLoader"
            if self.feeding.evaluations
            else "no evaluation was seen in this leg"
        )

    def at_exit(self) -> None:
        """The process ends: what the script died of spoils what it showed."""
        self.losses.collect()
        if self.calls is not None:
            self.calls.at_exit()
        error = getattr(sys, "last_value", None)
        if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.outcomes.spoilt = "the script ended with %s" % type(error).__name__

    def after_fork(self) -> None:
        """In a child: what it trains, if it does, is counted afresh."""
        self._pid = os.getpid()
        self.losses = losses.Losses(self.warmup)


def _each(name: str, place: Any, *args: Any) -> None:
    try:
        place(*args)
    except Exception as error:
        note_error("what-if " + name, error)


def _watch(names: tuple[str, ...]) -> None:
    from .. import _watcher

    if _watcher is None:
        return
    for name in names:
        if name not in sys.modules:
            _watcher.pending.add(name)
    if S.trial is not None:
        for name in names[1:]:
            module = sys.modules.get(name)
            if module is not None:
                S.trial.on_import(name, module)


def place(torch: Any) -> None:
    """Make this process part of its leg."""
    S.trial = Leg(S.config["trial"])
    S.trial.place(torch)
