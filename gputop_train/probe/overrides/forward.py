"""The modules a training loop calls, and what is put around their forward.

A module that is called outermost with gradients on, in training mode and with parameters to train,
is one of them. ``Module.__call__`` is wrapped for as long as they are being looked for: until one
optimizer steps for the second time, by when a whole round of the loop was seen, or until dynamo
compiles anything, which must meet torch's own. From then on each carries what it needs in
``_compiled_call_impl``: the one place that torch itself provides for it, and leaves out of pickles
and copies.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any, Callable

from .. import overrides_steps, sites
from ..hooks import WRAPPER_FILE, dress, leave_no_frame
from ..state import S, note_error
from . import autocast, compiling, recording
from .telling import REFUSED, failure, tell

KEYS = ("bf16", "compile")
#: Compute capability from which on a GPU has TF32 and bfloat16 (Ampere).
AMPERE = 8

_HIDDEN = "the script compiles a function, and the modules called in it cannot be told"

_wanted: dict[str, dict[str, Any]] = {}
_firsts: list[Callable[[Any], None]] = []
_known: Any = weakref.WeakSet()
_roots: list[Any] = []
_placed: list[tuple[Any, Any]] = []
_depth = threading.local()


def place(torch: Any, overrides: list[dict[str, Any]]) -> None:
    """Look for the modules to put settings on."""
    _wanted.update((o["key"], o) for o in overrides)
    if not hasattr(torch.nn.Module, "_compiled_call_impl"):
        for override in overrides:
            tell(override, REFUSED, "it needs torch 2.2 or newer")
        _wanted.clear()
        return
    _look_out(torch)


def first(torch: Any, call: Callable[[Any], None]) -> None:
    """Have ``call`` told the device of the first module that is called to train."""
    _firsts.append(call)
    _look_out(torch)


def no_ampere(torch: Any, device: Any) -> str | None:
    """Why a GPU has neither TF32 nor bfloat16; an AMD GPU is not asked."""
    if getattr(torch.version, "hip", None) is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    if major < AMPERE:
        return "the GPU's compute capability is %d.%d, it needs 8.0" % (major, minor)
    return None


def _look_out(torch: Any) -> None:
    if _placed:
        return
    module = torch.nn.Module
    original = module.__call__
    grad_enabled, recorded = torch.is_grad_enabled, recording.make(torch)
    depth = _depth

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(depth, "inside", False) or not grad_enabled() or recorded():
            return original(self, *args, **kwargs)
        depth.inside = True
        try:
            try:
                _meet(self)
            except Exception as error:
                note_error("overrides", error)
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            depth.inside = False

    module.__call__ = dress(__call__, original)
    _placed.append((module.__call__, original))
    overrides_steps.watch(_at_step)


def _look_no_more() -> None:
    if _placed:
        ours, original = _placed.pop()
        module = S.torch.nn.Module
        if module.__dict__.get("__call__") is ours:
            module.__call__ = original


def watch_dynamo() -> None:
    """Dynamo is there: before it compiles anything, torch's own ``__call__`` is in its place."""
    if not _placed:
        return
    callbacks: Any = sys.modules.get("torch._dynamo.callback")
    if callbacks is not None:
        callbacks.callback_handler.register_start_callback(lambda *_: _compiled_by_script())
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    for name, seen in (("OptimizeContext", _context_made), ("OptimizedModule", _module_made)):
        owner = getattr(frames, name, None)
        if owner is not None:
            setattr(owner, "__init__", _after(owner.__init__, seen))  # noqa: B010


def _after(original: Any, seen: Callable[[Any], None]) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        try:
            seen(self)
        except Exception as error:
            note_error("overrides", error)

    return dress(__init__, original)


def _context_made(context: Any) -> None:
    """``torch.compile`` was called. By a library for a function of its own: nothing to see yet."""
    frame: Any = sys._getframe(2)
    while frame is not None and _of_torch(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and not sites.is_library(frame.f_code):
        _compiled_by_script()


def _of_torch(file: str) -> bool:
    return file == WRAPPER_FILE or os.sep + "torch" + os.sep in file


def _module_made(module: Any) -> None:
    """The script compiles a module: it is met where it is called, outside of what is compiled."""
    _compiled_by_script()
    if "__reduce__" not in vars(type(module)) or not ("bf16" in _wanted or _firsts):
        return  # before torch 2.8 or so a copy or a pickle would carry what is put on it
    own = module.__dict__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if S.torch.is_grad_enabled() and module.training:
                own.pop("_compiled_call_impl", None)
                try:
                    _meet(module)
                except Exception as error:
                    note_error("overrides", error)
            return (own.get("_compiled_call_impl") or module._call_impl)(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    own["_compiled_call_impl"] = dress(call, module._call_impl)


def _compiled_by_script() -> None:
    """Dynamo has to do: it meets no wrapper of ours, and nothing is compiled on top."""
    try:
        if not _placed or compiling.at_work():
            return
        _look_no_more()
        for key, why in (("compile", "the script compiles itself"), ("bf16", _HIDDEN)):
            if key in _wanted:
                tell(_wanted[key], REFUSED, why)
        _wanted.pop("compile", None)
    except Exception as error:
        note_error("overrides", error)


def _meet(module: Any) -> None:
    """A module is called outermost with gradients on."""
    if module in _known or not module.training or recording.in_backward(S.torch):
        return
    parameter = next((p for p in module.parameters() if p.requires_grad), None)
    if parameter is None:
        return
    _known.add(module)
    calls, _firsts[:] = list(_firsts), []
    for call in calls:
        call(parameter.device)
    if "compile" in _wanted:
        _roots.append(weakref.ref(module))
    if "bf16" in _wanted:
        _put(_wanted["bf16"], autocast.put_on, module, parameter)


def _at_step(opt: Any, count: int) -> bool:
    device = next((p.device for group in opt.param_groups for p in group["params"]), None)
    calls, _firsts[:] = list(_firsts), []
    for call in calls:  # no module was met: a step is sign enough of training
        call(device)
    if count < 2:
        return False
    _look_no_more()
    roots, _roots[:] = list(_roots), []
    if "compile" in _wanted:
        for root in roots:
            module = root()
            if module is not None:
                _put(_wanted["compile"], compiling.put_on, module)
    return True


def _put(override: dict[str, Any], put_on: Any, *args: Any) -> None:
    try:
        put_on(override, *args)
    except Exception as error:
        note_error("overrides", error)
        tell(override, REFUSED, failure(error))
