"""Hooks on libraries, placed right after each was imported: savers and loggers."""

from __future__ import annotations

import sys
from typing import Any

from .. import sites
from .. import words as W
from ..state import S, append, ident, now
from . import dress, leave_no_frame, save

LOGGING_MIN_NS = 50_000
#: Of the calls shorter than that, one in so many gets a line and stands for them all.
FAST_ONE_IN = 16

#: Library -> [calls, ns] on the training thread, all of them counted.
called: dict[str, list[int]] = {}
_fast = sites.Lot(FAST_ONE_IN, seed=54321)
_depth = [0]
_MLFLOW = ("log_metric", "log_metrics", "log_param", "log_params", "log_artifact", "log_artifacts")


def on_import(name: str, module: Any) -> None:
    """A watched library has just been imported."""
    if name == "safetensors.torch":
        for writer in ("save_file", "save_model"):
            save.wrap(module, writer, target=("filename", 1))
    elif name == "torch.distributed.checkpoint.state_dict_saver":
        save.wrap(module, "save", target=("checkpoint_id", 99))
        save.wrap(module, "async_save")  # returns before the files are there
    elif name == "accelerate.accelerator":
        save.wrap(module.Accelerator, "save_state", target=("output_dir", 1))
    elif name == "torch.utils.tensorboard.writer":
        for method in [m for m in dir(module.SummaryWriter) if m.startswith("add_")]:
            wrap_logging(module.SummaryWriter, method, "tensorboard")
    elif name == "wandb.sdk.wandb_run":
        wrap_logging(module.Run, "log", "wandb")
    elif name == "mlflow.tracking.fluent":
        for function in _MLFLOW:
            wrap_logging(module, function, "mlflow")


def wrap_logging(owner: Any, name: str, library: str) -> None:
    """Time one function of a logging library on the training thread; nested ones count once."""
    original = getattr(owner, name, None)
    if original is None:
        return
    state, depth = S, _depth
    row = called.setdefault(library, [0, 0])

    def log(*args: Any, **kwargs: Any) -> Any:
        watched = state.armed and not depth[0] and ident() == state.thread_id
        start = 0
        gpu = None
        if watched:
            depth[0] = 1
            try:
                start = now()
                if state.gpu is not None and state.gpu.on:
                    gpu = state.gpu
                    gpu.mark(W.LOGGING * 2)
            except Exception as error:
                gpu = None
                state.failed("logging", error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if watched:
                depth[0] = 0
                try:
                    _logged(row, start)
                    if gpu is not None:
                        gpu.mark(W.LOGGING * 2 + 1)
                except Exception as error:
                    state.failed("logging", error)

    setattr(owner, name, dress(log, original))


def _logged(row: list[int], start: int) -> None:
    took = now() - start
    row[0] += 1
    row[1] += took
    slow = took >= LOGGING_MIN_NS
    site = 0
    try:
        if slow or _fast.drawn():
            site = sites.caller("logging", depth=3)
            if site:
                sites.count(site, took, weight=1 if slow else FAST_ONE_IN)
    except Exception:
        site = 0
    if slow:
        append(start << 6 | W.SPAN_LOGGING)
        append(took << 6 | W.ARG_DUR)
        append(site << 6 | W.ARG_SITE)


def report() -> dict[str, Any]:
    """For the snapshot: each logging library that was imported, its calls and time.

    ``None`` where calls are not counted: the stack sampler sees what time they take.
    """
    found: dict[str, Any] = {
        library: {"calls": calls, "total_ns": ns} for library, (calls, ns) in list(called.items())
    }
    for library in ("tqdm", "wandb", "tensorboard", "mlflow"):
        if library in sys.modules:
            found.setdefault(library, {"calls": None, "total_ns": None})
    return found


def reset() -> None:
    """After a fork: nothing was called here."""
    for row in called.values():
        row[0] = row[1] = 0
    _depth[0] = 0
