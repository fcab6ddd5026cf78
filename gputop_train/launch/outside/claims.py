"""How a finding is made of what was seen from outside: what is surely lost, and how sure. Pure."""

from __future__ import annotations

import math
import re

from gputop_train.diagnose.loading_advice import at
from gputop_train.diagnose.rules import checkpoint_stall
from gputop_train.diagnose.rules.base import CRITICAL, WARN, percent
from gputop_train.launch.outside.observed import Observed
from gputop_train.launch.outside.stacks import Place
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Where

#: Ten seconds of stacks for medium confidence (proposed here).
FULL_SAMPLES = 200
#: Lines a finding names.
MAX_PLACES = 3
#: Quantile of the interval a share must lie above its threshold with (95%, one-sided).
_Z = 1.64
_BASIS = "T / (T - E), E by samples of the stack"
_COMMON = "gputop-train train.py"

Judged = Finding | Abstention | None


def lost_for_sure(
    seen: Observed, id_: str, share: float, floor: float, *, bounded: bool = True
) -> float | Abstention | None:
    """Wall share that is lost for sure; ``None`` where too little is, or why it is not known."""
    if lower(share, seen.samples) < floor:
        return None
    if not (seen.on_gpu and bounded):
        return share
    if seen.util is None:
        return Abstention(
            id_, f"{percent(share)} of the host's time; GPU utilisation, to tell what it costs"
        )
    lost = share - seen.util
    if lost < floor:
        return Abstention(
            id_,
            f"{percent(share)} of the host's time, but the GPU is busy for {percent(seen.util)} "
            "and may be meanwhile",
        )
    return lost


def lower(share: float, n: int) -> float:
    """Lower end of the Wilson interval of a share of ``n`` samples (Wilson 1927)."""
    z2 = _Z * _Z
    middle = share + z2 / (2 * n)
    spread = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (middle - spread) / (1 + z2 / n)


def at_least(seen: Observed, lost: float, *, bounded: bool = True) -> str:
    """A lost share in words."""
    return f"{'at least ' if seen.on_gpu and bounded else ''}{percent(lost)}"


def finding(
    seen: Observed,
    id_: str,
    lost: float,
    summary: str,
    evidence: list[Evidence],
    where: list[Where],
    advice: list[Advice],
    *,
    refined: str | None = None,
    bounded: bool = True,
    sure: bool = True,
) -> Finding:
    """A finding, of medium confidence at most; ``bounded`` by what a GPU may do meanwhile."""
    enough = seen.samples >= FULL_SAMPLES
    if id_ == checkpoint_stall.ID:
        warn, critical = checkpoint_stall.WARN, checkpoint_stall.CRITICAL
    else:
        warn, critical = WARN, CRITICAL
    return Finding(
        id=id_,
        refined=refined,
        summary=summary,
        severity="critical" if lost >= critical and enough else "warn" if lost >= warn else "info",
        confidence="medium" if enough and sure else "low",
        lost_share=lost,
        evidence=(*evidence, Evidence("samples of the training thread", seen.samples)),
        where=tuple(where),
        where_missing=None if where else "no frame of the stacks is the script's own",
        advice=(*advice, Advice(f"For step times and a forecast start it with: {_COMMON}")),
        gain=Gain(1 / max(0.01, 1 - lost), None, _BASIS, at_least=seen.on_gpu and bounded),
    )


def where_of(place: Place) -> Where:
    """A line as a report has it."""
    return Where(place.file, place.line, re.sub(r"\s+", " ", place.text))


def lines_of(seen: Observed, label: str) -> list[Where]:
    """The lines where most of a label was met."""
    return [where_of(place) for _, place, _ in seen.lines(label)][:MAX_PLACES]


def at_first(places: list[Where]) -> str:
    """`` (train.py:41)`` of the first of them, or nothing."""
    return at(places[0] if places else None)
