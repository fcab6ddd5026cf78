"""Every setting that the baseline's report advises: one by one, then together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gputop_train.launch.options import Setting, UsageProblem, parse_setting
from gputop_train.trial.record import Arm
from gputop_train.trial.search import IN_A_ROW, Done, Proposal, Tried, idle_tail, is_better
from gputop_train.trial.stats import NEGLIGIBLE


@dataclass(frozen=True, slots=True)
class AdviceSearch:
    """Each advised change alone, in the report's order, then those that helped as one.

    Attributes:
        arms: What to try alone.
    """

    arms: tuple[Arm, ...]

    def propose(self, history: Sequence[Tried]) -> Proposal:
        """What to try next, given everything tried so far in order."""
        if not self.arms:
            return Done("The report of the script as it is advises no setting that can be tried.")
        tried = {one.arm.name: one for one in history}
        left = next((arm for arm in self.arms if arm.name not in tried), None)
        stopped = idle_tail(history) >= IN_A_ROW
        if left is not None and not stopped:
            return (left,)
        helped = sorted(
            (
                tried[arm.name]
                for arm in self.arms
                if arm.name in tried
                and tried[arm.name].counts
                and is_better(tried[arm.name].speedup or 0.0, 1.0)
            ),
            key=lambda one: -(one.speedup or 0.0),
        )
        reason = (
            f"Three suggestions in a row brought under {NEGLIGIBLE:.0%}; the rest was not tried."
            if left is not None
            else "Every suggestion was tried."
        )
        if not helped:
            return Done(f"{reason} None brought {NEGLIGIBLE:.0%}.")
        best = helped[0]
        both = together(one.arm for one in helped)
        if both is None:
            return Done(_named(reason, best), best.arm)
        if both.name not in tried:
            return (both,)
        joined = tried[both.name]
        if not joined.counts:
            note = f"Together they could not be measured. {joined.why}".strip()
            return Done(_named(reason, best), best.arm, (note,))
        if not is_better(joined.speedup or 0.0, best.speedup or 0.0):
            note = f"Together they bring {joined.speedup:.2f}x: no more than {best.arm.name} alone."
            return Done(_named(reason, best), best.arm, (note,))
        return Done(_named(reason, joined), both)


def _named(reason: str, best: Tried) -> str:
    return f"{reason} {best.arm.name} is best: {best.speedup:.2f}x."


def together(arms: Any) -> Arm | None:
    """One arm of several, best first; of two values of one setting the better's is taken.

    Returns:
        ``None`` where that is no more than the first of them.
    """
    order: list[Arm] = list(arms)
    settings: dict[str, Setting] = {}
    for arm in order:
        if any(
            setting.label in settings and settings[setting.label].value != setting.value
            for setting in arm.settings
        ):
            continue
        settings |= {setting.label: setting for setting in arm.settings}
    if not order or set(settings) == {setting.label for setting in order[0].settings}:
        return None
    return _arm(settings.values())


def advised(report: Mapping[str, Any]) -> tuple[Arm, ...]:
    """The changes that a report's verdict and its other findings advise, each once.

    What the probe cannot set is left out: it is advice for a person.
    """
    arms: dict[str, Arm] = {}
    for setting in _settings(report):
        try:
            parsed = [parse_setting(f"{key}={_typed(value)}") for key, value in setting.items()]
        except UsageProblem:
            continue
        if parsed:
            arm = _arm(parsed)
            arms.setdefault(arm.name, arm)
    return tuple(arms.values())


def _settings(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    verdict = report.get("verdict")
    for finding in [*([verdict] if verdict else []), *(report.get("also") or [])]:
        for advice in finding.get("advice") or []:
            setting = advice.get("setting")
            if isinstance(setting, Mapping):
                yield setting


def _arm(settings: Any) -> Arm:
    chosen = tuple(settings)
    return Arm(", ".join(f"{s.label}={_typed(s.value)}" for s in chosen), chosen)


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
