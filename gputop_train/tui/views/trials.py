"""What the trials page shows: trials of this script, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.tui.trial_page import TrialState


@dataclass(frozen=True, slots=True)
class TrialSeen:
    """A trial in the list. ``None`` = not measured or not recorded.

    Attributes:
        place: Its directory.
        same_script: Whether it ran the script of the run on the screen.
        changes: What was tried, in the order given.
        best: The change that proved fastest of those that may be kept; empty = none did.
        speedup: Its time per sample against the baseline's.
        predicted: What had been predicted of it, from and to.
        changes_results: Whether a seeded run computes something else with it.
        now: What is going on, while it runs.
        problem: Why it came to nothing, in a sentence.
        sentences: What each change came to.
        stop_hint: When to stop tuning; empty = go on.
    """

    id: str
    place: str
    title: str
    state: TrialState
    started_wall_ns: int | None = None
    same_script: bool = True
    changes: tuple[str, ...] = ()
    best: str = ""
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    predicted: tuple[float, float] | None = None
    changes_results: bool = False
    now: str = ""
    problem: str = ""
    sentences: tuple[str, ...] = ()
    stop_hint: str = ""


@dataclass(frozen=True, slots=True)
class TrialsView:
    """The list, and the clock its times are told by."""

    trials: tuple[TrialSeen, ...]
    now_wall_ns: int
