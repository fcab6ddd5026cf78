"""Precision as it is really used: autocast blocks entered, GradScaler updates, DataParallel.

Nothing here reads a tensor on the device: the scaler's scale stays unknown on purpose.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import words as W
from ..state import S, append, ident, now
from . import dress, leave_no_frame, wrap_attribute

MAX_KINDS = 16

#: (device type, dtype, enabled) -> blocks entered on the training thread.
_entered: dict[tuple[str, str, bool], int] = {}
#: [updates of an enabled scaler, those without an optimizer step since the one before]
_scaler = [0, 0]
_steps_at_update = [0]
_replicated = [0]
#: The allocator's options as they were when CUDA was first seen in use; it reads them then.
_allocator: list[str] = []


def place(torch: Any) -> None:
    """Hook autocast, GradScaler.update and what DataParallel does in every forward."""
    autocast = torch.amp.autocast_mode.autocast
    autocast.__enter__ = dress(_make_enter(autocast.__enter__), autocast.__enter__)
    scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    wrap_attribute(scaler, "update", _make_update)
    # Only the name DataParallel itself looks up; the public function stays what it is. By
    # sys.modules, because a function of the same name hides the module.
    wrap_attribute(sys.modules["torch.nn.parallel.data_parallel"], "replicate", _make_replicate)
    S.hooks["precision"] = True


def _make_enter(original: Any) -> Any:
    state = S

    def __enter__(self: Any) -> Any:
        result = original(self)
        if ident() == state.thread_id:
            try:
                _note(self)
            except Exception as error:
                state.failed("precision", error)
        return result

    return __enter__


def _note(block: Any) -> None:
    fast = block.fast_dtype
    key = (str(block.device), str(fast), bool(block._enabled))
    if key in _entered or len(_entered) < MAX_KINDS:
        _entered[key] = _entered.get(key, 0) + 1


def _make_update(original: Any) -> Any:
    state = S

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if ident() == state.thread_id:
                _updated(self)
        except Exception as error:
            state.failed("scaler", error)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return update


def _updated(scaler: Any) -> None:
    if S.whole:
        append(now() << 6 | W.SCALER_UPDATE)
    elif S.backward_ran and S.steps_at_update == S.steps:
        append(now() << 6 | W.STEP_SKIPPED)
    S.backward_ran = False
    S.steps_at_update = S.steps
    if getattr(scaler, "_enabled", True):
        _scaler[0] += 1
        if _steps_at_update[0] == S.steps:
            _scaler[1] += 1
        _steps_at_update[0] = S.steps


def _count_update(steps: int) -> None:
    _scaler[0] += 1
    if _steps_at_update[0] == steps:
        _scaler[1] += 1
    _steps_at_update[0] = steps


def _make_replicate(original: Any) -> Any:
    def replicate(*args: Any, **kwargs: Any) -> Any:
        _replicated[0] += 1
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    return replicate


def amp() -> dict[str, Any]:
    """For the snapshot: what autocast was asked for, and what became of the scaler's steps.

    ``skipped`` is ``None`` where a fused optimizer decides on the device: its step is called even
    when the device then leaves the parameters alone.
    """
    updates, skipped = _scaler
    fused = any(row.get("fused") for row in list(S.optimizers.values()))
    return {
        "autocast": [
            {"device": device, "dtype": dtype.replace("torch.", ""), "enabled": on, "blocks": n}
            for (device, dtype, on), n in list(_entered.items())
        ],
        "scaler_updates": updates,
        "scaler_skipped": None if fused or not updates else skipped,
    }


def flags() -> dict[str, Any]:
    """For the snapshot: switches that cost time or change precision. Called by the helper thread.

    A flag that cannot be read is ``None``. What may print a warning, or is kept by thread, is not
    asked for.
    """
    torch = S.torch
    found: dict[str, Any] = {}
    for name, read in _READERS:
        try:
            found[name] = read(torch)
        except Exception:
            found[name] = None
    return found


def _fp32(torch: Any, op: str) -> str:
    """``ieee`` or ``tf32``: from 2.9 on by the new names, since the old ones warn when read."""
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    if newer is not None:
        value = str(newer("cuda", op))
        return "ieee" if value == "none" else value
    if op == "matmul":
        return "tf32" if torch._C._get_cublas_allow_tf32() else "ieee"
    return "tf32" if torch._C._get_cudnn_allow_tf32() else "ieee"


def _profiler(torch: Any) -> bool | None:
    # The C function answers for its own thread only, and this is not the training thread.
    value = getattr(torch.autograd.profiler, "_is_profiler_enabled", None)
    return None if value is None else bool(value)


def _expandable(torch: Any) -> bool | None:
    """Whether the environment tells the CUDA allocator to grow its segments; off is its default.

    The newer name is read from torch 2.9 on, and first
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage).
    """
    if _allocator:
        options = _allocator[0]
    else:
        names = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
        release = [int(part) for part in str(torch.__version__).split(".")[:2]]
        given = [os.environ.get(name, "") for name in names[release < [2, 9] :]]
        options = next(filter(None, given), "").replace(" ", "")
        if torch.cuda.is_initialized():
            _allocator.append(options)
    if "backend:cudaMallocAsync" in options:
        return None
    said = [part for part in options.split(",") if part.startswith("expandable_segments:")]
    return bool(said) and said[-1].endswith(":True")


def _environment(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


_READERS: tuple[tuple[str, Any], ...] = (
    ("anomaly", lambda torch: torch.is_anomaly_enabled()),
    ("cudnn_benchmark", lambda torch: torch.backends.cudnn.benchmark),
    ("cudnn_enabled", lambda torch: torch.backends.cudnn.enabled),
    ("tf32", lambda torch: _fp32(torch, "matmul") == "tf32"),
    ("cudnn_tf32", lambda torch: _fp32(torch, "conv") == "tf32"),
    ("deterministic", lambda torch: torch.are_deterministic_algorithms_enabled()),
    ("cudnn_deterministic", lambda torch: torch.backends.cudnn.deterministic),
    ("grad_scaler", lambda torch: _scaler[0] > 0),
    ("user_profiler", _profiler),
    ("launch_blocking", lambda torch: _environment("CUDA_LAUNCH_BLOCKING")),
    ("sync_debug", lambda torch: torch._C._cuda_get_sync_debug_mode() > 0),
    ("data_parallel", lambda torch: _replicated[0] > 0),
    ("threads", lambda torch: torch.get_num_threads()),
    ("expandable_segments", _expandable),
)


def reset() -> None:
    """After a fork: nothing was entered here."""
    _entered.clear()
    _scaler[:] = [0, 0]
    _steps_at_update[0] = 0
    _replicated[0] = 0
