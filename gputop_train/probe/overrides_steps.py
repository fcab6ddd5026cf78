"""An optimizer pre hook of the settings' own, at work until all of them are settled.

It is never taken out: torch walks through the hooks while this one runs.

Apart from the other parts of the settings on purpose: those are on dynamo's skip list, while an
optimizer's hooks must stay traceable. ``is_compiling()`` is a constant there, so nothing of this
gets into a graph.
"""

from __future__ import annotations

from typing import Any, Callable

from .state import S, note_error

#: Called at each step's begin with the optimizer and how often it has stepped; True = settled.
_watchers: list[Callable[[Any, int], bool]] = []
_counts: dict[int, int] = {}
_handle: list[Any] = []
_compiling: list[Any] = [None]
MAX_STEPS = 4096


def watch(watcher: Callable[[Any, int], bool]) -> None:
    """Have ``watcher`` called until it says that it is settled."""
    _watchers.append(watcher)
    if not _handle:
        from torch.optim import optimizer

        _handle.append(optimizer.register_optimizer_step_pre_hook(_before))


def _before(opt: Any, args: Any, kwargs: Any) -> None:
    if _compiling[0] is not None and _compiling[0]():
        return
    if _watchers:
        _step(opt)


def _step(opt: Any) -> None:
    count = _counts[id(opt)] = _counts.get(id(opt), 0) + 1
    evaluator = S.set_eval_frame(None)
    try:
        for watcher in list(_watchers):
            try:
                settled = watcher(opt, count) or count > MAX_STEPS
            except Exception as error:
                note_error("overrides", error)
                settled = True
            if settled:
                _watchers.remove(watcher)
    finally:
        S.set_eval_frame(evaluator)


def guard() -> None:
    """Dynamo is in use: from now on, ask whether it is tracing."""
    compiler = getattr(S.torch, "compiler", None)
    _compiling[0] = getattr(compiler, "is_compiling", None) or getattr(
        S.torch._utils, "is_compiling", None
    )
