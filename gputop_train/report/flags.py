"""Sentences about switches and habits that cost time, from the probe's snapshot. Pure.

Only what is worth a person's attention: a flag at its usual value says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gputop_train.report import format as fmt

#: Distinct shapes of a batch from which on cudnn's search is repeated more often than it pays [D].
CHANGING_SHAPES = 4
#: Calls of empty_cache in a step that are a habit, not a one-off.
EMPTY_CACHE_HABIT = 0.01
MAX_REASONS = 4


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def compiling(state: Mapping[str, Any]) -> list[str]:
    """Recompilations and graph breaks with their reasons; empty when dynamo was not in use."""
    dynamo = _map(state.get("dynamo"))
    found = []
    again, breaks = _count(dynamo.get("recompiles")), _count(dynamo.get("graph_breaks"))
    if again:
        found.append(f"{_times(again, 'recompilation')} after the first of each function")
        for row in _rows(dynamo.get("reasons"))[:MAX_REASONS]:
            if isinstance(row, list) and len(row) >= 4:
                name, file, line, guard = row[:4]
                found.append(f"{PurePath(str(file)).name}:{line} {name}: {guard}")
    if breaks:
        found.append(_times(breaks, "graph break"))
        found += [
            f"{row[1]} x {row[0]}"
            for row in _rows(dynamo.get("breaks"))[:MAX_REASONS]
            if isinstance(row, list) and len(row) >= 2
        ]
    return found


def collecting(
    state: Mapping[str, Any], label_ns: Mapping[str, int], wall_ns: int | None
) -> list[str]:
    """Pauses of the garbage collector of at least a millisecond; empty without any."""
    gc = _map(state.get("gc"))
    count, total = _count(gc.get("count")), _count(gc.get("total_ns"))
    if not count or total is None:
        return []
    text = f"{_times(count, 'pause')} of 1 ms or more, {fmt.milliseconds(total / count / 1e6)} each"
    if wall_ns:
        text += f", {fmt.percent(label_ns.get('gc', 0) / wall_ns)} of wall"
    parts = [
        f"generation {n}: {row[0]:,}"
        for n, row in enumerate(_rows(gc.get("generations")))
        if isinstance(row, list) and row and _count(row[0])
    ]
    if _count(gc.get("frozen")):
        parts.append(f"{gc['frozen']:,} objects frozen")
    return [text + (f" ({', '.join(parts)})" if parts else "")]


def notes(state: Mapping[str, Any], steps: int) -> list[str]:
    """One sentence for each flag or habit that is worth knowing."""
    flags = _map(state.get("flags"))
    on_gpu = bool(_map(state.get("cuda")).get("initialized"))
    found = []
    if flags.get("anomaly"):
        found.append("Anomaly detection is on: every backward is checked and traced.")
    if flags.get("user_profiler"):
        found.append("A profiler is running in the script: it slows every step.")
    if flags.get("launch_blocking"):
        found.append("CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel.")
    if flags.get("sync_debug"):
        found.append("torch.cuda.set_sync_debug_mode is on: it costs time at every read.")
    if flags.get("deterministic"):
        found.append("Deterministic algorithms are on: slower kernels where they differ.")
    if flags.get("data_parallel"):
        found.append("nn.DataParallel copies the model to every GPU in each forward.")
    found += _shapes(state, flags, on_gpu=on_gpu)
    found += _precision(state, flags, on_gpu=on_gpu)
    found += _optimizers(state, on_gpu=on_gpu)
    flushed = _count(state.get("empty_cache"))
    if flushed and steps and flushed / steps >= EMPTY_CACHE_HABIT:
        found.append(
            f"torch.cuda.empty_cache() was called {_times(flushed, 'time')}: each call waits for "
            "the GPU, and memory is asked for anew."
        )
    return found


def _shapes(state: Mapping[str, Any], flags: Mapping[str, Any], *, on_gpu: bool) -> list[str]:
    most = max(
        (
            (shapes, looked)
            for row in _rows(state.get("shapes"))
            if isinstance(row, list) and len(row) == 3
            if (shapes := _count(row[1])) is not None and (looked := _count(row[2])) is not None
        ),
        default=(0, 0),
    )
    if most[0] < CHANGING_SHAPES:
        return []
    text = f"Batches change their shape: {most[0]} in the {most[1]} looked at"
    if on_gpu and flags.get("cudnn_benchmark"):
        return [text + ", and cudnn.benchmark searches anew for each."]
    return [text + "."]


def _precision(state: Mapping[str, Any], flags: Mapping[str, Any], *, on_gpu: bool) -> list[str]:
    amp = _map(state.get("amp"))
    found = []
    entered = [
        f"{row.get('dtype')} on {row.get('device')} ({_count(row.get('blocks')) or 0:,} blocks)"
        for row in map(_map, _rows(amp.get("autocast")))
        if row.get("enabled")
    ]
    if entered:
        found.append(f"Autocast: {', '.join(entered)}.")
    elif on_gpu and amp and _dtypes(state) == {"float32"} and flags.get("tf32") is False:
        found.append("Parameters are float32, with no autocast and TF32 off for matrix products.")
    updates, skipped = _count(amp.get("scaler_updates")), _count(amp.get("scaler_skipped"))
    if updates and skipped is None:
        found.append(
            f"GradScaler: {_times(updates, 'update')}; skipped steps not measured, since a fused "
            "optimizer skips on the device."
        )
    elif updates and skipped:
        found.append(f"GradScaler skipped {skipped:,} of {_times(updates, 'step')}.")
    return found


def _dtypes(state: Mapping[str, Any]) -> set[str]:
    rows = map(_map, _rows(state.get("optimizers")))
    return {str(dtype) for row in rows for dtype in _rows(row.get("dtypes"))}


def _optimizers(state: Mapping[str, Any], *, on_gpu: bool) -> list[str]:
    found = []
    for row in map(_map, _rows(state.get("optimizers"))):
        name = str(row.get("cls"))
        if on_gpu and row.get("foreach") is False and not row.get("fused"):
            found.append(f"{name} runs one parameter at a time (foreach=False).")
        if row.get("differentiable"):
            found.append(f"{name} is differentiable: its steps are part of the graph.")
        if row.get("capturable") and not on_gpu:
            found.append(f"{name} is capturable, which only CUDA graphs need.")
    return list(dict.fromkeys(found))


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
