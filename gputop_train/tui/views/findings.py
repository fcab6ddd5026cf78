"""What the findings page shows: what was claimed when, on what grounds, and what was ruled out."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_train.model import Diagnosis


@dataclass(frozen=True, slots=True)
class Claim:
    """A stretch of time in which one diagnosis stood; numbers may have changed within it.

    Attributes:
        begin_s: Since the run's start.
        end_s: When another replaced it; ``None`` = it stands, or stood when the run ended.
        coarse: Whether begin and end are known to the minute only.
        status: As in `Diagnosis`.
        id: Of the verdict; empty = none.
        refined: Its closer cause; empty = none.
        severity: Of the verdict; empty = none.
        confidence: Of the verdict; empty = none.
        lost: Least and most of the wall time it cost meanwhile (0..1), as far as that is kept.
        diagnosis: As it stood last in this stretch; ``None`` where that is not kept.
    """

    begin_s: float
    end_s: float | None
    coarse: bool
    status: str
    id: str = ""
    refined: str = ""
    severity: str = ""
    confidence: str = ""
    lost: tuple[float, float] | None = None
    diagnosis: Diagnosis | None = None

    @property
    def lost_last(self) -> float | None:
        """Share of wall time the verdict cost as it stood last; ``None`` = not kept."""
        verdict = self.diagnosis.verdict if self.diagnosis is not None else None
        return verdict.lost_share if verdict is not None else None


@dataclass(frozen=True, slots=True)
class Whole:
    """What is said of the whole run.

    Attributes:
        basis: How far it goes, in words.
        lost: Share of wall time (0..1).
        summary: One sentence.
    """

    basis: str
    status: str
    id: str = ""
    refined: str = ""
    severity: str = ""
    confidence: str = ""
    lost: float | None = None
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """GPU idle time behind one label, as shares of wall time; ``None`` = not measured."""

    label: str
    now: float | None
    whole: float | None


@dataclass(frozen=True, slots=True)
class FindingsView:
    """The history of a run's diagnoses.

    Attributes:
        claims: Oldest first, the newest may stand.
        earlier: Older claims that are left out.
        whole: ``None`` while it has not been judged.
        idle: Labels of `model.EXPOSED_LABELS` that were measured, in that order.
        window_s: Length of the window behind ``Idle.now``.
        on_gpu: Whether a GPU is used; without one no idle time is looked for.
        now_s: The moment shown, since the run's start.
        over: Whether the run has ended by then.
    """

    claims: tuple[Claim, ...] = ()
    earlier: int = 0
    whole: Whole | None = None
    idle: tuple[Idle, ...] = ()
    window_s: float = 60.0
    on_gpu: bool = True
    now_s: float = 0.0
    over: bool = False
