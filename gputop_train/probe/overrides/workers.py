"""Whether a loader can have other workers, and how they are started."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import sys
from typing import Any

from ..state import S

#: More than that is not pickled to find out: what is so large is data, and that can be.
MAX_PICKLED_BYTES = 64 << 20
#: Docker's default; workers hand every batch over through it.
SMALL_SHM_BYTES = 64 << 20
_MAX_OBJECTS = 2000


def look(loader: Any, value: int) -> tuple[str | None, str]:
    """Why a loader cannot have ``value`` workers, and what else is to be said of that number."""
    iterable = isinstance(loader.dataset, S.torch.utils.data.IterableDataset)
    if not value:
        return _needs_workers(loader, iterable), ""
    if not loader.num_workers:
        if iterable:
            return "an IterableDataset would deliver every sample once per worker", ""
        why = _cannot_start(loader)
        if why is not None:
            return why, ""
    remarks = []
    cpus = len(os.sched_getaffinity(0))
    if value > cpus:
        remarks.append("%d workers on the %d CPUs this process may use" % (value, cpus))
    room = _shared_memory()
    if room is not None and room <= SMALL_SHM_BYTES:
        remarks.append("/dev/shm has %d MB, and batches pass through it" % (room >> 20))
    return None, "; ".join(remarks)


def _needs_workers(loader: Any, iterable: bool) -> str | None:
    """Why a loader cannot do without workers, as far as the names in its code show."""
    classes = type(loader.dataset).__mro__ if iterable else ()
    if any(_asks(function) for cls in classes for function in list(vars(cls).values())):
        return "its dataset is written to be read by workers"
    if _asks(loader.worker_init_fn):
        return "its worker_init_fn prepares the dataset in each worker"
    return None


def _asks(function: Any) -> bool:
    """Whether a function looks at the worker it runs in."""
    code = getattr(function, "__code__", None)
    return code is not None and "get_worker_info" in code.co_names


def pinning(torch: Any) -> str | None:
    """Why pinned memory is of no use in this process."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is None or not accelerator.is_available():
            return "this torch has no GPU to pin memory for"
    return None


def choose_context(loader: Any) -> None:
    """Fork where the script chose nothing; without workers there is no context."""
    if not loader.num_workers:
        loader.__dict__["_%s__multiprocessing_context" % _base_name(loader)] = None
    elif (
        sys.version_info >= (3, 14)
        and loader.multiprocessing_context is None
        and multiprocessing.get_start_method(allow_none=True) is None
    ):
        # Where fork is not the default, a script that chose nothing was not written for another:
        # no main guard, functions in the dataset that cannot be pickled.
        loader.multiprocessing_context = "fork"


def _base_name(loader: Any) -> str:
    """The class that the loader's private attributes are named after."""
    for name in loader.__dict__:
        if name.endswith("__multiprocessing_context"):
            return str(name[1 : -len("__multiprocessing_context")])
    return "DataLoader"


def _method(loader: Any) -> str:
    context = loader.multiprocessing_context
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True) or "fork"


def _cannot_start(loader: Any) -> str | None:
    """Why the first workers of a loader cannot be started."""
    method = _method(loader)
    if method == "fork":
        if S.torch.cuda.is_initialized() and _holds_cuda(loader.dataset):
            return "its dataset holds tensors on the GPU, which a forked worker cannot use"
        return None
    if not _has_guard():
        return "its workers start by %s, and the script has no main guard (%s)" % (
            method,
            'if __name__ == "__main__":',
        )
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        why = unpicklable(getattr(loader, name, None))
        if why is not None:
            return "its %s cannot be sent to a worker started by %s: %s" % (name, method, why)
    return None


def _has_guard() -> bool:
    """Whether the script can be imported without training once more."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(path, str):
        return True
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return "__name__" in stream.read(4 << 20)
    except OSError:
        return True


class _Enough(Exception):
    pass


class _Nowhere(io.RawIOBase):
    """Takes what is written, and breaks off after the bound."""

    def __init__(self) -> None:
        self._left = MAX_PICKLED_BYTES

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _Enough
        return size


class _Pickler(pickle.Pickler):
    """Pickles all but tensors and storages: those would move to shared memory."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (S.torch.Tensor, S.torch.UntypedStorage)):
            return (int, ())
        return NotImplemented


def unpicklable(value: Any) -> str | None:
    """Why a value cannot be pickled; ``None`` where it can, or is too large to find out."""
    try:
        _Pickler(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except _Enough:
        return None
    except Exception as error:
        return " ".join(str(error).split())[:120] or type(error).__name__
    return None


def _holds_cuda(root: Any) -> bool:
    """Whether a dataset holds tensors on a GPU, as far as plain containers and attributes show."""
    todo, seen, left = [root], set(), _MAX_OBJECTS
    while todo and left:
        value = todo.pop()
        left -= 1
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, S.torch.Tensor):
            if value.is_cuda:
                return True
        elif isinstance(value, dict):
            todo += list(value.values())[:64]
        elif isinstance(value, (list, tuple)):
            todo += value[:64]
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type):
            todo += list(value.__dict__.values())[:64]
    return False


def _shared_memory() -> int | None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    return room.f_frsize * room.f_bavail
