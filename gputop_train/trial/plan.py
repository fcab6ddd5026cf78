"""What a trial was asked to do, and how many steps its legs need. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gputop_train.launch.options import Target, UsageProblem, parse_setting, parse_what_if
from gputop_train.trial.measure import MIN_STEPS
from gputop_train.trial.record import Arm

BASELINE = Arm("baseline")
Search = Literal["workers", "batch", "suggestions"]

#: Steps of a leg that count, and that are cut off before them: the first ones choose cuDNN
#: algorithms, compile, and fill the allocator. Warm-up also takes half a second of training.
STEPS, WARMUP, WARMUP_S = 60, 10, 0.5
#: What a leg measures at least, however short its steps are: about what its start takes anyway;
#: below a second or two one hiccup of the host is percents of a leg (proposed).
MEASURE_S = 4.0
#: Steps a leg may grow to for that.
MOST_STEPS = 20_000
#: Batches beyond those kept that pass before ``replay_batch`` begins: two backwards show which
#: source feeds training, one batch is read ahead by some loops, one is the first replayed.
PROVES = 4
#: torch's own number of batches a worker makes ahead where none is given
#: (https://pytorch.org/docs/stable/data.html).
PREFETCH_FACTOR = 2

#: Settings of one candidate are separated by commas; a path in one may hold commas as well.
_NEXT_SETTING = re.compile(r",(?=[A-Za-z_]\w*(?:@[^=]*)?=)")


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for.

    Attributes:
        target: The script and its arguments.
        arms: The candidates, in the order given; empty with ``search``.
        baseline: What they are compared with: the script as it is.
        search: What proposes candidates where none was given.
        steps: Measured steps of a leg; ``None`` = ``STEPS``, more where they are short.
        warmup: Steps cut off before them; ``None`` = as many as the loader's queue needs.
        rounds: Pairs of legs for each candidate; ``None`` = until the interval is tight.
        max_minutes: No leg begins that would end after it.
        guard: ``auto`` takes the overlay where the kernel allows it.
        seed: Given to every generator of every leg before the script sets its own.
        burst: Whether legs may trace three steps by themselves.
        same_code: The arms run the baseline's code, so that their losses should agree with its.
    """

    target: Target
    arms: tuple[Arm, ...] = ()
    baseline: Arm = BASELINE
    search: Search | None = None
    steps: int | None = None
    warmup: int | None = None
    rounds: int | None = None
    max_minutes: float = 10.0
    guard: Literal["auto", "overlay", "refuse"] = "auto"
    seed: int = 0
    python: str | None = None
    run_root: str | None = None
    name: str | None = None
    price_per_hour: float | None = None
    burst: bool = False
    same_code: bool = True


@dataclass(frozen=True, slots=True)
class Extent:
    """How long legs are.

    Attributes:
        why: Sentences on what it was set by, where it is not what was asked for.
        remeasure: The first leg was too short to count.
        bounded: The script makes no more steps than these.
    """

    warmup: int
    steps: int
    why: tuple[str, ...] = ()
    remeasure: bool = False
    bounded: bool = False


def script_of(target: Target) -> str:
    """What a person would call what runs: of a command, the script within it."""
    if target.mode != "command":
        return target.name
    return next((word for word in target.arguments if word.endswith(".py")), target.name)


def parse_arms(settings: Iterable[str], what_ifs: Iterable[str]) -> tuple[Arm, ...]:
    """The candidates of ``--set`` and ``--what-if``: each option is one.

    ``--set num_workers=4,pin_memory=true`` is one candidate with both.

    Raises:
        UsageProblem: One makes no sense, or was given twice.
    """
    arms = []
    for text in settings:
        parts = [part.strip() for part in _NEXT_SETTING.split(text)]
        parsed = tuple(parse_setting(part) for part in parts)
        labels = [setting.label for setting in parsed]
        doubled = next((label for label in labels if labels.count(label) > 1), None)
        if doubled is not None:
            raise UsageProblem(
                f"--set {text} sets {doubled} twice. Give each value a --set of its own."
            )
        arms.append(Arm(", ".join(parts), parsed))
    for text in what_ifs:
        what_if = parse_what_if(text)
        arms.append(Arm(what_if.label, what_if=(what_if,)))
    names = [arm.name for arm in arms]
    again = next((name for name in names if names.count(name) > 1), None)
    if again is not None:
        raise UsageProblem(f"{again} was given twice. Give each candidate once.")
    return tuple(arms)


def first_extent(plan: Plan) -> Extent:
    """How long the first leg is, before anything is known of the script."""
    warmup = plan.warmup if plan.warmup is not None else WARMUP
    warmup = max([warmup, *(_replayed(arm) for arm in plan.arms)])
    return Extent(warmup, plan.steps or STEPS)


def extent(
    plan: Plan,
    arms: Sequence[Arm],
    *,
    step_ns: Sequence[int],
    ended_by_itself: bool,
    loaders: Sequence[Mapping[str, Any]],
    batches_per_step: float = 1.0,
) -> Extent:
    """How long legs are, from what the first one showed.

    Args:
        plan: What was asked for.
        arms: The candidates known so far.
        step_ns: All steps of the first leg, from the very first.
        ended_by_itself: It made no more steps than these, because the script ends there.
        loaders: ``num_workers`` and ``prefetch_factor`` of the loaders that feed training.
        batches_per_step: Micro-batches of an optimizer step.
    """
    first, why = first_extent(plan), []
    settled = sorted(step_ns[first.warmup :] or step_ns)
    step_s = sum(settled) / len(settled) / 1e9 if settled else 1.0
    warmup, steps = first.warmup, first.steps
    if plan.warmup is None:
        queue = max((_queue(arm, loaders) for arm in (Arm(""), *arms)), default=0)
        drained = math.ceil(queue / max(1.0, batches_per_step)) + 1 if queue else 0
        warmup = max(warmup, drained, min(500, math.ceil(WARMUP_S / max(step_s, 1e-6))))
        if drained == warmup > first.warmup:
            why.append(f"Warm-up is {warmup} steps: the loader makes {queue} batches ahead.")
    if plan.steps is None and steps * step_s < MEASURE_S:
        steps = min(MOST_STEPS, math.ceil(MEASURE_S / max(step_s, 1e-6)))
        why.append(
            f"Legs measure {steps} steps of {step_s * 1e3:.3g} ms each, to last "
            f"{min(MEASURE_S, steps * step_s):.3g} s."
        )
    if ended_by_itself and len(step_ns) < warmup + steps:
        warmup, steps = _within(len(step_ns), warmup, steps)
        why = [
            f"The script ends after {len(step_ns)} steps: legs measure {steps} of them after "
            f"{warmup} of warm-up."
        ]
    kept = min(steps, len(step_ns) - warmup)
    short = kept < MIN_STEPS or kept < steps / 2
    return Extent(
        warmup,
        steps,
        tuple(why),
        remeasure=short and not ended_by_itself,
        bounded=ended_by_itself,
    )


def warmup_of(
    plan: Plan,
    arm: Arm,
    found: Extent,
    loaders: Sequence[Mapping[str, Any]],
    batches_per_step: float = 1.0,
) -> int:
    """Warm-up of one arm's legs: a search finds arms with more workers than anybody foresaw."""
    if plan.warmup is not None or found.bounded:
        return found.warmup
    queue = _queue(arm, loaders)
    return max(found.warmup, math.ceil(queue / max(1.0, batches_per_step)) + 1 if queue else 0)


def _within(total: int, warmup: int, steps: int) -> tuple[int, int]:
    """Cut a script's few steps into warm-up and measured ones; warm-up gives way first."""
    warmup = min(warmup, max(1, total // 4, total - steps))
    return warmup, max(0, min(steps, total - warmup))


def _queue(arm: Arm, loaders: Sequence[Mapping[str, Any]]) -> int:
    """Batches that stand ready or are being made when an arm's first step begins."""
    asked = {setting.key: setting.value for setting in arm.settings}
    most = 0
    for loader in loaders or ({},):
        workers = _number(asked.get("num_workers"), loader.get("num_workers"), 0)
        prefetch = _number(
            asked.get("prefetch_factor"), loader.get("prefetch_factor"), PREFETCH_FACTOR
        )
        most = max(most, workers * prefetch)
    return most + _replayed(arm)


def _number(*candidates: object) -> int:
    return next((int(c) for c in candidates if isinstance(c, int)), 0)


def _replayed(arm: Arm) -> int:
    """Real batches that are drawn before ``replay_batch`` repeats them, and some more."""
    return max(
        (
            int(w.value) + PROVES
            for w in arm.what_if
            if w.key == "replay_batch" and w.value is not True
        ),
        default=0,
    )


def named(arms: Sequence[Arm], taken: Iterable[str]) -> list[Arm]:
    """Arms with names that no other has: the same settings may be tried a second time."""
    used = set(taken)
    out = []
    for arm in arms:
        name, n = arm.name, 2
        while name in used:
            name, n = f"{arm.name} (again{'' if n == 2 else f', {n - 1}'})", n + 1
        used.add(name)
        out.append(dataclasses.replace(arm, name=name))
    return out
