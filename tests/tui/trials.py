"""Trials for the screen's tests: records as the runner writes them, made of arithmetic."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gputop_train.launch import identity

ID = "t3f2a1c"


def phases(data_wait: float) -> dict[str, float]:
    return {
        "data_wait": data_wait,
        "h2d": 1.2,
        "forward": 12.0,
        "backward": 20.0,
        "optimizer": 4.0,
        "other": 0.8,
    }


def row(change: str, step_ms: float | None = None, **more: Any) -> dict[str, Any]:
    known = step_ms is not None
    return {
        "change": change,
        "marks": [],
        "step_ms": step_ms,
        "time_per_sample_us": step_ms * 1e3 / 64 if known else None,
        "samples_per_s": 64e3 / step_ms if known else None,
        "peak_memory": (4 << 30) if known else None,
        "gpu_busy": 38 / step_ms if known else None,
        "speedup": None,
        "interval": None,
        "predicted": None,
        "predicted_interval": None,
        "verdict": None,
        "cost_per_million": None,
        "phases": phases(step_ms - 38) if known else None,
    } | more


def candidate(settings: dict[str, Any], status: str, **more: Any) -> dict[str, Any]:
    return {"settings": settings, "what_if": [], "status": status, "refused": None} | more


def running() -> dict[str, Any]:
    me = identity.identify(os.getpid())
    assert me is not None
    return {
        "schema": 1,
        "id": ID,
        "state": "running",
        "now": "leg 5: num_workers=4, measuring",
        "problem": None,
        "pid": me.pid,
        "start_ticks": me.start_ticks,
        "boot_id": me.boot_id,
        "script": "train.py",
        "name": None,
        "progress": {
            "leg": 5,
            "arm": "num_workers=4",
            "phase": "measuring",
            "step": 41,
            "steps": 72,
            "elapsed_s": 40.0,
            "left_s": [60.0, 240.0],
        },
        "table": [
            row("baseline", 98.1),
            row(
                "num_workers=4",
                41.0,
                marks=["changes results"],
                speedup=2.39,
                interval=[2.31, 2.48],
                predicted=2.4,
                predicted_interval=[2.1, 2.7],
                verdict="faster",
            ),
            row(
                "pin_memory=true",
                97.0,
                speedup=1.01,
                interval=[0.98, 1.04],
                verdict="no difference",
            ),
            row("num_workers=4, pin_memory=true", marks=["changes results"]),
            row("prefetch_factor=4"),
            row(
                "replay_batch",
                39.5,
                marks=["what-if"],
                speedup=2.48,
                interval=[2.4, 2.52],
                predicted=2.58,
                verdict="faster",
            ),
        ],
        "candidates": [
            candidate({"num_workers": 4}, "measured"),
            candidate({"pin_memory": True}, "measured"),
            candidate({"num_workers": 4, "pin_memory": True}, "waiting"),
            candidate(
                {"prefetch_factor": 4}, "refused", refused="it needs num_workers of at least 1"
            ),
            candidate({}, "measured", what_if=["replay_batch"]),
        ],
        "stop_hint": None,
        "sentences": ["Legs measure 60 steps of 98.1 ms each."],
    }


def done() -> dict[str, Any]:
    body = running() | {
        "state": "done",
        "stop_hint": "Three changes under 3% in a row: stop tuning this.",
    }
    body["candidates"][0]["sentence"] = (
        "num_workers=4 (changes results): 2.39x as fast (2.31 to 2.48); predicted 2.10 to 2.70x."
    )
    body["candidates"][4]["sentence"] = (
        "The loader's guilt is confirmed: with its batches replayed a step takes 39.5 ms instead "
        "of 98.1."
    )
    return body


def write(root: Path, body: dict[str, Any]) -> Path:
    """The directory of a trial with its record."""
    place = root / "trials" / ID
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / ".trial.json.new"
    temporary.write_text(json.dumps(body))
    temporary.replace(place / "trial.json")
    return place
