"""Optimizer steps, by torch's own global step hooks.

Apart from the other hooks on purpose: those are on dynamo's skip list, while these must stay
traceable, because a person may compile ``optimizer.step``. ``is_compiling()`` is a constant there,
so the hooks vanish from the graph.
"""

from __future__ import annotations

from typing import Any

from . import memory
from . import words as W
from .budget import gate
from .state import S, append, ident, now

_BEGIN, _END = W.OPTIMIZER * 2, W.OPTIMIZER * 2 + 1


def place(torch: Any) -> None:
    """Register the global pre and post hooks."""
    from torch.optim import optimizer

    compiler = getattr(torch, "compiler", None)
    compiling: Any = getattr(compiler, "is_compiling", None)
    if compiling is None:
        compiling = getattr(torch._utils, "is_compiling", lambda: False)
    state = S

    def before(opt: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        if ident() != state.thread_id or not state.armed:
            _arm()
            if ident() != state.thread_id or not state.armed:
                return
        elif not state.loop_known:
            _look_for_loop()
        state.optimizer_depth += 1
        if state.optimizer_depth > 1:
            return  # a subclass that calls super().step(): one step
        if state.steps & 31:
            append(now() << 6 | _BEGIN)
        else:
            # Our own cost, measured in place: caches are as cold here as for any other edge.
            start = now()
            append(start << 6 | _BEGIN)
            # Beyond 10 us it is a wait for the interpreter lock, not a cost of ours.
            state.edge_cost_ns += min(now() - start, 10_000)
            state.edge_cost_n += 1
        row = state.optimizers.get(id(opt))
        append((row["id"] if row is not None else _remember(opt)) << 22 | W.ARG_SITE)
        gpu = state.gpu
        if gpu is not None and gpu.on:
            gpu.mark(_BEGIN)

    def after(opt: Any, args: Any, kwargs: Any) -> None:
        if compiling() or ident() != state.thread_id or not state.armed:
            return
        state.optimizer_depth = max(0, state.optimizer_depth - 1)
        if state.optimizer_depth:
            return
        gpu = state.gpu
        if gpu is not None and gpu.on:
            gpu.mark(_END)
        if gpu is not None:
            gate.tell_skipped()
        append(now() << 6 | _END)
        state.steps += 1
        if gpu is not None:
            gpu.step_end()
            gate.step_end(gpu.on)
        if state.helper is not None:
            state.helper.at_step_end()

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)
    S.hooks["optimizer"] = True


def _arm() -> None:
    from . import arming

    arming.training_seen("optimizer")


def _look_for_loop() -> None:
    from . import arming

    arming.note_loop("optimizer")


def _remember(opt: Any) -> int:
    """First step of an optimizer: its settings, and where its parameters live."""
    number = len(S.optimizers) + 1
    row: dict[str, Any] = {"id": number, "cls": type(opt).__name__}
    evaluator = S.set_eval_frame(None)
    try:
        groups = opt.param_groups
        tensors = [p for group in groups for p in group["params"]]
        row["fused"] = groups[0].get("fused")
        row["foreach"] = groups[0].get("foreach")
        row["tensors"] = len(tensors)
        row["params"] = sum(p.numel() for p in tensors)
        if tensors:
            S.param_device = str(tensors[0].device.type)
        memory.remember(opt)
    except Exception:
        pass
    finally:
        S.set_eval_frame(evaluator)
    if len(S.optimizers) < 256:
        S.optimizers[id(opt)] = row
    return number
