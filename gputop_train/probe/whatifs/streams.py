"""Generators and iterators of the script that give its batches, replayed as streams are.

A ``for`` loop holds its iterator where nothing can exchange it. So the functions that make
generators are watched before there is a loop: when the script seeds torch, and builds its model
and optimizer, which is after its definitions and before its training. A class's ``__next__`` is
looked up for each item and can be watched later too.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import sys
import types
import weakref
from typing import Any

from .. import sites
from ..hooks import leave_no_frame, wrap_attribute
from ..state import S, ident, note_error
from . import loopcode, replay, trampoline

MAX_OBJECTS = 64


def place(torch: Any, calls: Any) -> None:
    """Look for generator functions when the script seeds, and builds its model and optimizer."""
    _after(torch, "manual_seed", calls, [0])
    _after(torch.nn.Module, "__init__", calls, [0])
    _after(torch.optim.Optimizer, "__init__", calls, [0])


def _after(owner: Any, name: str, calls: Any, count: list[int]) -> None:
    """Look at the 1st, 2nd, 4th, 8th... call: a model has many modules."""

    def make(original: Any) -> Any:
        def around(*args: Any, **kwargs: Any) -> Any:
            try:
                count[0] += 1
                if not count[0] & (count[0] - 1):
                    watch_all(calls, sys._getframe(1))
            except Exception as error:
                note_error("what-if streams", error)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        return around

    wrap_attribute(owner, name, make)


def watch_all(calls: Any, frame: Any) -> None:
    """Watch what the script's files define that makes batches one by one."""
    if not _may_train() or S.loop_known:
        return
    calls.spare([])
    for module in list(sys.modules.values()):
        if loopcode.is_users_module(module):
            for value in list(module.__dict__.values()):
                _watch_value(calls, value)
    for _ in range(loopcode.MAX_DEPTH):
        if frame is None:
            break
        if not sites.is_library(frame.f_code):
            for _, value in loopcode.values_named(frame)[1]:
                _watch_value(calls, value)
            exchange(calls, frame)
        frame = frame.f_back


def _may_train() -> bool:
    """Whether this thread is the one that trains, or none has been seen to yet."""
    return S.thread_id in (0, ident())


def exchange(calls: Any, frame: Any) -> None:
    """Exchange the generators that a frame's names are bound to, where names can be bound anew.

    What a ``for`` loop already runs over stays the generator it is.
    """
    known = loopcode.values_named(frame)[1]
    of_file = frame.f_code.co_name == "<module>"
    for name, value in known:
        if type(value) is not types.GeneratorType or sites.is_library(value.gi_code):
            continue
        if value.gi_frame is None:
            continue  # it is over
        if of_file or sys.version_info >= (3, 13):
            given = loopcode.arguments(value)
            one = Pass(calls.watched_generator(value), given, {})
            one.whole = False
            frame.f_locals[name] = Stream(value, one)
        else:
            calls.hidden = (
                "the generator %s of %s() was made before its function could be watched, and "
                "Python before 3.13 lets nobody exchange a function's variable"
                % (name, frame.f_code.co_name)
            )


def _watch_value(calls: Any, value: Any) -> None:
    if isinstance(value, types.FunctionType):
        if _gives(value):
            calls.watch(value)
    elif isinstance(value, type) and loopcode.is_users_class(value):
        for name in list(vars(value)):
            method = loopcode.method(value, name)
            if method is not None and _gives(method):
                calls.watch(method)


def _gives(function: Any) -> bool:
    return makes_generators(function) or _is_next(function)


def makes_generators(function: Any) -> bool:
    """Whether a call of this function returns a generator."""
    return bool(function.__code__.co_flags & inspect.CO_GENERATOR)


def _is_next(function: Any) -> bool:
    return bool(function.__name__ == "__next__")


def asker(watched: Any) -> Any:
    """What the calls of a generator function, or of ``__next__``, go to; None for all else."""
    if _is_next(watched.function):
        return _next_asker(watched)
    if makes_generators(watched.function):
        return _generator_asker(watched)
    return None


class Pass:
    """One pass over a stream; what ``replay`` wants to know of it."""

    def __init__(self, watched: Any, args: Any, kwargs: Any, of: Any = None) -> None:
        self.watched = watched
        self._of = of
        self.source: Any = None
        self.began = watched.calls.trial.feeding.backwards
        self.yielded = 0
        self.whole = True  # whether it was seen from its begin on
        self.replaying = self.over = False
        self.length: int | None = None
        self._given = args, kwargs

    def step(self, frame: Any, pull: Any) -> Any:
        """One item: from the cache, or from ``pull``.

        Raises:
            StopIteration: The pass is over.
        """
        calls = self.watched.calls
        if self.over:
            raise StopIteration
        source = None
        evaluator = S.set_eval_frame(None)
        try:
            source = self._source_of_call(frame)
            if source is not None and self._replays(source):
                return self._give(source)
        except StopIteration:
            raise
        except Exception as error:
            note_error("what-if stream", error)
            self.watched.refuse("its batches cannot be given again")
            source = None
        finally:
            del frame
            S.set_eval_frame(evaluator)
        try:
            item = pull() if source is None else calls.call(source, pull, (), {})
        except StopIteration:
            self._ended()
            raise
        self.yielded += 1
        return item

    def _source_of_call(self, frame: Any) -> Any:
        watched = self.watched
        if watched.refused is not None or not watched.calls.training_call(frame):
            return None
        if self.source is None:
            self.source = watched.source(*self._given, True, self._of)
        return self.source

    def _replays(self, source: Any) -> bool:
        if self.replaying:
            return True
        trial = self.watched.calls.trial
        if not replay.starts(self, trial, True) or not self.watched.calls.allows(source):
            return False
        self.replaying = source.replaying = True
        self.length = source.length
        replay.tell_start(source, trial)
        return True

    def _give(self, source: Any) -> Any:
        if self.length is not None and self.yielded >= self.length:
            self.over = True
            raise StopIteration
        self.watched.calls.trial.feeding.gave(source, True)
        self.yielded += 1
        return source.cache.give()

    def _ended(self) -> None:
        source = self.source
        if source is None:
            return
        try:
            self.watched.calls.trial.feeding.ended(source, self.began)
            if not self.whole:
                return
            if source.length is None and self.yielded:
                source.length = self.yielded
            source.cache.pass_ended(self.yielded)
        except Exception as error:
            note_error("what-if stream", error)


class Stream:
    """A generator of the script, asked through us."""

    __slots__ = ("__weakref__", "_pass", "_real")

    def __init__(self, real: Any, one: Pass) -> None:
        self._real = real
        self._pass = one

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return types.GeneratorType

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return self._pass.step(sys._getframe(1), self._real.__next__)
        except BaseException as error:
            trampoline.strip(error)
            raise

    def send(self, value: Any) -> Any:
        """Resume it; with a value it is no mere source."""
        if value is None:
            return self.__next__()
        self._pass.watched.refuse("values are sent into it")
        return self._real.send(value)

    def throw(self, *args: Any) -> Any:
        """Raise in it."""
        return self._real.throw(*args)

    def close(self) -> None:
        """End it."""
        self._pass.over = True
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


collections.abc.Generator.register(Stream)


def _generator_asker(watched: Any) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        real = watched.original(*args, **kwargs)
        if watched.refused is not None or not _may_train():
            return real
        return Stream(real, Pass(watched, args, kwargs))

    return ask


def _next_asker(watched: Any) -> Any:
    passes: dict[int, tuple[Any, int, Pass]] = {}

    def begin(of: Any) -> Any:
        """A pass over an object; one made anew for each pass goes on where the last left off."""
        ref = weakref.ref(of)
        taken = {number for known, number, _ in passes.values() if known() is not None}
        for key in [key for key, (known, _, _) in passes.items() if known() is None]:
            del passes[key]
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        passes[id(of)] = found = ref, number, Pass(watched, (str(number),), {}, ref)
        return found

    def ask(self: Any) -> Any:
        if watched.refused is not None:
            return watched.original(self)
        known = passes.get(id(self))
        if known is None or known[0]() is not self:
            try:
                known = begin(self)
            except TypeError:  # cannot be referred to weakly
                watched.refuse(None)
                return watched.original(self)
        ref, number, one = known
        try:
            return one.step(sys._getframe(2), functools.partial(watched.original, self))
        except StopIteration:
            passes[id(self)] = ref, number, Pass(watched, (str(number),), {}, ref)
            raise

    return ask


for _function in (Pass.step, Stream.__next__, Stream.send):
    trampoline.hide(_function)
