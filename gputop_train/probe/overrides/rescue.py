"""Workers the script did not have, and which cannot read its dataset: back to none.

A dataset may hold what only the process that opened it can use. Seen at the first batch, nothing is
lost yet: the pass begins again without workers, in the iterator the script already holds.
"""

from __future__ import annotations

from typing import Any, Callable

from ..hooks import dress, leave_no_frame
from ..state import note_error
from . import telling

_AT_RISK = "_gputop_at_risk"
_KEPT = ("_gputop_loader_id",)
_types: list[Any] = []
_restore: list[Callable[[Any, dict[str, Any]], None]] = []


def place(dataloader: Any, restore: Callable[[Any, dict[str, Any]], None]) -> None:
    """Watch the first batch of passes that got workers."""
    base = dataloader._BaseDataLoaderIter
    _types[:] = [
        dataloader._MultiProcessingDataLoaderIter,
        dataloader._SingleProcessDataLoaderIter,
    ]
    _restore[:] = [restore]
    original = base.__next__

    def __next__(self: Any) -> Any:
        at_risk = self.__dict__.pop(_AT_RISK, None)
        try:
            return original(self)
        except StopIteration as error:
            leave_no_frame(error)
            raise
        except Exception as error:
            if at_risk is None or not _begin_again(self, at_risk, error):
                leave_no_frame(error)
                raise
        return original(self)

    base.__next__ = dress(__next__, original)


def remember(iterator: Any, loader: Any, before: dict[str, Any]) -> None:
    """The next batch of this iterator is the first one workers made for this loader."""
    if type(iterator) is _types[0]:
        iterator.__dict__[_AT_RISK] = (loader, before)


def _begin_again(iterator: Any, at_risk: tuple[Any, dict[str, Any]], error: BaseException) -> bool:
    loader, before = at_risk
    try:
        iterator._shutdown_workers()
        _restore[0](loader, before)
        fresh = _types[1](loader)
        kept = {name: iterator.__dict__[name] for name in _KEPT if name in iterator.__dict__}
        iterator.__class__ = _types[1]
        iterator.__dict__.clear()
        iterator.__dict__.update(fresh.__dict__)
        iterator.__dict__.update(kept)
    except Exception as failure:
        note_error("overrides", failure)
        return False
    words = "a worker could not read it: %s" % _last_line(error)
    for override in before["overrides"]:
        telling.withdraw(override, words, before.get("place"))
    return True


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, lines[-1] if lines else "")
