"""bfloat16 autocast around the training forward of a module, as ``torch.autocast`` would be used.

The output comes back in float32, so that a loss computed outside is the one the script wrote. The
backward runs in the types the forward chose. bfloat16 has float32's range: no scaling is needed.
"""

from __future__ import annotations

from typing import Any

from ..hooks import dress, leave_no_frame, precision
from ..state import S
from . import forward, mapping, recording
from .telling import APPLIED, REFUSED, failure, tell, withdraw

#: Blocks entered by us; all others that are on are the script's own.
_ours = [0]
#: After so many calls nobody looks any more whether the script has blocks of its own.
_LOOKS = 64


def put_on(override: dict[str, Any], module: Any, parameter: Any) -> None:
    """Run a module's training forward under autocast from now on, or say why not."""
    torch = S.torch
    device = parameter.device
    why = _refusal(torch, module, device)
    if why is not None:
        tell(override, REFUSED, why)
        return
    before = module.__dict__.get("_compiled_call_impl")
    # A cell: torch.compile of this module may take its place later.
    inner = [module._call_impl if before is None else before]
    grad_enabled, dtype, kind = torch.is_grad_enabled, torch.bfloat16, device.type
    out_of_memory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
    left, recorded = [_LOOKS], recording.make(torch)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if left[0] < 0 or not grad_enabled() or not module.training or recorded():
                return inner[0](*args, **kwargs)
            try:
                with torch.autocast(kind, dtype=dtype):
                    _ours[0] += 1
                    result = inner[0](*args, **kwargs)
                result = mapping.each_tensor(result, _as_float32)
                if left[0]:
                    _look(override, left)
                return result
            except out_of_memory:
                raise
            except Exception as error:
                if recording.in_backward(torch):  # a checkpoint ends its second forward by one
                    raise
                why = failure(error)
            # Outside of the handler: what the script raises itself has no story of ours before it.
            result = inner[0](*args, **kwargs)
            left[0] = -1
            withdraw(override, why)
            return result
        except BaseException as error:
            leave_no_frame(error)
            raise

    dress(call, module._call_impl)
    call.compiled = inner  # type: ignore[attr-defined]
    module.__dict__["_compiled_call_impl"] = call
    tell(override, APPLIED)


def _look(override: dict[str, Any], left: list[int]) -> None:
    """In the first calls: does the script enter blocks of its own?"""
    left[0] -= 1
    if _scripts_own():
        left[0] = -1
        withdraw(override, "the script uses autocast itself")


def _as_float32(tensor: Any) -> Any:
    return tensor.float() if tensor.dtype is S.torch.bfloat16 else tensor


def _refusal(torch: Any, module: Any, device: Any) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return "the module is a TorchScript one"
    if device.type == "cuda":
        why = forward.no_ampere(torch, device)
        if why is not None:
            return why
    elif device.type != "cpu":
        return "the module is on a device of type %s" % device.type
    if _is_on(torch, device.type) or _scripts_own():
        return "the script uses autocast itself"
    if precision._scaler[0]:
        return "the script scales its gradients for float16"
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if torch.float32 not in dtypes:
        return "the module's parameters are %s as it is" % ", ".join(sorted(map(str, dtypes)))
    return None


def _is_on(torch: Any, kind: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(kind))
    except TypeError:  # before torch 2.4
        return bool(
            torch.is_autocast_enabled() if kind == "cuda" else torch.is_autocast_cpu_enabled()
        )


def _scripts_own() -> bool:
    entered = list(precision._entered.items())
    return sum(count for (_, _, on), count in entered if on) > _ours[0]
