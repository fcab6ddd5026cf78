"""What the steps page shows: the steps of the window one by one, and how their times are spread."""

from __future__ import annotations

from dataclasses import dataclass

#: Label of host time with its milliseconds.
Part = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that set a step apart.

    Attributes:
        what: A label of host time, or words.
        ms: What it took, if it is a label.
        more: What else is known of it: how it compares, bytes, the line. Empty = nothing.
    """

    what: str
    ms: float | None = None
    more: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """An interruption within a step: milliseconds from the step's begin."""

    label: str
    begin_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step.

    Attributes:
        t1_ns: When it ended: what tells it from every other step of the rank.
        number: Which step it was, from 1.
        at_s: When it ended, in seconds since the run began; ``None`` if that is not known.
        wall_ms: Wall time.
        parts: Host time by label in the order of `model.LABELS`, zeros left out.
        recorded: Whether its phases were recorded; else its parts are laid out like those of
            recorded steps, all but the interruptions.
        timed: Share (0..1) of the step whose label was timed.
        why: What set it apart from the usual step, most costly first; empty = nothing did.
        pauses: The longest of its interruptions that were kept one by one, in order.
        idle: Upper bounds of the GPU's idle milliseconds by what the host waited in, zeros among
            them; ``None`` where the step carried no GPU events.
        dry: Share (0..1) of its GPU events that found the queue empty; ``None`` without any.
    """

    t1_ns: int
    number: int
    at_s: float | None
    wall_ms: float
    parts: tuple[Part, ...]
    recorded: bool
    timed: float
    why: tuple[Reason, ...] = ()
    pauses: tuple[Pause, ...] = ()
    idle: tuple[Part, ...] | None = None
    dry: float | None = None
    samples: int | None = None
    micro: int = 1
    syncs: int = 0


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many steps took how long.

    Attributes:
        edges: Edges of the bins in milliseconds, one more than ``counts``.
        counts: Steps by bin.
        log: Whether the bins are equally wide on a logarithmic scale.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool


@dataclass(frozen=True, slots=True)
class StepsView:
    """The steps of the time window.

    Attributes:
        newest: The newest of them, newest first.
        slowest: The slowest of them, slowest first.
        count: Steps of the window that were looked at, the newest.
        older: Steps of the window before them.
        span_s: From the first of ``count`` to the last.
        median_ms: Of all ``count`` steps, as is ``p95_ms`` (``None`` below 20 steps).
        histogram: Of all ``count`` steps; ``None`` below two.
        has_gpu: Whether training is on a GPU.
        unsampled: Why a step may carry no GPU events, in words.
        rank: Whose steps these are.
        ranks: All that make steps.
    """

    newest: tuple[StepRow, ...] = ()
    slowest: tuple[StepRow, ...] = ()
    count: int = 0
    older: int = 0
    span_s: float = 0.0
    median_ms: float | None = None
    p95_ms: float | None = None
    histogram: Histogram | None = None
    has_gpu: bool = False
    unsampled: str = ""
    rank: int = 0
    ranks: tuple[int, ...] = ()
