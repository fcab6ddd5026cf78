"""Settings flipped without an edit: DataLoader arguments, changed as the loader is constructed.

Each override says what became of it: applied, or refused in words. What would break the script or
change which samples it sees is refused.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from .state import S

LOADER_KEYS = (
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "batch_size",
)


def adjust(
    original: Any, loader: Any, args: Any, kwargs: Any, site: tuple[Any, int]
) -> tuple[Any, Any, dict[str, Any]]:
    """New ``(args, kwargs)`` for this loader's constructor, and what was applied."""
    bound = inspect.signature(original).bind(loader, *args, **kwargs)
    values = bound.arguments
    wanted = _ordered([o for o in S.config["overrides"] if _concerns(o, site)])
    applied: dict[str, Any] = {}
    for override in wanted:
        key, value = override["key"], override["value"]
        why = _refusal(key, value, values)
        if why is None:
            values[key] = value
            applied[key] = value
        _report(override, site, "applied" if why is None else "refused", why or "")
    if applied:
        _keep_consistent(values, applied)
        return bound.args[1:], bound.kwargs, applied
    return args, kwargs, {}


def _concerns(override: dict[str, Any], site: tuple[Any, int]) -> bool:
    """Whether an override is for the loader built at this line; unnamed ones are for training."""
    if override.get("key") not in LOADER_KEYS:
        return False
    named = override.get("loader")
    code, line = site
    if named:
        file, _, number = str(named).rpartition(":")
        return (
            code is not None
            and str(line) == number
            and (code.co_filename == file or os.path.basename(code.co_filename) == file)
        )
    return True


def _ordered(overrides: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Workers first, since others need them; what names this loader instead of what names none."""
    named = {o["key"] for o in overrides if o.get("loader")}
    kept = [o for o in overrides if o.get("loader") or o["key"] not in named]
    return sorted(kept, key=lambda o: o["key"] != "num_workers")


def _is_evaluation(values: dict[str, Any]) -> bool:
    """A loader that neither shuffles nor samples, built after one that does, evaluates."""
    shuffles = bool(values.get("shuffle")) or values.get("sampler") is not None
    return not shuffles and values.get("batch_sampler") is None and _shuffling_loader_seen[0]


_shuffling_loader_seen = [False]


def _refusal(key: str, value: Any, values: dict[str, Any]) -> str | None:
    from torch.utils.data import IterableDataset

    if values.get("shuffle"):
        _shuffling_loader_seen[0] = True
    if _is_evaluation(values):
        return "this loader does not shuffle while another does: it looks like evaluation"
    workers = int(values.get("num_workers", 0) or 0)
    if key == "num_workers":
        if not isinstance(value, int) or value < 0:
            return "num_workers must be a whole number from 0"
        if value and not workers and isinstance(values.get("dataset"), IterableDataset):
            return "an IterableDataset without worker sharding would deliver every sample twice"
    own_batches = values.get("batch_sampler") is not None or values.get("batch_size", 1) is None
    if key == "batch_size" and own_batches:
        return "the loader takes its batches from a sampler of its own"
    if key in ("prefetch_factor", "persistent_workers") and not workers:
        return "it needs num_workers of at least 1"
    return None


def _keep_consistent(values: dict[str, Any], applied: dict[str, Any]) -> None:
    """Arguments that only make sense with workers come and go with them."""
    if values.get("num_workers", 0) == 0:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            values.pop(name, None)
    elif (
        applied.get("num_workers")
        and values.get("multiprocessing_context") is None
        and sys.platform == "linux"
        and sys.version_info >= (3, 14)
    ):
        # From 3.14 on the default is forkserver, which the script was not written for (no main
        # guard, lambdas in the dataset).
        values["multiprocessing_context"] = "fork"


def _report(override: dict[str, Any], site: tuple[Any, int], status: str, why: str) -> None:
    code, line = site
    name = os.path.basename(code.co_filename) if code is not None else "?"
    if len(S.overrides) < 64:
        S.overrides.append(
            {
                "key": override["key"],
                "value": override["value"],
                "loader": "%s:%d" % (name, line),
                "status": status,
                "why": why,
            }
        )
