"""What ``report --lines`` is made from: one rank's lines, labels, interruptions and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_train.model import Interval, Site
from gputop_train.store.reader import RunReader


@dataclass(frozen=True, slots=True)
class Output:
    """What the script printed: size of ``output.log``, and lines in the part that is kept."""

    total_bytes: int
    kept_bytes: int
    kept_lines: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything ``lines`` shows of one rank.

    Attributes:
        steps: Optimizer steps seen; 0 = none.
        wall_ns: From the first step's begin to the last reading; ``None`` without a step.
        label_ns: Host time of the training thread by label, over all steps.
        state: The probe's last snapshot; ``None`` when there was none.
        ranks: How many ranks have told anything.
        output: ``None`` where the script's output is not at hand.
        run_s: Length of the run, for rates of output.
    """

    run_id: str
    rank: int
    ranks: int
    steps: int
    wall_ns: int | None
    sites: tuple[Site, ...]
    intervals: tuple[Interval, ...]
    label_ns: Mapping[str, int]
    state: Mapping[str, Any] | None
    output: Output | None = None
    run_s: float | None = None


def gather(reader: RunReader, run_id: str, output: Output | None = None) -> Facts:
    """Collect the facts of a run's first rank.

    Args:
        reader: The run's store, live or ended.
        run_id: For the title.
        output: What is known of ``output.log``.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot():
        states = reader.probe_states()
        rollups = reader.step_rollups()
        ranks = sorted({r.rank for r in rollups} | set(states))
        rank = ranks[0] if ranks else 0
        mine = [r for r in rollups if r.rank == rank]
        labels: Counter[str] = Counter()
        for rollup in mine:
            labels.update(rollup.labels)
        span = reader.span()
        start = min((r.t0_ns for r in mine), default=None)
        return Facts(
            run_id=run_id,
            rank=rank,
            ranks=len(ranks),
            steps=sum(r.n for r in mine),
            wall_ns=max(r.t1_ns for r in mine) - start if start is not None else None,
            sites=tuple(reader.sites(rank)),
            intervals=tuple(i for i in reader.intervals() if i.rank == rank),
            label_ns=dict(labels),
            state=states.get(rank),
            output=output,
            run_s=(span[1] - span[0]) / 1e9 if span is not None else None,
        )
