"""Ways round our own wrappers for what torch's optimizers do in every step.

Adam and its kind read the step count of every parameter, a number on the CPU, once or twice a step,
and group their tensors inside a ``no_grad`` of their own. Beside an H200 a wrapper met there costs
1 to 3 us (benchmarks/results/overhead_h200.md), a hundred times a step with some models, to learn
nothing. So the helper function that reads gets a stand-in which calls the wrapped method itself for
plain CPU tensors, and the context of the other is of a class that has the methods from before.

All of it must be gone before dynamo reads an optimizer, like the step hooks
(``optimizer_hooks.guard``).
"""

from __future__ import annotations

import sys
from typing import Any, Callable

from .hooks import dress

_READ = "_get_value"

#: What takes each of them away again.
_undo: list[Callable[[], None]] = []
_over = [False]


def reads(torch: Any, item: Any) -> None:
    """Let optimizers read past ``Tensor.item``'s wrapper, unless something is compiled already.

    Args:
        torch: The module.
        item: What ``torch.Tensor.item`` was before it was wrapped.
    """
    from torch.optim import optimizer

    original: Any = getattr(optimizer, _READ, None)
    if original is None or _over[0]:
        return
    plain = torch.Tensor
    wrapper = plain.item

    def read(x: Any) -> Any:
        if type(x) is plain and x.is_cpu and plain.item is wrapper:
            try:
                return item(x)
            except Exception:
                pass  # told by the original, from its own lines
        return original(x)

    ours = dress(read, original)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and vars(module).get(_READ) is original:
            _swap(vars(module), original, ours)


def _swap(names: Any, original: Any, ours: Any) -> None:
    def undo() -> None:
        if names.get(_READ) is ours:
            names[_READ] = original

    names[_READ] = ours
    _undo.append(undo)


def contexts(no_grad: Any, enter: Any, leave: Any) -> None:
    """Let the ``no_grad`` around the grouping of tensors be one without our hooks.

    The decorator keeps an instance and enters a new one of its class each time.

    Args:
        no_grad: The class.
        enter: Its ``__enter__`` before it was wrapped.
        leave: Its ``__exit__``.
    """
    from torch.utils import _foreach_utils

    if _over[0]:
        return
    names = {
        "__module__": no_grad.__module__,
        "__qualname__": no_grad.__qualname__,
        "__doc__": no_grad.__doc__,
        "__enter__": enter,
        "__exit__": leave,
    }
    unhooked = type(no_grad.__name__, (no_grad,), names)
    for function in list(vars(_foreach_utils).values()):
        for cell in getattr(function, "__closure__", None) or ():
            kept = getattr(cell.cell_contents, "__self__", None)
            if type(kept) is no_grad:
                _reclass(kept, no_grad, unhooked)


def _reclass(kept: Any, before: Any, after: Any) -> None:
    def undo() -> None:
        if type(kept) is after:
            kept.__class__ = before

    kept.__class__ = after
    _undo.append(undo)


def drop() -> None:
    """Everything as it was, for good."""
    _over[0] = True
    while _undo:
        _undo.pop()()
