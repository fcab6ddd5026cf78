"""How far the script is by its own count, and when that count ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["epoch", "step", "batch", "sample", "it"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A count of the script's that advances with its steps.

    Attributes:
        done: As the script says it: the epoch it is in, or the steps behind it.
        total: Where the count ends.
        unit: What is counted; ``it`` = a progress bar that does not say.
        whole: Whether the count is known to span the run; else it may be one pass of several.
        left_s: Seconds until the count ends at the pace seen; ``None`` = not known yet.
    """

    done: int
    total: int
    unit: Unit
    whole: bool
    left_s: float | None = None
