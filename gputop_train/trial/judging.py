"""From pairs of legs to what an arm is worth, and whether more legs would say more."""

from __future__ import annotations

from statistics import median

from gputop_train.trial.record import Arm, Compared, LegResult


def judge(arm: Arm, pairs: list[tuple[LegResult, LegResult]]) -> Compared | None:
    """An arm against the baseline; ``None`` before the first pair."""
    if not pairs:
        return None
    ratios = [(a.step_mean_ns or 0) / (b.step_mean_ns or 1) for a, b in pairs]
    return Compared(median(ratios), None, "inconclusive", len(pairs), "")


def is_decided(compared: Compared | None) -> bool:
    """Whether more pairs would only confirm it."""
    return compared is not None and compared.pairs >= 3
