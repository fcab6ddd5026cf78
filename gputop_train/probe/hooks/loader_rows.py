"""A DataLoader as constructed: its arguments, and whose code makes its items and batches.

Looks at what the loader holds and calls nothing of the person's, but for the one ``len`` a progress
bar would ask for.
"""

from __future__ import annotations

import types
from functools import partial
from typing import Any

from .. import sites
from ..state import S


def row_of(number: int, loader: Any, site: tuple[Any, int]) -> dict[str, Any]:
    """The row of a loader that has just been constructed."""
    code, line = site
    batch_sampler = getattr(loader, "batch_sampler", None)
    # Not by its truth: that would call the sampler's ``__len__``, which a stream's has none of.
    own_sampler = (
        batch_sampler is not None and type(batch_sampler).__module__.partition(".")[0] != "torch"
    )
    dataset = getattr(loader, "dataset", None)
    iterable = _is_iterable(dataset) or _of_type(dataset, "__getitem__") is None
    length = samples = None
    if not own_sampler and not _is_iterable(dataset):
        length, samples = _lengths(loader, dataset)
    return {
        "id": number,
        "file": code.co_filename if code is not None else "",
        "line": line,
        "call": _call_text(code, line),
        "dataset": type(dataset).__name__,
        "dataset_length": samples,
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "in_order": getattr(loader, "in_order", None),
        "context": None,
        "iterable": iterable,
        "length": length,
        "custom_batch_sampler": bool(own_sampler),
        "source": _safely(source_of, dataset, iterable),
        "collate": _safely(place_of, getattr(loader, "collate_fn", None)),
        "worker_pids": [],
        "ready": None,
        "batches": 0,
        "wait_ns": 0,
        "starts": 0,
        "start_ns": 0,
        "first_waits": 0,
        "first_wait_ns": 0,
        "fetch": [],
        "feeds_training": False,
        "epochs": 0,
        "override": {},
        "_counters": None,  # no key comes later: the helper thread walks through rows
        "_size": 0,
        "_shapes": set(),
        "_looked": 0,
        "_next": 0,
    }


def in_order() -> list[dict[str, Any]]:
    """All rows: the loader that feeds the training first, then the newest."""
    feeding = S.feeding_loader
    return sorted(list(S.loaders.values()), key=lambda row: (row["id"] != feeding, -row["id"]))


def _safely(read: Any, *args: Any) -> Any:
    try:
        return read(*args)
    except Exception:
        return None


def _call_text(code: Any, line: int) -> str:
    """The construction as written, joined to one line when it spans several."""
    import linecache

    text = ""
    for number in range(line, line + 12):
        text += linecache.getline(code.co_filename, number).strip() + " " if code else ""
        if text.count("(") <= text.count(")"):
            break
    start = text.find("DataLoader(")
    return " ".join(text[max(start, 0) :].split()).replace("( ", "(").replace(", )", ")")[:160]


def _lengths(loader: Any, dataset: Any) -> tuple[int | None, int | None]:
    """Batches of an epoch, and items of the dataset: of one call of its ``__len__``, not two."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    try:
        sampler, batches = loader.sampler, loader.batch_sampler
        whole = type(sampler) is SequentialSampler or (
            type(sampler) is RandomSampler and sampler._num_samples is None
        )
        if not whole or sampler.data_source is not dataset:
            return len(loader), None
        items = len(sampler)
        if batches is None:
            return items, items
        if type(batches) is not BatchSampler or batches.sampler is not sampler:
            return len(loader), None
        size = batches.batch_size
        return (items // size if batches.drop_last else -(-items // size)), items
    except Exception:
        return None, None


def _is_iterable(dataset: Any) -> bool:
    from torch.utils.data import IterableDataset

    return issubclass(type(dataset), IterableDataset)


def place_of(function: Any) -> list[Any] | None:
    """``[file, line, qualified name]`` of a person's function; None for a library's.

    Looks into functions, never calls one: what it passes through are functions and methods,
    ``functools.partial``, ``__wrapped__`` of a decorated function, and objects with ``__call__``.
    """
    for _ in range(16):
        if type(function) is partial:
            function = function.func
        elif type(function) is types.MethodType:
            function = function.__func__
        elif type(function) is types.FunctionType:
            inner = function.__dict__.get("__wrapped__")
            if inner is None:
                break
            function = inner
        else:
            function = _of_type(function, "__call__")
    if type(function) is not types.FunctionType:
        return None
    code = function.__code__
    if sites.is_library_name(code.co_filename):
        return None
    return [code.co_filename, code.co_firstlineno, str(function.__qualname__)[:200]]


def _of_type(thing: Any, name: str) -> Any:
    """A class's attribute, past whatever descriptors and ``__getattr__`` it may have."""
    for one in type.__getattribute__(type(thing), "__mro__"):
        if name in type.__getattribute__(one, "__dict__"):
            return type.__getattribute__(one, "__dict__")[name]
    return None


def source_of(dataset: Any, iterable: bool) -> list[Any] | None:
    """Where a dataset's items are made."""
    for _ in range(8):
        kind = type(dataset)
        if kind.__module__ != "torch.utils.data.dataset":
            break
        inside = dataset.__dict__
        if kind.__name__ == "Subset":
            dataset = inside.get("dataset")
        elif kind.__name__ == "ConcatDataset":
            parts = inside.get("datasets")
            if type(parts) is not list or len({type(part) for part in parts}) != 1:
                return None
            dataset = parts[0]
        else:
            return None
    if iterable:
        return place_of(_of_type(dataset, "__iter__"))
    for name in ("__getitems__", "__getitem__"):
        found = _of_type(dataset, name)
        if found is not None:
            return place_of(found)
    return None
