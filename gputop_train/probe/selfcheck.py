"""Does this torch still have the places the probe hooks? Asked before a hook is placed.

A place that is gone, or that takes other arguments than those the wrapper was written for, is left
alone: the snapshot's ``hooks`` then carries the reason in words instead of ``true``, and the reader
abstains from what that hook would have shown.
"""

from __future__ import annotations

import sys
from typing import Any

from .state import S

#: hook -> places. A place is ``module:attribute path``, or several of which one is enough, and the
#: names its first arguments must have (None: any, or not a Python function).
POINTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "data": (
        ("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", ("self",)),
        ("torch.utils.data.dataloader:DataLoader.__iter__", ("self",)),
        ("torch.utils.data.dataloader:DataLoader.__init__", ("self", "dataset", "batch_size")),
        ("torch:is_grad_enabled", None),
    ),
    "fetch": (
        (
            "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",
            ("self", "possibly_batched_index"),
        ),
        (
            "torch.utils.data._utils.fetch:_IterableDatasetFetcher.fetch",
            ("self", "possibly_batched_index"),
        ),
    ),
    "backward": (("torch.autograd:_engine_run_backward|torch.autograd:backward", None),),
    "optimizer": (
        ("torch.optim.optimizer:register_optimizer_step_pre_hook", ("hook",)),
        ("torch.optim.optimizer:register_optimizer_step_post_hook", ("hook",)),
    ),
    "save": (
        ("torch.serialization:save", ("obj", "f")),
        ("torch:save", ("obj", "f")),
    ),
    "eval": (
        ("torch.nn:Module.eval", ("self",)),
        ("torch.nn:Module.train", ("self", "mode")),
        ("torch.autograd.grad_mode:no_grad.__enter__", ("self",)),
        ("torch.autograd.grad_mode:no_grad.__exit__", ("self",)),
        ("torch.autograd.grad_mode:inference_mode.__enter__", ("self",)),
        ("torch.autograd.grad_mode:inference_mode.__exit__", ("self",)),
    ),
    "gc": (("gc:callbacks.append", None),),
    "compile": (
        ("torch._dynamo.callback:callback_handler.register_start_callback", ("self", "callback")),
        ("torch._dynamo.callback:callback_handler.register_end_callback", ("self", "callback")),
    ),
    "sync": (
        ("torch:Tensor.item", None),
        ("torch:Tensor.tolist", None),
        ("torch:Tensor.cpu", None),
        ("torch:Tensor.to", None),
        ("torch:Tensor.cuda", None),
        ("torch:Tensor.is_cuda", None),
    ),
    "gpu_events": (
        ("torch.cuda:Event.record", None),
        ("torch.cuda:Event.query", None),
        ("torch.cuda:Event.elapsed_time", None),
        ("torch.cuda:current_stream", None),
        ("torch.cuda:is_current_stream_capturing", None),
    ),
}
_VARARGS = 0x04  # inspect.CO_VARARGS
_MISSING = object()


def trouble(hook: str) -> str | None:
    """Why this hook is not to be placed, in words; None where all its places are as known."""
    for names, arguments in POINTS.get(hook, ()):
        found = _MISSING
        for name in names.split("|"):
            found = _look_up(name)
            if found is not _MISSING:
                break
        shown = names.split("|")[0].replace(":", ".")
        if found is _MISSING:
            return "torch %s has no %s" % (_version(), shown)
        if not callable(found) and not hasattr(type(found), "__get__"):
            return "in torch %s, %s cannot be called" % (_version(), shown)
        if arguments is not None and not _takes(found, arguments):
            return "torch %s changed the arguments of %s" % (_version(), shown)
    return None


def abstain(hook: str) -> bool:
    """Note the trouble with a hook, if any; True when it must not be placed."""
    reason = trouble(hook)
    if reason is None:
        return False
    hooks: dict[str, Any] = S.hooks
    hooks[hook] = reason
    if hook == "sync":  # placed together
        hooks["h2d"] = reason
    return True


def _look_up(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            # What the hook itself would import next.
            __import__(module)
        except Exception:
            return _MISSING
        found = sys.modules.get(module, _MISSING)
    for part in path.split("."):
        found = getattr(found, part, _MISSING)
        if found is _MISSING:
            return _MISSING
    return found


def _takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Whether the first positional arguments have these names; wrappers by others pass."""
    # Through decorators that keep what they wrap, but never through a bound method's own function.
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    if code is None:
        return True
    names = code.co_varnames[: code.co_argcount]
    return names[: len(arguments)] == arguments or bool(code.co_flags & _VARARGS)


def _version() -> str:
    return str(getattr(S.torch, "__version__", "?"))
