"""``replay_batch`` where no DataLoader is: the script's own function, method, generator or queue.

Which of them gives the batches is shown by evidence in the warm-up, as it is of loaders: called
from the frames around backward, with gradients on, it returned tensors of no gradient history, and
a backward followed. Those calls are answered from the cache. What is not seen to be a mere source
of batches is refused, and all that was watched and turned out to be something else is let go.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from ..state import S, ident, note_error
from . import loopcode, outcomes, replay, streams, trampoline
from .counting import steps_done
from .feeding import PROOFS
from .watched import QueueWatched, Source, Watched, name_of, place_of, tensors_in

#: Backwards, after the loop is known, whose frames are looked at.
LOOKS = 8
MAX_WATCHED = 256


class Calls:
    """What of the script is watched in this process."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.codes: dict[int, Any] = {}  # of the frames around backward
        self.refused: dict[str | None, str] = {}
        self._watched: dict[int, Watched] = {}
        self._looked = 0
        self._in_models: set[str] = set()
        self.hidden = ""  # a generator that cannot be got at
        self._settled = False
        self._active = 0

    # -- finding what to watch

    def listen(self, roots: Any) -> None:
        """A backward is about to run."""
        if self._settled or not S.loop_known or ident() != S.thread_id:
            return
        if self._looked < LOOKS:
            self._looked += 1
            frames = loopcode.training_frames()
            if frames and id(frames[0].f_code) not in self.codes:
                self._look(frames)
        if steps_done() > self.trial.warmup:
            self._settle()

    def spare(self, frames: list[Any]) -> None:
        """Watch nothing that may be compiled into a model."""
        self._in_models |= loopcode.named_in_models(frames)

    def _look(self, frames: list[Any]) -> None:
        self.spare(frames)
        for frame in frames:
            self.codes[id(frame.f_code)] = frame.f_code
        for frame in frames:
            for function, of in loopcode.functions_named(frame):
                if function is None:
                    self.watch_queue(of)
                else:
                    self.watch(function)
            streams.exchange(self, frame)

    def _look_inside(self, watched: Watched) -> None:
        """It is a part of the training's forward, and may fetch the batch itself."""
        function = watched.original
        watched.refuse(None)
        if S.compile_seen or len(self.codes) >= MAX_WATCHED:
            return  # what is called in it may be part of what was compiled
        code = loopcode.own_code(function)
        self.codes[id(code)] = code
        for named, of in loopcode.functions_of(function):
            if named is None:
                self.watch_queue(of)
            else:
                self.watch(named)

    def watch(self, function: Any) -> None:
        """Watch a function of the script, unless the training runs in it."""
        if id(function) in self._watched or len(self._watched) >= MAX_WATCHED:
            return
        if not loopcode.is_users(function):
            return
        code = loopcode.own_code(function)
        if id(code) in self.codes:
            return
        if code.co_name in self._in_models:
            self.hidden = self.hidden or (
                "%s is left alone, since code of a model names it too" % name_of(function)
            )
            return
        watched = Watched(self, function, name_of(function), place_of(code))
        self._watched[id(function)] = watched
        if self._looked and streams.makes_generators(function):
            self.hidden = self.hidden or (
                "%s at %s may have been called before it could be watched"
                % (watched.name, watched.place)
            )
        ask = streams.asker(watched) or _asker(watched)
        try:
            watched.original = trampoline.turn_to(function, ask)
        except Exception as error:
            watched.refused = "its code cannot be exchanged"
            note_error("what-if watch", error)

    def watched_generator(self, made: Any) -> Watched:
        """Of a generator whose function was not watched when it made it."""
        code = made.gi_code
        found = self._watched.get(id(code))
        if found is None:
            found = self._watched[id(code)] = Watched(self, None, name_of(made), place_of(code))
            found.original = loopcode.function_of(made)
        return found

    def watch_queue(self, one: Any) -> None:
        """Watch a queue's ``get``."""
        if id(one) in self._watched or len(self._watched) >= MAX_WATCHED:
            return
        name = "%s.get()" % type(one).__name__
        watched = QueueWatched(self, one, name)
        self._watched[id(one)] = watched
        watched.place_hook(_queue_asker(watched))

    def _settle(self) -> None:
        """The warm-up is over: whatever does not feed the training is let go."""
        self._settled = True
        for watched in self._watched.values():
            if not any(source.proofs >= PROOFS for source in watched.sources.values()):
                watched.refuse(None)

    # -- one call

    def training_call(self, frame: Any) -> bool:
        """Whether what is called from this frame would feed the training, if it gave batches."""
        if self._active or not self.codes or ident() != S.thread_id:
            return False
        if not S.torch.is_grad_enabled() or self.trial.feeding.evaluating():
            return False
        return id(loopcode.caller(frame)) in self.codes

    def source_of_call(self, watched: Watched, args: Any, kwargs: Any, frame: Any) -> Any:
        """The source that a call belongs to; None where the call is none of the training's."""
        if watched.refused is not None:
            return None
        if not self.training_call(frame):
            if not self._active and self.codes and ident() == S.thread_id:
                self._called_elsewhere(watched)
            return None
        source = watched.source(args, kwargs, False)
        if source is not None and not source.replaying:
            self._start(source)
            source = source if watched.refused is None else None
        return source

    def _called_elsewhere(self, watched: Watched) -> None:
        if not S.torch.is_grad_enabled() or self.trial.feeding.evaluating():
            return  # an evaluation gets its own
        if self._looked < LOOKS:
            return  # training has other frames too, which are not known yet
        if not any(source.replaying for source in watched.sources.values()):
            watched.refuse("it is called from elsewhere than the training loop too")

    def _start(self, source: Source) -> None:
        """Replay a source from now on, if all is known that has to be."""
        if source.proofs < PROOFS or not source.cache.whole:
            return
        if self.allows(source):
            source.replaying = True
            replay.tell_start(source, self.trial)

    def allows(self, source: Source) -> bool:
        """Whether nothing speaks against a source; refuses it otherwise."""
        watched = source.watched
        why = None
        if not watched.judged:
            watched.judged = True
            why = watched.trouble()
        if why is None and len(source.positions) > 1 and len(source.shapes) > 1:
            why = "its batches have other shapes from call to call, by what it is given"
        if why is None and watched.indexed and self.trial.feeding.loaded:
            why = "it may make something of what a DataLoader gave"
        if why is not None:
            watched.refuse(why)
        return why is None

    def mark(self) -> tuple[int, int, int]:
        """What must not move while a mere source of batches runs."""
        feeding = self.trial.feeding
        return feeding.backwards, steps_done(), feeding.loaded

    def call(self, source: Source, original: Any, args: Any, kwargs: Any) -> Any:
        """A real call that is looked at."""
        mark = self.mark()
        self._active += 1
        try:
            result = original(*args, **kwargs)
        finally:
            self._active -= 1
        evaluator = S.set_eval_frame(None)
        try:
            self.returned(source, result, mark)
        except Exception as error:
            note_error("what-if call", error)
            source.watched.refuse("what it returns cannot be read")
        finally:
            S.set_eval_frame(evaluator)
        return result

    def returned(self, source: Source, result: Any, mark: Any) -> None:
        """A training call returned."""
        watched = source.watched
        if watched.refused is not None:
            return
        if mark != self.mark():
            watched.refuse(None)  # it trains, or its batches are a loader's, which is replayed
            return
        tensors = list(tensors_in(result))
        for tensor in tensors:
            if isinstance(tensor, S.torch.Tensor) and tensor.requires_grad:
                if tensor.grad_fn is None:
                    watched.refuse("its tensors ask for a gradient", told=True)
                else:
                    self._look_inside(watched)
                return
        if not any(tensor.ndim for tensor in tensors):
            watched.empty += 1
            if watched.empty > 1 or source.proofs:
                watched.refuse("it also returns what holds no batch" if source.proofs else None)
            return
        if watched.against is not None:
            watched.refuse(watched.against, told=True)
            return
        if any(tensor is ref() for ref in source.last for tensor in tensors):
            self.trial.feeding.gave(source, True)
            watched.refuse("it hands out the same tensor again, which others may hold")
            return
        source.last = [weakref.ref(tensor) for tensor in tensors]
        source.taken += 1
        self.trial.feeding.gave(source, True)
        if not source.cache.whole:
            source.shapes.add(tuple((tuple(t.shape), str(t.dtype)) for t in tensors))
            source.cache.keep(result, self.trial)
            if source.cache.why_not is not None:
                watched.refuse(source.cache.why_not, told=True)

    # -- the end

    def not_met(self) -> str:
        """Why nothing is replayed, where nothing was met that could be."""
        words = "no source of batches that could be replayed fed the training"
        return "%s; %s" % (words, self.hidden) if self.hidden else words

    def report(self) -> None:
        """Tell why sources were refused, where none is replayed."""
        outcome = self.trial.outcomes
        if outcome.met(replay.KEY):
            return
        for place, why in list(self.refused.items()):
            outcome.tell(replay.KEY, place, outcomes.REFUSED, why)

    def at_exit(self) -> None:
        """Code objects go before module teardown."""
        self._settled = True
        for watched in self._watched.values():
            watched.undo()
        self.codes.clear()


def _asker(watched: Watched) -> Any:
    """What a function's calls go to."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        return _answer(watched, args, kwargs, sys._getframe(2))

    return ask


def _queue_asker(watched: Watched) -> Any:
    def get(*args: Any, **kwargs: Any) -> Any:
        return _answer(watched, args, kwargs, sys._getframe(1))

    return get


def _answer(watched: Watched, args: Any, kwargs: Any, frame: Any) -> Any:
    calls = watched.calls
    source = None
    evaluator = S.set_eval_frame(None)
    try:
        source = calls.source_of_call(watched, args, kwargs, frame)
        if source is not None and source.replaying:
            calls.trial.feeding.gave(source, True)
            return source.cache.give()
    except Exception as error:
        note_error("what-if call", error)
        watched.refuse("its batches cannot be given again")
        source = None
    finally:
        del frame
        S.set_eval_frame(evaluator)
    if source is None:
        return watched.original(*args, **kwargs)
    return calls.call(source, watched.original, args, kwargs)


for _function in (_answer, Calls.call):
    trampoline.hide(_function)
