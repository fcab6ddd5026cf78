"""What the diagnosis says: evidence, places, advice, gain, and the answer for one window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number behind a finding, traceable to a measurement."""

    what: str
    value: float | int | str | None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's code a finding points at."""

    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change; ``setting`` is what ``--set`` would take, when it can be flipped."""

    text: str
    setting: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """What a mend can bring, as a speed-up factor of time per step.

    ``ceiling`` is ``T / (T - E)``; ``expected`` a (low, high) range from a rate model, or None.
    """

    ceiling: float | None
    expected: tuple[float, float] | None
    basis: str
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A named cause with its evidence. ``lost_share`` is the wall share it costs (0..1)."""

    id: str
    summary: str
    severity: Literal["info", "warn", "critical"]
    confidence: Literal["low", "medium", "high"]
    lost_share: float
    refined: str | None = None
    evidence: tuple[Evidence, ...] = ()
    where: tuple[Where, ...] = ()
    where_missing: str | None = None  # why there is no line, when there is none
    advice: tuple[Advice, ...] = ()
    gain: Gain | None = None


@dataclass(frozen=True, slots=True)
class Abstention:
    """A diagnosis that could not be judged, with the signal it lacked, in words.

    ``share`` is the wall share (0..1) that has no name for it; ``None`` where none was measured.
    """

    id: str
    missing: str
    share: float | None = None


def ids_by_reason(items: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Ids of ``(id, reason)`` pairs by their reason, in order: what several lack is told once."""
    ids: dict[str, list[str]] = {}
    for id_, reason in items:
        ids.setdefault(reason, []).append(id_)
    return ids


Status = Literal["verdict", "healthy", "abstained", "too-early", "no-steps"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The engine's answer for one window or a whole run."""

    status: Status
    healthy: bool | None
    verdict: Finding | None = None
    also: tuple[Finding, ...] = ()
    abstained: tuple[Abstention, ...] = ()
    ruled_out: tuple[Abstention, ...] = ()  # id and why, for the evidence view
    note: str = ""  # one sentence for the screen, such as "12 of 20 steps seen"
