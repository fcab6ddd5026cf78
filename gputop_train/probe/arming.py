"""When hooks are placed, when the probe wakes up, and what a fork does to it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from . import selfcheck, sites, startup
from .budget import duty
from .hooks import WRAPPER_FILE
from .state import S, append, ident, leave_mark, load_config, log, note_error, now
from .words import FORK

_loop_stacks: dict[str, list[tuple[int, Any]]] = {}
#: Code objects of the frame that drives the loop: deepest frame common to backward and step.
loop_codes: set[Any] = set()
#: Code of the script's frames around that one. Where a helper does all from forward to step, the
#: batch is fetched in these, between two calls of it. By id: hashing a code object takes long.
outer_codes: dict[int, Any] = {}
_stale = [False]
_NO_LOOP = (
    WRAPPER_FILE,
    "torch/_tensor.py",
    "torch/autograd/__init__.py",
    "torch/optim/optimizer.py",
)
MAX_LOOPS = 64  # every cell of a notebook that is run again is another code object


def on_import(name: str, module: Any) -> None:
    """A watched module has just been imported."""
    if name == "torch":
        _on_torch(module)
        return
    from .hooks import compiled, libraries

    if S.trial is not None:
        _try("trial", S.trial.on_import, name, module)
    if name == "torch._dynamo":
        _try("compile", compiled.watch, module)
        if S.config.get("overrides"):
            from . import overrides

            _try("overrides", overrides.on_dynamo)
    elif name == "torchdata.stateful_dataloader.stateful_dataloader":
        from .hooks import loader

        _try("data", loader.watch_class, module.StatefulDataLoader)
        if S.config.get("overrides"):
            from . import overrides

            _try("overrides", overrides.on_stateful_loader, module)
    else:
        libraries.on_import(name, module)


def _try(name: str, place: Any, *args: Any) -> None:
    try:
        if not selfcheck.abstain(name):
            place(*args)
    except Exception as error:
        S.hooks[name] = False
        note_error("hook " + name, error)


def _on_torch(torch: Any) -> None:
    S.torch = torch
    startup.mark("torch_ns")
    try:
        S.set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
    except AttributeError:
        pass
    S.config = load_config()
    if not S.config:
        return
    leave_mark("torch")
    if S.config.get("trial"):
        from . import whatifs

        _try("trial", whatifs.place, torch)  # first: below the probe's own hooks
    from . import oom, optimizer_hooks
    from .hooks import (
        backward,
        distributed,
        evaluate,
        fetching,
        graphs,
        loader,
        pauses,
        precision,
        save,
    )

    for name, place in (
        ("data", loader.place),
        ("fetch", fetching.place),
        ("backward", backward.place),
        ("optimizer", optimizer_hooks.place),
        ("save", save.place),
        ("eval", evaluate.place),
        ("gc", pauses.place),
        ("precision", precision.place),
        ("graphs", graphs.place),
    ):
        _try(name, place, torch)
    if S.config.get("overrides"):
        from . import overrides

        _try("overrides", overrides.place, torch)  # above the probe's own hooks
    _try("oom", oom.watch, torch)
    _try("ddp", distributed.place, torch)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        if sys.version_info >= (3, 12):
            os.register_at_fork(before=_before_fork, after_in_parent=_forked)
    atexit.register(_at_exit)


def training_seen(kind: str) -> bool:
    """A backward or an optimizer step ran: wake up. False when this thread is not watched."""
    evaluator = S.set_eval_frame(None)
    try:
        if S.dead:
            return False
        if not S.armed:
            _arm()
        if ident() != S.thread_id and not _take_over():
            return False
        note_loop(kind)
        return S.armed
    except Exception as error:
        S.dead = True
        S.armed = False
        S.thread_id = 0
        note_error("arming", error)
        return False
    finally:
        S.set_eval_frame(evaluator)


def _take_over() -> bool:
    """Follow the training into this thread, once the one that was watched has ended."""
    watched = S.thread
    if not S.armed or watched is None or watched.is_alive():
        return False
    S.thread, S.thread_id = _this_thread(), ident()
    _loop_stacks.clear()
    forget_loop()
    return True


def _this_thread() -> Any:
    # Not current_thread(): in a thread that Python did not start, that registers a stand-in.
    return getattr(threading, "_active", {}).get(ident())


def forget_loop() -> None:
    """Look for the loop's frame anew: the training went on in other code. From any thread."""
    if len(loop_codes) < MAX_LOOPS:
        _stale[0] = True
        S.loop_known = False


def backward_stack() -> list[tuple[int, Any]] | None:
    """Frames above the first backward, outermost first, while no optimizer call was seen."""
    return None if _stale[0] else _loop_stacks.get("backward")


def note_loop(kind: str) -> None:
    """Keep looking for the loop frame until both stacks were seen."""
    if not S.loop_known:
        evaluator = S.set_eval_frame(None)
        try:
            _note_stack(kind)
        finally:
            S.set_eval_frame(evaluator)


def _note_stack(kind: str) -> None:
    if _stale[0]:
        _stale[0] = False
        _loop_stacks.clear()
    if kind in _loop_stacks:
        return
    stack = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        stack.append((id(frame), frame.f_code))
        frame = frame.f_back
    _loop_stacks[kind] = stack[::-1]
    if len(_loop_stacks) == 2:
        one, other = _loop_stacks.values()
        common = None
        around = {}
        for left, right in zip(one, other):
            # One called in the other, by a hook or a closure: the loop is further out.
            if left != right or left[1].co_filename.endswith(_NO_LOOP):
                break
            if common is not None and not sites.is_library(common):
                around[id(common)] = common
            common = left[1]
        if common is not None:
            loop_codes.add(common)
            outer_codes.update(around)
        S.loop_known = True
        _loop_stacks.clear()


def _arm() -> None:
    leave_mark("training")
    try:
        from . import helper
    except OSError as error:  # a script without descriptors lets us read no file of ours either
        leave_mark("ring-%d" % (error.errno or 0))
        raise
    S.armed = True
    startup.mark("armed_ns")
    S.pid = os.getpid()
    S.thread, S.thread_id = _this_thread(), ident()
    place_cuda_hooks()
    if S.forks:
        append(now() << 6 | FORK)
    S.helper = helper.start()
    if S.helper is None:
        S.armed = False
        S.dead = True
        S.thread_id = 0
        return
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # Forked children of multiprocessing leave by os._exit, past atexit: this runs there, last.
        sys.modules["multiprocessing.util"].Finalize(None, _at_exit, exitpriority=-100)


def place_cuda_hooks() -> None:
    """Hooks that need a CUDA context; the helper tries again until there is one."""
    from . import memory
    from .hooks import transfer

    torch = S.torch
    memory.note_device()
    if S.gpu is not None or not torch.cuda.is_initialized():
        return
    _try("sync", transfer.place, torch)
    if S.trial is not None:
        _try("trial", S.trial.on_cuda, torch)
    _try("gpu_events", _watch_gpu)


def _watch_gpu() -> None:
    from . import gpu_events

    S.gpu = gpu_events.create()


def _before_fork() -> None:
    helper = S.helper
    try:
        if helper is not None and S.pid == os.getpid():
            helper.pause()
    except Exception as error:
        S.failed("fork", error)


def _forked() -> None:
    helper = S.helper
    try:
        if helper is not None and S.pid == os.getpid():
            helper.resume()
    except Exception as error:
        S.failed("fork", error)


def _after_fork() -> None:
    """In a child: no thread of ours lives on. Stay silent until this process trains itself."""
    try:
        _start_afresh()
    except Exception as error:  # os.fork would print it
        S.dead = True
        S.armed = False
        S.thread_id = 0
        note_error("fork", error)


def _start_afresh() -> None:
    from . import memory, oom, quiet
    from .hooks import distributed, evaluate, libraries, modes, pauses, precision

    S.forks += 1
    S.armed = S.loop_known = False
    loop_codes.clear()
    outer_codes.clear()
    _loop_stacks.clear()
    S.thread, S.thread_id = None, 0
    gpu, S.gpu, S.burst = S.gpu, None, None
    if gpu is not None:
        _keep_for_ever(gpu)
    helper, S.helper = S.helper, None
    log.clear()
    quiet.forget()
    memory.forget()
    oom.forget()
    distributed.forget()
    duty.reset()
    startup.reset()
    S.steps = 0  # after what was ticked in the parent was added to it
    if S.trial is not None:
        S.trial.after_fork()
    for part in (evaluate, libraries, modes, pauses, precision):
        part.reset()
    if helper is not None:
        helper.forget()


_kept: list[Any] = []


def _keep_for_ever(gpu: Any) -> None:
    """Never free CUDA events in a forked child: destroying one there aborts the process.

    Seen on an H200: DataLoader workers forked from a training process died of "CUDA error:
    initialization error" when the parent's event pool was dropped in them.
    """
    _kept.append(gpu)
    try:
        # One reference more than anybody will ever release, so that teardown leaves it alone too.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(gpu))
    except Exception:
        pass


def _at_exit() -> None:
    try:
        _leave()
    except Exception as error:  # atexit would print it
        note_error("exit", error)


def _leave() -> None:
    from . import oom

    oom.leave_last()
    if S.trial is not None:
        S.trial.at_exit()
    helper, S.helper = S.helper, None
    if helper is not None and S.pid == os.getpid():
        helper.finish()
    # Code objects go before module teardown: weak maps over them complain otherwise.
    sites.clear()
    loop_codes.clear()
    outer_codes.clear()
    _loop_stacks.clear()
