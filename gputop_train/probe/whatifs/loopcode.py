"""The training's own frames and the functions they name; what of a function can be seen beforehand.

Read once, in the warm-up, from the stack of a backward: no call is traced.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from typing import Any, Iterable, Iterator

from .. import sites
from ..hooks import WRAPPER_FILE
from ..state import S
from . import queues, trampoline

MAX_DEPTH = 64
MAX_NAMED = 256
_FUNCTION_FRAME = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_SHOWS_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec", "f_locals"))
#: Whatever draws a bar around an iterable hands its items through.
_PASSES_ON = ("tqdm/", "rich/progress", "progressbar/", "alive_progress/")


def training_frames() -> list[Any]:
    """The script's frames around the backward that is about to run, innermost first."""
    found = []
    frame: Any = sys._getframe(1)
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        if not sites.is_library(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found


def caller(frame: Any) -> Any:
    """The code that a call is from; of a comprehension or a bar, what they are in.

    Args:
        frame: The first frame above our own.
    """
    for _ in range(8):
        code = frame.f_code
        name = code.co_name
        passes = (
            code.co_filename == WRAPPER_FILE
            or (name[:1] == "<" and name not in ("<module>", "<lambda>"))
            or any(part in code.co_filename for part in _PASSES_ON)
        )
        if not passes or frame.f_back is None:
            return code
        frame = frame.f_back
    return frame.f_code


def values_named(frame: Any) -> tuple[set[str], list[tuple[str, Any]]]:
    """The names a frame's code loads, and the values those have that are bound now."""
    names = _loaded(frame.f_code)
    around = frame.f_globals
    known = _locals_named(frame, names)
    held = {name for name, _ in known}
    known += [(name, around[name]) for name in names if name not in held and name in around]
    return names, known


def _locals_named(frame: Any, names: set[str]) -> list[tuple[str, Any]]:
    code = frame.f_code
    if code.co_flags & _FUNCTION_FRAME != _FUNCTION_FRAME:
        return []  # of a file: they are its globals
    if sys.version_info >= (3, 13):
        held = frame.f_locals
        return [(name, held[name]) for name in names if name in held]
    # Before 3.13 they are copied into one dict of the frame, which ``locals()`` hands out too.
    if _SHOWS_LOCALS.intersection(code.co_names):
        return []
    held = frame.f_locals
    known = [(name, held[name]) for name in names if name in held]
    if sys.getrefcount(held) <= 3:  # the frame's, ours and the call's
        held.clear()  # it would keep this step's tensors alive
    return known


def arguments(made: Any) -> tuple[Any, ...]:
    """What a generator was given, as far as its variables still hold it."""
    code = made.gi_code
    names = code.co_varnames[: code.co_argcount]
    held = dict(_locals_named(made.gi_frame, set(names)))
    return tuple(held[name] for name in names if name in held)


def function_of(made: Any) -> Any:
    """A function like the one that made a generator, to be read."""
    code, frame = made.gi_code, made.gi_frame
    held = dict(_locals_named(frame, set(code.co_freevars)))
    cells = tuple(
        types.CellType(held[name]) if name in held else types.CellType()
        for name in code.co_freevars
    )
    return types.FunctionType(code, frame.f_globals, code.co_name, None, cells)


def own_code(function: Any) -> Any:
    """The code of a function, of a decorated one that of the script's own inside."""
    return trampoline.as_it_was(inspect.unwrap(function)).__code__


def _loaded(code: Any) -> set[str]:
    """Names and attributes that a code object loads, itself or in a comprehension.

    Not what it only defines: a file's code has every function of the file in it.
    """
    names: set[str] = set()
    for step in dis.get_instructions(code):
        if "LOAD_" in step.opname and "CONST" not in step.opname:
            value = step.argval
            names.update([value] if isinstance(value, str) else ())
            names.update(value if isinstance(value, tuple) else ())
    for one in code.co_consts:
        if isinstance(one, types.CodeType) and one.co_name[:1] == "<":
            names |= _loaded(one)
    return names


def named_in_models(frames: Iterable[Any] = ()) -> set[str]:
    """What the script's own modules and compiled functions load: it may be compiled into them.

    Args:
        frames: Whose names may be bound to compiled functions.
    """
    names: set[str] = set()
    left = [one for frame in frames for _, one in values_named(frame)[1] if _is_compiled(one)]
    left += _methods_of_models()
    seen: set[int] = set()
    while left and len(seen) < 4 * MAX_NAMED:
        function = trampoline.as_it_was(inspect.unwrap(left.pop()))
        if id(function.__code__) in seen:
            continue
        seen.add(id(function.__code__))
        loaded = _loaded(function.__code__)
        names |= loaded
        called = (function.__globals__.get(name) for name in loaded)
        left += [one for one in called if is_users(one) or _is_compiled(one)]
    return names


def _is_compiled(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and hasattr(value, "_torchdynamo_orig_callable")


def _methods_of_models() -> list[Any]:
    found, seen = [], set()
    left = [S.torch.nn.Module]
    while left:
        kind = left.pop()
        left += [one for one in type.__subclasses__(kind) if one not in seen]
        seen.update(left)
        if is_users_module(sys.modules.get(kind.__module__)):
            found += [one for one in vars(kind).values() if isinstance(one, types.FunctionType)]
    return found


def _nested(code: Any) -> Iterator[Any]:
    """A code object and those in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _nested(one)


def is_users(function: Any) -> bool:
    """Whether a function is the script's own, decorated or not, and plain Python to be called."""
    if not isinstance(function, types.FunctionType):
        return False
    inner = function
    for _ in range(8):
        # What torch.compile made of it must stay what it was compiled from.
        if hasattr(inner, "_torchdynamo_orig_callable"):
            return False
        further = inner.__dict__.get("__wrapped__")
        if not isinstance(further, types.FunctionType):
            break
        inner = further
    code = inner.__code__
    return not sites.is_library(code) and not code.co_flags & _ASYNC


def is_users_class(kind: Any) -> bool:
    """Whether a class is the script's own, and none whose calls torch makes."""
    if not isinstance(kind, type) or not is_users_module(sys.modules.get(kind.__module__)):
        return False
    return not issubclass(kind, _torchs_own())


def _torchs_own() -> tuple[type, ...]:
    torch = S.torch
    data = torch.utils.data
    return (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.Tensor,
        data.Dataset,
        data.DataLoader,
        data.Sampler,
    )


def is_users_module(module: Any) -> bool:
    """Whether a module is a file of the script's."""
    if not isinstance(module, types.ModuleType):
        return False
    name = module.__dict__.get("__file__")
    if not isinstance(name, str):
        return module.__name__ == "__main__"
    return not sites.is_library_name(name)


def functions_named(frame: Any) -> Iterator[tuple[Any, Any]]:
    """``(function, object)`` of what a frame's code may call: the script's functions and methods.

    ``object`` is what a method is of; ``None`` for a function. Queues come as ``(None, queue)``.
    """
    names, known = values_named(frame)
    for _, value in known:
        yield from _callables(value, names, 2)


def functions_of(function: Any) -> Iterator[tuple[Any, Any]]:
    """The same of what a function's code may call, by the globals and variables around it."""
    names = _loaded(own_code(function))
    inner = trampoline.as_it_was(inspect.unwrap(function))
    for name in list(names):
        if name in inner.__globals__:
            yield from _callables(inner.__globals__[name], names, 2)
    for cell in inner.__closure__ or ():
        try:
            yield from _callables(cell.cell_contents, names, 2)
        except ValueError:  # not bound yet
            pass


def _callables(value: Any, names: set[str], depth: int) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.MethodType):
        yield value.__func__, value.__self__
    elif isinstance(value, types.FunctionType):
        yield value, None
    elif queues.is_queue(value):
        yield None, value
    elif isinstance(value, types.ModuleType):
        if is_users_module(value):
            for name in names:
                if isinstance(value.__dict__.get(name), types.FunctionType):
                    yield value.__dict__[name], None
    elif is_users_class(type(value)):
        for name in (*names, "__call__", "__next__"):
            found = method(type(value), name)
            if found is not None:
                yield found, value
        if depth:
            for name, part in _parts(value, names):
                if name != "__class__":
                    yield from _callables(part, names, depth - 1)


def method(kind: type, name: str) -> Any:
    """A method that a class or one it derives from defines in Python; None where there is none."""
    for one in kind.__mro__:
        found = vars(one).get(name)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        if found is not None:
            return found if isinstance(found, types.FunctionType) else None
    return None


def _parts(value: Any, names: set[str]) -> list[tuple[str, Any]]:
    held = getattr(value, "__dict__", None)
    if type(held) is not dict:
        return []
    return [(name, held[name]) for name in names if name in held]


def trouble(function: Any, given: Iterable[Any]) -> str | None:
    """Why leaving out calls of a function would change more than its batches; None if not seen.

    What it reads and calls is followed through the script's own functions, as far as names tell.

    Args:
        function: The function as it was.
        given: Objects among its arguments.
    """
    seen: set[int] = set()
    objects = [one for one in given if is_users_class(type(one))] or [None]
    for one in objects:
        seen.discard(id(own_code(function)))
        found = _trouble(function, one, seen)
        if found is not None:
            return found
    return None


def _trouble(function: Any, of: Any, seen: set[int]) -> str | None:
    inner = trampoline.as_it_was(inspect.unwrap(function))
    function = inner if isinstance(inner, types.FunctionType) else function
    code = function.__code__
    if id(code) in seen or len(seen) >= MAX_NAMED or sites.is_library(code):
        return None
    seen.add(id(code))
    around = dict(zip(code.co_freevars, function.__closure__ or ()))
    read: dict[str, Any] = {}
    names: set[str] = set()
    for one in _nested(code):
        names.update(one.co_names)
        for step in dis.get_instructions(one):
            name = step.argval
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                return "it changes the global %s" % name
            if step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in around:
                return "it changes %s of the function around it" % name
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__:
                read[name] = function.__globals__[name]
    for name, cell in around.items():
        try:
            read[name] = cell.cell_contents
        except ValueError:  # not bound yet
            pass
    for name, value in read.items():
        found = _of_value(value, name, names, seen)
        if found is not None:
            return found
    if of is None:
        return None
    for name, value in _parts(of, names):
        found = _of_value(value, "self." + name, names, seen)
        if found is not None:
            return found
    for name in names:
        called = method(type(of), name)
        found = _trouble(called, of, seen) if called is not None else None
        if found is not None:
            return found
    return None


def _of_value(value: Any, name: str, names: set[str], seen: set[int]) -> str | None:
    found = of_argument(value, name)
    if found is not None:
        return found
    if isinstance(value, types.FunctionType):
        return _trouble(value, None, seen)
    if is_users_class(type(value)):
        for attribute in names:
            called = method(type(value), attribute)
            found = _trouble(called, value, seen) if called is not None else None
            if found is not None:
                return found
    return None


def of_argument(value: Any, name: str) -> str | None:
    """Why a function that has this value in its hands is no mere source of batches."""
    torch = S.torch
    if isinstance(value, torch.nn.Module):
        if next(value.parameters(), None) is not None:
            return "it uses the model %s" % name
    elif isinstance(value, torch.optim.Optimizer):
        return "it uses the optimizer %s" % name
    elif isinstance(value, torch.Tensor):
        if value.requires_grad:
            return "it uses %s, which asks for a gradient" % name
    elif isinstance(value, types.ModuleType):
        if value.__name__.startswith("torch.distributed"):
            return "it talks to other ranks"
    elif queues.is_queue(value):
        return queues.trouble(value, name)
    elif str(getattr(value, "__module__", "")).startswith("torch.distributed"):
        return "it talks to other ranks"
    return None
