"""One thing that may give the script's batches: what is known of it, and how it is let go."""

from __future__ import annotations

import sys
from typing import Any, Iterator

from ..hooks import dress
from ..state import S
from . import loopcode, outcomes, queues, replay, trampoline

#: Ways to call one function that are told apart.
MAX_KEYS = 4
_PLAIN = (str, bytes, bool, type(None))
_LEFT_OUT = "what else it does is left out"


class Source:
    """One way to call one function, and what its batches are used for."""

    kind = "call"

    def __init__(self, watched: Watched, iterable: bool) -> None:
        self.place = watched.place
        self.watched = watched
        self.iterable = iterable
        self.proofs = 0
        self.waiting = self.replaying = False
        self.suspects: list[Any] = []
        self.without_grad = self.trains_without_grad = False
        self.length: int | None = None
        self.cache: Any = replay.Cache(self)
        self.positions: set[Any] = set()
        self.shapes: set[Any] = set()
        self.last: list[Any] = []
        self.taken = 0

    def remark(self) -> tuple[str, str]:
        """For the row: what the batches are of, and what is left out with them."""
        on_gpu = any(recipe.device_bytes for recipe in self.cache.recipes)
        more = ", its copies to the GPU too" if on_gpu else ""
        return " of %s" % self.watched.name, "; %s%s" % (_LEFT_OUT, more)


class Watched:
    """One function object, method of a class, or queue.

    Attributes:
        original: Does what it did.
        refused: Why it is not replayed.
    """

    def __init__(self, calls: Any, function: Any, name: str, place: str | None) -> None:
        self.calls = calls
        self.function = function
        self.original: Any = None
        self.name = name
        self.place = place
        self.refused: str | None = None
        self.judged = False
        self.sources: dict[Any, Source] = {}
        self._held: list[Any] = []  # what ids in keys are of
        self.against: str | None = None  # what it is given, if that speaks against it
        self.empty = 0
        self.indexed = False  # whether indices, or names, are among what it is given

    def refuse(self, why: str | None, told: bool = False) -> None:
        """Let go of it; with ``why``, say so if nothing else is replayed.

        Without ``told``, only of what a backward has followed.
        """
        if self.refused is not None:
            return
        told = told or any(source.proofs for source in self.sources.values())
        self.refused = why or ""
        for source in self.sources.values():
            if source.replaying:
                self.calls.trial.outcomes.tell(
                    replay.KEY, self.place, outcomes.INCONCLUSIVE, "%s: %s" % (self.name, why)
                )
        if why and told:
            self.calls.refused[self.place] = "%s: %s" % (self.name, why)
        self.sources.clear()
        self._held.clear()
        self.undo()

    def undo(self) -> None:
        """Put back what was exchanged."""
        if self.function is not None and self.original is not None:
            trampoline.turn_back(self.function, self.original)

    def source(self, args: Any, kwargs: Any, iterable: bool, of: Any = None) -> Source | None:
        """The source that a call with these arguments belongs to.

        Args:
            args: Of the call.
            kwargs: Of the call.
            iterable: Whether it gives a stream.
            of: A weak reference to the object it is of, where that is none of the arguments.
        """
        key: list[Any] = []
        position: list[Any] = []
        held: list[Any] = [] if of is None else [of]
        for name, value in (*enumerate(args), *kwargs.items()):
            if type(value) in _PLAIN:
                key.append((name, value))
            elif _says_which(value):
                position.append(value)
                self.indexed |= type(value) not in (int, float)
            else:
                self.against = self.against or loopcode.of_argument(value, "that it is given")
                key.append((name, id(value)))
                held.append(lambda value=value: value)
        found = self.sources.get(tuple(key))
        if found is None:
            if len(self.sources) >= MAX_KEYS:
                self.refuse("what it is given is made anew for each call")
                return None
            self._held.extend(held)
            found = self.sources[tuple(key)] = Source(self, iterable)
        if len(found.positions) < 2:
            found.positions.add(tuple(_position(value) for value in position))
        return found

    def trouble(self) -> str | None:
        """What speaks against leaving out its calls, judged from its code."""
        return loopcode.trouble(self.original, [one() for one in self._held])


class QueueWatched(Watched):
    """A queue: ``get`` of this one object is exchanged."""

    def __init__(self, calls: Any, one: Any, name: str) -> None:
        super().__init__(calls, None, name, None)
        self._queue = one

    def place_hook(self, get: Any) -> None:
        """Put our ``get`` in front of that of its class."""
        try:
            self.original = self._queue.get
            self._queue.get = dress(get, self.original)
        except AttributeError:
            self.refused = ""
            self.calls.refused[None] = "%s: a queue of this kind cannot be watched" % self.name

    def undo(self) -> None:
        """Let the class's ``get`` be found again."""
        getattr(self._queue, "__dict__", {}).pop("get", None)

    def source(self, args: Any, kwargs: Any, iterable: bool, of: Any = None) -> Source | None:
        """The one source that a queue is."""
        if None not in self.sources:
            self.sources[None] = Source(self, False)
        return self.sources[None]

    def trouble(self) -> str | None:
        """What speaks against leaving it full."""
        if queues.reports_done(self._queue, self.sources[None].taken):
            return "task_done() is called for what is taken from it"
        return queues.trouble(self._queue, "itself")


def name_of(function: Any) -> str:
    """What a row calls a function, or what made a generator."""
    return "%s()" % str(function.__qualname__).rpartition("<locals>.")[2]


def place_of(code: Any) -> str:
    """``file:line`` of its definition."""
    return "%s:%d" % (code.co_filename.rpartition("/")[2], code.co_firstlineno)


def _says_which(value: Any) -> bool:
    """Whether this says which batch is wanted: numbers, indices on the CPU, names."""
    if type(value) in (int, float, range):
        return True
    if type(value) in (list, tuple):
        return all(type(one) in (int, str) for one in value)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.integer, numpy.ndarray)):
        return value.dtype.kind in "iu" and value.ndim < 2
    if type(value) is S.torch.Tensor and value.device.type == "cpu" and value.ndim < 2:
        return not value.dtype.is_floating_point and not value.dtype.is_complex
    return False


def _position(value: Any) -> Any:
    """Enough of it to tell whether it varies."""
    if type(value) in (int, float):
        return value
    if type(value) in (list, tuple, range):
        return len(value), str(value[:2])
    return tuple(value.shape), str(value.reshape(-1)[:2])


def tensors_in(result: Any, depth: int = 4) -> Iterator[Any]:
    """Tensors and arrays in what a function returned."""
    if isinstance(result, S.torch.Tensor):
        yield result
        return
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(result, numpy.ndarray):
        yield result
        return
    if not depth:
        return
    if isinstance(result, dict):
        parts = list(result.values())
    elif isinstance(result, (list, tuple)):
        parts = list(result[:64])
    else:
        held = getattr(result, "__dict__", None)
        parts = list(held.values()) if type(held) is dict and not callable(result) else []
    for part in parts:
        yield from tensors_in(part, depth - 1)
