"""What is taken out of the way while steps are not recorded, and put back after.

What a hook costs in the middle of a training step is mostly the memory it touches, which the step's
own work has driven from the caches. So in a run of unrecorded steps the original of the autograd
entry stands in its module again, an empty table in place of the optimizers' pre hooks (where ours
is the only one, else a builtin that does nothing in its place), and in place of the post hook
``tick``, which touches next to nothing. In tables that may be iterated over by another thread only
values of existing keys change. What is hooked by a class is left by single objects, which take on a
class without the hook meanwhile. No attribute of a class is ever set here: that would empty the
interpreter's caches for it each time, and from Python 3.13 on, after the thousandth time, for good.
"""

from __future__ import annotations

import collections
import io
import weakref
from typing import Any

from .state import S, append, now

#: A builtin that takes any three arguments and returns None.
_nothing: Any = io.BytesIO().__exit__

#: (dict, key, ours, what stands there meanwhile, whether only a single optimizer allows it)
_entries: list[tuple[Any, Any, Any, Any, bool]] = []
_named: list[_Table] = []
#: (weak reference to an object, its class, the class without the hook)
_objects: list[tuple[Any, Any, Any]] = []
_out = [False]
#: Steps ticked and not yet in ``S.steps``; the optimizer that ticks, and until when.
_ticks = [0]
_of = [0, 0]
#: Whether another thread was seen to step the same optimizer: a tick could not tell them apart.
shared = [False]


def add(table: Any, key: Any, ours: Any, meanwhile: Any) -> None:
    """Name one entry: ``table[key]`` is ``ours``, or ``meanwhile`` while it is out."""
    _entries.append((table, key, ours, meanwhile, False))


class _Table:
    """A table that a module names and whose only entry may be ours."""

    def __init__(self, names: Any, name: str, key: Any, ours: Any) -> None:
        self.names, self.name, self.key, self.ours = names, name, key, ours
        self.table: Any = names[name]
        # Of the class of torch's: handles of hooks keep weak references to it.
        self.empty: Any = collections.OrderedDict()

    def take_out(self, single: bool) -> None:
        if self.table.get(self.key) is not self.ours:
            return
        if single and len(self.table) == 1 and self.names.get(self.name) is self.table:
            self.names[self.name] = self.empty
        elif self.names.get(self.name) is not self.empty:
            self.table[self.key] = _nothing

    def put_back(self) -> None:
        if self.names.get(self.name) is not self.empty:
            if self.table.get(self.key) is _nothing:
                self.table[self.key] = self.ours
        elif not self.empty:
            self.names[self.name] = self.table
        else:
            # The person registered a hook meanwhile: its handle knows that table, which stays.
            self.empty[self.key] = self.ours
            self.table, self.empty = self.empty, collections.OrderedDict()


def add_table(names: Any, name: str, key: Any, ours: Any) -> None:
    """Name a table of a module: ``names[name][key]`` is ``ours``."""
    _named.append(_Table(names, name, key, ours))


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
    # Cells and constants: each global name and each list would be one more line of memory to fetch.
    ticks, of, stamp, write, address = _ticks, _of, now, append, id

    def tick(opt: Any, args: Any, kwargs: Any) -> None:
        try:
            end = stamp()
            if end >= of[1] or address(opt) != of[0]:
                put_back()
                ours(opt, args, kwargs)
                return
            write(end << 6 | 52)  # CODE_BITS, STEP_TICK
            ticks[0] += 1
        except Exception as error:
            S.failed("optimizer", error)

    return tick


def drop(table: Any) -> None:
    """Put everything back and leave this table alone from now on."""
    put_back()
    _entries[:] = [entry for entry in _entries if entry[0] is not table]
    _named[:] = [one for one in _named if one.table is not table]


def take_out() -> None:
    """Steps are not recorded from here on.

    Not where a GradScaler is at work (whether a backward ran tells a skipped step from none), nor
    where optimizers nest (their depth is counted).
    """
    if S.nests or S.steps_at_update:
        return
    _out[0] = True
    _of[:] = S.stepped, S.quiet_until_ns
    single = len(S.optimizers) == 1 and not shared[0]
    for one in _named:
        one.take_out(single)
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
    for one in _named:
        one.put_back()
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
