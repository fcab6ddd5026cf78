"""Copies between host and device and blocking reads, by the methods of ``torch.Tensor``.

Placed at arming, and only where CUDA is in use: a CPU-only machine has nothing to see. The methods
cost 180-410 ns more a call (probe-findings.md); a stack is walked only for calls over 20 us.
"""

from __future__ import annotations

from typing import Any

from .. import sites
from .. import words as W
from ..budget import gate
from ..state import S, append, ident, now
from . import dress, leave_no_frame

SLOW_NS = 20_000
_SYNC_BEGIN, _SYNC_END = W.SYNC_EDGE * 2, W.SYNC_EDGE * 2 + 1
_COPY_BEGIN, _COPY_END = W.H2D_EDGE * 2, W.H2D_EDGE * 2 + 1
_READS = ("item", "tolist", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero")
_MOVES = ("to", "cuda")
_placed = False


def place(torch: Any) -> None:
    """Wrap the reading and moving methods, once."""
    global _placed
    if _placed:
        return
    _placed = True
    tensor = torch.Tensor
    for name in _READS:
        _wrap(torch, tensor, name, _make_read)
    for name in _MOVES:
        _wrap(torch, tensor, name, _make_move)
    _hook_synchronize(torch)
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


def _finish_span(code: int, start: int, kind: str, call: str, amount: int, pinned: bool) -> int:
    end = now()
    site = 0
    if end - start > SLOW_NS:
        try:
            site = sites.caller(kind, depth=3)
            if site:
                sites.count(site, end - start, amount, 0 if pinned else amount)
        except Exception:
            site = 0
    append(start << 6 | code)
    append((end - start) << 6 | W.ARG_DUR)
    append((amount << 16 | site) << 6 | W.ARG_SITE)
    gate.timed(end)
    return site


def _kinds() -> frozenset[Any]:
    """Exact tensor types that are watched. A subclass may count what is asked of it: not by us."""
    return frozenset((S.torch.Tensor, S.torch.nn.Parameter))


_copies = [0, True]
_PINNED_EVERY = 8


def _finish_copy(start: int, name: str, source: Any) -> int:
    """A host-to-device copy. Asking whether memory is pinned is dear: 1 large copy in 8."""
    size = source.nbytes
    if size >= 1 << 16:
        if _copies[0] % _PINNED_EVERY == 0:
            _copies[1] = source.is_pinned()
        _copies[0] += 1
    return _finish_span(W.SPAN_H2D, start, "h2d", name, size, size < 1 << 16 or bool(_copies[1]))


def _make_read(name: str, original: Any) -> Any:
    state, kinds = S, _kinds()

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = type(self) in kinds and self.is_cuda and ident() == state.thread_id
        if watched and not gate.open:
            gate.skipped += 1
            watched = False
        gpu = state.gpu if watched else None
        if gpu is not None and gpu.on:
            gpu.mark(_SYNC_BEGIN)
        else:
            gpu = None
        start = now()
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        finally:
            site = _finish_span(W.SPAN_SYNC, start, "sync", name, 0, True) if watched else 0
            if gpu is not None:
                gpu.mark(_SYNC_END, site)

    return read


def _make_move(name: str, original: Any) -> Any:
    state, kinds = S, _kinds()

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        watched = gate.open and type(self) in kinds and ident() == state.thread_id
        gpu = state.gpu
        on = watched and gpu is not None and gpu.on and not self.is_cuda
        if on:
            gpu.mark(_COPY_BEGIN)
        start = now()
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise
        site = 0
        if watched and result is not self:
            try:
                source, target = self.is_cuda, result.is_cuda
                if target and not source:
                    site = _finish_copy(start, name, self)
                elif source and not target:
                    _finish_span(W.SPAN_SYNC, start, "sync", name, self.nbytes, True)
            except Exception:
                pass
        if on:
            gpu.mark(_COPY_END, site)
        return result

    return move


def _hook_synchronize(torch: Any) -> None:
    """``torch.cuda.synchronize`` through the C function it calls; events and streams by class."""
    state = S

    def make(original: Any) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> Any:
            watched = ident() == state.thread_id
            gpu = state.gpu if watched else None
            if gpu is not None and gpu.on:
                gpu.mark(_SYNC_BEGIN)
            else:
                gpu = None
            start = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                site = 0
                if watched:
                    site = _finish_span(W.SPAN_SYNC, start, "sync", "synchronize", 0, True)
                if gpu is not None:
                    gpu.mark(_SYNC_END, site)

        return synchronize

    targets = [(torch._C, "_cuda_synchronize")]
    targets += [(getattr(torch.cuda, n, None), "synchronize") for n in ("Event", "Stream")]
    for owner, name in targets:
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, dress(make(original), original))
