"""The probe's state as JSON, for the reader (docs/wire-format.md)."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from typing import Any

from . import memory, oom, sites
from .hooks import distributed
from .state import S, now


def _rank(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None


def memory_stats() -> dict[str, Any] | None:
    """Allocator counters of the current device; reads, never resets, the person's peaks."""
    torch = S.torch
    if not torch.cuda.is_initialized():
        return None
    device = memory.device()
    if device is None:
        return None
    stats = torch._C._cuda_memoryStats(device)

    def nested(name: str, field: str) -> Any:
        try:
            return stats[name]["all"][field]
        except (KeyError, TypeError):
            return None

    return {
        "allocated": nested("allocated_bytes", "current"),
        "reserved": nested("reserved_bytes", "current"),
        "peak_allocated": nested("allocated_bytes", "peak"),
        "peak_reserved": nested("reserved_bytes", "peak"),
        "inactive_split": nested("inactive_split_bytes", "current"),
        "retries": stats.get("num_alloc_retries"),
        "ooms": stats.get("num_ooms"),
    }


_device: dict[int, dict[str, Any]] = {}


def _cuda() -> dict[str, Any]:
    torch = S.torch
    if S.pid in _device:
        return _device[S.pid]
    ready = torch.cuda.is_initialized()
    result: dict[str, Any] = {
        "built": torch.version.cuda is not None or getattr(torch.version, "hip", None) is not None,
        "version": torch.version.cuda,
        "initialized": ready,
        # Asking is_available() here could initialise the driver behind the script's back.
        "available": True if ready else None,
        "device": None,
        "uuid": None,
        "name": None,
    }
    device = memory.device() if ready else None
    if device is not None:
        properties = torch.cuda.get_device_properties(device)
        result.update(device=device, name=properties.name, total=properties.total_memory)
        result["uuid"] = str(getattr(properties, "uuid", "")) or None
        _device[S.pid] = result
    return result


def _flags() -> dict[str, Any]:
    torch = S.torch
    flags: dict[str, Any] = {}
    for name, read in (
        ("anomaly", lambda: torch.is_anomaly_enabled()),
        ("cudnn_benchmark", lambda: torch.backends.cudnn.benchmark),
        ("tf32", lambda: torch.get_float32_matmul_precision() != "highest"),
        ("deterministic", lambda: torch.are_deterministic_algorithms_enabled()),
        ("user_profiler", lambda: bool(torch._C._autograd._profiler_enabled())),
        ("threads", lambda: torch.get_num_threads()),
    ):
        try:
            flags[name] = read()
        except Exception:
            flags[name] = None
    return flags


def _dynamo() -> dict[str, Any] | None:
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters = utils.counters

    def total(name: str) -> int | None:
        # .get: the counters are a defaultdict, and reading must not add keys to it.
        found = counters.get(name)
        return sum(found.values()) if found is not None else None

    return {
        "frames": total("frames"),
        "graph_breaks": total("graph_break"),
        "recompiles": total("recompiles"),
        "unique_graphs": (counters.get("stats") or {}).get("unique_graphs"),
    }


def _hooks() -> dict[str, bool]:
    """Hooks in place. Without a CUDA context no copy or sync can happen: none is missed."""
    hooks = dict(S.hooks)
    if not S.torch.cuda.is_initialized():
        hooks.setdefault("sync", True)
        hooks.setdefault("h2d", True)
    return hooks


def _safely(read: Any) -> Any:
    try:
        return read()
    except Exception:
        return None


class SnapshotBuilder:
    """Builds the JSON; what cannot change is computed once."""

    def __init__(self) -> None:
        self._fixed = {
            "v": 1,
            "argv": [str(a)[:200] for a in sys.argv[:64]],
            "python": platform.python_version(),
            "torch": str(S.torch.__version__),
            "main_tid": S.thread_id,
            "rank": _rank("RANK"),
            "local_rank": _rank("LOCAL_RANK"),
            "world_size": _rank("WORLD_SIZE"),
            "host": socket.gethostname(),
        }

    def build(self, extra: dict[str, Any]) -> bytes:
        """One snapshot, in bytes."""
        feeding = S.loaders.get(S.feeding_loader)
        # Where no optimizer ever shows itself, the backward that armed the probe is the proof.
        if feeding is not None and (S.steps or not S.optimizers):
            feeding["feeds_training"] = True
        places = list(sites.places)
        rows = [[i, *p] for i, p in enumerate(places) if p is not None]
        stats = {str(i): list(sites.stats[i]) for i in range(1, min(len(places), len(sites.stats)))}
        body = dict(self._fixed)
        body.update(
            t_ns=now(),
            cuda=_safely(_cuda),
            param_device=S.param_device,
            sites=rows,
            site_stats=stats,
            loaders=[
                {k: v for k, v in row.items() if k[0] != "_"} for row in list(S.loaders.values())
            ],
            optimizers=list(S.optimizers.values()),
            memory=_safely(memory_stats),
            held=memory.keeper.picture,
            oom=_safely(oom.report),
            ddp=_safely(distributed.report),
            flags=_safely(_flags),
            dynamo=_safely(_dynamo),
            gpu_events=S.gpu.report() if S.gpu is not None else None,
            gc={"count": S.gc_count, "total_ns": S.gc_ns},
            hooks=_hooks(),
            overrides=S.overrides,
            errors=S.errors,
        )
        body.update(extra)
        return json.dumps(body, default=str, separators=(",", ":")).encode("utf-8", "replace")
