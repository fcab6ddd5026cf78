"""Passes over DataLoaders, as the what-ifs change them: replayed batches, evaluations cut short.

Both act where every loader passes, ``DataLoader.__iter__`` and ``_BaseDataLoaderIter.__next__``,
below the probe's own hooks, which so measure what is left of the wait.
"""

from __future__ import annotations

import weakref
from typing import Any

from .. import sites
from ..hooks import dress, leave_no_frame, wrap_attribute
from ..state import S, note_error
from . import replay, short_eval

_PASS = "_gputop_pass"
_REAL, _REPLAY, _END = range(3)


class Pass:
    """One pass over a loader.

    Attributes:
        source: What is known of the loader.
        yielded: Batches given so far.
        began: Backwards that had run when it began.
        replaying: Whether batches come from the cache.
        left: Batches that workers had been told to fetch when replay began; ``None`` without.
        length: Batches of a stream's pass; ``None`` where the sampler tells, or nothing does.
        over: Whether it was ended before its time.
    """

    __slots__ = ("began", "left", "length", "over", "replaying", "source", "yielded")

    def __init__(self, source: Any, began: int) -> None:
        self.source = source
        self.yielded = 0
        self.began = began
        self.replaying = False
        self.left: int | None = None
        self.length: int | None = None
        self.over = False


class LoaderSource:
    """A loader, and what its batches are used for."""

    kind = "DataLoader"

    def __init__(self, loader: Any, place: str | None) -> None:
        self.place = place
        self.iterable = replay.is_iterable(loader)
        self.proofs = 0
        self.waiting = False
        self.suspects: list[Any] = []
        self.without_grad = self.trains_without_grad = False
        self.length: int | None = None  # of a stream: batches of the first whole pass
        self.cache: Any = replay.Cache(self)
        self.kept_for: Any = lambda: None  # the loader, weakly

    def remark(self) -> tuple[str, str]:
        """For the row: nothing, a DataLoader's place says what it is."""
        return "", ""


class Loaders:
    """Loaders by identity; one built anew for each epoch goes on where the last left off."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Any, LoaderSource]] = {}
        self._by_data: dict[Any, tuple[Any, LoaderSource]] = {}

    def source(self, loader: Any) -> LoaderSource:
        """The source of a loader; made when it is first seen."""
        known = self._by_id.get(id(loader))
        if known is not None and known[0]() is loader:
            return known[1]
        key, dataset = _likeness(loader)
        before = self._by_data.get(key)
        if before is not None and before[1].kept_for() is None and before[0]() is dataset:
            found = before[1]
        else:
            found = LoaderSource(loader, _place(loader))
        ref = weakref.ref(loader)
        found.kept_for = ref
        self._by_id[id(loader)] = (ref, found)
        if len(self._by_id) > 512:
            self._by_id = {k: v for k, v in self._by_id.items() if v[0]() is not None}
        self._by_data[key] = (_weak(dataset), found)
        return found


def _likeness(loader: Any) -> tuple[Any, Any]:
    dataset = loader.dataset
    return (id(dataset), loader.batch_size, id(loader.collate_fn), type(loader)), dataset


def _weak(thing: Any) -> Any:
    try:
        return weakref.ref(thing)
    except TypeError:  # a list, a range: held, so that its id is not given to another
        return lambda: thing


def _place(loader: Any) -> str | None:
    """``file:line`` of its construction, from the probe's own table, else of whoever iterates."""
    from ..hooks import loader as loader_hooks

    try:
        row = S.loaders.get(loader_hooks._ids.get(loader, 0))
        if row is not None and row.get("file"):
            return "%s:%s" % (str(row["file"]).rpartition("/")[2], row.get("line"))
    except Exception:
        pass
    site = sites.caller("what-if", depth=4)
    found = sites.places[site] if site else None
    return "%s:%d" % (found[1].rpartition("/")[2], found[2]) if found else None


def place(torch: Any, trial: Any) -> None:
    """Hook the loader classes."""
    from torch.utils.data import dataloader

    trial.loaders = Loaders()
    watch_class(dataloader.DataLoader, trial)
    _hook_next(torch, dataloader._BaseDataLoaderIter, trial)


def watch_class(loader_class: Any, trial: Any) -> None:
    """Hook a loader's class with an ``__iter__`` of its own."""

    def make(original: Any) -> Any:
        def __iter__(self: Any) -> Any:
            source = undo = None
            try:
                source = trial.loaders.source(self)
                undo = replay.before_pass(self, source, trial)
            except Exception as error:
                note_error("what-if iter", error)
            try:
                iterator = original(self)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                if undo is not None:
                    undo()
            try:
                if source is not None:
                    _begin(iterator, source, trial, undo is not None)
            except Exception as error:
                note_error("what-if iter", error)
            return iterator

        return __iter__

    wrap_attribute(loader_class, "__iter__", make)


def _begin(iterator: Any, source: Any, trial: Any, replaying: bool) -> None:
    one = Pass(source, trial.feeding.backwards)
    if replaying:
        one.replaying = True
        one.length = source.length if source.iterable else None
    iterator.__dict__[_PASS] = one


def _hook_next(torch: Any, base: Any, trial: Any) -> None:
    original = base.__next__
    grad_enabled = torch.is_grad_enabled

    def __next__(self: Any) -> Any:
        one = self.__dict__.get(_PASS)
        what = _REAL
        if one is not None:
            try:
                what = _decide(self, one, trial, grad_enabled())
            except Exception as error:
                note_error("what-if next", error)
        if what == _END:
            raise StopIteration
        if what == _REPLAY:
            try:
                # The sampler goes on as ever: its state, its random numbers, the pass's length.
                replay.advance(self, one)
                return one.source.cache.give()
            except BaseException as error:
                leave_no_frame(error)
                raise
        try:
            batch = original(self)
        except StopIteration as error:
            if one is not None:
                _ended(one, trial)
            leave_no_frame(error)
            raise
        except BaseException as error:
            leave_no_frame(error)
            raise
        if one is not None:
            try:
                _gave(one, batch, trial, grad_enabled())
            except Exception as error:
                note_error("what-if next", error)
        return batch

    base.__next__ = dress(__next__, original)


def _decide(iterator: Any, one: Pass, trial: Any, grad: bool) -> int:
    if one.over:
        return _END
    if one.replaying:
        trial.feeding.gave(one.source, grad)
        return _REPLAY
    if short_eval.cuts(one, trial, grad):
        one.over = True
        short_eval.cut(iterator, one, trial)
        return _END
    if replay.starts(one, trial, grad):
        replay.start(iterator, one, trial)
        trial.feeding.gave(one.source, grad)
        return _REPLAY
    return _REAL


def _gave(one: Pass, batch: Any, trial: Any, grad: bool) -> None:
    one.yielded += 1
    trial.feeding.gave(one.source, grad)
    if "replay_batch" in trial.asked and grad and not trial.feeding.evaluating():
        one.source.cache.keep(batch, trial)


def _ended(one: Pass, trial: Any) -> None:
    try:
        trial.feeding.ended(one.source, one.began)
        if not one.over and one.source.length is None and one.yielded:
            one.source.length = one.yielded
        one.source.cache.pass_ended(one.yielded)
    except Exception as error:
        note_error("what-if end", error)
