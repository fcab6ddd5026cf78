"""What the lines page shows: the person's files with what each line costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Python of the person's own, beside the labels of `model.LABELS`.
HOST_CODE = "host_code"
#: Kinds that are counted at other lines, or are no time of the training thread.
LOADER, WORKERS, EVALUATION = "loader", "workers", "eval"

Mark = Literal["", "verdict", "also"]


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of cost of a line, as means of a step; ``None`` = not measured.

    Attributes:
        kind: A label of `model.LABELS`, `HOST_CODE`, or one that is not the line's own time:
            `LOADER` (what training waited for the batches of the loader built here; the lines that
            wait have that time), `EVALUATION` (all of what begins here; so have its lines) and
            `WORKERS` (what the making of an item takes, beside training or in it).
        ms: Host time a step; of `WORKERS`, time of one item.
        share: Of the wall time since the first step (0..1).
        estimated: Drawn or sampled, not every call looked at.
        at_least: A lower bound (runs recorded by releases that left out fast calls).
        calls: Calls a step; batches of a loader.
        each_ms: Host time of one call.
        samples: Of the stack sampler, where it alone saw this; else ``None``.
        bytes_each: Moved or written by one call.
        memory: ``pinned``, ``pageable`` or ``mixed``; empty = not known.
        gb_per_s: Of copies, as the GPU saw them.
        idle_ms: GPU idle behind blocking reads, a step.
        workers: Processes, of `WORKERS`.
    """

    kind: str
    ms: float | None = None
    share: float | None = None
    estimated: bool = False
    at_least: bool = False
    calls: float | None = None
    each_ms: float | None = None
    samples: int | None = None
    bytes_each: float | None = None
    memory: str = ""
    gb_per_s: float | None = None
    idle_ms: float | None = None
    workers: int | None = None

    @property
    def own(self) -> bool:
        """Whether it is time of the training thread at this line."""
        return self.kind not in (LOADER, WORKERS, EVALUATION)


@dataclass(frozen=True, slots=True)
class Line:
    """A line with costs, or one that the diagnosis names.

    Attributes:
        number: From 1, in the text as it is now; negative = what it was, in a text that has the
            line no more.
        text: The code as the run saw it; may be a part of the line. Empty = not recorded.
        func: The function it is in.
        share: Of the wall time, over the kinds of its own; ``None`` = none of them was measured.
        ms: The same, a step.
        parts: The kinds, costliest first.
        mark: Whether the verdict, or what is also named, points here.
        was: Its number in the run, where it has another now; else 0.
    """

    number: int
    text: str
    func: str = ""
    share: float | None = None
    ms: float | None = None
    parts: tuple[Part, ...] = ()
    mark: Mark = ""
    was: int = 0

    @property
    def recorded(self) -> int:
        """Its number in the run."""
        return self.was or self.number


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text as it is now.

    Attributes:
        lines: Empty = not to be had, ``note`` says why.
        note: What to know of it, one sentence; empty = it reads as the run saw it.
        same: Whether every costly line stands where it stood.
    """

    lines: tuple[str, ...] = ()
    note: str = ""
    same: bool = True


@dataclass(frozen=True, slots=True)
class File:
    """A file with its costly lines, in their order.

    Attributes:
        path: As the run recorded it.
        name: Short, and not shared with another file of the run.
        share: Of the wall time, over all its lines.
    """

    path: str
    name: str
    share: float
    lines: tuple[Line, ...]
    source: Source = Source()


@dataclass(frozen=True, slots=True)
class LinesView:
    """The person's files, the costliest first.

    Attributes:
        files: Those with a line that costs, or that the diagnosis names.
        steps: Steps all means are of; 0 = none was seen and times are totals.
        wall_s: From the first step to what is shown.
        rank: ``rank 0 of 2`` where there are several; else empty.
        verdict: File and line the verdict points at first.
        why: Why there is nothing to show; empty = there is.
        notes: What could not be measured, in sentences.
    """

    files: tuple[File, ...] = ()
    steps: int = 0
    wall_s: float | None = None
    rank: str = ""
    verdict: tuple[str, int] | None = None
    why: str = ""
    notes: tuple[str, ...] = ()
