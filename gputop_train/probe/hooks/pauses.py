"""Pauses of the host: garbage collection, and flushes of the allocator's cache."""

from __future__ import annotations

import gc
from typing import Any

from .. import startup
from .. import words as W
from ..state import S, append, ident, now
from . import leave_no_frame, wrap_attribute

GC_MIN_NS = 1_000_000
_gc_start = [0]
#: Per generation: [collections on the training thread of at least GC_MIN_NS, ns, objects freed].
_generations = [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
_empty_cache = [0]


def place(torch: Any) -> None:
    """Hook gc and empty_cache."""
    gc.callbacks.append(_on_gc)
    S.hooks["gc"] = True
    wrap_attribute(torch._C, "_cuda_emptyCache", _make_empty_cache)


def _on_gc(phase: str, info: dict[str, int]) -> None:
    try:
        _note(phase, info)
    except Exception as error:
        S.failed("gc", error)


def _note(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _gc_start[0] = now()
        if not S.armed:
            startup.look(3)
        return
    start = _gc_start[0]
    took = now() - start
    if took < GC_MIN_NS or not start or not S.armed or ident() != S.thread_id:
        return
    generation = int(info.get("generation", 0))
    S.gc_count += 1
    S.gc_ns += took
    row = _generations[min(max(generation, 0), 2)]
    row[0] += 1
    row[1] += took
    row[2] += int(info.get("collected", 0))
    append(start << 6 | W.SPAN_GC)
    append(took << 6 | W.ARG_DUR)
    append(generation << 22 | W.ARG_SITE)


def report() -> dict[str, Any]:
    """For the snapshot: pauses of at least a millisecond by generation, and how gc is set up."""
    return {
        "count": S.gc_count,
        "total_ns": S.gc_ns,
        "generations": [list(row) for row in _generations],
        "enabled": gc.isenabled(),
        "threshold": list(gc.get_threshold()),
        "frozen": gc.get_freeze_count(),
    }


def empty_cache_calls() -> int | None:
    """Calls of ``torch.cuda.empty_cache`` that reached the device; ``None`` without CUDA."""
    return _empty_cache[0] if S.torch.cuda.is_initialized() else None


def _make_empty_cache(original: Any) -> Any:
    def empty_cache(*args: Any, **kwargs: Any) -> Any:
        try:
            if ident() == S.thread_id:
                _empty_cache[0] += 1
                append(now() << 6 | W.EMPTY_CACHE)
        except Exception as error:
            S.failed("empty_cache", error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return empty_cache


def reset() -> None:
    """After a fork: no pause has been seen here."""
    for row in _generations:
        row[:] = [0, 0, 0]
    _empty_cache[0] = 0
