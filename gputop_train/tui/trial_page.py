"""What the trial screen shows, from ``trial.json``. Pure.

The file belongs to another process and may be of another version, half understood or damaged:
whatever is not of the expected form counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from gputop_train.launch.options import SETTINGS, Setting

TrialState = Literal["starting", "running", "done", "stopped", "failed", "gone"]


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One side of the comparison. ``None`` = not measured (yet).

    Attributes:
        marks: What is to be known of it, such as ``changes results`` or ``what-if``.
        status: ``waiting``, ``running``, ``measured``, ``refused``...; empty for the baseline.
        why: One sentence for any verdict or status that needs one.
        phases: Milliseconds a step by label.
    """

    change: str
    marks: tuple[str, ...] = ()
    step_ms: float | None = None
    time_per_sample_us: float | None = None
    samples_per_s: float | None = None
    peak_bytes: int | None = None
    gpu_busy: float | None = None
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    predicted: float | None = None
    predicted_interval: tuple[float, float] | None = None
    predicted_at_least: bool = False
    verdict: str = ""
    status: str = ""
    why: str = ""
    cost_per_million: float | None = None
    phases: Mapping[str, float] | None = None
    settings: tuple[Setting, ...] = ()
    what_if: bool = False


@dataclass(frozen=True, slots=True)
class TrialPage:
    """A trial at one instant.

    Attributes:
        now: What is going on, in one sentence.
        left_s: How much longer it takes, from and to.
        step: Step of the leg under way, of ``steps``.
        sentences: What each change came to, in plain words.
        notes: How it is done; what it said of itself before the end.
        stop_hint: When to stop tuning; empty = go on.
    """

    id: str
    state: TrialState
    title: str = ""
    now: str = ""
    problem: str = ""
    rows: tuple[TrialRow, ...] = ()
    leg: int | None = None
    arm: str = ""
    phase: str = ""
    step: int | None = None
    steps: int | None = None
    elapsed_s: float | None = None
    left_s: tuple[float, float] | None = None
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stop_hint: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in ("starting", "running")

    @property
    def best(self) -> TrialRow | None:
        """The fastest side that was proved faster and may be kept."""
        kept = [
            row
            for row in self.rows
            if row.verdict == "faster" and row.settings and not row.what_if and row.speedup
        ]
        return max(kept, key=lambda row: row.speedup or 0.0, default=None)


def page(trial_id: str, body: Mapping[str, Any] | None, *, alive: bool) -> TrialPage:
    """The page of a trial.

    Args:
        trial_id: Its directory's name.
        body: ``trial.json``; ``None`` where there is none that can be read.
        alive: Whether the process that runs it is there.
    """
    if body is None:
        gone = "" if alive else "There is no record of it that can be read, and nobody runs it."
        return TrialPage(trial_id, "starting" if alive else "gone", problem=gone)
    progress = _map(body.get("progress"))
    left = _pair(progress.get("left_s"))
    candidates = [_map(item) for item in _list(body.get("candidates"))]
    state = _state(body.get("state"), alive=alive)
    return TrialPage(
        id=trial_id,
        state=state,
        title=_text(body.get("name")) or PurePath(_text(body.get("script"))).name,
        now=_text(body.get("now")),
        problem=_problem(state, body),
        rows=tuple(
            row
            for number, item in enumerate(_list(body.get("table")))
            if (row := _row(_map(item), candidates[number - 1 : number] if number else [])).change
        ),
        leg=_int(progress.get("leg")),
        arm=_text(progress.get("arm")),
        phase=_text(progress.get("phase")),
        step=_int(progress.get("step")),
        steps=_int(progress.get("steps")),
        elapsed_s=_number(progress.get("elapsed_s")),
        left_s=left,
        sentences=tuple(filter(None, (_text(item.get("sentence")) for item in candidates))),
        notes=tuple(filter(None, map(_text, _list(body.get("sentences"))))),
        stop_hint=_text(body.get("stop_hint")),
    )


def _state(value: object, *, alive: bool) -> TrialState:
    if value in ("done", "stopped", "failed"):
        return value
    return "running" if alive else "gone"


def _problem(state: TrialState, body: Mapping[str, Any]) -> str:
    told = _text(body.get("problem"))
    if state == "gone" and not told:
        return "The process that ran this trial was killed; what it measured until then is here."
    return told


def _row(item: Mapping[str, Any], candidate: list[Mapping[str, Any]]) -> TrialRow:
    mine = candidate[0] if candidate else {}
    phases = {
        str(label): ms
        for label, value in _map(item.get("phases")).items()
        if (ms := _number(value)) is not None
    }
    return TrialRow(
        change=_text(item.get("change")),
        marks=tuple(filter(None, map(_text, _list(item.get("marks"))))),
        step_ms=_number(item.get("step_ms")),
        time_per_sample_us=_number(item.get("time_per_sample_us")),
        samples_per_s=_number(item.get("samples_per_s")),
        peak_bytes=_int(item.get("peak_memory")),
        gpu_busy=_number(item.get("gpu_busy")),
        speedup=_number(item.get("speedup")),
        interval=_pair(item.get("interval")),
        predicted=_number(item.get("predicted")),
        predicted_interval=_pair(item.get("predicted_interval")),
        predicted_at_least=item.get("predicted_at_least") is True,
        verdict=_text(item.get("verdict")),
        status=_text(mine.get("status")),
        why=_text(mine.get("refused")) or _text(mine.get("why")) or _text(mine.get("losses")),
        cost_per_million=_number(item.get("cost_per_million")),
        phases=phases or None,
        settings=_settings(mine.get("settings")),
        what_if=bool(_list(mine.get("what_if"))),
    )


def _settings(value: object) -> tuple[Setting, ...]:
    found = []
    for label, setting in _map(value).items():
        key, _, place = str(label).partition("@")
        if key not in SETTINGS or not isinstance(setting, int | float | bool | str):
            return ()  # half of what was proved would be something else
        found.append(Setting(key, setting, place or None))
    return tuple(found)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _pair(value: object) -> tuple[float, float] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    low, high = (_number(item) for item in value)
    return None if low is None or high is None else (low, high)
