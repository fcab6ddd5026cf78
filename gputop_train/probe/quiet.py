"""What is taken out of the way while steps are not recorded, and put back after.

What a hook costs in the middle of a training step is mostly the memory it touches, which the step's
own work has driven from the caches. So in a run of unrecorded steps the original of the autograd
entry stands in its module again, a builtin that does nothing in place of the optimizer's pre hook,
and in place of its post hook ``tick``, which touches next to nothing. Only values of existing keys
change: another thread may be iterating over the same table. What is hooked by a class is left by
single objects, which take on a class without the hook meanwhile. No attribute of a class is ever
set here: that would empty the interpreter's caches for it each time, and from Python 3.13 on, after
the thousandth time, for good.
"""

from __future__ import annotations

import io
import weakref
from typing import Any

from .state import S, append, ident, now
from .words import CODE_BITS, STEP_TICK

#: A builtin that takes any three arguments and returns None.
_nothing: Any = io.BytesIO().__exit__

#: (dict, key, ours, what stands there meanwhile, whether only a single optimizer allows it)
_entries: list[tuple[Any, Any, Any, Any, bool]] = []
#: (weak reference to an object, its class, the class without the hook)
_objects: list[tuple[Any, Any, Any]] = []
_out = [False]
#: Steps ticked and not yet in ``S.steps``; the thread and the optimizer that tick, and until when.
_ticks = [0]
_of = [0, 0, 0]


def add(table: Any, key: Any, ours: Any, meanwhile: Any = None) -> None:
    """Name one entry: ``table[key]`` is ``ours``, or ``meanwhile`` (nothing) while it is out."""
    _entries.append((table, key, ours, _nothing if meanwhile is None else meanwhile, False))


def add_tick(table: Any, key: Any, ours: Any) -> None:
    """Name the post hook's entry: ``tick`` stands there while it is out."""
    _entries.append((table, key, ours, _make_tick(ours), True))


def add_object(one: Any, meanwhile: Any) -> None:
    """Name an object whose class is hooked, and the class it is of while the hook is out."""
    row = (weakref.ref(one), type(one), meanwhile)
    # One assignment: the helper thread may be putting back.
    _objects[:] = [known for known in _objects if known[0]() is not None] + [row]
    if _out[0]:
        one.__class__ = meanwhile


def _make_tick(ours: Any) -> Any:
    ticks, of = _ticks, _of

    def tick(opt: Any, args: Any, kwargs: Any) -> None:
        try:
            end = now()
            if end >= of[2] or id(opt) != of[1] or ident() != of[0]:
                put_back()
                ours(opt, args, kwargs)
                return
            append(end << CODE_BITS | STEP_TICK)
            ticks[0] += 1
        except Exception as error:
            S.failed("optimizer", error)

    return tick


def drop(table: Any) -> None:
    """Put everything back and leave this table alone from now on."""
    put_back()
    _entries[:] = [entry for entry in _entries if entry[0] is not table]


def take_out() -> None:
    """Steps are not recorded from here on.

    Not where a GradScaler is at work (whether a backward ran tells a skipped step from none), nor
    where optimizers nest (their depth is counted).
    """
    if S.nests or S.steps_at_update:
        return
    _out[0] = True
    _of[:] = S.thread_id, S.stepped, S.quiet_until_ns
    single = len(S.optimizers) == 1
    for table, key, ours, meanwhile, alone in _entries:
        if (single or not alone) and table.get(key) is ours:
            table[key] = meanwhile
    for reference, hooked, meanwhile in _objects:
        _reclass(reference(), hooked, meanwhile)


def put_back() -> None:
    """Hooks in place again. Safe on any thread, and cheap when they are."""
    if not _out[0]:
        return
    _out[0] = False
    for table, key, ours, meanwhile, _ in _entries:
        if table.get(key) is meanwhile:
            table[key] = ours
    for reference, hooked, meanwhile in _objects:
        _reclass(reference(), meanwhile, hooked)
    S.steps += _ticks[0]
    _ticks[0] = 0


def _reclass(one: Any, before: Any, after: Any) -> None:
    if type(one) is before:
        one.__class__ = after
