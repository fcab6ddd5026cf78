"""The earlier runs of a script, and two of them as sides of a comparison. Reads files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from gputop_train.launch import again, attach, runfile, runs
from gputop_train.report import compare as comparing
from gputop_train.report.compare import Comparison, RunSide
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader

#: More runs than anybody scrolls through; housekeeping keeps fewer.
MAX_RUNS = 200


class CompareError(Exception):
    """There is nothing to compare; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run in the list to choose from. ``None`` = not measured or not recorded.

    Attributes:
        settings: Overrides, as ``--set`` takes them.
        same_script: Whether it ran the script of the run on the screen.
    """

    id: str
    name: str
    started_wall_ns: int | None
    state: str
    verdict: str
    step_ms: float | None
    settings: tuple[str, ...]
    same_script: bool


def others(root: Path, run: Mapping[str, Any]) -> list[OtherRun]:
    """Every run below a run root but this one, newest first.

    Args:
        root: The run root.
        run: ``run.json`` of the run on the screen.
    """
    found = []
    for info in runs.list_runs(root)[:MAX_RUNS]:
        if info.id == run.get("id"):
            continue
        known = runfile.read_json(info.path / "run.json") or {}
        report = runfile.read_json(info.path / "report.json") or {}
        steps = report.get("steps")
        median = steps.get("median_ms") if isinstance(steps, Mapping) else None
        found.append(
            OtherRun(
                id=info.id,
                name=info.name or "",
                started_wall_ns=info.started_wall_ns,
                state=info.state,
                verdict=info.verdict or info.status or "",
                step_ms=float(median) if isinstance(median, int | float) else None,
                settings=tuple(map(again.typed, again.recorded(known))),
                same_script=_script(known) == _script(run),
            )
        )
    return found


def _script(run: Mapping[str, Any]) -> tuple[str, str]:
    """What a person would call the same script, wherever it was started from."""
    return str(run.get("mode")), PurePath(str(run.get("script"))).name


def comparison(root: Path, ids: Sequence[str]) -> Comparison:
    """Runs side by side, the first as the reference. May take a second or two.

    Raises:
        CompareError: One of them has nothing to compare.
    """
    return comparing.compare([_side(root / run_id) for run_id in ids])


def _side(run_dir: Path) -> RunSide:
    report = attach.report_of(run_dir)
    if report is None or not comparing.readable(report):
        raise CompareError(
            f"Nothing to compare was recorded of {run_dir.name} yet. Choose another run, or wait "
            "for its first steps."
        )
    run = runfile.read_json(run_dir / "run.json") or {}
    try:
        with RunReader(runs.store_path(run_dir, run)) as reader:
            found = comparing.side(report, reader)
    except StoreError:
        found = comparing.side(report)
    # Runs of one name are told apart by their ids.
    return replace(found, title=run_dir.name)
