"""Settings of the whole process: precision of matrix products, cuDNN's search, threads, allocator.

What a script chooses itself it chooses before its first training forward; so the switches are set
there, and looked at again a step later. Threads are set at once, since libraries read them early.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from .. import overrides_steps
from ..hooks import precision
from ..state import S
from . import forward
from .telling import APPLIED, NO_EFFECT, REFUSED, failure, tell, withdraw

KEYS = ("tf32", "cudnn_benchmark", "omp_threads", "expandable_segments")
ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_wanted: dict[str, dict[str, Any]] = {}
_in_force: set[str] = set()


def place(torch: Any, overrides: list[dict[str, Any]]) -> None:
    """Set what is set at once, and wait for the rest."""
    _wanted.update((o["key"], o) for o in overrides)
    threads = _wanted.get("omp_threads")
    if threads is not None:
        torch.set_num_threads(threads["value"])
        tell(threads, APPLIED)
    if "tf32" in _wanted or "cudnn_benchmark" in _wanted:
        forward.first(torch, _at_forward)
    overrides_steps.watch(_at_step)


def _at_forward(device: Any) -> None:
    """The first training forward begins, of a module on ``device``."""
    for key, switch in (("tf32", _tf32), ("cudnn_benchmark", _benchmark)):
        override = _wanted.get(key)
        if override is None:
            continue
        if device.type != "cuda":
            tell(override, NO_EFFECT, "the model is on the %s, not on a GPU" % device.type)
            continue
        try:
            status, why = switch(override["value"], device)
        except Exception as error:
            status, why = REFUSED, failure(error)
        tell(override, status, why)
        if status == APPLIED:
            _in_force.add(key)


def _tf32(on: bool, device: Any) -> tuple[str, str]:
    torch = S.torch
    why = forward.no_ampere(torch, device) if on else None
    if why is not None:
        return REFUSED, why
    if _tf32_now() == _fp32_tf32("conv") == on:
        return NO_EFFECT, "it is %s in this script as it is" % ("on" if on else "off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch._C._get_cublas_allow_tf32()
            legacy = True
        except RuntimeError:
            # From torch 2.9 on the script may have used the newer names, and whoever mixes the two
            # gets an exception where the older ones are read.
            legacy = False
        if legacy:
            torch._C._set_cublas_allow_tf32(on)
            torch._C._set_cudnn_allow_tf32(on)
        else:
            value = "tf32" if on else "ieee"
            for op in ("matmul", "conv", "rnn"):
                torch._C._set_fp32_precision_setter("cuda", op, value)
    return APPLIED, ""


def _fp32_tf32(op: str) -> bool:
    return precision._fp32(S.torch, op) == "tf32"


def _tf32_now() -> bool:
    return _fp32_tf32("matmul")


def _benchmark_now() -> bool:
    return bool(S.torch.backends.cudnn.benchmark)


def _benchmark(on: bool, device: Any) -> tuple[str, str]:
    torch = S.torch
    cudnn = torch.backends.cudnn
    if on and (cudnn.deterministic or torch.are_deterministic_algorithms_enabled()):
        return REFUSED, "the script asks for deterministic algorithms"
    if not cudnn.enabled:
        return REFUSED, "the script has switched cuDNN off"
    if cudnn.benchmark == on:
        return NO_EFFECT, "it is %s in this script as it is" % ("on" if on else "off")
    cudnn.benchmark = on
    return APPLIED, ""


def _at_step(opt: Any, count: int) -> bool:
    """At the second step: what the script has made of it since."""
    if count < 2:
        return False
    threads = _wanted.get("omp_threads")
    if threads is not None and S.torch.get_num_threads() != threads["value"]:
        withdraw(threads, "the script sets %d threads itself" % S.torch.get_num_threads())
    for key, now in (("tf32", _tf32_now), ("cudnn_benchmark", _benchmark_now)):
        if key in _in_force and now() != _wanted[key]["value"]:
            withdraw(_wanted[key], "the script sets it itself after its first forward")
    segments = _wanted.get("expandable_segments")
    if segments is not None:
        tell(segments, *_segments(segments["value"]))
    return True


def _segments(on: bool) -> tuple[str, str]:
    """What the allocator made of it, by the segments it has."""
    torch = S.torch
    if not torch.cuda.is_initialized():
        return NO_EFFECT, "no GPU was used"
    given = [os.environ.get(name, "") for name in ALLOCATOR_NAMES]
    options = (given[0] or given[1])[:80]
    if "expandable_segments:%s" % on not in options.replace(" ", ""):
        return REFUSED, "the allocator's options are the script's own: %s" % (options or "none")
    found = [bool(row.get("is_expandable")) for row in torch.cuda.memory_snapshot()]
    if on and not any(found):
        return REFUSED, "the allocator of torch %s did not take it here" % torch.__version__
    return APPLIED, ""
