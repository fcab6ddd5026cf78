"""What fetching a batch costs, items apart from ``collate_fn``, in workers and in this process.

Forked workers inherit the wrapped ``fetch`` and an anonymous shared mapping that the training
process made for the loader before it started them: they add to their own slot, which is one store
of eight bytes for each number, and write nothing else. Workers that were not forked (spawn,
forkserver) have no such mapping and are not seen.

``fetch`` reads ``self.collate_fn`` when the items are there and calls it at once; a property that
notes the time of that reading splits the two, with no wrapper around the person's function. While
steps are not recorded, the fetcher of a loader without workers is of a class without either.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

from .. import quiet
from ..state import S, ident, note_error, now
from . import dress, hide_from_dynamo, leave_no_frame

PID, STARTS, BATCHES, FETCH_NS, COLLATE_NS, LONGEST_NS, ITEMS, _ = range(8)
_SLOT = 8
MAX_SLOTS = 256  # workers of one loader that are counted
MAX_TOLD = 512  # slots looked at for one snapshot

_CELL = "_gputop_cell"
_COLLATE = "collate_fn"
#: Loader whose iterator is being made: (process, thread, its counters). Forked workers keep it.
_making: list[Any] = [None]
#: This process's own cell, where it is a worker: (process, cell or None).
_own: list[Any] = [0, None]
_worker_module: list[Any] = [None]
#: Fetcher class -> the same without our hooks.
_unhooked: dict[Any, Any] = {}


class Counters:
    """One loader's slots: the training process first, then its workers.

    Raises:
        OSError: No memory for the mapping.
    """

    def __init__(self, workers: int) -> None:
        self.pid = os.getpid()
        self.slots = 1 + max(0, min(workers, MAX_SLOTS))
        area = mmap.mmap(-1, self.slots * _SLOT * 8)
        self.view = memoryview(area).cast("q")
        for first in range(0, len(self.view), mmap.PAGESIZE // 8):
            self.view[first] = 0  # the pages are taken here, not in a worker

    def told(self) -> list[list[int]]:
        """``[worker, pid, batches, fetch ns, collate ns, longest ns, items, starts]`` each.

        The training process itself is worker -1.
        """
        rows = []
        for slot in range(self.slots):
            values = self.view[slot * _SLOT : (slot + 1) * _SLOT].tolist()
            if values[STARTS]:
                rows.append([slot - 1, values[PID], *values[BATCHES : ITEMS + 1], values[STARTS]])
        return rows


class Cell:
    """Where one fetcher counts. ``forks`` tells a cell that a fork took along from one's own."""

    __slots__ = ("base", "forks", "items", "main", "mark", "odd", "view")

    def __init__(self, view: Any, slot: int) -> None:
        self.view = view
        self.base = slot * _SLOT
        self.forks = S.forks
        self.main = slot == 0
        self.mark = self.items = 0
        self.odd = False

    def __reduce__(self) -> Any:
        return type(None), ()  # a fetcher that is copied or pickled takes nothing of ours along


def place(torch: Any) -> None:
    """Hook the two fetchers.

    Raises:
        RuntimeError: They no longer look up their ``collate_fn`` where they call it.
    """
    from torch.utils.data._utils import fetch, worker

    fetchers = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
    for one in fetchers:
        if _COLLATE not in one.fetch.__code__.co_names:
            raise RuntimeError("%s.fetch calls no self.collate_fn" % one.__name__)
    if worker._worker_info is None:  # raises where there is no such name any more
        _worker_module[0] = worker
    base: Any = fetch._BaseDatasetFetcher
    for one in fetchers:
        original = one.fetch
        _unhooked[one] = _without_hooks(one, original)
        one.fetch = dress(_make_fetch(original), original)  # type: ignore[method-assign]
    base.collate_fn = _collate_property()
    S.hooks["fetch"] = True


def _without_hooks(hooked: Any, fetch: Any) -> Any:
    """A fetcher class like ``hooked`` before it was: for objects that change their class for it."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        self.__class__ = hooked  # pickled and copied as what it says it is
        return self.__reduce_ex__(protocol)

    names = {
        "__module__": hooked.__module__,
        "__qualname__": hooked.__qualname__,
        "__doc__": hooked.__doc__,
        "__reduce_ex__": __reduce_ex__,
        "fetch": fetch,
        _COLLATE: None,  # no descriptor: what an object holds under this name comes first again
    }
    return type(hooked.__name__, (hooked,), names)


def _make_fetch(original: Any) -> Any:
    state = S

    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        start = 0
        cell = None
        try:
            cell = self.__dict__.get(_CELL)
            if cell is None or cell.forks != state.forks:
                cell = _of_worker(self)
            # Not in steps that are not recorded; in a worker ``detail`` is what it was at the fork.
            if cell is not None and (state.detail or not cell.main):
                cell.mark = 0
                cell.odd = type(possibly_batched_index) is not list
                start = now()
        except Exception as error:
            _give_up(error)
        try:
            data = original(self, possibly_batched_index)
        except BaseException as error:
            leave_no_frame(error)
            raise
        if start:
            try:
                _count(self, cell, start, possibly_batched_index)
            except Exception as error:
                self.__dict__.pop(_CELL, None)
                _give_up(error)
        return data

    return fetch


def _give_up(error: Exception) -> None:
    """Count nothing more in this process, and leave the rest of the probe as it is."""
    _worker_module[0] = _own[1] = None
    note_error("fetch", error)


def _count(fetcher: Any, cell: Any, start: int, index: Any) -> None:
    end = now()
    mark = cell.mark
    if not start <= mark <= end:
        return  # a subclass's own ``fetch`` put the batch together elsewhere
    view, base = cell.view, cell.base
    took = end - start
    view[base + BATCHES] += 1
    view[base + FETCH_NS] += took
    view[base + COLLATE_NS] += end - mark
    if took > view[base + LONGEST_NS]:
        view[base + LONGEST_NS] = took
    if not fetcher.auto_collation:
        view[base + ITEMS] += 1
    else:
        view[base + ITEMS] += cell.items if cell.odd else len(index)
    if cell.main and S.timing:
        S.hook_ns += now() - end


def _collate_property() -> Any:
    """``collate_fn`` of a fetcher: kept in its ``__dict__`` as ever, and the time it is read at."""

    def read(self: Any) -> Any:
        values = self.__dict__
        if _COLLATE not in values:
            raise AttributeError("'%s' object has no attribute 'collate_fn'" % type(self).__name__)
        cell = values.get(_CELL)
        if cell is not None:
            try:
                # The last batch of an iterable may be short, and a sampler's own index has no
                # length to be had without the person's code: then of the items themselves.
                if cell.odd or values.get("ended"):
                    items = sys._getframe(1).f_locals.get("data")
                    cell.odd = True
                    cell.items = len(items) if type(items) is list else 0
                cell.mark = now()
            except Exception:
                cell.mark = 0  # this batch is not counted
        return values[_COLLATE]

    def write(self: Any, value: Any) -> None:
        self.__dict__[_COLLATE] = value

    def remove(self: Any) -> None:
        if self.__dict__.pop(_COLLATE, self) is self:
            raise AttributeError(_COLLATE)

    return property(*(hide_from_dynamo(one) for one in (read, write, remove)))


def _of_worker(fetcher: Any) -> Any:
    """The cell of the worker this process is; None where it is none, or not one of ours."""
    module = _worker_module[0]
    info = None if module is None else module._worker_info
    # A dataset may have loaders of its own inside the worker.
    if info is None or fetcher.__dict__.get("dataset") is not info.dataset:
        return None
    if _own[0] != os.getpid():
        _own[:] = os.getpid(), None
        _own[1] = _take_slot(info.id)
    if _own[1] is not None:
        fetcher.__dict__[_CELL] = _own[1]
    return _own[1]


def _take_slot(worker: int) -> Any:
    making = _making[0]
    if making is None:
        return None
    pid, thread, counters = making
    # Another thread may have been making another loader's iterator at the time of the fork.
    if pid != os.getppid() or thread != ident() or not 0 <= worker < counters.slots - 1:
        return None
    cell = Cell(counters.view, worker + 1)
    counters.view[cell.base + PID] = os.getpid()
    counters.view[cell.base + STARTS] += 1
    return cell


def begin(row: Any, workers: int) -> Any:
    """An iterator is about to be made: what ``end`` wants back. Never raises."""
    before = _making[0]
    try:
        if _worker_module[0] is None or _worker_module[0]._worker_info is not None:
            return before
        counters = None
        if row is not None:
            counters = row["_counters"]
            if counters is None or counters.pid != os.getpid():
                counters = row["_counters"] = Counters(workers)
        _making[0] = None if counters is None else (os.getpid(), ident(), counters)
    except Exception as error:
        _give_up(error)
    return before


def end(before: Any) -> None:
    """The iterator is made."""
    _making[0] = before


def adopt(row: Any, iterator: Any) -> None:
    """An iterator without workers: its own fetcher counts for this process."""
    fetcher = iterator.__dict__.get("_dataset_fetcher")
    counters = row["_counters"]
    if fetcher is None or counters is None or not isinstance(fetcher.__dict__, dict):
        return
    counters.view[PID] = os.getpid()
    counters.view[STARTS] = 1
    fetcher.__dict__[_CELL] = Cell(counters.view, 0)
    meanwhile = _unhooked.get(type(fetcher))
    if meanwhile is not None:
        quiet.add_object(fetcher, meanwhile)


def tell(rows: Any) -> None:
    """Put what was counted into the loaders' rows; called by the helper thread.

    Args:
        rows: Those that matter most first; the rest keep what was told of them last.
    """
    room = MAX_TOLD
    for row in rows:
        counters = row["_counters"]
        if counters is None or counters.pid != os.getpid():
            row["fetch"] = []  # a forked trainer's loaders count afresh
            continue
        room -= counters.slots
        if room < 0:
            return
        row["fetch"] = counters.told()
