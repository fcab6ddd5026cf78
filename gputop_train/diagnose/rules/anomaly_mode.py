"""``anomaly-mode``: a mode that is meant for debugging is on and slows every step.

Looks for: autograd's anomaly detection or a profiler on while the run trains, in >= 10% of the
looks the stack sampler took (proposed here), ``CUDA_LAUNCH_BLOCKING`` or the sync debug mode on a
GPU (catalogue 53). What it costs cannot be measured in the run: public reports say 1.5 to 3 times
for anomaly detection (nerf-pytorch 42: an epoch 1.5 h -> 36 min).
Differential: dynamo switches anomaly detection on while it traces (not looked at then); a profiler
that traces a few steps by a schedule; a burst of this tool.
Fix: remove it. Probe: run 50 steps without. Gain: not forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_train.diagnose.rules.base import (
    Judgement,
    Page,
    Rule,
    RuledOut,
    Threshold,
    name,
    number,
    percent,
)
from gputop_train.diagnose.window import Window
from gputop_train.model import Abstention, Advice, Evidence, Finding, Gain, Where

ID = "anomaly-mode"
#: Part of the looks a mode was on in (proposed here).
PART = 0.10
#: Fewer looks than this are no part of anything.
MIN_LOOKS = 20
#: A block that is on in so few of the looks since needs to be on now, where the run lives.
RECENT = 0.5
REPORTED = "1.5 to 3 times (public reports; nerf-pytorch 42: 2.5)"


@dataclass(frozen=True, slots=True)
class _Mode:
    """One mode as it is on now.

    Attributes:
        part: Of the looks; ``None`` where only a flag tells.
    """

    what: str
    cost: str
    mend: str
    part: float | None = None
    places: tuple[Where, ...] = ()


def judge(window: Window) -> Judgement:
    """Judge one window."""
    flags = window.probe.get("flags")
    if not isinstance(flags, Mapping):
        return Abstention(ID, "torch's flags")
    modes = [m for m in (_anomaly(window, flags), _profiler(window, flags)) if m is not None]
    if window.on_gpu:
        modes += _devices(flags)
    if not modes:
        if flags.get("anomaly") is None:
            return Abstention(ID, "whether anomaly detection is on")
        return RuledOut(ID, "no mode that slows every step is on")
    return _finding(modes)


def _looks(window: Window, mode: str) -> tuple[float | None, bool, tuple[Where, ...]]:
    """Part of the looks it was on in, whether it was so lately, and its lines."""
    told = window.probe.get("modes")
    told = told if isinstance(told, Mapping) else {}
    looked, row = told.get("looked"), told.get(mode)
    at = told.get("at")
    rows = at.get(mode, ()) if isinstance(at, Mapping) else ()
    places = tuple(Where(str(r[0]), int(r[1]), str(r[2])) for r in rows if len(r) == 3)
    if not isinstance(looked, int) or looked < MIN_LOOKS or not isinstance(row, list):
        return None, False, places
    on, since = row
    lately = isinstance(since, int) and since <= RECENT * looked
    return on / looked, bool(on) and lately, places


def _anomaly(window: Window, flags: Mapping[str, Any]) -> _Mode | None:
    part, lately, places = _looks(window, "anomaly")
    on = bool(flags.get("anomaly"))
    if part is None:
        # A switch that is on now and has no looks beside it was on in the steps as well.
        if not on:
            return None
    elif part < PART or not (on or (lately and places)):
        return None
    return _Mode(
        what="autograd's anomaly detection",
        cost="keeps a stack for every operation and checks every gradient for NaN",
        mend="Switch it on only to find a NaN, for a few steps.",
        part=part,
        places=places,
    )


def _profiler(window: Window, flags: Mapping[str, Any]) -> _Mode | None:
    part, lately, places = _looks(window, "profiler")
    if part is None or part < PART or not (lately or flags.get("user_profiler")):
        return None
    return _Mode(
        what="a profiler of the script",
        cost="records every operation",
        mend=(
            "Trace a few steps only: "
            "torch.profiler.schedule(wait=5, warmup=2, active=3, repeat=1) and prof.step()."
        ),
        part=part,
        places=places,
    )


def profiling(window: Window) -> bool:
    """Whether a profiler of the script is on: it keeps what it records, so memory grows."""
    flags = window.probe.get("flags")
    return _profiler(window, flags if isinstance(flags, Mapping) else {}) is not None


def _devices(flags: Mapping[str, Any]) -> list[_Mode]:
    found = []
    if flags.get("launch_blocking"):
        found.append(
            _Mode(
                "CUDA_LAUNCH_BLOCKING",
                "makes every launch wait for its kernel",
                "Unset CUDA_LAUNCH_BLOCKING in the environment of the run: it is 1 now.",
            )
        )
    if flags.get("sync_debug"):
        found.append(
            _Mode(
                "torch.cuda's sync debug mode",
                "warns at every blocking read, 7 us each (measured on torch 2.11)",
                "torch.cuda.set_sync_debug_mode(0), or without the call.",
            )
        )
    return found


def _finding(modes: list[_Mode]) -> Finding:
    first = modes[0]
    places = tuple(place for mode in modes for place in mode.places)[:3]
    only_debug = first.what.endswith("sync debug mode")
    return Finding(
        id=ID,
        summary=(
            f"{first.what[0].upper()}{first.what[1:]} is on while the run trains: it {first.cost}."
        ),
        severity="info" if only_debug else "warn",
        confidence="high",
        lost_share=0.0,
        evidence=tuple(_evidence(mode) for mode in modes),
        where=places,
        where_missing=None if places else "no line of the script's own files switches it on",
        advice=tuple(_advice(mode) for mode in modes[:3]),
        gain=Gain(None, None, _basis(first)),
    )


def _evidence(mode: _Mode) -> Evidence:
    if mode.part is None:
        return Evidence(mode.what, "on")
    return number(f"{mode.what}, on in", mode.part, "of samples")


def _advice(mode: _Mode) -> Advice:
    if not mode.places:
        seen = " It is on now." if mode.part is None else f" Now {percent(mode.part)} of samples."
        return Advice(mode.mend + seen)
    place = mode.places[0]
    return Advice(f"Remove {place.what} at {name(place)}: it {mode.cost}. {mode.mend}")


def _basis(mode: _Mode) -> str:
    if "anomaly" in mode.what:
        return f"not measured here: {REPORTED}"
    if "profiler" in mode.what:
        return "not measured here: 1.1 to 1.3 times is reported for torch.profiler"
    return "not measured here: compare 50 steps without it"


RULE = Rule(
    ID,
    8,
    judge,
    probe="50 steps without it",
    page=Page(
        number=53,
        title="A debugging mode is on",
        meaning=(
            "Anomaly detection, a profiler or CUDA_LAUNCH_BLOCKING was left on. Every step is "
            "slower, at no line of its own, and the GPU looks launch-bound."
        ),
        looks_at=(
            "anomaly detection and the profiler, on or off at each stack sample",
            "`CUDA_LAUNCH_BLOCKING` and the sync debug mode, on a GPU",
            "the script's own files, for the line that switches it on",
        ),
        thresholds=(
            Threshold("samples it was on in", f">= {percent(PART)}", "proposed"),
            Threshold("samples", f">= {MIN_LOOKS}, else the flag as it is now", "proposed"),
            Threshold("cost of anomaly detection", REPORTED, "reports; not measured in the run"),
        ),
        mistaken_for=(
            "`launch-bound`, a slow backward: what the mode causes; it is named before them",
            "dynamo, which switches anomaly detection on while it traces: not looked at then",
            "a profiler that traces a few steps by a schedule",
        ),
        mend=("Remove the switch.", "For a profiler: a schedule of a few steps."),
        test="50 steps without it",
        gain="not forecast: it cannot be measured while the mode is on",
    ),
)
