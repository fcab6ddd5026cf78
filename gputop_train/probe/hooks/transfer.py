"""Copies between host and device and blocking reads, by the methods of ``torch.Tensor``.

Placed at arming, and only where CUDA is in use: a CPU-only machine has nothing to see. The methods
cost 180-410 ns more a call (probe-findings.md). A stack is walked for every call over 20 us and for
one faster call in 16, which then stands for sixteen; so counts by line are right on the mean, and
say how many calls they rest on.

What these methods do not pass (mask indexing, ``torch.nonzero(x)``, ``unique``, printing a tensor,
``torch.tensor(..., device="cuda")``) is left to the stack sampler.
"""

from __future__ import annotations

from typing import Any

from .. import bypass, sites
from .. import words as W
from ..budget import gate
from ..state import S, append, ident, note_error, now
from . import dress, graphs, leave_no_frame

SLOW_NS = 20_000
FAST_ONE_IN = 16
_SYNC_BEGIN, _SYNC_END = W.SYNC_EDGE * 2, W.SYNC_EDGE * 2 + 1
_COPY_BEGIN, _COPY_END = W.H2D_EDGE * 2, W.H2D_EDGE * 2 + 1
_READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero")
_MOVES = ("to", "cuda")
#: Where a line's memory was always the same kind in so many copies, 1 in 8 is asked from then on.
_PINNED_SURE, _PINNED_EVERY = 4, 8
_SITE_BITS = 16

_placed = False
_fast = sites.Lot(FAST_ONE_IN)
#: Site -> [copies met, whether the last one asked came from pinned memory].
_pinned: dict[int, list[Any]] = {}


def place(torch: Any) -> None:
    """Wrap the reading and moving methods, once."""
    global _placed
    if _placed:
        return
    _placed = True
    tensor = torch.Tensor
    item = tensor.item
    for name in _READS:
        _wrap(torch, tensor, name, _make_read)
    for name in _MOVES:
        _wrap(torch, tensor, name, _make_move)
    _wrap(torch, tensor, "copy_", _make_fill)
    _hook_synchronize(torch)
    try:
        bypass.reads(torch, item)
    except Exception as error:  # it saves time, no more
        note_error("bypass", error)
    S.hooks["sync"] = S.hooks["h2d"] = True


def _wrap(torch: Any, tensor: Any, name: str, make: Any) -> None:
    original = getattr(tensor, name, None)
    if original is None:
        return
    wrapper = make(name, original)
    dress(wrapper, original)
    wrapper.__name__ = name
    wrapper.__qualname__ = "Tensor." + name
    setattr(tensor, name, wrapper)
    # LazyLinear().to() is allowed by the identity of the method.
    allowed = getattr(torch.nn.parameter.UninitializedTensorMixin, "_allowed_methods", None)
    if allowed is not None and original in allowed:
        allowed.append(wrapper)


def _kinds() -> frozenset[Any]:
    """Exact tensor types that are watched. A subclass may count what is asked of it: not by us."""
    return frozenset((S.torch.Tensor, S.torch.nn.Parameter))


def _site(kind: str, took: int, marked: bool, weight: int) -> tuple[int, int]:
    """The place of a call and how many calls it stands for; 0 where no stack was worth it."""
    stands_for = weight if took > SLOW_NS else weight * FAST_ONE_IN if _fast.drawn() else 0
    if not stands_for and not marked:
        return 0, 0
    return sites.caller(kind, depth=4), stands_for


def _size(source: Any) -> int:
    """Bytes of a tensor; 0 = not known (a sparse one does not tell)."""
    try:
        return 0 if source is None else int(source.nbytes)
    except Exception:
        return 0


def _write(code: int, start: int, end: int, amount: int, site: int) -> None:
    append(start << 6 | code)
    append((end - start) << 6 | W.ARG_DUR)
    append((amount << _SITE_BITS | site) << 6 | W.ARG_SITE)
    gate.timed(end)


def _finish_read(start: int, source: Any, marked: bool, weight: int) -> int:
    """After a blocking read. Returns ``bytes << 16 | site`` for the pair of GPU events."""
    end = now()
    size = site = 0
    try:
        size = _size(source)
        site, stands_for = _site("sync", end - start, marked, weight)
        if site and stands_for:
            sites.count(site, end - start, size, 0, stands_for)
    except Exception:
        pass
    _write(W.SPAN_SYNC, start, end, size, site)
    return size << _SITE_BITS | site


def _finish_copy(start: int, source: Any, marked: bool) -> int:
    """After a copy to the device. Returns ``bytes << 16 | site`` for the pair of GPU events."""
    end = now()
    size = site = 0
    try:
        size = _size(source)
        site, stands_for = _site("h2d", end - start, marked, gate.weight)
        if site and stands_for:
            unpinned = 0 if _is_pinned(site, source) else size
            sites.count(site, end - start, size, unpinned, stands_for)
    except Exception:
        pass
    _write(W.SPAN_H2D, start, end, size, site)
    return size << _SITE_BITS | site


def _is_pinned(site: int, source: Any) -> bool:
    """Whether a line copies from pinned memory. Asking is dear: not every time.

    Nor while a CUDA graph is captured: it is a CUDA call.
    """
    row = _pinned.setdefault(site, [0, True])
    if graphs.capturing[0]:
        return bool(row[1])
    if row[0] < _PINNED_SURE or row[0] % _PINNED_EVERY == 0:
        row[1] = source.is_pinned()
    row[0] += 1
    return bool(row[1])


def _begin(edge: int) -> tuple[Any, int]:
    """Before a call: the GPU events told of it, if any, and the time; 0 if that failed."""
    try:
        gpu = S.gpu
        if gpu is not None and gpu.on:
            gpu.mark(edge)
            return gpu, now()
        return None, now()
    except Exception as error:
        S.failed("transfer", error)
        return None, 0


def _end(edge: int, gpu: Any, start: int, source: Any, weight: int = 0) -> None:
    """After a call: the span, and the other event of the pair."""
    try:
        if edge == _COPY_END:
            told = _finish_copy(start, source, gpu is not None)
        else:
            told = _finish_read(start, source, gpu is not None, weight or gate.weight)
        if gpu is not None:
            gpu.mark(edge, told)
    except Exception as error:
        S.failed("transfer", error)


def _make_read(name: str, original: Any) -> Any:
    state, kinds = S, _kinds()
    whole = name == "cpu"  # the others read a few bytes, which nobody asks for

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = type(self) in kinds and self.is_cuda and ident() == state.thread_id
        if watched and not gate.open:
            gate.skipped += 1
            watched = False
        gpu, start = _begin(_SYNC_BEGIN) if watched else (None, 0)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if start:
                _end(_SYNC_END, gpu, start, self if whole else None)

    return read


def _begin_move(source: Any) -> tuple[Any, int]:
    try:
        gpu = S.gpu
        if gpu is not None and gpu.on and not source.is_cuda:
            gpu.mark(_COPY_BEGIN)
            return gpu, now()
        return None, now()
    except Exception as error:
        S.failed("transfer", error)
        return None, 0


def _end_move(gpu: Any, start: int, source: Any, result: Any, kwargs: dict[str, Any]) -> None:
    try:
        told = 0
        if result is not source:
            before, after = source.is_cuda, result.is_cuda
            if after and not before:
                told = _finish_copy(start, source, gpu is not None)
            elif before and not after and not kwargs.get("non_blocking"):
                _finish_read(start, source, False, gate.weight)
        if gpu is not None:
            gpu.mark(_COPY_END, told)
    except Exception as error:
        S.failed("transfer", error)


def _make_move(name: str, original: Any) -> Any:
    state, kinds = S, _kinds()

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not state.detail:  # what ``next()`` has just looked at: no other memory is touched
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
        watched = gate.open and type(self) in kinds and ident() == state.thread_id
        gpu, start = _begin_move(self) if watched else (None, 0)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        if start and (result is not self or gpu is not None):
            _end_move(gpu, start, self, result, kwargs)
        return result

    return move


def _make_fill(name: str, original: Any) -> Any:
    """``copy_`` between host and device, as loops with CUDA graphs or static inputs do it."""
    state, kinds = S, _kinds()

    def copy_(self: Any, *args: Any, **kwargs: Any) -> Any:
        source: Any = args[0] if gate.open and args else None
        edge = 0
        if type(source) in kinds and type(self) in kinds and ident() == state.thread_id:
            target = self.is_cuda
            if target != source.is_cuda:
                waits = not (kwargs.get("non_blocking") or (len(args) > 1 and args[1] is True))
                edge = _COPY_BEGIN if target else _SYNC_BEGIN if waits else 0
        if not edge:
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
        gpu, start = _begin(edge)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            if start:
                _end(edge + 1, gpu, start, source)

    return copy_


def _hook_synchronize(torch: Any) -> None:
    """``torch.cuda.synchronize`` through the C function it calls; events and streams by class."""
    state = S

    def make(original: Any) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            gpu, start = _begin(_SYNC_BEGIN) if ident() == state.thread_id else (None, 0)
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                if start:
                    # Recorded in every step, so that each stands for itself alone.
                    _end(_SYNC_END, gpu, start, None, 1)

        return synchronize

    targets = [(torch._C, "_cuda_synchronize")]
    targets += [(getattr(torch.cuda, n, None), "synchronize") for n in ("Event", "Stream")]
    for owner, name in targets:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, dress(make(original), original))
