"""The report of an attachment from outside: schema 1, ``null`` for what cannot be seen. Pure."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import Any

from gputop_train.launch.outside.observed import Observed
from gputop_train.launch.outside.spying import RATE_HZ
from gputop_train.launch.outside.target import Target
from gputop_train.model import EXPOSED_LABELS, LABELS, Diagnosis
from gputop_train.report import format as fmt
from gputop_train.report import text
from gputop_train.report.json import finding_body, plain
from gputop_train.report.schema import SCHEMA

#: Signals of the probe that no look from outside has.
MISSING = (
    "alloc",
    "copies",
    "exposed_idle",
    "gc",
    "probe",
    "steps",
)
_NOT_SEEN = "not seen from outside"
_MIN_SHARE = 0.01
_MAX_LINES = 6


def build(
    target: Target, seen: Observed, diagnosis: Diagnosis, *, ended: bool, started_wall_ns: int
) -> dict[str, Any]:
    """The report of ``--json``.

    Args:
        target: The process.
        seen: What was seen of it.
        diagnosis: What that allows to be said.
        ended: Whether the process has ended.
        started_wall_ns: When we began to look.

    Returns:
        A dict of schema 1, and beside it ``attached``: how it was seen, lines and workers.
    """
    shares = seen.shares()
    every = {label: shares.get(label, 0.0) for label in LABELS} if shares else {}
    # These are the probe's alone to tell: a read cannot be parted from the wait for the GPU.
    unseen = ("gc", "restart", *(("gpu_wait",) if seen.on_gpu else ()))
    report = {
        "schema": SCHEMA,
        "run": _run(target, seen, ended, started_wall_ns),
        "status": diagnosis.status,
        "healthy": diagnosis.healthy,
        "note": diagnosis.note,
        "abstained": [{"id": a.id, "missing": a.missing} for a in diagnosis.abstained],
        "steps": {
            "count": None,
            "warmup_excluded": None,
            "median_ms": None,
            "p95_ms": None,
            "samples_per_s": None,
        },
        "time": {
            "wall_s": seen.seconds,
            "training_s": None,
            "shares": {label: None if label in unseen else every.get(label) for label in LABELS},
            "coverage": _coverage(seen),
            "eval_shares": None,
        },
        "gpu": {
            "util_mean": None if seen.util is None else 100 * seen.util,
            "util_shape": "unknown",
            "busy_share": None,
            "exposed": dict.fromkeys(EXPOSED_LABELS),
        },
        "memory": {
            "peak_allocated": None,
            "peak_reserved": None,
            "device_total": max((c.memory_total or 0 for c in seen.cards), default=0) or None,
            "alloc_retries": None,
            "growth_bytes_per_step": None,
            "basis": "",
        },
        "verdict": None if diagnosis.verdict is None else finding_body(diagnosis.verdict),
        "also": [finding_body(finding) for finding in diagnosis.also],
        "ranks": [],
        "overhead": {"probe_us_per_step": None, "share": None, "supervisor_cpu_share": None},
        "data_lost": [],
        "attached": _attached(target, seen, ended),
    }
    return {key: plain(value) for key, value in report.items()}


def _run(target: Target, seen: Observed, ended: bool, started_wall_ns: int) -> dict[str, Any]:
    started = datetime.datetime.fromtimestamp(started_wall_ns / 1e9, tz=datetime.timezone.utc)
    reason = "It is not our child, so its exit code is not ours to see."
    return {
        "id": f"pid-{target.pid}",
        "command": list(target.command),
        "started": started.isoformat(timespec="milliseconds"),
        "duration_s": seen.seconds,
        "exit_code": None,
        "exit_reason": reason if ended else "The script had not ended.",
        "stopped_by": None,
        "attempts": 1,
        "host": os.uname().nodename,
        "torch": None,
        "python": ".".join(map(str, target.python)) if target.python else None,
        "gpus": [{"uuid": c.uuid, "name": c.name, "util_mean": c.util_mean} for c in seen.cards],
        "signals_missing": sorted({*MISSING, *seen.missing}),
        "overrides": {},
        "settings": [],
        "changes_results": [],
    }


def _coverage(seen: Observed) -> float | None:
    """Share of the samples that gave a stack."""
    asked = seen.samples + seen.errors
    return seen.samples / asked if asked else None


def _attached(target: Target, seen: Observed, ended: bool) -> dict[str, Any]:
    return {
        "how": "sampling",
        "pid": target.pid,
        "ended": ended,
        "rate_hz": RATE_HZ,
        "samples": seen.samples,
        "errors": seen.errors,
        "missing": dict(seen.missing),
        "lines": [
            {"label": label, "file": p.file, "line": p.line, "what": p.text, "samples": n}
            for label, p, n in seen.lines()
        ],
        "trainer_cpu": seen.trainer_cpu,
        "workers": [
            {
                "pid": w.pid,
                "cpu": w.cpu,
                "blocked": w.blocked,
                "read_bytes_per_s": w.read_bytes_per_s,
            }
            for w in seen.workers
        ],
        "gpus": [
            {"uuid": c.uuid, "memory_ours": c.memory_ours, "shared": c.shared} for c in seen.cards
        ],
    }


def summary(report: Mapping[str, Any], width: int, *, ascii_only: bool = False) -> list[str]:
    """What a person reads at the end: the verdict, the shares, the lines, and how it was seen."""
    if ascii_only:  # before wrapping: some characters become several
        report = text.in_ascii(report)
    lines = text.head(report, width, title="gputop-train · seen from outside")
    room = max(text.MIN_WIDTH, min(width, text.MAX_WIDTH)) - 1
    shares = {k: v for k, v in report["time"]["shares"].items() if v}
    if shares:
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        parts = [f"{fmt.label(k)} {fmt.percent(v)}" for k, v in ordered if v >= _MIN_SHARE]
        lines += fmt.row("time", " · ".join(parts), room)
    attached = report["attached"]
    total = attached["samples"]
    for n, row in enumerate(attached["lines"][:_MAX_LINES]):
        place = f"{fmt.printable(row['file'].rsplit('/', 1)[-1])}:{row['line']}"
        part = fmt.percent(row["samples"] / total)
        told = f"{part:>5}  {fmt.label(row['label']):<10}  {place}  {fmt.printable(row['what'])}"
        lines.append(_cut(f" {'lines' if n == 0 else '':<8}{told}", room))
    lines += fmt.row("steps", f"{_NOT_SEEN}: times, memory and what the GPU waited for", room)
    busy = [w["cpu"] for w in attached["workers"] if w["cpu"] is not None]
    if busy:
        told = f"{len(busy)} · {fmt.number(sum(busy) / len(busy))} cores each on average"
        lines += fmt.row("workers", told, room)
    for gpu, more in zip(report["run"]["gpus"], attached["gpus"], strict=True):
        lines += fmt.row("gpu", _gpu(gpu, more), room)
    seen = (
        f"process {attached['pid']} · {total:,} samples in {fmt.duration(report['time']['wall_s'])}"
    )
    lost = f" · {attached['errors']:,} unreadable" if attached["errors"] else ""
    ended = " · it has ended" if attached["ended"] else ""
    lines += fmt.row("seen", f"{seen}{lost}{ended}", room)
    return [fmt.to_ascii(line) for line in lines] if ascii_only else lines


def _gpu(gpu: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    util = gpu["util_mean"]
    parts = [gpu["name"] or gpu["uuid"]]
    parts.append(f"utilisation {'not measured' if util is None else f'{util:.0f}%'}")
    if more["memory_ours"] is not None:
        parts.append(f"{fmt.size(more['memory_ours'])} of this process")
    if more["shared"]:
        parts.append("shared with others")
    return " · ".join(parts)


def _cut(line: str, room: int) -> str:
    return line if len(line) <= room else line[: room - 3].rstrip() + "..."


def live_line(seen: Observed, diagnosis: Diagnosis, *, ascii_only: bool = False) -> str:
    """One line of how it stands: the verdict, the largest shares, the samples so far."""
    dot = " - " if ascii_only else " · "
    ordered = sorted(seen.shares().items(), key=lambda item: -item[1])[:3]
    parts = [f"{fmt.label(name)} {fmt.percent(share)}" for name, share in ordered]
    found = diagnosis.verdict
    if found is not None:
        head = found.refined or found.id
        place = found.where[0] if found.where else None
        at = f" at {place.file.rsplit('/', 1)[-1]}:{place.line}" if place else ""
        parts.insert(0, f"{head}{at}")
    else:
        parts.insert(0, diagnosis.status.replace("no-steps", "no training seen"))
    line = fmt.printable(dot.join([*parts, f"{seen.samples:,} samples"]))
    return fmt.to_ascii(line) if ascii_only else line
