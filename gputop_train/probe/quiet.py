"""What is taken out of the way while steps are not recorded, and put back after.

What a hook costs in the middle of a training step is mostly the memory it touches, which the step's
own work has driven from the caches. So in a run of unrecorded steps the original of the autograd
entry stands in its module again, an empty table in place of the optimizers' pre hooks (where ours
is the only one, else a builtin that does nothing in its place), and in place of the post hook
``tick``, which touches next to nothing: it leaves the time in seconds, a float, of which the helper
thread makes the STEP_TICK (``words``). From cold caches that costs half of what packing the word,
counting it and finding names in cells did (benchmarks/results/overhead_h200.md).

In tables that may be iterated over by another thread only values of existing keys change. What is
hooked by a class is left by single objects, which take on a class without the hook meanwhile. No
attribute of a class is ever set here: that would empty the interpreter's caches for it each time,
and from Python 3.13 on, after the thousandth time, for good.
"""

from __future__ import annotations

import collections
import io
import time
import weakref
from typing import Any

from . import words as W
from .state import LOG_CAPACITY, S, append, log

#: A builtin that takes any three arguments and returns None.
_nothing: Any = io.BytesIO().__exit__

#: (dict, key, ours, what stands there meanwhile, whether only a single optimizer allows it)
_entries: list[tuple[Any, Any, Any, Any, bool]] = []
_named: list[_Table] = []
#: (weak reference to an object, its class, the class without the hook)
_objects: list[tuple[Any, Any, Any]] = []
_out = [False]
#: The function that ticks, where one was placed.
_tick: list[Any] = [None]
#: Ticks the helper thread has taken from the log, and those that ``S.steps`` has in it.
_taken = [0]
_counted = [0]
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
    # Defaults: each name in a cell or a module, and each list, is one more line of memory to fetch.
    def tick(
        opt: Any,
        args: Any,
        kwargs: Any,
        stamp: Any = time.monotonic,
        write: Any = append,
        address: Any = id,
        of: int = 0,
        until: float = 0.0,
    ) -> None:
        try:
            end = stamp()
            if address(opt) == of and end < until:
                write(end)
                return
            put_back()
            ours(opt, args, kwargs)
        except Exception as error:
            S.failed("optimizer", error)

    _tick[0] = tick
    return tick


def _tick_until(of: int, until_ns: int) -> None:
    """Whose steps are ticked from here on, and until when."""
    tick = _tick[0]
    if tick is not None:
        tick.__defaults__ = (*tick.__defaults__[:3], of, until_ns / 1e9)


def words(taken: list[Any]) -> list[int]:
    """On the helper thread: what was taken from the log as words, ticks among them."""
    ticks = _ticks_in(taken)
    if ticks:
        bits, code = W.CODE_BITS, W.STEP_TICK
        taken = [round(w * 1e9) << bits | code if type(w) is float else w for w in taken]
        _taken[0] += ticks
    if len(taken) >= LOG_CAPACITY:  # an overrun took ticks that had been counted
        _counted[0] = min(_counted[0], _taken[0])
    return taken


def ticked() -> int:
    """Steps ticked that are not in ``S.steps`` yet.

    Those that the helper thread has just taken may be in the next count only.
    """
    return max(0, _taken[0] + _ticks_in(log.copy()) - _counted[0])


def _ticks_in(some: Any) -> int:
    # Both loops in C: the training thread counts here as it records again.
    return list(map(type, some)).count(float)


def forget() -> None:
    """After a fork: what was ticked was the parent's."""
    _taken[0] = _counted[0] = 0


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
    _tick_until(S.stepped, S.quiet_until_ns)
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
    steps = ticked()
    _counted[0] += steps
    S.steps += steps


def _reclass(one: Any, before: Any, after: Any) -> None:
    if type(one) is before:
        one.__class__ = after
