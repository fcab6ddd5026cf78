"""DataLoader: waits in ``next()``, worker start-up, and how each loader was constructed.

``_BaseDataLoaderIter.__next__`` is the one place every loader passes, Hugging Face, Lightning,
Accelerate and StatefulDataLoader included; patching the class takes effect on live iterators.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from .. import quiet, sites
from .. import words as W
from ..budget import LONG_WAIT_NS
from ..state import S, append, ident, now
from . import dress, leave_no_frame, wrap_attribute

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
    state = S

    def __next__(self: Any) -> Any:
        if not state.detail and grad_enabled():
            start = 0
            try:
                start = now()
            except Exception as error:
                state.failed("data", error)
            try:
                batch = original(self)
            except BaseException as error:
                _note_if_long(start)
                leave_no_frame(error)
                raise
            try:
                if now() - start > LONG_WAIT_NS:
                    _note_if_long(start)
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


def _note_if_long(start: int) -> None:
    """In a step that is not recorded: a wait that may be a rare one is told all the same."""
    try:
        end = now()
        if end - start > LONG_WAIT_NS and ident() == S.thread_id:
            append(start << 6 | W.DATA * 2)
            append(end << 6 | W.DATA * 2 + 1)
    except Exception as error:
        S.failed("data", error)


def _size(row: dict[str, Any], batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor, looked up once in a while."""
    number = row["batches"]
    if number >= row["_next"]:
        # Not every 16th: a loop's own period would show one shape for ever.
        row["_next"] = number + 1 + (number * 2654435761 >> 7) % (2 * _SIZE_EVERY - 1)
        try:
            shape = _first_shape(batch, 0)
            row["_size"] = shape[0] if shape else 0
            row["_looked"] += 1
            if len(row["_shapes"]) < MAX_SHAPES:
                row["_shapes"].add(shape)
        except Exception:
            row["_size"] = 0
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
        if watched:
            _iter_edge(_ITER)
        try:
            iterator = original(self)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if watched:
                _iter_edge(_ITER | 1)
        try:
            _adopt(self, iterator, watched)
        except Exception as error:
            S.failed("iter", error)
        return iterator

    return __iter__


def _iter_edge(code: int) -> None:
    try:
        append(now() << 6 | code)
    except Exception as error:
        S.failed("iter", error)


def _adopt(loader: Any, iterator: Any, watched: bool) -> None:
    """Know an iterator by its loader. The class's own ``__init__`` is left alone on purpose."""
    try:
        row = S.loaders.get(_ids.get(loader, 0))
        if row is None:
            return
        if watched:
            append(row["id"] << 6 | W.ARG_SITE)
        if watched or not S.armed:  # until then nobody knows which thread trains
            row["epochs"] += 1
        # In the iterator's __dict__ only: loaders get pickled and copied, iterators do not.
        iterator.__dict__[_ID] = row
        S.iterators.add(iterator)
    except Exception:
        pass


def _hook_construction(loader_class: Any) -> None:
    original = loader_class.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Frames of subclasses' __init__ (StatefulDataLoader, timm) are library code: walked over.
        override: dict[str, Any] = {}
        site = (None, 0)
        try:
            site = _construction_line()
            if S.config.get("overrides"):
                from .. import overrides

                args, kwargs, override = overrides.adjust(original, self, args, kwargs, site)
        except Exception:
            override = {}
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        try:
            _remember(self, site, override)
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


def _remember(loader: Any, site: tuple[Any, int], override: dict[str, Any]) -> None:
    code, line = site
    row_id = len(S.loaders) + 1
    if row_id > 256 or loader in _ids:
        return
    sampler = getattr(loader, "batch_sampler", None)
    # Not by its truth: that would call the sampler's ``__len__``, which a stream's has none of.
    own_sampler = sampler is not None and type(sampler).__module__.partition(".")[0] != "torch"
    dataset = getattr(loader, "dataset", None)
    S.loaders[row_id] = {
        "id": row_id,
        "file": code.co_filename if code is not None else "",
        "line": line,
        "call": _call_text(code, line),
        "dataset": type(dataset).__name__,
        "num_workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
        "iterable": not hasattr(dataset, "__getitem__") or _is_iterable(dataset),
        "length": None if own_sampler or _is_iterable(dataset) else _length(loader),
        "custom_batch_sampler": bool(own_sampler),
        "worker_pids": [],
        "ready": None,
        "batches": 0,
        "wait_ns": 0,
        "feeds_training": False,
        "epochs": 0,
        "override": override,
        "_size": 0,
        "_shapes": set(),
        "_looked": 0,
        "_next": 0,
    }
    _ids[loader] = row_id


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


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except Exception:
        return None


def _is_iterable(dataset: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(dataset, IterableDataset)


def poll() -> None:
    """Queue depth and worker processes of live iterators; called by the helper thread."""
    for iterator in list(S.iterators or ()):
        row = iterator.__dict__.get(_ID)
        if row is None or not getattr(iterator, "_num_workers", 0):
            continue
        try:
            if iterator._shutdown:
                row["worker_pids"] = []
                continue
            done = sum(1 for info in list(iterator._task_info.values()) if len(info) == 2)
            row["ready"] = int(iterator._data_queue.qsize()) + done
            row["worker_pids"] = [worker.pid for worker in iterator._workers]
        except Exception:
            row["ready"] = None
