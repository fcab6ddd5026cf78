"""Two modes of torch that stacks give away: compiling again and again, anomaly detection. Pure."""

from __future__ import annotations

from dataclasses import replace

from gputop_train.diagnose.rules import anomaly_mode
from gputop_train.diagnose.rules import recompilation as recompiling
from gputop_train.diagnose.rules.base import WARN, percent
from gputop_train.launch.outside.claims import (
    Judged,
    at_first,
    finding,
    lines_of,
    lost_for_sure,
)
from gputop_train.launch.outside.observed import Observed
from gputop_train.model import Advice, Evidence

#: A first compilation, of forward, backward and an evaluation, touches fewer looks that have steps
#: in them as well (proposed here).
AGAIN = 4
#: Samples of a stack being written down, in so many looks; without anomaly detection are none.
TRACES, TRACED_IN = 5, 3


def recompilation(seen: Observed) -> Judged:
    """Whether compilation goes on while steps are made."""
    if seen.compiled_again < AGAIN:
        return None
    share = seen.shares().get("compile", 0.0)
    lost = lost_for_sure(seen, recompiling.ID, share, WARN, bounded=False)
    if not isinstance(lost, float):
        return lost
    places = lines_of(seen, "compile")
    return finding(
        seen,
        recompiling.ID,
        lost,
        f"torch.compile compiles again and again: {percent(lost)} of the time.",
        [
            Evidence("compilation", share, "of its samples"),
            Evidence("looks of two seconds with compilation and steps", seen.compiled_again),
        ],
        places,
        [
            Advice(
                f"Find what changes from call to call{at_first(places)}, by TORCH_LOGS=recompiles: "
                "shapes (dynamic=True, mark_dynamic, a few padded lengths), or numbers that guards "
                "hold."
            )
        ],
        bounded=False,
    )


def anomaly(seen: Observed) -> Judged:
    """Whether autograd writes down the stack of each of its nodes."""
    share = seen.traced / seen.samples if seen.samples else 0.0
    if seen.traced < TRACES or seen.traced_in < TRACED_IN:
        return None
    found = finding(
        seen,
        anomaly_mode.ID,
        share,
        "Anomaly detection is on: autograd writes down the stack of each operation and looks "
        "through each gradient.",
        [
            Evidence("stacks being written down", share, "of its samples"),
            Evidence("met in", seen.traced_in, f"of {seen.pieces} looks of two seconds"),
        ],
        [],
        [
            Advice(
                "Take torch.autograd.set_detect_anomaly or detect_anomaly out again: what it costs "
                "is more than the stacks, which are all that is seen from outside."
            )
        ],
        sure=False,
    )
    # The stacks are the smaller part of what it costs: no forecast is made of them.
    return replace(found, severity="warn", gain=None)
