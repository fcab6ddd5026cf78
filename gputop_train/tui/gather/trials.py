"""The trials kept beside a run. Reads their records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from gputop_train.trial import store
from gputop_train.tui import trial_page
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.views.trials import TrialSeen, TrialsView


def trials_page(asked: Asked) -> dict[str, Any]:
    """The trials page's field of the `Snapshot`."""
    return {"trials": trials_view(asked.run_dir.parent, asked.run)}


def trials_view(root: Path, run: Mapping[str, Any]) -> TrialsView:
    """Every trial below a run root, newest first.

    Args:
        root: The run root.
        run: ``run.json`` of the run on the screen.
    """
    seen = []
    for trial in store.trials(root):
        body = store.read(trial.trial_dir)
        if body is not None:
            seen.append(_seen(trial.trial_dir, body, run))
    return TrialsView(tuple(seen), time.time_ns())


def _seen(trial_dir: Path, body: Mapping[str, Any], run: Mapping[str, Any]) -> TrialSeen:
    page = trial_page.page(trial_dir.name, body, alive=store.is_running(body))
    started = body.get("started_wall_ns")
    best = page.best
    predicted = None
    if best is not None:
        single = (best.predicted, best.predicted) if best.predicted is not None else None
        predicted = best.predicted_interval or single
    return TrialSeen(
        id=page.id,
        place=str(trial_dir),
        title=page.title,
        state=page.state,
        started_wall_ns=started if isinstance(started, int) else None,
        same_script=_script(body) == _script(run),
        changes=tuple(row.change for row in page.rows[1:]),
        best=best.change if best is not None else "",
        speedup=best.speedup if best is not None else None,
        interval=best.interval if best is not None else None,
        predicted=predicted,
        changes_results="changes results" in best.marks if best is not None else False,
        now=page.now if not page.over else "",
        problem=page.problem,
        sentences=page.sentences,
        stop_hint=page.stop_hint,
    )


def _script(known: Mapping[str, Any]) -> str:
    """What a person would call the same script, wherever it was started from."""
    return PurePath(str(known.get("script"))).name
