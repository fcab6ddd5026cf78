"""``sync_every=N``: reads of GPU values that the host waits for are made every N-th time only.

Per line of the script's own, the first is real, then every N-th; between them the last real value
is given again, without a wait. Reads by torch itself and by libraries are real (``GradScaler``
looks for infinities so), and so is every read whose value could steer the script (steering.py).
"""

from __future__ import annotations

import ast
import copy
import os
import sys
from typing import Any

from .. import sites
from ..hooks import dress, graphs, leave_no_frame
from ..state import S, ident, note_error
from . import outcomes, steering
from .callees import Callees
from .source import Source, called, end_of

KEY = "sync_every"
MAX_SITES = 512
#: Shapes and types of values kept for one line; a further one is always read.
MAX_KINDS = 32
#: Of a copy to the host that is kept, to be copied again.
MAX_BYTES = 256 << 20
#: Methods of a tensor, and how the call of each is named in the source.
_METHODS = {
    "item": "item",
    "tolist": "tolist",
    "cpu": "cpu",
    "to": "to",
    "__float__": "float",
    "__int__": "int",
}
_COPIES = ("cpu", "to")
_WAIT = "synchronize"
_NOTHING = object()


class _Kept:
    """What one line last read of one kind of tensor."""

    __slots__ = ("calls", "value")

    def __init__(self) -> None:
        self.calls = 0
        self.value: Any = _NOTHING


class _Site:
    """One call in the script's own code.

    Attributes:
        place: ``file:line``.
        shown: How the call is written.
        left_out: Whether its reads may be left out.
        without_grad: Whether a copy is read at once, so that no gradient is asked of it.
    """

    __slots__ = ("kinds", "left_out", "place", "shown", "without_grad")

    def __init__(self, place: str, shown: str) -> None:
        self.place = place
        self.shown = shown
        self.left_out = True
        self.without_grad = False
        self.kinds: dict[Any, _Kept] = {}


class Reads:
    """Reads of this process.

    Args:
        trial: The leg.
    """

    def __init__(self, trial: Any) -> None:
        self.every = int(trial.asked[KEY])
        self._trial = trial
        self._sites: dict[tuple[int, int, str], _Site] = {}
        self._calls: dict[Any, _Site] = {}
        self._codes: list[Any] = []  # held, so that an id is not given to another
        self._rows: set[str] = set()

    def site(self, frame: Any, name: str) -> _Site | None:
        """The place of a call; ``None`` where it is to be made as ever."""
        if sites.is_library(frame.f_code):
            return None
        key = (id(frame.f_code), frame.f_lasti, name)
        found = self._sites.get(key)
        if found is None:
            if len(self._sites) >= MAX_SITES:
                return None
            found = self._sites[key] = self._known(frame, name)
            self._codes.append(frame.f_code)
        return found if found.left_out else None

    def _known(self, frame: Any, name: str) -> _Site:
        """The site of an instruction: Python may make the same call by another one, once warm."""
        place = (id(frame.f_code), end_of(frame.f_code, frame.f_lasti) or frame.f_lasti, name)
        found = self._calls.get(place)
        if found is None:
            found = self._calls[place] = self._look(frame, name)
        return found

    def _look(self, frame: Any, name: str) -> _Site:
        code, line = frame.f_code, frame.f_lineno or 0
        place = "%s:%d" % (os.path.basename(code.co_filename), line)
        written = _METHODS.get(name, _WAIT)
        site = _Site(place, ("." if written == name and name != _WAIT else "") + written + "()")
        if place in self._rows:  # two in a line, of which one may be left out and one not
            site.place = "%s (%s)" % (place, sites.source(code, frame.f_lasti, line)[:60])
        self._rows.add(site.place)
        try:
            self._judge(site, frame, name)
        except (steering.Steered, ValueError) as error:
            self.refuse(site, str(error))
        except Exception as error:
            note_error(KEY, error)
            self.refuse(site, "its line could not be judged")
        return site

    def _judge(self, site: _Site, frame: Any, name: str) -> None:
        source = Source.of(frame.f_code.co_filename, frame.f_globals)
        written = _METHODS.get(name, _WAIT)
        calls = source.calls_at(frame.f_code, frame.f_lasti, frame.f_lineno, written)
        if not calls:
            raise steering.Steered("it was not found in the source")
        module = S.torch.nn.Module
        callees = Callees(source, frame.f_globals, sites.is_library, module)
        for call in calls:
            if name == _WAIT:
                _judge_wait(source, call)
            else:
                steering.Judge(source, callees).judge(call)
        site.without_grad = all(steering.needs_no_grad(source, call) for call in calls)

    def refuse(self, site: _Site, why: str) -> None:
        """Leave a place as it is, and say so."""
        site.left_out = False
        site.kinds.clear()
        why = "%s is made as ever: %s" % (site.shown, why)
        self._trial.outcomes.tell(KEY, site.place, outcomes.REFUSED, why)

    def kept(self, site: _Site, name: str, tensor: Any) -> _Kept | None:
        """What the place last read of such a tensor; ``None`` where it is to be read as ever."""
        kind: Any = None
        if name in _COPIES or name == "tolist":
            if tensor.layout is not S.torch.strided:
                return None
            kind = (tensor.shape, tensor.stride(), tensor.dtype)
        elif name == "item":
            kind = tensor.dtype
        asks_grad = tensor.requires_grad and S.torch.is_grad_enabled()
        if name in _COPIES and asks_grad and not site.without_grad:
            self.refuse(site, "its copy carries gradients")
            return None
        found = site.kinds.get(kind)
        if found is None and len(site.kinds) < MAX_KINDS:
            found = site.kinds[kind] = _Kept()
        return found

    def left_out(self, site: _Site, kept: _Kept) -> bool:
        """Whether this call is left out; counts it."""
        turn = kept.calls % self.every
        kept.calls += 1
        if not turn or kept.value is _NOTHING:
            return False
        why = "%s is real 1 time in %d" % (site.shown, self.every)
        self._trial.outcomes.tell(KEY, site.place, outcomes.APPLIED, why, 1)
        return True

    def keep(self, site: _Site, name: str, kept: _Kept, value: Any) -> None:
        """Keep what was really read, as the script cannot change it."""
        if name in _COPIES:
            if value.nbytes > MAX_BYTES:
                self.refuse(site, "a copy of %d MB is not kept" % (value.nbytes >> 20))
                return
            value = value.detach().clone()
        elif name == "tolist":
            value = copy.deepcopy(value)
        kept.value = value

    def not_met(self) -> str:
        """Why nothing was left out where nothing was refused either."""
        if not self._sites:
            return "no line of the script's own read a value of the GPU"
        return "no line of the script's own read a value of the GPU a second time"


def _again(name: str, value: Any) -> Any:
    """A value that was kept, as one of its own."""
    if name in _COPIES:
        return value.clone()
    return copy.deepcopy(value) if name == "tolist" else value


def _judge_wait(source: Any, call: Any) -> None:
    """Whether a wait for the device may be left out: its function must not rely on it.

    Raises:
        Steered: It does, or it is not a statement of its own.
    """
    if not isinstance(source.parents.get(call), ast.Expr):
        raise steering.Steered("it is no statement of its own")
    around = source.function(call)
    for other in source.calls:
        if source.function(other) is not around:
            continue
        name = called(other)
        if name == "elapsed_time":
            raise steering.Steered("times of events are read beside it")
        if name in ("graph", "capture_begin", "make_graphed_callables"):
            raise steering.Steered("a CUDA graph is captured beside it")
        asks = any(k.arg == "non_blocking" for k in other.keywords)
        if asks and (name in ("copy_", "cpu") or _names_cpu(other)):
            raise steering.Steered("a copy to the host that does not wait is beside it")


def _names_cpu(call: Any) -> bool:
    values = [*call.args, *(k.value for k in call.keywords)]
    return any(
        isinstance(n, ast.Constant) and n.value == "cpu" for v in values for n in ast.walk(v)
    )


def place(torch: Any, trial: Any) -> Reads:
    """Wrap the reads that may be left out, above the probe's own hooks, which so see what is left.

    Args:
        torch: The module; CUDA is initialised.
        trial: The leg.
    """
    reads = Reads(trial)
    kinds = frozenset((torch.Tensor, torch.nn.Parameter))
    allowed = getattr(torch.nn.parameter.UninitializedTensorMixin, "_allowed_methods", None)
    for name in _METHODS:
        original = getattr(torch.Tensor, name)
        wrapper = dress(_make_read(name, original, reads, kinds), original)
        wrapper.__name__, wrapper.__qualname__ = name, "Tensor." + name
        setattr(torch.Tensor, name, wrapper)
        # LazyLinear().to() is allowed by the identity of the method.
        if allowed is not None and original in allowed:
            allowed.append(wrapper)
    wait = torch.cuda.synchronize
    torch.cuda.synchronize = dress(_make_wait(wait, reads), wait)
    return reads


def _make_read(name: str, original: Any, reads: Reads, kinds: Any) -> Any:
    state = S

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        site = kept = None
        if type(self) in kinds and self.is_cuda and ident() == state.thread_id:
            evaluator = state.set_eval_frame(None)
            try:
                if not graphs.capturing[0] and _is_whole(name, args, kwargs):
                    site = reads.site(sys._getframe(1), name)
                if site is not None:
                    kept = reads.kept(site, name, self)
                    if kept is not None and reads.left_out(site, kept):
                        return _again(name, kept.value)
            except Exception as error:
                kept = None
                note_error(KEY, error)
            finally:
                state.set_eval_frame(evaluator)
        try:
            value = original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        if kept is not None:
            try:
                reads.keep(site, name, kept, value)  # type: ignore[arg-type]
            except Exception as error:
                note_error(KEY, error)
        return value

    return read


def _is_whole(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call asks for the plain value: no memory format, no other type, no ``copy``."""
    if name != "to":
        return not args and not kwargs
    if len(args) + len(kwargs) != 1:
        return False
    target = args[0] if args else kwargs.get("device")
    return target == "cpu" if type(target) is str else getattr(target, "type", None) == "cpu"


def _make_wait(original: Any, reads: Reads) -> Any:
    state = S

    def synchronize(*args: Any, **kwargs: Any) -> Any:
        kept = None
        if ident() == state.thread_id and not graphs.capturing[0]:
            evaluator = state.set_eval_frame(None)
            try:
                site = reads.site(sys._getframe(1), _WAIT)
                if site is not None:
                    kept = site.kinds.setdefault(None, _Kept())
                    if reads.left_out(site, kept):
                        return None
            except Exception as error:
                kept = None
                note_error(KEY, error)
            finally:
                state.set_eval_frame(evaluator)
        try:
            value = original(*args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        if kept is not None:
            kept.value = None
        return value

    return synchronize
