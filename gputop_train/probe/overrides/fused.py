"""Optimizers that update all parameters in one kernel: chosen where the optimizer is built."""

from __future__ import annotations

import gc
import inspect
from typing import Any

from .. import overrides_steps
from ..hooks import dress, leave_no_frame
from ..state import S, note_error
from .telling import APPLIED, NO_EFFECT, REFUSED, failure, tell, withdraw

_override: list[dict[str, Any]] = []
_depth = [0]
#: Optimizers that got it: looked at again once a state may have been loaded into them.
_switched: list[Any] = []


def place(torch: Any, override: dict[str, Any]) -> None:
    """Watch the optimizers of torch that have fused kernels being built."""
    _override[:] = [override]
    for name in sorted(dir(torch.optim)):
        owner: Any = getattr(torch.optim, name)
        init = vars(owner).get("__init__") if isinstance(owner, type) else None
        if init is not None and "fused" in inspect.signature(init).parameters:
            setattr(owner, "__init__", dress(_make_init(owner, init), init))  # noqa: B010
    overrides_steps.watch(_at_step)


def _make_init(owner: Any, original: Any) -> Any:
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plan = None
        if not _depth[0]:
            try:
                plan = _plan(signature, owner, self, args, kwargs)
            except Exception as error:
                note_error("overrides", error)
        _depth[0] += 1
        try:
            if plan is not None:
                args, kwargs, changed = plan
                try:
                    original(self, *changed.args[1:], **changed.kwargs)
                    return
                except Exception as error:
                    _switched[:] = [o for o in _switched if o is not self]
                    withdraw(_override[0], failure(error))
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            _depth[0] -= 1

    return __init__


def _plan(signature: Any, owner: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
    """``(args, kwargs, bound arguments with the setting)``, or ``None`` where it is not put on."""
    override = _override[0]
    bound = signature.bind(optimizer, *args, **kwargs)
    given = bound.arguments
    on = override["value"]
    if bool(given.get("fused")) == on:
        word = "fused as it is" if on else "not fused as it is"
        tell(override, NO_EFFECT, "%s is %s" % (type(optimizer).__name__, word))
        return None
    # A generator of parameters can be walked through once only.
    given["params"] = _listed(given["params"])
    plain = (bound.args[1:], dict(bound.kwargs))
    why = _refusal(given, owner, optimizer) if on else None
    if why is not None:
        tell(override, REFUSED, "%s: %s" % (type(optimizer).__name__, why))
        return (*plain, bound)
    changed = signature.bind(optimizer, *args, **kwargs)
    changed.arguments.update(given)
    changed.arguments["fused"] = on
    _switched.append(optimizer)
    tell(override, APPLIED)
    return (*plain, changed)


def _listed(params: Any) -> Any:
    if isinstance(params, S.torch.Tensor):
        return params  # torch refuses it in its own words
    listed = list(params)
    return [
        {**row, "params": list(row["params"])}
        if isinstance(row, dict) and not isinstance(row.get("params"), S.torch.Tensor)
        else row
        for row in listed
    ]


def _tensors(params: Any) -> list[Any]:
    found = []
    for row in params:
        inner = row["params"] if isinstance(row, dict) else [row]
        items = inner if isinstance(inner, (list, tuple)) else [inner]
        # Named parameters come as (name, tensor).
        found += [item[1] if isinstance(item, tuple) else item for item in items]
    return found


def _refusal(given: Any, owner: Any, optimizer: Any) -> str | None:
    cls = type(optimizer)
    if cls is not owner and "step" in vars(cls):
        return "its step is the script's own"
    for name in ("foreach", "capturable", "differentiable"):
        if given.get(name) or any(isinstance(g, dict) and g.get(name) for g in given["params"]):
            return "it is built with %s=True" % name
    tensors = _tensors(given["params"])
    for tensor in tensors:
        if not tensor.is_floating_point():
            return "it has parameters of %s" % tensor.dtype
    devices = {tensor.device.type for tensor in tensors}
    supported = _supported(owner)
    strange = sorted(devices - set(supported))
    if strange:
        return "this torch has no fused kernels for %s" % ", ".join(strange)
    if _any_sparse(tensors):
        return "it trains an embedding with sparse gradients"
    return None


def _supported(owner: Any) -> list[str]:
    """Devices with fused kernels: CUDA alone up to torch 2.3; Adagrad's are of the CPU first."""
    try:
        from torch.utils import _foreach_utils

        return list(_foreach_utils._get_fused_kernels_supported_devices())
    except (ImportError, AttributeError):
        return ["cuda"]


def _any_sparse(tensors: list[Any]) -> bool:
    """Whether one of them is the weight of an embedding with sparse gradients."""
    kinds = (S.torch.nn.Embedding, S.torch.nn.EmbeddingBag)
    mine = {id(tensor) for tensor in tensors}
    for value in gc.get_objects():
        # By its type, never isinstance(): a stand-in's __class__ may be computed.
        if issubclass(type(value), kinds) and value.sparse and id(value.weight) in mine:
            return True
    return False


def _at_step(opt: Any, count: int) -> bool:
    override = _override[0]
    for optimizer in _switched:
        if bool(optimizer.param_groups[0].get("fused")) != override["value"]:
            withdraw(override, "the state loaded into the optimizer switched it back")
    _switched.clear()
    if count < 2:
        return False
    if not any(row["key"] == "fused" for row in S.overrides):
        names = sorted({str(row["cls"]) for row in list(S.optimizers.values())})
        tell(override, NO_EFFECT, "there are no fused kernels for %s" % ", ".join(names))
    return True
