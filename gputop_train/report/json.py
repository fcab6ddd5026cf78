"""The report of ``--json``, schema 1: everything that was found, as plain data. Pure.

``None`` means "not measured" throughout; a key is never left out (``report/schema.py``).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

from gputop_train.diagnose.accounting import account, shares
from gputop_train.diagnose.comm import with_comm
from gputop_train.diagnose.rules.launch_bound import launch_idle
from gputop_train.diagnose.rules.memory_leak import growth
from gputop_train.diagnose.shape import shape_of
from gputop_train.diagnose.stats import median
from gputop_train.diagnose.steady import totals_of
from gputop_train.diagnose.window import Totals, Window
from gputop_train.model import EXPOSED_LABELS, LABELS, Abstention, Diagnosis, Finding
from gputop_train.report import settings
from gputop_train.report.losses import losses
from gputop_train.report.memory import last_words
from gputop_train.report.schema import SCHEMA, validate
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import StepRollup

__all__ = ["build", "finding_body", "validate"]

#: Decimals kept: microseconds of a millisecond value, a ten-thousandth of a percent of a share.
_DIGITS = 6


def build(
    run: Mapping[str, Any],
    exit_: Mapping[str, Any] | None,
    reader: RunReader,
    diagnosis: Diagnosis,
    window: Window,
) -> dict[str, Any]:
    """Put together the report of one run.

    Args:
        run: ``run.json``.
        exit_: ``exit.json``; ``None`` while the script runs, or when nobody saw it end.
        reader: The run's store, for what lies outside the window (devices, ranks, peaks).
        diagnosis: What the engine said about ``window``.
        window: What it looked at.

    Returns:
        A JSON-ready dict with every key of schema 1; no value is NaN or infinite.

    Raises:
        StoreError: If the store cannot be read.
    """
    wall_s = _wall_s(run, exit_, reader)
    report = {
        "schema": SCHEMA,
        "run": _run(run, exit_, reader, window, wall_s),
        "status": diagnosis.status,
        "healthy": diagnosis.healthy,
        "note": diagnosis.note,
        "abstained": [_gap(gap) for gap in diagnosis.abstained],
        "steps": _steps(window),
        "time": _time(window, wall_s, reader),
        "gpu": _gpu(window),
        "memory": _memory(window, reader),
        "verdict": None if diagnosis.verdict is None else finding_body(diagnosis.verdict),
        "also": [finding_body(f) for f in diagnosis.also],
        "ranks": _ranks(window, reader),
        "overhead": _overhead(window, reader),
        "data_lost": losses(reader),
    }
    return {key: plain(value) for key, value in report.items()}


def _gap(gap: Abstention) -> dict[str, Any]:
    """What could not be judged; with the share of the time that has no name for it, if known."""
    share = {} if gap.share is None else {"share": gap.share}
    return {"id": gap.id, "missing": gap.missing, **share}


def _run(
    run: Mapping[str, Any],
    exit_: Mapping[str, Any] | None,
    reader: RunReader,
    window: Window,
    wall_s: float | None,
) -> dict[str, Any]:
    became = settings.outcomes(run, window.probe_states.values(), window.loaders)
    killed = [n.body.get("text") for n in reader.notes() if n.kind == "host-oom"]
    reason = (exit_ or {}).get("reason") or (killed[-1] if killed else None)
    if reason is None and _exit_code(exit_):
        reason = last_words(window.probe_states)
    if exit_ is None:
        reason = "The script had not ended, or nobody saw its end."
    return {
        "id": str(run.get("id") or ""),
        "command": [str(word) for word in run.get("command") or ()],
        "started": _iso(run.get("started_wall_ns")),
        "duration_s": wall_s,
        "exit_code": _exit_code(exit_),
        "exit_reason": reason,
        "stopped_by": reader.meta("stopped_by"),
        "attempts": _attempts(run, reader.meta("attempts")),
        "host": run.get("host") or window.probe.get("host"),
        "torch": window.probe.get("torch"),
        "python": window.probe.get("python"),
        "gpus": _gpus(window, reader),
        "signals_missing": sorted(window.missing),
        "overrides": dict(run.get("overrides") or {}),
        "settings": became,
        "changes_results": [s["setting"] for s in became if s["changes_results"]],
    }


def _attempts(run: Mapping[str, Any], seen: object) -> int:
    """Processes that trained one after another, and the requeues of the job before this one."""
    before = run.get("attempt")
    earlier = before - 1 if isinstance(before, int) and before > 1 else 0
    return earlier + (seen if isinstance(seen, int) else 1)


def _exit_code(exit_: Mapping[str, Any] | None) -> int | None:
    """The code a shell would show: 128 + signal for a script that was killed."""
    signum, code = (exit_ or {}).get("signal"), (exit_ or {}).get("exit_code")
    if isinstance(signum, int):
        return 128 + signum
    return code if isinstance(code, int) else None


def _iso(wall_ns: Any) -> str | None:
    if not isinstance(wall_ns, int):
        return None
    moment = datetime.datetime.fromtimestamp(wall_ns / 1e9, tz=datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def _wall_s(
    run: Mapping[str, Any], exit_: Mapping[str, Any] | None, reader: RunReader
) -> float | None:
    """Launch to end; to the newest reading while there is no end."""
    begin, end = run.get("started_mono_ns"), (exit_ or {}).get("ended_mono_ns")
    span = reader.span()
    if not isinstance(begin, int):
        begin = span[0] if span else None
    if not isinstance(end, int):
        end = span[1] if span else None
    if begin is None or end is None:
        return None
    return max(0, end - begin) / 1e9


def _gpus(window: Window, reader: RunReader) -> list[dict[str, Any]]:
    """The devices this run was seen on, by UUID."""
    weighed: dict[str, tuple[float, int]] = {}
    for rollup in reader.util_rollups(window.t0_ns, window.t1_ns):
        total, n = weighed.get(rollup.uuid, (0.0, 0))
        weighed[rollup.uuid] = (total + rollup.mean * rollup.n, n + rollup.n)
    names = _names(window)
    uuids = {sample.uuid for sample in reader.gpu()} | set(weighed) | set(names)
    found = []
    for uuid in sorted(uuids):
        total, n = weighed.get(uuid, (0.0, 0))
        found.append({"uuid": uuid, "name": names.get(uuid), "util_mean": total / n if n else None})
    return found


def _names(window: Window) -> dict[str, str]:
    """Device names as torch gave them, by the UUID in NVML's spelling."""
    names = {}
    for state in window.probe_states.values():
        cuda = _mapping(state.get("cuda"))
        uuid, name = _nvml_uuid(cuda.get("uuid")), cuda.get("name")
        if uuid and isinstance(name, str):
            names[uuid] = name
    return names


def _nvml_uuid(uuid: Any) -> str | None:
    if not isinstance(uuid, str) or not uuid:
        return None
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _steps(window: Window) -> dict[str, Any]:
    totals = window.totals
    per_s = None
    if totals.samples is not None and totals.wall_ns > 0:
        per_s = totals.samples / (totals.wall_ns / 1e9)
    return {
        "count": window.steps_seen,
        "warmup_excluded": window.warmup_excluded,
        "median_ms": window.median_ms,
        "p95_ms": window.p95_ms,
        "samples_per_s": per_s,
    }


def _time(window: Window, wall_s: float | None, reader: RunReader) -> dict[str, Any]:
    """Where the time between the first and the last step went, warm-up included."""
    whole = window.whole
    # Between two attempts there is no step that it could be a part of.
    begin = window.t0_ns if whole.wall_ns == window.totals.wall_ns else None  # a live window's
    restarts = reader.intervals(begin, window.t1_ns, "restart")
    gap_ns = sum(i.t1_ns - i.t0_ns for i in restarts if i.rank == window.rank)
    wall_ns = whole.wall_ns + gap_ns
    covered = min(1.0, (whole.measured_ns + gap_ns) / wall_ns) if whole.wall_ns > 0 else None
    found = _with_comm(whole, window.rank, window, reader)
    if gap_ns and found:
        found = {label: share * whole.wall_ns / wall_ns for label, share in found.items()}
        found["restart"] += gap_ns / wall_ns
    return {
        "wall_s": wall_s,
        "training_s": wall_ns / 1e9 if whole.steps else None,
        "shares": _every_label(found),
        "coverage": covered,
        "eval_shares": _eval_shares(_mapping(reader.meta("eval_sub")).get(str(window.rank))),
    }


def _eval_shares(parts: Any) -> dict[str, float] | None:
    """Evaluation time by part, as shares that sum to 1; ``None`` without an evaluation."""
    spent = {
        label: ns
        for label, ns in _mapping(parts).items()
        if label in LABELS and isinstance(ns, int) and ns > 0
    }
    total = sum(spent.values())
    return {label: ns / total for label, ns in spent.items()} if total else None


def _every_label(found: Mapping[str, float]) -> dict[str, float | None]:
    return {label: found.get(label) for label in LABELS}


def _gpu(window: Window) -> dict[str, Any]:
    acc = account(window)
    return {
        "util_mean": acc.util_mean,
        "util_shape": shape_of(window).label,
        "busy_share": acc.busy_share,
        "exposed": exposed_idle(window),
    }


def exposed_idle(window: Window) -> dict[str, float | None]:
    """Idle time by what the GPU waited for; busy time and these never exceed the whole.

    Launch idle is what ``launch-bound`` judged, taken out of what nothing else explains.
    """
    acc = account(window)
    exposed = {label: acc.exposed.get(label) for label in EXPOSED_LABELS}
    left = exposed["unattributed"]
    launch = launch_idle(window)
    if exposed["launch"] is None and launch is not None:
        exposed["launch"] = launch if left is None else min(launch, left)
        if left is not None:
            exposed["unattributed"] = left - min(launch, left)
    return exposed


def _memory(window: Window, reader: RunReader) -> dict[str, Any]:
    """Peaks of the allocator, or of the trainer's private memory where the CPU trains."""
    samples = reader.memory(None, None, window.rank)
    basis = samples[-1].basis if samples else ""
    same = [m for m in samples if m.basis == basis]
    state = _mapping(window.probe.get("memory"))
    on_device = basis == "cuda-allocator"
    peaks = [m.peak_allocated if on_device else m.allocated for m in same]
    reserved = [m.peak_reserved for m in same]
    retries = [m.retries for m in same]
    totals = [g.memory_total for g in window.gpu]
    total = _largest(totals) if totals else _mapping(window.probe.get("cuda")).get("total")
    trend = growth(window) if window.memory else None
    return {
        "peak_allocated": _largest([*peaks, state.get("peak_allocated") if on_device else None]),
        "peak_reserved": _largest([*reserved, state.get("peak_reserved") if on_device else None]),
        "device_total": total,
        "alloc_retries": _largest([*retries, state.get("retries") if on_device else None]),
        "growth_bytes_per_step": None if trend is None else trend.per_step,
        "basis": basis,
    }


def _largest(values: list[Any]) -> int | None:
    return max((v for v in values if isinstance(v, int)), default=None)


def finding_body(finding: Finding) -> dict[str, Any]:
    """A finding as the report has it."""
    places = [{"file": w.file, "line": w.line, "what": w.what} for w in finding.where]
    missing = finding.where_missing or "The line was not seen."
    gain = finding.gain
    return {
        "id": finding.id,
        "refined": finding.refined,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "summary": finding.summary,
        "lost_share": finding.lost_share,
        "evidence": [{"what": e.what, "value": e.value, "unit": e.unit} for e in finding.evidence],
        "where": places or None,
        "where_missing": None if places else missing,
        "advice": [
            {"text": a.text, "setting": None if a.setting is None else dict(a.setting)}
            for a in finding.advice
        ],
        "gain": None
        if gain is None
        else {
            "ceiling": gain.ceiling,
            "expected": None if gain.expected is None else list(gain.expected),
            "basis": gain.basis,
            "at_least": gain.at_least,
        },
    }


def _ranks(window: Window, reader: RunReader) -> list[dict[str, Any]]:
    """Every rank over the window; the window's own numbers are those of its rank alone."""
    found = []
    for rank in reader.ranks():
        rollups = reader.step_rollups(window.t0_ns, window.t1_ns, rank)
        state = _mapping(window.probe_states.get(rank))
        found.append(
            {
                "rank": rank,
                "host": state.get("host"),
                "gpu_uuid": _nvml_uuid(_mapping(state.get("cuda")).get("uuid")),
                "step_median_ms": _median_ms(rank, window, rollups, reader),
                "shares": _every_label(_with_comm(totals_of((), rollups), rank, window, reader)),
            }
        )
    return found


def _with_comm(totals: Totals, rank: int, window: Window, reader: RunReader) -> dict[str, float]:
    seen = sum(r.n for r in reader.step_rollups(None, window.t1_ns, rank))
    state = _mapping(window.probe_states.get(rank))
    return with_comm(shares(totals), state, totals, seen)


def _median_ms(
    rank: int, window: Window, rollups: list[StepRollup], reader: RunReader
) -> float | None:
    """Of the steps still kept one by one; of the seconds' medians where none is."""
    if rank == window.rank and window.median_ms is not None:
        return window.median_ms
    kept = [s.wall_ns / 1e6 for s in reader.steps(window.t0_ns, window.t1_ns, rank)]
    return median(kept or [r.median_ns / 1e6 for r in rollups])


def _overhead(window: Window, reader: RunReader) -> dict[str, Any]:
    """What watching cost: the probe's own count of its time, the supervisor's CPU time."""
    cost = _mapping(window.probe.get("cost"))
    own = _mapping(reader.meta("supervisor"))
    per_step_ns = _ratio(cost.get("total_ns"), cost.get("steps"))
    return {
        "probe_us_per_step": None if per_step_ns is None else per_step_ns / 1e3,
        "share": _ratio(cost.get("total_ns"), window.whole.wall_ns),
        "supervisor_cpu_share": _ratio(own.get("cpu_s"), own.get("wall_s")),
    }


def _ratio(part: Any, whole: Any) -> float | None:
    if isinstance(part, (int, float)) and isinstance(whole, (int, float)) and whole > 0:
        return part / whole
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def plain(value: Any) -> Any:
    """JSON's own types: floats rounded, NaN and infinity not measured."""
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
