"""Why a step took as long as it did, in words, from its own measurements alone. Pure.

A step is set beside the median of its neighbours, label by label. Interruptions are named in any
step they took a share of; other labels only where the step was slow, or quick, and they made it so.
Where the probe recorded no more than the step's end (docs/wire-format.md, "Unrecorded steps"),
nothing but interruptions is named: these are timed in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gputop_train.model import INTERRUPTION_LABELS, Interval, Site, Step
from gputop_train.report.format import size
from gputop_train.tui.text import count, milliseconds
from gputop_train.tui.views.steps import Reason

#: A step this many times the median, or of it that part, needs a reason.
SLOW = 1.2
#: An interruption of less of the step is not worth naming.
PAUSE_SHARE = 0.03
#: Any other label is named from this share of the step above its own median, and ratio to it.
EXCESS_SHARE, EXCESS_RATIO = 0.1, 1.3
#: From this ratio on a number says more than its multiple.
BIG_RATIO = 100.0


def reasons(
    step: Step,
    usual: Mapping[str, float],
    median_ns: float,
    pauses: Sequence[Interval] = (),
    sites: Mapping[int, Site] | None = None,
    *,
    timed: bool = True,
) -> tuple[Reason, ...]:
    """What set a step apart from the usual one, most costly first.

    Args:
        step: The step.
        usual: Median nanoseconds by label of the steps around it.
        median_ns: Their median wall time.
        pauses: The step's interruptions.
        sites: Places by id, to name the line of a save.
        timed: Whether its phases were recorded.
    """
    wall = step.wall_ns
    if wall <= 0:
        return ()
    slow = median_ns > 0 and wall >= SLOW * median_ns
    quick = median_ns > 0 and wall * SLOW <= median_ns
    found: list[tuple[float, Reason]] = []
    for label, ns in step.labels.items():
        common = usual.get(label, 0.0)
        excess, ms = ns - common, ns / 1e6
        if label in INTERRUPTION_LABELS:
            if ns >= PAUSE_SHARE * wall:
                found.append((ns, Reason(label, ms, _of_pause(label, pauses, sites or {}))))
        elif not timed:
            continue
        elif slow and excess >= EXCESS_SHARE * wall and ns >= EXCESS_RATIO * common:
            found.append((excess, Reason(label, ms, _beside(ns, common))))
        elif quick and -excess >= EXCESS_SHARE * median_ns and ns * EXCESS_RATIO <= common:
            found.append((-excess, Reason(label, ms, f"usually {milliseconds(common / 1e6)}")))
    named = [reason for _, reason in sorted(found, key=lambda one: -one[0])]
    if step.index == 0 and slow:
        named.insert(0, Reason("first step"))
    elif slow and not named:
        named.append(Reason("no part stands out" if timed else "its parts were not timed"))
    return tuple(named)


#: What is timed of an unrecorded step, too.
_ALWAYS_TIMED = ("data_wait", "comm", *INTERRUPTION_LABELS)


def all_recorded(probe: Mapping[str, object] | None) -> bool:
    """Whether the probe recorded the phases of every step, from its newest words."""
    detail = (probe or {}).get("detail")
    if not isinstance(detail, Mapping):
        return True  # a probe that always does
    steps, told = detail.get("steps"), detail.get("recorded")
    return not (isinstance(steps, int) and isinstance(told, int) and told < steps)


def recorded(step: Step) -> bool:
    """Whether a step's own phases were recorded, and not only its end, where not all are.

    A step with GPU events always is. Of an unrecorded one nothing is timed (``measured_ns``) but
    long waits, collectives and interruptions (docs/wire-format.md).
    """
    always = sum(step.labels.get(label, 0) for label in _ALWAYS_TIMED)
    return step.exposed is not None or step.measured_ns > always


def _beside(ns: float, usual_ns: float) -> str:
    if usual_ns <= 0:
        return "usually none"
    if ns >= BIG_RATIO * usual_ns:
        return f"usually {milliseconds(usual_ns / 1e6)}"
    return f"{ns / usual_ns:.1f}x its median"


def _of_pause(label: str, pauses: Sequence[Interval], sites: Mapping[int, Site]) -> str:
    mine = [pause for pause in pauses if pause.label == label]
    words = []
    if len(mine) > 1:
        words.append(f"{count(len(mine))} times")
    written = sum(pause.bytes or 0 for pause in mine)
    if written:
        words.append(size(written))
    places = {site.id: site for pause in mine if (site := sites.get(pause.site_id or 0))}
    if not places and label == "eval":
        # Evaluations carry no place; a run with a single one leaves no doubt.
        known = [site for site in sites.values() if site.kind == "eval"]
        places = {site.id: site for site in known} if len(known) == 1 else {}
    if len(places) == 1:
        (site,) = places.values()
        words.append(f"{PurePath(site.file).name}:{site.line}")
    return ", ".join(words)


def unsampled(probe: Mapping[str, object] | None) -> str:
    """Why a step carries no GPU events, from the probe's newest words."""
    events = (probe or {}).get("gpu_events")
    if not isinstance(events, Mapping):
        return "no GPU events in this run"
    off = events.get("off_reason")
    if off:
        return f"GPU events are off: {off}"
    every = events.get("every")
    if not isinstance(every, int) or every < 1:
        return "no GPU events so far"
    return f"every {ordinal(every)} is" if every > 1 else "most are"


def ordinal(number: int) -> str:
    """``2nd``, ``3rd``, ``47th``."""
    teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
