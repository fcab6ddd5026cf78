"""Which loader feeds the training: told when it is read, not when it is built.

At construction a loader of evaluation looks like any other; when its iterator is made, it is known
whether gradients are on and whether the model that is trained is in evaluation mode.
"""

from __future__ import annotations

import linecache
import re
import sys
import weakref
from typing import Any

from .. import overrides_steps
from ..hooks import dress, leave_no_frame
from ..state import S

_NAMED = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validation|eval|evaluation|test|dev|holdout)"
    r"(?:_?(?:loader|dl|data\w*|set\w*))?(?![A-Za-z])",
    re.I,
)
_FRAMES = 24

_set_to_eval: Any = weakref.WeakSet()
_optimizers: Any = weakref.WeakSet()
_depth = [0]
#: [iterator, loader, batches so far, steps that are still to confirm it] of passes under way.
_reading: list[list[Any]] = []
#: (place, whether it shuffles, dataset's id) of loaders that fed a step.
_fed: set[tuple[Any, Any, int]] = set()


class Info:
    """What is known of one loader.

    Attributes:
        place: ``FILE:LINE`` of its construction.
        name: The text left of the call or the function around it, for lack of better.
        pending: Settings that wait for its first pass of training.
        tried: The script's batch size and the setting, while another is in force on trust.
        before: What the loader was like before its settings, for as long as it may be needed.
        lengths: Batch sizes in force when the script asked for the loader's length.
        shuffles: Whether the order is drawn; ``None`` = an iterable decides itself.
        fed: Whether a step of an optimizer followed its batches.
    """

    __slots__ = (
        "before", "fed", "lengths", "name", "pending", "place", "shuffles", "source", "tried",
    )  # fmt: skip

    def __init__(self, loader: Any, place: str, name: str) -> None:
        self.place = place
        self.name = name
        self.pending: list[dict[str, Any]] = []
        self.tried: tuple[int, dict[str, Any]] | None = None
        self.before: dict[str, Any] | None = None
        self.lengths: set[Any] = set()
        self.shuffles = shuffles(loader)
        self.fed = False
        self.source = id(getattr(loader, "dataset", None))

    @property
    def key(self) -> tuple[Any, Any, int]:
        """What a loader built anew for every epoch shares with the one before."""
        return (self.place, self.shuffles, self.source)


def place(torch: Any) -> None:
    """Know which modules were set to evaluation, and which parameters are trained."""
    from torch.optim import Optimizer

    optimizer: Any = Optimizer
    train = torch.nn.Module.train
    init = optimizer.__init__

    def watched_train(self: Any, mode: bool = True) -> Any:
        # Recurses through the children: only the module it was asked of is of interest.
        if mode or _depth[0]:
            return train(self, mode)
        _depth[0] = 1
        try:
            _set_to_eval.add(self)
        except Exception:
            pass
        try:
            return train(self, mode)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            _depth[0] = 0

    def watched_init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            _optimizers.add(self)
        except Exception:
            pass
        try:
            init(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    torch.nn.Module.train = dress(watched_train, train)
    optimizer.__init__ = dress(watched_init, init)
    overrides_steps.watch(_at_step)


def evaluating() -> bool:
    """Whether a module with most of what some optimizer trains is in evaluation mode.

    A frozen teacher, an average of weights or a frozen part of the model may stay in that mode for
    the whole training: they hold few or none of the optimizer's parameters.
    """
    modules = [module for module in list(_set_to_eval) if not module.training]
    if not modules:
        return False
    trained = []
    for optimizer in list(_optimizers):
        groups = getattr(optimizer, "param_groups", None) or ()
        trained.append({id(p): _numel(p) for group in groups for p in group["params"]})
    for module in modules:
        own = [(id(p), p.requires_grad) for p in module.parameters()]
        if not trained and any(grad for _, grad in own):
            return True
        for sizes in trained:
            if sizes and 2 * sum(sizes.get(key, 0) for key, _ in own) >= sum(sizes.values()):
                return True
    return False


def _numel(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except Exception:  # a lazy one has no size yet
        return 0


def for_evaluation(loader: Any, info: Info) -> str | None:
    """Why the pass that begins now is none of training; ``None`` where it is."""
    if not S.torch.is_grad_enabled():
        return "it is read without gradients: evaluation"
    if info.fed or info.key in _fed:
        return None
    if _under_construction(loader):
        return None if info.shuffles is not False else "it reads in order where it is built"
    if evaluating() and (_fed or not info.shuffles):
        return "it is read while the model is in evaluation mode"
    if info.shuffles is False and _NAMED.search(info.name):
        return "it reads in order, and by its name it evaluates"
    return None


def begins(iterator: Any, info: Info, steps: int) -> None:
    """A pass that may be one of training: so many steps of an optimizer within it confirm it.

    One for a pass that was taken for training, two for one that was not: an evaluation lies between
    two steps, where a model that trains in evaluation mode takes a batch for each.
    """
    if not info.fed and len(_reading) < 16:
        try:
            _reading.append([weakref.ref(iterator), info, 0, steps])
        except TypeError:
            pass


def _at_step(opt: Any, count: int) -> bool:
    for entry in list(_reading):
        iterator, info = entry[0](), entry[1]
        batches = getattr(iterator, "_num_yielded", entry[2])
        if batches != entry[2]:
            entry[2], entry[3] = batches, entry[3] - 1
        if not entry[3]:
            info.fed = True
            _fed.add(info.key)
        if iterator is None or info.fed:
            _reading.remove(entry)
    return False


def shuffles(loader: Any) -> bool | None:
    """Whether a loader draws its order; a sampler of the script's own counts as one that does."""
    from torch.utils.data import IterableDataset, SequentialSampler

    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:  # not by its truth: that would ask a sampler of the script's for its length
        sampler = getattr(loader, "sampler", None)
    for _ in range(6):
        inner = getattr(sampler, "batch_sampler", None)
        inner = getattr(sampler, "sampler", None) if inner is None else inner
        if inner is None:
            break
        sampler = inner
    shuffle = getattr(sampler, "shuffle", None)
    if isinstance(shuffle, bool):  # DistributedSampler
        return shuffle
    return not isinstance(sampler, (SequentialSampler, range, list))


def name_at(code: Any, line: int) -> str:
    """What the loader is called where it is built: its variable, and the function around it."""
    if code is None:
        return ""
    text = linecache.getline(code.co_filename, line)
    head, equals, _ = text.partition("=")
    return "%s %s" % (head if equals and "(" not in head else "", code.co_name)


def _under_construction(loader: Any) -> bool:
    """Whether the iterator is made within the loader's own constructor (endless loaders)."""
    frame: Any = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
            return True
        frame = frame.f_back
    return False
