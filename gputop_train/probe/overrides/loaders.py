"""Settings of a DataLoader, put onto the loader before its first pass of training begins.

A setting for a named line is put on right after the loader was built there, so that a framework
that builds another loader from it (Accelerate) takes it over. One for "the loader that feeds the
training" waits for a pass that does (judge.py). Only ``batch_size`` cannot wait, since a script may
ask for the length first: loaders that shuffle get it at once, and those that evaluate get their own
back before they are read.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any

from .. import sites
from ..hooks import WRAPPER_FILE, dress, leave_no_frame
from ..hooks import loader as watched
from ..state import S, note_error
from . import judge, rescue, workers
from .telling import APPLIED, NO_EFFECT, REFUSED, failure, tell, withdraw

KEYS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "batch_size")
#: What is put back where workers do not work out, besides the context they are started by.
_ATTRIBUTES = (*KEYS[:4], "timeout", "_iterator")
_CONTEXT = "__multiprocessing_context"

_overrides: list[dict[str, Any]] = []
_infos: Any = weakref.WeakKeyDictionary()
_missing = object()


def place(torch: Any, overrides: list[dict[str, Any]]) -> None:
    """Watch loaders being built and read."""
    from torch.utils.data import dataloader

    # Workers first: others need them.
    _overrides[:] = sorted(overrides, key=lambda o: KEYS.index(o["key"]))
    judge.place(torch)
    watch_class(dataloader.DataLoader)
    if any(o["key"] == "num_workers" for o in overrides):
        rescue.place(dataloader, restore)


def on_class(loader_class: Any) -> None:
    """Watch a class without ``DataLoader``'s constructor, if any setting is of a loader."""
    if _overrides:
        watch_class(loader_class)


def watch_class(loader_class: Any) -> None:
    """Wrap a loader class once more, around what watches it anyway."""
    init, iterate = loader_class.__init__, loader_class.__iter__
    length = loader_class.__len__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        try:
            _built(self)
        except Exception as error:
            note_error("overrides", error)

    def __iter__(self: Any) -> Any:
        changed = False
        try:
            changed = _begins(self)
        except Exception as error:
            _failed(self, error)
        try:
            iterator = _first_try(iterate, self) if changed else None
            if iterator is None:
                iterator = iterate(self)
        except BaseException as error:
            leave_no_frame(error)
            raise
        try:
            _began(self, iterator)
        except Exception as error:
            note_error("overrides", error)
        return iterator

    def __len__(self: Any) -> int:
        try:
            info = _infos.get(self)
            if info is not None:
                info.lengths.add(self.batch_size)
        except Exception:
            pass
        try:
            return length(self)  # type: ignore[no-any-return]
        except BaseException as error:
            leave_no_frame(error)
            raise

    loader_class.__init__ = dress(__init__, init)
    loader_class.__iter__ = dress(__iter__, iterate)
    if any(o["key"] == "batch_size" for o in _overrides):
        loader_class.__len__ = dress(__len__, length)


def _failed(loader: Any, error: BaseException) -> None:
    note_error("overrides", error)
    info = _infos.get(loader)
    for override in info.pending if info is not None else ():
        tell(override, REFUSED, failure(error), info.place)


def _first_try(iterate: Any, loader: Any) -> Any:
    """The iterator of a loader that has just been changed; ``None`` where that failed."""
    try:
        return iterate(loader)
    except Exception as error:
        _give_back(loader, error)
    return None


def _built(loader: Any) -> None:
    code, line, direct = _construction(loader)
    if loader in _infos or _in_worker():
        return
    file = code.co_filename if code is not None else "?"
    place_ = "%s:%d" % (os.path.basename(file), line)
    info = judge.Info(loader, place_, judge.name_at(code, line))
    named = {o["key"] for o in _overrides if o.get("loader") and _is_at(o, file, line)}
    for override in _overrides:
        key = override["key"]
        if override.get("loader"):
            if not _is_at(override, file, line):
                continue
            if direct:
                _apply(loader, override, info)
                continue
        elif key in named:
            continue
        if key == "batch_size" and info.shuffles:
            given = loader.batch_size
            if _apply(loader, override, info):
                info.tried = (given, override)
        else:
            info.pending.append(override)
    if info.pending or info.tried is not None or info.before is not None:
        _infos[loader] = info


def _is_at(override: dict[str, Any], file: str, line: int) -> bool:
    """Whether a named line is this one: by its full path, the end of it, or the file's name."""
    named, _, number = str(override["loader"]).rpartition(":")
    if number != str(line):
        return False
    wanted = [part for part in named.split(os.sep) if part not in ("", ".")]
    if ".." in wanted or os.path.isabs(named):
        return os.path.realpath(named) == os.path.realpath(file)
    return os.path.abspath(file).split(os.sep)[-len(wanted) :] == wanted


def _begins(loader: Any) -> bool:
    """A pass begins. Whether the loader is another than a moment ago."""
    info = _infos.get(loader)
    if info is None or not (info.pending or info.tried is not None) or _in_worker():
        return False
    why = judge.for_evaluation(loader, info)
    if why is not None:
        if info.tried is not None:
            (given, override), info.tried = info.tried, None
            _set_batch_size(loader, given)
            _note_row(loader, {"batch_size": _missing})
            withdraw(override, why, info.place)
            info.pending.append(override)
        for override in info.pending:
            tell(override, REFUSED, why, info.place)
        return False
    info.tried = None
    pending, info.pending = info.pending, []
    return any([_apply(loader, override, info) for override in pending])


def _began(loader: Any, iterator: Any) -> None:
    info = _infos.get(loader)
    if info is None:
        return
    if info.pending:
        if S.torch.is_grad_enabled():
            judge.begins(iterator, info, 2)
        return
    judge.begins(iterator, info, 1)
    before, info.before = info.before, None
    if before is not None and not before["num_workers"] and loader.num_workers:
        rescue.remember(iterator, loader, before)


def restore(loader: Any, before: dict[str, Any]) -> None:
    """Give a loader its own settings back."""
    loader.__dict__.update({key: before[key] for key in before["kept"]})
    _note_row(loader, dict.fromkeys(KEYS[:4], _missing))


def _give_back(loader: Any, error: BaseException) -> None:
    info = _infos.get(loader)
    before, info.before = info.before, None
    if before is not None:
        restore(loader, before)
        for override in before["overrides"]:
            withdraw(override, failure(error), info.place)


def _keep(loader: Any, override: dict[str, Any], info: judge.Info) -> None:
    """Remember what a loader is like before its first setting."""
    if info.before is None:
        own = loader.__dict__
        kept = [name for name in own if name in _ATTRIBUTES or name.endswith(_CONTEXT)]
        info.before = {name: own[name] for name in kept}
        info.before.update(kept=kept, overrides=[], place=info.place)
    info.before["overrides"].append(override)


def _apply(loader: Any, override: dict[str, Any], info: judge.Info) -> bool:
    """Put one setting onto a loader, or say why not."""
    key, value = override["key"], override["value"]
    try:
        if loader.__dict__.get(key, _missing) == value:
            tell(override, NO_EFFECT, "it is %s there as it is" % value, info.place)
            return False
        why, remark = _look(key, value, loader, info)
        if why is not None:
            tell(override, REFUSED, why, info.place)
            return False
        if key == "batch_size":
            _set_batch_size(loader, value)
        else:
            _keep(loader, override, info)
            loader.__dict__[key] = value
            _keep_consistent(loader, key)
        _note_row(loader, {key: value})
    except Exception as error:
        note_error("overrides", error)
        tell(override, REFUSED, failure(error), info.place)
        return False
    tell(override, APPLIED, remark, info.place)
    return True


def _look(key: str, value: Any, loader: Any, info: judge.Info) -> tuple[str | None, str]:
    """Why a setting cannot be put onto this loader, and what else is to be said of it."""
    if getattr(loader, "next_iter_state", None) is not None:
        return "the loader goes on from a saved state, which holds for its own settings", ""
    if key == "num_workers":
        return workers.look(loader, value)
    if key in ("prefetch_factor", "persistent_workers") and not loader.num_workers:
        return "it needs num_workers of at least 1", ""
    if key == "pin_memory" and value:
        return workers.pinning(S.torch), ""
    if key == "batch_size":
        return _no_batch_size(loader, value, info), ""
    return None, ""


def _no_batch_size(loader: Any, value: int, info: judge.Info) -> str | None:
    from torch.utils.data import BatchSampler

    given = loader.batch_size
    if given is None:
        return "the loader takes its batches from a sampler of its own, or makes none"
    batches = loader.batch_sampler
    if not isinstance(batches, BatchSampler) or getattr(batches, "batch_size", None) != given:
        return "the loader's batches are not made by its batch size"
    if info.lengths - {value}:
        return (
            "the script had asked for the loader's length before it was known to feed the "
            "training; name its line: batch_size@FILE:LINE"
        )
    try:
        items = len(batches.sampler)  # type: ignore[arg-type]
    except Exception:
        return None
    if loader.drop_last and value > items:
        return "of %d samples no batch of %d is full, and drop_last leaves the rest out" % (
            items,
            value,
        )
    if not loader.drop_last and items % value == 1 and items % given != 1:
        return (
            "of %d samples one would be left for the last batch, which batch normalisation "
            "cannot take" % items
        )
    return None


def _set_batch_size(loader: Any, value: int) -> None:
    # Both by the instance's own dict: the class lets nobody set them once it is built.
    loader.batch_sampler.__dict__["batch_size"] = value
    loader.__dict__["batch_size"] = value


def _keep_consistent(loader: Any, key: str) -> None:
    """What only makes sense with workers comes and goes with them."""
    own = loader.__dict__
    if key == "num_workers":
        if not loader.num_workers:
            own.update(prefetch_factor=None, persistent_workers=False, timeout=0)
        elif own.get("prefetch_factor") is None:
            own["prefetch_factor"] = 2
        workers.choose_context(loader)
    if own.get("_iterator") is not None:
        own["_iterator"] = None  # workers kept since a pass of evaluation


def _note_row(loader: Any, changed: dict[str, Any]) -> None:
    """The row of the loader in the snapshot follows."""
    row = watched._row_of(loader)
    if row is None:
        return
    override = dict(row["override"])
    for key, value in changed.items():
        if value is _missing:
            override.pop(key, None)
        else:
            override[key] = value
    for key in ("num_workers", "batch_size", "prefetch_factor"):
        row[key] = getattr(loader, key, None)
    for key in ("pin_memory", "persistent_workers"):
        row[key] = bool(getattr(loader, key, False))
    if "batch_size" in changed and row["length"] is not None:
        row["length"] = len(loader.batch_sampler)
    row["override"] = override


def _construction(loader: Any) -> tuple[Any, int, bool]:
    """The script's line that builds a loader, and whether it calls the constructor itself."""
    frame: Any = sys._getframe(2)
    direct = True
    for _ in range(sites.MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if not sites.is_library(code):
            return code, frame.f_lineno, direct
        if code.co_filename != WRAPPER_FILE and code.co_name != "__init__":
            direct = False
        frame = frame.f_back
    return None, 0, False


def _in_worker() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is not None
