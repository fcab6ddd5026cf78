"""torch.compile of a module in place, as ``Module.compile`` does it, with a way back.

The module stays the same object with the same state. What cannot be compiled runs as it did, and
the setting then says why.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from ..hooks import dress, leave_no_frame
from ..state import S
from . import mapping, recording
from .telling import APPLIED, REFUSED, failure, tell, withdraw

#: Modes that replay CUDA graphs: their outputs are overwritten by the next step.
_GRAPH_MODES = ("reduce-overhead", "max-autotune")
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
_at_work = [False]


def at_work() -> bool:
    """Whether what is compiled is compiled on our account."""
    return _at_work[0]


def put_on(override: dict[str, Any], module: Any) -> None:
    """Compile a module's training forward from now on, or say why not."""
    torch = S.torch
    why = _refusal(torch, module)
    if why is not None:
        tell(override, REFUSED, why)
        return
    _at_work[0] = True
    mode = override["value"] if isinstance(override["value"], str) else None
    under = module.__dict__.get("_compiled_call_impl")  # our autocast, around what is compiled
    original = module._call_impl
    compiled = torch.compile(
        _traceable(module), **({} if mode in (None, "default") else {"mode": mode})
    )
    graphs = _graphs()
    copies = mode in _GRAPH_MODES and _on_cuda(module)
    failed, looked = [False], [False]
    grad_enabled, recorded = torch.is_grad_enabled, recording.make(torch)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if failed[0] or not grad_enabled() or not module.training or recorded():
                return original(*args, **kwargs)
            try:
                result = compiled(*args, **kwargs)
                if not looked[0]:
                    looked[0] = True
                    if _graphs() == graphs:
                        withdraw(override, "the compiler found nothing in it that it can compile")
                return mapping.each_tensor(result, _copied) if copies else result
            except Exception as error:
                if not _of_the_compiler(error):
                    raise
                why = failure(error)
            result = original(*args, **kwargs)  # raises what is the script's own fault
            failed[0] = True
            withdraw(override, why)
            return result
        except BaseException as error:
            leave_no_frame(error)
            raise

    dress(call, original)
    if under is None:
        module.__dict__["_compiled_call_impl"] = call
    else:
        under.compiled[0] = call
    tell(override, APPLIED)


def _traceable(module: Any) -> Any:
    """What the compiler is given: for a class of torch itself, a frame that it does not skip."""
    try:
        from torch._dynamo import external_utils, trace_rules

        if trace_rules.check(module.forward):
            return external_utils.wrap_inline(module._call_impl)
    except (ImportError, AttributeError):
        pass
    return module._call_impl


def _graphs() -> int:
    """Graphs that were compiled so far in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return int(((utils.counters if utils else {}).get("stats") or {}).get("unique_graphs", 0))


def _copied(tensor: Any) -> Any:
    return tensor.clone()


def _on_cuda(module: Any) -> bool:
    return any(p.is_cuda for p in module.parameters())


def _of_the_compiler(error: BaseException) -> bool:
    """Whether the compiler failed, and not the script's own code in it."""
    modules = [cls.__module__ for cls in type(error).__mro__]
    return any(name.startswith(("torch._dynamo", "torch._inductor", "triton")) for name in modules)


def _refusal(torch: Any, module: Any) -> str | None:
    names = {cls.__name__ for cls in type(module).__mro__}
    wrapper = next((name for name in _WRAPPERS if name in names), None)
    if wrapper is not None or type(module).__name__.startswith("FSDP"):
        return "it is wrapped in %s" % (wrapper or "FSDP")
    if isinstance(module, torch.jit.ScriptModule):
        return "the module is a TorchScript one"
    for part in module.modules():
        mine = part is module
        if type(part).__name__ == "OptimizedModule" or (
            not mine and part.__dict__.get("_compiled_call_impl") is not None
        ):
            return "the script compiles itself"
    under = module.__dict__.get("_compiled_call_impl")
    if under is not None and not hasattr(under, "compiled"):
        return "the script compiles itself"
    return _no_compiler(torch, module)


def _no_compiler(torch: Any, module: Any) -> str | None:
    """Why nothing can be built here. Triton builds its launcher with a C compiler, too."""
    names = [os.environ.get("CC"), os.environ.get("CXX"), "g++", "gcc", "clang++", "clang", "cc"]
    if not any(name and shutil.which(name.split()[0]) for name in names):
        return "there is no C++ compiler here (torch.compile needs one)"
    if _on_cuda(module):
        from torch.utils._triton import has_triton

        if not has_triton():
            return "there is no triton for this GPU here (torch.compile needs it)"
    return None
