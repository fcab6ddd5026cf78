"""Pauses of the host: gc, compilation, skipped AMP steps, cache flushes, logging."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

from .. import words as W
from ..state import S, append, ident, now
from . import WRAPPER_FILE, dress, leave_no_frame, wrap_attribute

GC_MIN_NS = 1_000_000
LOGGING_MIN_NS = 50_000
_gc_start = [0]


def place(torch: Any) -> None:
    """Hook gc, GradScaler.update and empty_cache."""
    gc.callbacks.append(_on_gc)
    S.hooks["gc"] = True
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or getattr(
        torch.cuda.amp, "GradScaler", None
    )
    if scaler is not None:
        wrap_attribute(scaler, "update", _make_update)
    wrap_attribute(torch._C, "_cuda_emptyCache", _make_empty_cache)


def _on_gc(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _gc_start[0] = now()
        return
    start = _gc_start[0]
    took = now() - start
    if took < GC_MIN_NS or not start or not S.armed or ident() != S.thread_id:
        return
    S.gc_count += 1
    S.gc_ns += took
    append(start << 6 | W.SPAN_GC)
    append(took << 6 | W.ARG_DUR)
    append(int(info.get("generation", 0)) << 22 | W.ARG_SITE)


def _make_update(original: Any) -> Any:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ident() == S.thread_id:
            append(now() << 6 | W.SCALER_UPDATE)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return update


def _make_empty_cache(original: Any) -> Any:
    def empty_cache(*args: Any, **kwargs: Any) -> Any:
        if ident() == S.thread_id:
            append(now() << 6 | W.EMPTY_CACHE)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return empty_cache


def watch_compile(dynamo: Any) -> None:
    """When dynamo is imported: keep it away from our frames, and hear of its compilations."""
    for name in ("torch._dynamo.trace_rules", "torch._dynamo.skipfiles"):
        rules: Any = sys.modules.get(name)
        skipped = getattr(rules, "SKIP_DIRS", None)
        if skipped is not None:
            package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
            skipped.append(WRAPPER_FILE)
            for part in ("hooks", "arming.py", "sites.py", "gpu_events.py", "helper.py"):
                skipped.append(os.path.join(package, part))
            rules._recompile_re()
            break
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is not None:
        begin, end = W.COMPILE * 2, W.COMPILE * 2 + 1
        handler.register_start_callback(lambda *_: _edge(begin))
        handler.register_end_callback(lambda *_: _edge(end))
        S.hooks["compile"] = True


def _edge(code: int) -> None:
    if ident() == S.thread_id:
        append(now() << 6 | code)


def wrap_logging(owner: Any, name: str) -> None:
    """Time one method of a logging library on the training thread."""
    original = getattr(owner, name, None)
    if original is None:
        return

    def log(*args: Any, **kwargs: Any) -> Any:
        start = now() if S.armed and ident() == S.thread_id else 0
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if start:
                _logging_span(start)

    setattr(owner, name, dress(log, original))


def _logging_span(start: int) -> None:
    took = now() - start
    if took < LOGGING_MIN_NS:
        return
    from .. import sites

    try:
        site = sites.caller("logging", depth=3)
        if site:
            sites.count(site, took)
    except Exception:
        site = 0
    append(start << 6 | W.SPAN_LOGGING)
    append(took << 6 | W.ARG_DUR)
    append(site << 6 | W.ARG_SITE)
