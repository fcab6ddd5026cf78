"""The probe switched off and on inside a training process, hooks and helper thread alike."""

from __future__ import annotations

import gc
import os
import random
import struct
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

PROBE = "_gputop_probe"
RECENT_NS = 20_000_000_000
#: Before the clock reads this, what the probe keeps as durations could pass for time stamps.
EARLIEST_NS = 40_000_000_000
_MISSING = object()


class NothingToToggle(RuntimeError):
    """The probe in this process is not what this benchmark knows how to switch off."""


class Toggle:
    """Takes every hook of the probe out and puts it back, and holds its helper thread meanwhile.

    Hooks are found, not listed: wrappers are functions whose code bears the probe's own file name,
    held by any module or class and naming their original in ``__wrapped__``; callbacks are
    functions of the probe's package in torch's global hook tables and in ``gc.callbacks``; and
    properties of the probe stand where a class had no such name.

    For the probe, time stands still while it is out: its helper's clock stops, and the time stamps
    that it keeps are moved on afterwards. What it does every so many milliseconds then falls on
    watched time in its usual share, and no step of its seems to last as long as a block.

    Left in place: the import watcher, and callbacks that dynamo calls when it compiles.
    """

    def __init__(self) -> None:
        self._state = _module("state")
        self._quiet = _module("quiet")
        self._quiet.put_back()  # else what it has taken out would not be found
        self._wrappers = list(_wrappers(_module("hooks").WRAPPER_FILE))
        self._tables = list(_tables())
        self._properties = list(_properties())
        if not self._wrappers or not self._tables:
            raise NothingToToggle("no wrapper or no optimizer hook of the probe was found")
        while time.monotonic_ns() < EARLIEST_NS:
            time.sleep(1.0)
        self._hold = HelperHold(_helper())
        self._out_since_ns = 0
        self._ring = os.open(_ring_file(), os.O_RDONLY)
        self.on = True

    @property
    def names(self) -> list[str]:
        """What is switched, for the record."""
        held = [
            f"{getattr(o, '__name__', o)}.{n}" for o, n, *_ in self._wrappers + self._properties
        ]
        return sorted(held) + sorted({label for label, *_ in self._tables})

    @property
    def settled(self) -> bool:
        """Whether the helper thread is where it should be: at rest, or at large."""
        return self.on or self._hold.at_rest

    def plain(self) -> None:
        """Originals back, helper held as soon as it wakes up."""
        self.hooks(False)
        if self.on:
            self._hold.hold()
            self._out_since_ns = time.monotonic_ns()
        self.on = False

    def watched(self) -> None:
        """Hooks in, helper at large."""
        if not self.on:
            _move_time_stamps(time.monotonic_ns() - self._out_since_ns)
            self._hold.release()
        self.hooks(True)
        self.on = True

    def hooks(self, placed: bool) -> None:
        """The hooks alone: in their places, or out of them. The helper and its clock go on.

        Either way, and wherever they were before, each class is changed equally often: a change
        empties the interpreter's caches for it, which an arm of its own would be blamed for.
        """
        for step in (not placed, placed):
            for owner, name, wrapper, original, inherited in self._wrappers:
                if inherited and not step:
                    setattr(owner, name, wrapper)  # there to be taken away
                    delattr(owner, name)
                else:
                    setattr(owner, name, wrapper if step else original)
            for owner, name, ours in self._properties:
                setattr(owner, name, ours)
                if not step:
                    delattr(owner, name)
        for _, table, own in self._tables:
            _take_out(table, own)
            if placed:
                _put_in(table, own)
        if placed and not self._state.S.whole:
            self._quiet.take_out()

    def words(self) -> int:
        """Words written so far: in the ring, and waiting for the helper."""
        (head,) = struct.unpack("<Q", os.pread(self._ring, 8, 64))
        return int(head) + len(self._state.log)

    def beats(self) -> tuple[int, int]:
        """(heartbeat, snapshot sequence) of the ring: signs of life of the helper thread."""
        (heartbeat,) = struct.unpack("<Q", os.pread(self._ring, 8, 72))
        (sequence,) = struct.unpack("<I", os.pread(self._ring, 4, 4096))
        return int(heartbeat), int(sequence)

    def check(self) -> None:
        """Raise when a hook was placed after this object looked, or the helper gave up."""
        self.watched()
        (state,) = struct.unpack("<I", os.pread(self._ring, 4, 88))
        if state != 0:
            raise NothingToToggle("the probe gave up while it was measured")
        now_there = {(id(o), n) for o, n, *_ in _wrappers(_module("hooks").WRAPPER_FILE)}
        new = now_there - {(id(o), n) for o, n, *_ in self._wrappers}
        if new:
            raise NothingToToggle(f"{len(new)} hooks were placed after the measuring began")


class HelperHold:
    """Holds the helper thread at the lock or event it sleeps on.

    While it is at large that is the thread's own, at its own price. Held, the thread wakes up from
    its last sleep once more (its clock then says that nothing is due) and goes to rest. Afterwards
    its first sleep is cut short at random, as if it had been met in the middle of it: else every
    block would begin right after a wake-up.
    """

    def __init__(self, helper: Any) -> None:
        self._helper = helper
        self._training = threading.get_ident()
        self._changed = threading.Condition()
        self._held_since: float | None = None
        self._held_s = 0.0
        self.at_rest = False
        self._random = random.Random(0)
        kinds = (threading.Event, type(threading.Lock()))
        self._sleeps = {k: v for k, v in vars(helper).items() if isinstance(v, kinds)}
        if not self._sleeps:
            raise NothingToToggle("the helper thread sleeps on no lock or event of its own")
        module: Any = sys.modules[type(helper).__module__]
        names = [name for name, value in vars(module).items() if value is time]
        if not names:
            raise NothingToToggle("the helper thread's module has no clock")
        members = {n: getattr(time, n) for n in dir(time) if not n.startswith("__")}
        members["monotonic"] = self.clock
        members["monotonic_ns"] = lambda: int(self.clock() * 1e9)
        for name in names:
            setattr(module, name, SimpleNamespace(**members))

    def clock(self) -> float:
        """Seconds, without those in which the thread was held; 0 while it is."""
        return 0.0 if self._held_since is not None else time.monotonic() - self._held_s

    def hold(self) -> None:
        """Let the thread go to rest at its next wake-up."""
        self._held_since = time.monotonic()
        for name, sleep in self._sleeps.items():
            setattr(self._helper, name, _Rest(sleep, self))

    def release(self) -> None:
        """Let it go."""
        with self._changed:
            for name, sleep in self._sleeps.items():
                setattr(self._helper, name, sleep)
            if self._held_since is not None:
                self._held_s += time.monotonic() - self._held_since
            self._held_since = None
            self._changed.notify_all()

    def rest(self) -> float:
        """On the helper thread: until released. The part of its next sleep that is left."""
        if threading.get_ident() == self._training:
            return 1.0
        with self._changed:
            while self._held_since is not None:
                self.at_rest = True
                self._changed.wait()
            self.at_rest = False
        return self._random.random()


class _Rest:
    """Stands for a lock or event: whoever waits for it rests first."""

    def __init__(self, sleep: Any, hold: HelperHold) -> None:
        self._sleep, self._hold = sleep, hold

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return bool(self._sleep.acquire(blocking, timeout * self._hold.rest()))

    def wait(self, timeout: float | None = None) -> bool:
        part = self._hold.rest()
        return bool(self._sleep.wait(None if timeout is None else timeout * part))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sleep, name)


def _move_time_stamps(by_ns: int) -> None:
    """Add to every recent time stamp that the probe's objects hold."""
    now = time.monotonic_ns()
    seen: set[int] = set()

    def recent(value: Any) -> bool:
        return type(value) is int and abs(value - now) < RECENT_NS

    def visit(holder: Any) -> None:
        if id(holder) in seen:
            return
        seen.add(id(holder))
        if isinstance(holder, list):
            for index, value in enumerate(holder[:8]):
                if recent(value):
                    holder[index] = value + by_ns
            return
        for name, value in _values(holder):
            if recent(value):
                setattr(holder, name, value + by_ns)
            elif type(value) is list or _is_ours(type(value)):
                visit(value)

    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == PROBE:
            visit(module)


def _values(holder: Any) -> list[tuple[str, Any]]:
    """What an object or module holds, by name, in slots too."""
    slots = getattr(type(holder), "__slots__", ())
    held = [(name, getattr(holder, name)) for name in slots if hasattr(holder, name)]
    return held + list(getattr(holder, "__dict__", {}).items())


def _module(name: str) -> Any:
    module = sys.modules.get(f"{PROBE}.{name}")
    if module is None:
        raise NothingToToggle(f"the probe is not in this process: it has no {name}")
    return module


def _helper() -> Any:
    helper = getattr(_module("state").S, "helper", None)
    if helper is None:
        raise NothingToToggle("the probe did not arm: it has no helper")
    return helper


def _ring_file() -> Path:
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = link.readlink()
        except OSError:
            continue
        if target.suffix == ".ring":
            return target
    raise NothingToToggle("the probe has no ring in this process")


def _owners() -> Iterator[Any]:
    # Asking some of torch's objects for their class makes them say that they are deprecated.
    warnings.simplefilter("ignore", FutureWarning)
    yield from [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    for found in gc.get_objects():
        if isinstance(found, type):
            yield found


def _wrappers(file: str) -> Iterator[tuple[Any, str, Any, Any, bool]]:
    """(owner, name, wrapper, original, whether the owner would inherit the original)."""
    seen = set()
    for owner in _owners():
        for name, value in list(vars(owner).items()):
            code = value.__code__ if isinstance(value, FunctionType) else None
            if code is None or code.co_filename != file or (id(owner), name) in seen:
                continue
            seen.add((id(owner), name))
            original: Any = value
            while getattr(getattr(original, "__code__", None), "co_filename", None) == file:
                original = vars(original).get("__wrapped__", _MISSING)
            if original is _MISSING:
                raise NothingToToggle(f"the wrapper of {name} does not name its original")
            bases = owner.__mro__[1:] if isinstance(owner, type) else ()
            found = next((vars(b)[name] for b in bases if name in vars(b)), _MISSING)
            yield owner, name, value, original, found is original


def _properties() -> Iterator[tuple[Any, str, property]]:
    """(class of torch's, name, the probe's property there)."""
    for owner in [o for o in gc.get_objects() if isinstance(o, type) and not _is_ours(o)]:
        for name, value in list(vars(owner).items()):
            if isinstance(value, property) and _is_ours(value.fget):
                yield owner, name, value


def _tables() -> Iterator[tuple[str, Any, dict[Any, Any]]]:
    """(label, table, what the probe keeps in it): torch's global hooks and gc's callbacks."""
    for module_name in ("torch.optim.optimizer", "torch.nn.modules.module"):
        for name, table in vars(sys.modules[module_name]).items():
            if name.startswith("_global_") and isinstance(table, dict):
                own = {k: v for k, v in table.items() if _is_ours(v)}
                if own:
                    yield f"{module_name}.{name}", table, own
    callbacks = {i: v for i, v in enumerate(gc.callbacks) if _is_ours(v)}
    if callbacks:
        yield "gc.callbacks", gc.callbacks, callbacks


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] == PROBE


def _take_out(table: Any, own: dict[Any, Any]) -> None:
    for key, value in own.items():
        if isinstance(table, dict):
            table.pop(key, None)
        elif value in table:
            table.remove(value)


def _put_in(table: Any, own: dict[Any, Any]) -> None:
    if isinstance(table, dict):
        table.update(own)
    else:
        table.extend(own.values())
