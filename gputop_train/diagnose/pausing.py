"""What an interruption of the training thread costs: idle time, never host time. Pure."""

from __future__ import annotations

from gputop_train.diagnose.accounting import account, lost_share
from gputop_train.diagnose.stats import MIN_ARM, median
from gputop_train.diagnose.window import Window

#: Fewer steps with it than this say nothing of what it costs.
MIN_WITH = 3


def pause_cost(window: Window, label: str) -> tuple[float | None, str]:
    """Wall share (0..1) that an interruption of this label costs, and by what that is known.

    On a CPU its host time. On a GPU, in this order: the idle time between two events around it;
    what the steps with it take longer than the others (median), never more than the interruption
    itself; its host time beyond what the GPU was busy, a lower bound.

    Returns:
        ``(None, signal that is missing)`` where none of these is there.
    """
    host = account(window).shares.get(label, 0.0)
    lost, basis = lost_share(window, label)
    if lost is not None or host <= 0:
        return lost, basis
    longer = _longer(window, label)
    if longer is not None:
        return min(host, longer), "steps with it against the others"
    busy = account(window).busy_most
    if busy is not None and host > busy:
        return host - busy, "host time beyond what the GPU was busy"
    return None, f"GPU idle time during {label} ({basis})"


def _longer(window: Window, label: str) -> float | None:
    """Extra wall time of the steps with it, as a share; ``None`` without steps to compare with."""
    having = [s for s in window.steps if s.labels.get(label, 0) > 0]
    usual = median([float(s.wall_ns) for s in window.steps if s.labels.get(label, 0) <= 0])
    whole = sum(s.wall_ns for s in window.steps)
    if (
        len(having) < MIN_WITH
        or len(window.steps) - len(having) < MIN_ARM
        or not usual
        or not whole
    ):
        return None
    extra = sum(min(max(0.0, s.wall_ns - usual), s.labels.get(label, 0)) for s in having)
    return extra / whole
