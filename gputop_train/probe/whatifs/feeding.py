"""Which source of batches feeds the training, and when an evaluation is under way: by evidence.

A source trains when what it gave is followed by a backward, again and again. A pass evaluates when
gradients are off, or when a module that trains is in evaluation mode; a teacher that stays in it
while backwards run is no such module.
"""

from __future__ import annotations

import weakref
from typing import Any

from ..hooks import dress, leave_no_frame
from ..state import S, note_error

#: Backwards, each after a batch, that show a source to feed the training.
PROOFS = 2
MAX_MODULES = 64


class Feeding:
    """What was seen in this process."""

    def __init__(self) -> None:
        self.backwards = 0
        self.loaded = 0  # batches that DataLoaders gave
        #: Evaluation modes entered since training began.
        self.evaluations = 0
        self._entered: list[Any] = []  # weak references to modules whose eval() was called
        self._teachers: set[int] = set()
        self._waiting: list[Any] = []  # sources that gave a batch since the last backward

    def gave(self, source: Any, grad: bool) -> None:
        """A source has just given a batch."""
        source.suspects = self._in_evaluation()
        source.without_grad = not grad
        if source.kind == "DataLoader":
            self.loaded += 1
        if not source.waiting:
            source.waiting = True
            self._waiting.append(source)

    def ended(self, source: Any, began: int) -> None:
        """A pass is over; one without a single backward was none of the training's."""
        if began == self.backwards and source.waiting:
            source.waiting = False
            self._waiting = [one for one in self._waiting if one is not source]

    def backward(self) -> None:
        """A backward is about to run: what gave a batch since the last one feeds the training."""
        self.backwards += 1
        waiting, self._waiting = self._waiting, []
        for source in waiting:
            source.waiting = False
            if not any(_trains(module) for module in source.suspects):
                source.proofs += 1
                source.trains_without_grad |= source.without_grad
        if len(self._entered):
            for ref in self._entered:
                module = ref()
                if module is not None and not module.training:
                    self._teachers.add(id(module))

    def entered_eval(self, module: Any) -> None:
        """``eval()`` of a module was called, by a person or a framework."""
        if self.backwards and module.training and id(module) not in self._teachers:
            self.evaluations += 1
        if len(self._entered) >= MAX_MODULES or any(r() is module for r in self._entered):
            self._entered = [ref for ref in self._entered if ref() is not None][-MAX_MODULES:]
            if any(ref() is module for ref in self._entered):
                return
        self._entered.append(weakref.ref(module))

    def _in_evaluation(self) -> list[Any]:
        return [ref for ref in self._entered if _evaluates(ref, self._teachers)]

    def evaluating(self) -> bool:
        """Whether a module that trains is in evaluation mode."""
        return bool(self._entered) and bool(self._in_evaluation())


def _trains(ref: Any) -> bool:
    module = ref()
    return module is not None and bool(module.training)


def _evaluates(ref: Any, teachers: set[int]) -> bool:
    module = ref()
    return module is not None and not module.training and id(module) not in teachers


def place(torch: Any, feeding: Feeding, listeners: list[Any]) -> None:
    """Hook backward, below the probe's own hook, and ``Module.eval``.

    Args:
        torch: The module.
        feeding: Told of both.
        listeners: Called with the roots of each backward before it runs.
    """
    autograd = torch.autograd
    name = "_engine_run_backward" if hasattr(autograd, "_engine_run_backward") else "backward"
    original = getattr(autograd, name)

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        evaluator = S.set_eval_frame(None)
        try:
            feeding.backward()
            for listen in listeners:
                listen(args[0] if args else kwargs.get("tensors"))
        except Exception as error:
            note_error("what-if backward", error)
        finally:
            S.set_eval_frame(evaluator)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    setattr(autograd, name, dress(run_backward, original))
    module = torch.nn.Module
    original_eval = module.eval

    def eval(self: Any) -> Any:
        try:
            feeding.entered_eval(self)
        except Exception as error:
            note_error("what-if eval", error)
        try:
            return original_eval(self)
        except BaseException as error:
            leave_no_frame(error)
            raise

    module.eval = dress(eval, original_eval)
