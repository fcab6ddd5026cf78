"""What a page's reader is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.store.reader import RunReader
from gputop_train.tui.recent import Recent
from gputop_train.tui.snapshot import Axis, View


@dataclass(frozen=True, slots=True)
class Asked:
    """One look at a run.

    Attributes:
        reader: The store, as of the moment shown, inside one consistent read.
        run: ``run.json``.
        run_dir: The run's directory.
        view: What the screen asks for, the page's own arguments among it.
        axis: The time axis of the overview; ``axis.t1_ns`` may lie after ``now_ns``.
        now_ns: The end of what is shown.
        rank: The rank the overview shows; ``None`` before the first step.
        over_ns: When training ended, once it has.
        recent: What was read of the store before.
    """

    reader: RunReader
    run: Mapping[str, Any]
    run_dir: Path
    view: View
    axis: Axis
    now_ns: int
    rank: int | None = None
    over_ns: int | None = None
    recent: Recent = field(default_factory=Recent)
