"""Optimizer steps, by torch's own global step hooks.

Apart from the other hooks on purpose: those are on dynamo's skip list, while these must stay
traceable, because a person may compile ``optimizer.step``. ``is_compiling()`` is a constant there,
so the hooks vanish from the graph (``guard``).
"""

from __future__ import annotations

import sys
from typing import Any

from . import bypass, memory, quiet, startup
from . import words as W
from .budget import duty, gate
from .state import S, append, ident, now

_BEGIN, _END = W.OPTIMIZER * 2, W.OPTIMIZER * 2 + 1
_PRE, _POST = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"


#: (torch's module, the name of the table, our key, our hook)
_placed: list[tuple[Any, str, int, Any]] = []


def place(torch: Any) -> None:
    """Register the global pre and post hooks."""
    from torch.optim import optimizer

    state = S

    def before(opt: Any, args: Any, kwargs: Any) -> None:
        if not (state.whole or state.nests):
            return
        try:
            if ident() != state.thread_id or not state.armed:
                _arm()
                if ident() != state.thread_id or not state.armed:
                    return
            elif not state.loop_known:
                _look_for_loop()
            state.optimizer_depth += 1
            if state.optimizer_depth > 1:
                state.nests = True  # a subclass that calls super().step(): one step
                return
            if not state.whole:
                return
            start = now()
            append(start << 6 | _BEGIN)
            append(_number(opt) << 22 | W.ARG_SITE)
            if state.timing:
                state.hook_ns += now() - start
            gpu = state.gpu
            if gpu is not None and gpu.on:
                gpu.mark(_BEGIN)
        except Exception as error:
            state.failed("optimizer", error)

    def after(opt: Any, args: Any, kwargs: Any) -> None:
        if ident() != state.thread_id or not state.armed:
            if id(opt) == state.stepped:
                quiet.shared[0] = True
            return
        try:
            if state.whole or state.nests:
                state.optimizer_depth = max(0, state.optimizer_depth - 1)
                if state.optimizer_depth:
                    return
                if state.whole:
                    _recorded_end(opt)
                    return
            if id(opt) != state.stepped:
                state.stepped = id(opt)
                append(_number(opt) << 6 | W.TICK_OPTIMIZER)
            end = now()
            append(end << 6 | W.STEP_TICK)
            state.steps += 1
            state.detail = False  # an evaluation in this step had switched it on
            if end >= state.quiet_until_ns:
                _quiet_ends(end)
        except Exception as error:
            state.failed("optimizer", error)

    names = vars(optimizer)
    for name, register, hook in (
        (_PRE, optimizer.register_optimizer_step_pre_hook, before),
        (_POST, optimizer.register_optimizer_step_post_hook, after),
    ):
        handle = register(hook)
        _placed.append((names, name, handle.id, hook))
        if hook is before:
            quiet.add_table(names, name, handle.id, hook)
        else:
            quiet.add_tick(names[name], handle.id, hook)
    if "torch._dynamo.callback" in sys.modules:
        guard()
    S.hooks["optimizer"] = True


def guard() -> None:
    """Before dynamo traces anything: from now on the hooks vanish from what it traces.

    Asking ``is_compiling()`` costs more than all else an unrecorded step does, and is of use only
    where something is compiled. Called when the first compilation begins, before its first frame is
    read, so no guard ever sees the change.
    """
    bypass.drop()
    compiler = getattr(S.torch, "compiler", None)
    compiling: Any = getattr(compiler, "is_compiling", None)
    if compiling is None:
        compiling = getattr(S.torch._utils, "is_compiling", lambda: False)
    quiet.put_back()
    while _placed:
        names, name, key, hook = _placed.pop()
        hooks = names[name]
        quiet.drop(hooks)
        if hooks.get(key) is hook:
            hooks[key] = _guarded(hook, compiling)


def _guarded(hook: Any, compiling: Any) -> Any:
    def step_hook(opt: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        hook(opt, args, kwargs)

    return step_hook


def _recorded_end(opt: Any) -> None:
    """A step that was recorded in detail ends; the budget decides about those to come."""
    S.stepped = id(opt)
    gpu = S.gpu
    if gpu is not None and gpu.on:
        gpu.mark(_END)
    gate.tell_skipped()
    end = now()
    append(end << 6 | _END)
    S.steps += 1
    if S.timing:
        # What follows counts its own time: GPU events, memory, a burst.
        S.hook_ns += now() - end
    if gpu is not None:
        gpu.step_end()
    if S.helper is not None:
        S.helper.at_step_end()
    if S.burst is not None:
        S.burst.step_end()
    duty.recorded_end(end, S.burst is not None or (gpu is not None and gpu.on))
    if S.whole and (gpu is not None or gate.recorded or gate.skipped):
        gate.step_end(gpu is not None and gpu.on, duty.stands_for())


def _quiet_ends(end: int) -> None:
    """From here on steps are recorded in detail again."""
    duty.quiet_ends(end)
    gpu = S.gpu
    if gpu is not None:
        gpu.step_end()
        gate.step_end(gpu.on, duty.stands_for())


def _arm() -> None:
    from . import arming

    arming.training_seen("optimizer")


def _look_for_loop() -> None:
    from . import arming

    arming.note_loop("optimizer")


def _number(opt: Any) -> int:
    row = S.optimizers.get(id(opt))
    return row["id"] if row is not None else _remember(opt)


def _remember(opt: Any) -> int:
    """First step of an optimizer: its settings, and where its parameters live."""
    number = len(S.optimizers) + 1
    row: dict[str, Any] = {"id": number, "cls": type(opt).__name__}
    evaluator = S.set_eval_frame(None)
    try:
        startup.mark("step_ns")
        groups = opt.param_groups
        tensors = [p for group in groups for p in group["params"]]
        row["fused"] = groups[0].get("fused")
        row["foreach"] = groups[0].get("foreach")
        row["capturable"] = groups[0].get("capturable")
        row["differentiable"] = groups[0].get("differentiable")
        row["dtypes"] = sorted({str(p.dtype).replace("torch.", "") for p in tensors})[:4]
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
