"""A baseline in a file: what ``check --save-baseline`` writes and ``check --baseline`` reads.

It is meant to be committed: small, of sorted plain JSON, and without anything that names its owner.
A report (``--json`` of a run) does as well, for the little of it that does not drift: peak memory.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_train import __version__
from gputop_train.report.compare import readable
from gputop_train.report.compare import side as report_side
from gputop_train.report.json import plain
from gputop_train.trial.check_judge import INVARIANTS
from gputop_train.trial.check_record import Side

SCHEMA, KIND = 1, "gputop-train check baseline"
#: A baseline of a few legs takes a few kilobytes.
MAX_BYTES = 16 << 20


class BaselineProblem(Exception):
    """The file is no baseline; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A baseline as it was stored.

    Attributes:
        machine: Its fingerprint; ``None`` for a report, which has none.
        notes: Sentences on what it cannot tell.
    """

    side: Side
    machine: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()


def encode(side: Side, machine: Mapping[str, Any], *, script: str, warmup: int) -> bytes:
    """Return the file's content.

    Args:
        side: The legs that count.
        machine: Fingerprint of this machine.
        script: Name of what ran, for people.
        warmup: Steps that were cut off each leg.
    """
    now = datetime.datetime.now(tz=datetime.timezone.utc)
    body = {
        "schema": SCHEMA,
        "kind": KIND,
        "made": now.isoformat(timespec="seconds"),
        "version": __version__,
        "script": script,
        "machine": dict(machine),
        "warmup": warmup,
        "steps": side.steps,
        "samples_per_step": side.samples,
        "step_ms": list(side.step_ms),
        "time_per_sample_us": list(side.per_sample_us),
        "peak_allocated": side.peak_allocated,
        "peak_reserved": side.peak_reserved,
        "invariants": {name: list(values) for name, values in side.invariants.items()},
        "phases_ms": dict(side.phases_ms),
        "yardstick_ms": {kind: list(values) for kind, values in side.yardstick.items()},
        "loss_finite": side.loss_finite,
    }
    return json.dumps(plain(body), indent=1).encode("ascii") + b"\n"


def load(path: Path) -> Stored:
    """Read a baseline.

    Raises:
        BaselineProblem: It cannot be read, or is something else.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as failure:
        raise BaselineProblem(
            f"{path} cannot be read: {failure.strerror or failure}. "
            f"Make a baseline with: gputop-train check --save-baseline {path} train.py"
        ) from None
    try:
        body = json.loads(content) if len(content) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, Mapping) and readable(body):
        return _of_report(path, body)
    if not isinstance(body, Mapping) or body.get("kind") != KIND:
        raise BaselineProblem(
            f"{path} is no baseline: it holds something else, or a part of one. "
            f"Make it anew with: gputop-train check --save-baseline {path} train.py"
        )
    if body.get("schema") != SCHEMA:
        raise BaselineProblem(
            f"{path} was written by another version of gputop-train (schema "
            f"{str(body.get('schema'))[:20]}). Make it anew with --save-baseline."
        )
    return _of_file(path, body)


def _of_file(path: Path, body: Mapping[str, Any]) -> Stored:
    try:
        side = Side(
            title=path.name,
            per_sample_us=_numbers(body["time_per_sample_us"]),
            step_ms=_numbers(body["step_ms"]),
            steps=int(_number(body["steps"])),
            samples=_maybe(body["samples_per_step"]),
            peak_allocated=_maybe_whole(body["peak_allocated"]),
            peak_reserved=_maybe_whole(body["peak_reserved"]),
            invariants={
                name: _numbers(values, least=0.0)
                for name, values in dict(body["invariants"]).items()
                if name in INVARIANTS
            },
            phases_ms={k: _number(v, least=0.0) for k, v in dict(body["phases_ms"]).items()},
            yardstick={k: _numbers(v) for k, v in dict(body["yardstick_ms"]).items()},
            loss_finite=body["loss_finite"] if isinstance(body["loss_finite"], bool) else None,
        )
        machine = dict(body["machine"])
    except (KeyError, TypeError, ValueError) as problem:
        raise BaselineProblem(
            f"{path} is a damaged baseline ({type(problem).__name__}: {problem}). "
            "Make it anew with --save-baseline."
        ) from None
    return Stored(side, machine)


def _of_report(path: Path, report: Mapping[str, Any]) -> Stored:
    told = report_side(report)
    on_card = told.peak_basis == "cuda-allocator"
    side = Side(
        title=path.name,
        step_ms=(told.whole.step_ms,) if told.whole is not None else (),
        steps=told.steps,
        peak_allocated=told.peak_allocated if on_card else None,
        peak_reserved=told.peak_reserved if on_card else None,
    )
    note = (
        f"{path.name} is the report of one run: of what does not drift it tells peak memory alone. "
        "--save-baseline keeps more."
    )
    return Stored(side, None, (note,))


def _numbers(values: Any, *, least: float = 1e-9) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise TypeError("a list is missing")
    return tuple(_number(value, least=least) for value in values)


def _number(value: Any, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("a number is missing")
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{value} is no measurement")
    return value


def _maybe(value: Any) -> float | None:
    return None if value is None else _number(value, least=1e-9)


def _maybe_whole(value: Any) -> int | None:
    return None if value is None else int(_number(value))
