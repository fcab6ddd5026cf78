"""The probe's state as JSON, for the reader (docs/wire-format.md)."""

from __future__ import annotations

import json
import platform
import socket
import sys
from typing import Any

from . import memory, oom, ranks, sites, startup
from .hooks import compiled, distributed, libraries, loader_rows, modes, pauses, precision
from .state import S, now


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
    hip = getattr(torch.version, "hip", None)
    result: dict[str, Any] = {
        "built": torch.version.cuda is not None or hip is not None,
        "version": torch.version.cuda,
        "hip": hip,
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
        if hip is None:  # what is known of a capability is known of NVIDIA's
            result["capability"] = [properties.major, properties.minor]
        _device[S.pid] = result
    return result


def _hooks() -> dict[str, bool]:
    """Hooks in place. Without a CUDA context no copy or sync can happen: none is missed."""
    hooks = dict(S.hooks)
    if not S.torch.cuda.is_initialized():
        hooks.setdefault("sync", True)
        hooks.setdefault("h2d", True)
    return hooks


def loader_shapes() -> list[list[Any]]:
    """``[loader id, distinct shapes of a batch's first tensor, batches looked at]``."""
    return [
        [row["id"], len(row["_shapes"]), row["_looked"]]
        for row in list(S.loaders.values())
        if "_shapes" in row
    ]


def _safely(read: Any) -> Any:
    try:
        return read()
    except Exception:
        return None


#: What the rows of the sites may take of a snapshot, whose area in the ring is bounded: those
#: registered later than that are not told.
MAX_PLACES_BYTES = 128 * 1024
#: The same for the rows of the loaders: of a script that builds one for each epoch the newest are
#: told, and the reader keeps what it was told of the others.
MAX_LOADERS_BYTES = 48 * 1024


def _dumps(value: Any) -> str:
    return json.dumps(value, default=str, separators=(",", ":"))


def _loaders() -> str:
    told, room = {}, MAX_LOADERS_BYTES
    for row in loader_rows.in_order():
        text = _dumps({key: value for key, value in row.items() if key[0] != "_"})
        room -= len(text)
        if room < 0:
            break
        told[row["id"]] = text
    return ",".join(told[number] for number in sorted(told))


class SnapshotBuilder:
    """Builds the JSON; what cannot change is computed once."""

    def __init__(self) -> None:
        rank, local_rank, world_size = ranks.known(S.torch)
        self._fixed = {
            "v": 1,
            "argv": [str(a)[:200] for a in sys.argv[:64]],
            "python": platform.python_version(),
            "torch": str(S.torch.__version__),
            "main_tid": S.thread_id,
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world_size,
            "host": socket.gethostname(),
        }
        self._told = 1
        self._rows: list[str] = []
        self._room = MAX_PLACES_BYTES

    def build(self, extra: dict[str, Any]) -> bytes:
        """One snapshot, in bytes."""
        feeding = S.loaders.get(S.feeding_loader)
        # Where no optimizer ever shows itself, the backward that armed the probe is the proof.
        if feeding is not None and (S.steps or not S.optimizers):
            feeding["feeds_training"] = True
        places = list(sites.places)
        stats = {str(i): list(sites.stats[i]) for i in range(1, min(len(places), len(sites.stats)))}
        body = dict(self._fixed)
        body.update(
            t_ns=now(),
            cuda=_safely(_cuda),
            param_device=S.param_device,
            site_stats=stats,
            optimizers=list(S.optimizers.values()),
            memory=_safely(memory_stats),
            held=memory.keeper.picture,
            oom=_safely(oom.report),
            ddp=_safely(distributed.report),
            flags=_safely(precision.flags),
            modes=_safely(modes.report),
            amp=_safely(precision.amp),
            dynamo=_safely(compiled.report),
            logging=_safely(libraries.report),
            shapes=_safely(loader_shapes),
            empty_cache=_safely(pauses.empty_cache_calls),
            gpu_events=S.gpu.report() if S.gpu is not None else None,
            gc=_safely(pauses.report),
            hooks=_hooks(),
            overrides=S.overrides,
            errors=S.errors,
            startup=_safely(startup.report),
        )
        body.update(extra)
        if S.trial is not None:
            body.update(_safely(S.trial.report) or {})
        text = _dumps(body)
        text = text[:-1] + ',"loaders":[' + _loaders() + '],"sites":[' + self._places(places) + "]}"
        return text.encode("utf-8", "replace")

    def _places(self, places: list[Any]) -> str:
        """The rows of all sites. A place never changes, so each is put into words once."""
        if len(places) < self._told:
            self._told, self._rows, self._room = 1, [], MAX_PLACES_BYTES
        for number in range(self._told, len(places)):
            row = _dumps([number, *places[number]])
            self._room -= len(row)
            if self._room >= 0:
                self._rows.append(row)
        self._told = len(places)
        return ",".join(self._rows)
