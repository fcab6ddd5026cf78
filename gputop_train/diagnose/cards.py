"""What the driver tells of the card this run computes on, by the time it was loaded. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise

from gputop_train.diagnose.accounting import account
from gputop_train.diagnose.told import part, whole
from gputop_train.diagnose.window import Window, once
from gputop_train.model import GpuSample

#: A reading is of a loaded card when the driver's utilisation around it is at least this
#: (catalogue 15, proposed).
LOADED = 50.0
#: Around a reading: its second.
AROUND_NS = 1_000_000_000
#: Two readings further apart than this do not tell of the time between them.
LONGEST_GAP_NS = 12_000_000_000
#: Compute capability from which tensor cores take fp32 as TF32, and from which there is GPM.
TF32_FROM, GPM_FROM = (8, 0), (9, 0)
#: A GPM reading tells of all the time since the one before it, so what counts is the time they
#: cover, in more than two (proposed): a busy machine reads every 2 s, a quiet one every 0.5 s.
GPM_READINGS, GPM_SPAN_NS = 3, 3_000_000_000


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured; ``None`` where nothing was."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def gpm_tells(window: Window, counter: str) -> bool:
    """Whether there are enough GPM readings of a counter, by name, to tell of a window."""
    times = [g.t_ns for g in window.gpm if getattr(g, counter) is not None]
    return len(times) >= GPM_READINGS and max(times) - min(times) >= GPM_SPAN_NS


@once
def loaded(window: Window) -> tuple[GpuSample, ...]:
    """Readings taken while the card was loaded; empty where its utilisation is not known."""
    times = [u.t_ns for u in window.util]
    found = []
    for sample in window.gpu:
        low = bisect_left(times, sample.t_ns - AROUND_NS)
        high = bisect_right(times, sample.t_ns + AROUND_NS)
        around = mean(u.util for u in window.util[low:high])
        if around is not None and around >= LOADED:
            found.append(sample)
    return tuple(found)


def span_s(samples: Iterable[GpuSample]) -> float:
    """Seconds that a row of readings tells of."""
    gaps = [b.t_ns - a.t_ns for a, b in pairwise(samples)]
    return sum(gap for gap in gaps if 0 < gap <= LONGEST_GAP_NS) / 1e9


def capability(window: Window) -> tuple[int, int] | None:
    """Compute capability of the card; where only GPM answers, what that takes at least."""
    told = part(window.probe, "cuda").get("capability")
    if isinstance(told, (list, tuple)) and len(told) == 2 and all(isinstance(n, int) for n in told):
        return int(told[0]), int(told[1])
    return GPM_FROM if window.gpm else None


def limit_bytes(window: Window) -> float | None:
    """Memory of the card."""
    totals = [g.memory_total for g in window.gpu if g.memory_total]
    total = totals[-1] if totals else whole(window.probe.get("cuda"), "total")
    return float(total) if total else None


def waits(window: Window) -> tuple[float, str] | None:
    """The largest share of GPU idle time with a cause, and its label."""
    known = [
        (share, label)
        for label, share in account(window).exposed.items()
        if share is not None and label != "unattributed"
    ]
    return max(known, default=None)
