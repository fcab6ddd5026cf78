"""DataLoader: waits in ``next()``, worker start-up, and how each loader was constructed.

``_BaseDataLoaderIter.__next__`` is the one place every loader passes, Hugging Face, Lightning,
Accelerate and StatefulDataLoader included; patching the class takes effect on live iterators.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .. import quiet, sites, startup
from .. import words as W
from ..budget import LONG_WAIT_NS
from ..state import S, append, ident, now
from . import dress, fetching, leave_no_frame, loader_rows, wrap_attribute

_ID = "_gputop_loader_id"
_BEGIN = {False: W.DATA_NOGRAD * 2, True: W.DATA * 2}
_ITER = W.ITER * 2
_SIZE_EVERY = 16  # look into one batch in 16 for its size; loaders with a fixed batch_size tell it
MAX_SHAPES = 64  # of a loader's first tensor
_ids: Any = None  # weak map loader -> id


def place(torch: Any) -> None:
    """Hook the loader classes."""
    global _ids
    from torch.utils.data import dataloader

    _ids = weakref.WeakKeyDictionary()
    S.iterators = weakref.WeakSet()
    base = dataloader._BaseDataLoaderIter
    _hook_next(torch, base)
    watch_class(dataloader.DataLoader)
    S.hooks["data"] = True


def watch_class(loader_class: Any) -> None:
    """Hook a loader's class, or one that does without its constructor: StatefulDataLoader."""
    wrap_attribute(loader_class, "__iter__", _make_iter)
    _hook_construction(loader_class)


def _hook_next(torch: Any, base: Any) -> None:
    original = base.__next__
    grad_enabled = torch.is_grad_enabled
    state, stamp, long_ns = S, now, LONG_WAIT_NS

    def __next__(self: Any) -> Any:
        if not state.detail and grad_enabled():
            start = stamp()
            try:
                batch = original(self)
            except BaseException as error:
                _note_if_long(start)
                leave_no_frame(error)
                raise
            try:
                if stamp() - start > long_ns or self._num_yielded == 1:  # the original counted it
                    _unrecorded_wait(self, start)
            except Exception as error:
                state.failed("data", error)
            return batch
        if ident() != state.thread_id:
            if state.armed and _ID in self.__dict__:
                self.__dict__[_ID]["epochs"] = 0  # a background thread's: no pass of the training
            try:
                return original(self)
            except BaseException as error:
                leave_no_frame(error)
                raise
        gpu = None
        start = 0
        try:
            if not state.detail:  # an evaluation in an unrecorded step: always told
                state.detail = True
                quiet.put_back()
            code = _BEGIN[grad_enabled()]
            start = now()
            append(start << 6 | code)
            if state.timing:
                state.hook_ns += now() - start
            if state.gpu is not None and state.gpu.on:
                gpu = state.gpu
                gpu.mark(code)
        except Exception as error:
            start = 0
            state.failed("data", error)
        try:
            batch = original(self)
        except BaseException as error:
            if start:
                _failed_wait(code, gpu)
            leave_no_frame(error)
            raise
        if not start:
            return batch
        try:
            end = now()
            append(end << 6 | code | 1)
            if gpu is not None:
                gpu.mark(code | 1)
            row = self.__dict__.get(_ID)
            if row is not None:
                append((_size(row, batch) << 16 | row["id"]) << 6 | W.ARG_SITE)
                row["batches"] += 1
                row["wait_ns"] += end - start
                if self._num_yielded == 1:
                    _first_wait(self, end - start)
                if code == 0:
                    state.feeding_loader = row["id"]
            if state.timing:
                state.hook_ns += now() - end
        except Exception as error:
            state.failed("data", error)
        return batch

    base.__next__ = dress(__next__, original)


def _failed_wait(code: int, gpu: Any) -> None:
    """A wait that ended in an exception, StopIteration above all, ended too."""
    try:
        append(now() << 6 | code | 1)
        if gpu is not None:
            gpu.mark(code | 1)
    except Exception as error:
        S.failed("data", error)


def _unrecorded_wait(iterator: Any, start: int) -> None:
    """A wait that was long or the first of a pass."""
    took = now() - start
    _note_if_long(start)
    if iterator._num_yielded == 1:
        _first_wait(iterator, took)


def _note_if_long(start: int) -> None:
    """In a step that is not recorded: a wait that may be a rare one is told all the same."""
    try:
        end = now()
        if end - start > LONG_WAIT_NS and ident() == S.thread_id:
            append(start << 6 | W.DATA * 2)
            append(end << 6 | W.DATA * 2 + 1)
    except Exception as error:
        S.failed("data", error)


def _first_wait(iterator: Any, ns: int) -> None:
    """The first batch of a pass came: workers had to start, or to begin anew."""
    row = iterator.__dict__.get(_ID)
    if row is not None and ident() == S.thread_id:
        row["first_waits"] += 1
        row["first_wait_ns"] += ns


def _size(row: dict[str, Any], batch: Any) -> int:
    """Samples in a batch: as many as the loader takes, else what its first tensor's shape tells.

    The first dimension of a batch of graphs counts nodes, that of several views of a picture views.
    Shapes are looked at once in a while in any case: whether they vary is of interest.
    """
    number = row["batches"]
    if number >= row["_next"]:
        # Not every 16th: a loop's own period would show one shape for ever.
        row["_next"] = number + 1 + (number * 2654435761 >> 7) % (2 * _SIZE_EVERY - 1)
        try:
            with S.torch._C.DisableTorchFunction():  # a person's mode or subclass sees no read
                shape = _first_shape(batch, 0)
            row["_size"] = shape[0] if shape else 0
            row["_looked"] += 1
            if len(row["_shapes"]) < MAX_SHAPES:
                row["_shapes"].add(shape)
        except Exception:
            row["_size"] = 0
    asked, held = row["batch_size"], row["dataset_length"]
    if type(asked) is int and (held is None or held >= asked):
        return asked
    return int(row["_size"])


def _first_shape(batch: Any, depth: int) -> tuple[int, ...]:
    if depth > 3:
        return ()
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return tuple(int(n) for n in shape)
    items = batch.values() if isinstance(batch, dict) else batch
    if isinstance(items, (list, tuple)) or isinstance(batch, dict):
        for item in items:
            found = _first_shape(item, depth + 1)
            if found:
                return found
    return ()


def _make_iter(original: Any) -> Any:
    def __iter__(self: Any) -> Any:
        watched = ident() == S.thread_id
        making = row = None
        start = 0
        if watched:
            _iter_edge(_ITER)
        try:
            startup.mark("iter_ns")
            row = _row_of(self)
            making = fetching.begin(row, self.num_workers)
            start = now()
        except Exception as error:
            S.failed("iter", error)
        try:
            iterator = original(self)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if watched:
                _iter_edge(_ITER | 1)
            if start:
                _made(making)
        try:
            if row is not None:
                _adopt(row, iterator, watched, now() - start if start else 0)
        except Exception as error:
            S.failed("iter", error)
        return iterator

    return __iter__


def _iter_edge(code: int) -> None:
    try:
        append(now() << 6 | code)
    except Exception as error:
        S.failed("iter", error)


def _made(making: Any) -> None:
    try:
        fetching.end(making)
    except Exception as error:
        S.failed("iter", error)


def _row_of(loader: Any) -> Any:
    try:
        return S.loaders.get(_ids.get(loader, 0))
    except TypeError:  # one that cannot be hashed
        return None


def _adopt(row: Any, iterator: Any, watched: bool, took_ns: int) -> None:
    """Know an iterator by its loader. The class's own ``__init__`` is left alone on purpose."""
    try:
        if watched:
            append(row["id"] << 6 | W.ARG_SITE)
        if watched or not S.armed:  # until then nobody knows which thread trains
            row["epochs"] += 1
        # In the iterator's __dict__ only: loaders get pickled and copied, iterators do not.
        known = iterator.__dict__.get(_ID) is row
        iterator.__dict__[_ID] = row
        S.iterators.add(iterator)
        if known:
            return
        workers = iterator.__dict__.get("_workers")
        if workers:
            row["starts"] += 1
            row["start_ns"] += took_ns if watched else 0
            row["context"] = _start_method(type(workers[0]))
        else:
            fetching.adopt(row, iterator)
    except Exception:
        pass


def _start_method(process: Any) -> str | None:
    """How a class of processes is started; what is read here is only set once one was."""
    method = getattr(process, "_start_method", None)
    if method is None:
        module: Any = sys.modules.get("multiprocessing")
        method = module.get_start_method(allow_none=True) if module is not None else None
    return method if isinstance(method, str) else None


def _hook_construction(loader_class: Any) -> None:
    original = loader_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Frames of subclasses' __init__ (StatefulDataLoader, timm) are library code: walked over.
        site = (None, 0)
        try:
            site = _construction_line()
        except Exception:
            pass
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        try:
            _remember(self, site)
        except Exception:
            pass

    loader_class.__init__ = dress(__init__, original)


def _construction_line() -> tuple[Any, int]:
    frame: Any = sys._getframe(2)
    first = frame
    for _ in range(sites.MAX_DEPTH):
        if frame is None:
            break
        if not sites.is_library(frame.f_code):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return first.f_code, first.f_lineno


def _remember(loader: Any, site: tuple[Any, int]) -> None:
    number = len(S.loaders) + 1
    if number > 256 or loader in _ids:
        return
    startup.mark("loader_ns")
    S.loaders[number] = loader_rows.row_of(number, loader, site)
    _ids[loader] = number


def _due(iterator: Any) -> int:
    """Batches the trainer took from the queue that it can hand out now.

    Those behind one that is still being made are no use yet: workers that deliver in rounds would
    look ahead all the time that the trainer waits for the first of them.
    """
    info = iterator._task_info
    if not getattr(iterator, "_in_order", True):
        return sum(1 for task in list(info.values()) if len(task) == 2)
    due = first = iterator._rcvd_idx
    while len(info.get(due, ())) == 2:
        due += 1
    return int(due - first)


def poll() -> None:
    """What live iterators and their workers do; called by the helper thread."""
    fetching.tell(loader_rows.in_order())
    for iterator in list(S.iterators or ()):
        row = iterator.__dict__.get(_ID)
        if row is None or not getattr(iterator, "_num_workers", 0):
            continue
        try:
            if iterator._shutdown:
                row["worker_pids"] = []
                continue
            row["ready"] = int(iterator._data_queue.qsize()) + _due(iterator)
            row["worker_pids"] = [worker.pid for worker in iterator._workers]
        except Exception:
            row["ready"] = None
