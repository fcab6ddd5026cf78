"""Copies of pinned batches that do not block the host.

Only batches that a DataLoader has pinned: those are fresh each time, so nobody writes into one
while it is being copied. A buffer the script pinned itself may be filled again at once, and is left
alone. Nor is a copy touched that a stream of the script's own makes.
"""

from __future__ import annotations

from typing import Any

from ..hooks import dress, graphs, leave_no_frame
from ..state import S, note_error
from .telling import APPLIED, NO_EFFECT, REFUSED, tell

MAX_TENSORS, MAX_DEPTH, KEPT = 256, 5, 4

_override: list[dict[str, Any]] = []
#: Storages of the newest pinned batches.
_fresh: list[frozenset[int]] = []
_told = [""]


def place(torch: Any, override: dict[str, Any]) -> None:
    """Know the batches of loaders that pin, and their way to the GPU."""
    from torch.utils.data import dataloader

    _override[:] = [override]
    base: Any = dataloader._BaseDataLoaderIter
    base.__next__ = dress(_make_next(base.__next__), base.__next__)
    for name in ("to", "cuda"):
        _wrap(torch, name)


def _make_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        try:
            batch = original(self)
        except BaseException as error:
            leave_no_frame(error)
            raise
        if self.__dict__.get("_pin_memory"):
            try:
                found: list[int] = []
                _collect(batch, found, 0)
                _fresh.append(frozenset(found))
                del _fresh[:-KEPT]
            except Exception as error:
                note_error("overrides", error)
        return batch

    return __next__


def _collect(batch: Any, found: list[int], depth: int) -> None:
    if isinstance(batch, S.torch.Tensor):
        if len(found) < MAX_TENSORS and not batch.is_cuda and batch.layout == S.torch.strided:
            found.append(batch.untyped_storage().data_ptr())
        return
    if depth > MAX_DEPTH:
        return
    if isinstance(batch, dict) or hasattr(batch, "items"):
        items: Any = batch.values()
    elif isinstance(batch, (list, tuple)):
        items = batch
    else:
        items = getattr(batch, "__dict__", {}).values()
    for item in list(items):
        _collect(item, found, depth + 1)


def _wrap(torch: Any, name: str) -> None:
    original = getattr(torch.Tensor, name)
    kinds = (torch.Tensor,)

    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) in kinds and not self.is_cuda and "non_blocking" not in kwargs:
            try:
                if _may(self, name, args, kwargs):
                    kwargs["non_blocking"] = True
            except Exception as error:
                note_error("overrides", error)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            leave_no_frame(error)
            raise

    wrapper = dress(move, original)
    wrapper.__name__ = name
    wrapper.__qualname__ = "Tensor." + name
    setattr(torch.Tensor, name, wrapper)
    allowed = getattr(torch.nn.parameter.UninitializedTensorMixin, "_allowed_methods", None)
    if allowed is not None and original in allowed:
        allowed.append(wrapper)


def _may(tensor: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether this call is a blocking copy of a fresh pinned batch to the GPU."""
    if any(arg is True or arg is False for arg in args) or graphs.capturing[0]:
        return False
    target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
    if not (_is_cuda(target) or (name == "cuda" and (target is None or type(target) is int))):
        return False
    if not tensor.is_pinned():
        _say(NO_EFFECT, "what is copied to the GPU is not in pinned memory: pin it (pin_memory)")
        return False
    where = tensor.untyped_storage().data_ptr()
    if not any(where in batch for batch in _fresh):
        _say(REFUSED, "the script pins memory itself, and may fill it anew during the copy")
        return False
    # (stream, device, kind); number 0 is the default stream.
    if S.torch._C._cuda_getCurrentStream(S.torch.cuda.current_device())[0]:
        _say(REFUSED, "the script copies on a stream of its own")
        return False
    _say(APPLIED, "")
    return True


def _is_cuda(target: Any) -> bool:
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, S.torch.device):
        return bool(target.type == "cuda")
    if isinstance(target, S.torch.Tensor):
        return bool(target.is_cuda)
    return type(target) is int


def _say(status: str, why: str) -> None:
    if _told[0] not in (APPLIED, status):
        _told[0] = status
        tell(_override[0], status, why)
