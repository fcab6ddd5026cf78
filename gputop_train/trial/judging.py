"""From pairs of legs to what an arm is worth, and whether more of them would say more. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_train.trial import stats
from gputop_train.trial.leg_checks import losses_agree
from gputop_train.trial.record import Arm, Compared, LegResult
from gputop_train.trial.standing import changes

Pairs = Sequence[tuple[LegResult, LegResult]]
_NO_SAMPLES = (
    "How many samples a step takes was not counted (no DataLoader feeds it), and steps of other "
    "batch sizes cannot be compared."
)


def judge(
    arm: Arm, pairs: Pairs, *, rounds_fixed: bool = False, same_code: bool = True
) -> Compared | None:
    """An arm against the baseline; ``None`` before the first pair.

    Time per sample where samples were counted, else per step, if steps are of the same size.

    Args:
        arm: What was changed.
        pairs: Measured legs: the baseline's and the arm's beside it.
        rounds_fixed: Nobody may stop early by what is seen.
        same_code: Both sides run the same code, so that losses have to agree unless a setting
            changes results.
    """
    if not pairs:
        return None
    counted = all(leg.samples_per_step for pair in pairs for leg in pair)
    if not counted and any(setting.key == "batch_size" for setting in arm.settings):
        return Compared(None, None, "inconclusive", len(pairs), _NO_SAMPLES)
    return stats.compare(
        [before for before, _ in pairs],
        [after for _, after in pairs],
        by_sample=counted,
        peeked=not rounds_fixed,
        same_losses=same_code and not changes(arm),
    )


def is_decided(compared: Compared | None) -> bool:
    """Whether more pairs would only confirm it."""
    return compared is not None and stats.tight_enough(compared)


def losses(arm: Arm, pairs: Pairs) -> str | None:
    """A sentence where an arm's losses are not what they should be; ``None`` where they are.

    Where the baseline's own legs disagree, or the change is one of results, only a loss that is no
    number any more is told.
    """
    if not pairs:
        return None
    before, after = pairs[0][0], [leg for _, leg in pairs]
    broken = [leg for leg in after if leg.loss_finite is False]
    steady = all(losses_agree(before, other) is None for other, _ in pairs)
    if changes(arm) or not steady:
        after = broken
    return next(filter(None, (losses_agree(before, leg) for leg in after)), None)
