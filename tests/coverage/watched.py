"""Read back what the probe wrote of a run: one record a process that trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train.collect.ring_reader import Ring, rings
from gputop_train.collect.timeline import Timeline
from gputop_train.model import Interval, Step


@dataclass(frozen=True)
class Watched:
    pid: int
    finished: bool
    lost: int
    bad: int
    steps: tuple[Step, ...]
    intervals: tuple[Interval, ...]
    tail: dict[str, int]
    snapshot: dict[str, Any]

    def share(self, label: str, first: int = 1) -> float:
        """Part of the steps' time that a label has, without the ``first`` steps."""
        steps = self.steps[first:]
        return sum(s.labels.get(label, 0) for s in steps) / sum(s.wall_ns for s in steps)

    def seconds(self, label: str, first: int = 1) -> float:
        return sum(s.labels.get(label, 0) for s in self.steps[first:]) / 1e9

    def loaders(self) -> dict[int, dict[str, Any]]:
        return {row["line"]: row for row in self.snapshot["loaders"]}

    def most_sampled(self, label: str) -> tuple[str, int]:
        """File and line where the sampler saw the thread most often under a label."""
        stats = self.snapshot["site_stats"]
        rows = [r for r in self.snapshot["sites"] if r[1] == "sample" and r[6] == label]
        best = max(rows, key=lambda r: stats[str(r[0])][0])
        return Path(best[2]).name, best[3]

    def site_line(self, site: int | None) -> int:
        return next(r[3] for r in self.snapshot["sites"] if r[0] == site)


def read(directory: Path) -> dict[int, Watched]:
    """Every ring of a run, by the process that wrote it."""
    found = {}
    for path in rings(directory):
        timeline = Timeline(0)
        with Ring.open(path) as ring:
            batch, last = timeline.feed(ring.poll()), timeline.finish()
            pid = ring.header.pid
            found[pid] = Watched(
                pid, ring.finished, ring.lost, timeline.bad, (*batch.steps, *last.steps),
                (*batch.intervals, *last.intervals), dict(last.tail or {}), ring.snapshot() or {},
            )  # fmt: skip
    return found
