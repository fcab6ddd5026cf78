"""``no_eval``: an evaluation sees one batch of each of its loaders instead of all.

Not none: a script divides by what it counted. Lengths stay what they are.
"""

from __future__ import annotations

from typing import Any

from . import outcomes
from .replay import end_workers

KEY = "no_eval"


def cuts(one: Any, trial: Any, grad: bool) -> bool:
    """Whether this pass is an evaluation that has had its batch.

    Not before training began: a pass that measures the data's mean has no evaluation about it. Nor
    one that a backward followed, nor of a loader that is read without gradients to train.
    """
    if KEY not in trial.asked or not one.yielded or not trial.feeding.backwards:
        return False
    if one.source.trains_without_grad or one.began != trial.feeding.backwards:
        return False
    return not grad or trial.feeding.evaluating()


def cut(iterator: Any, one: Any, trial: Any) -> None:
    """End the pass."""
    trial.feeding.ended(one.source, one.began)
    if not iterator.__dict__.get("_persistent_workers"):
        end_workers(iterator)
    skipped = 0
    if not one.source.iterable:
        try:
            skipped = max(0, len(iterator) - one.yielded)
        except Exception:  # a sampler without a length
            pass
    elif one.source.length is not None:
        skipped = max(0, one.source.length - one.yielded)
    trial.outcomes.tell(
        KEY, one.source.place, outcomes.APPLIED, "each pass is over after one batch", skipped
    )
