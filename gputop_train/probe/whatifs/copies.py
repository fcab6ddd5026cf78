"""One batch kept, and handed out again as if it had just been loaded.

What a script does to the batch it got (pop from it, write into a tensor, keep it for later) must
not reach the next one: each is built anew. The structure is pickled once with every tensor and
array left out of it, so containers, named tuples and the script's own classes come back as fresh
objects; tensors are cloned, lazily where torch can, so that handing out costs next to nothing
compared with loading.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from typing import Any, Callable

from ..state import S

#: From this size on a clone is made when it is written to (``torch._lazy_clone``), not before: of
#: a batch that is only read nothing is copied, as nothing is copied of one that a worker sent.
LAZY_BYTES = 1 << 20
#: Elements compared to see whether a pinned buffer is as it was handed out.
PROBED = 64
_BY_REFERENCE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class CannotCopy(Exception):
    """This batch cannot be handed out twice; the message names what in it cannot."""


class Recipe:
    """How to build one batch again.

    Args:
        batch: As the source gave it, before the script had it.

    Raises:
        CannotCopy: Something in it cannot be copied.
    """

    def __init__(self, batch: Any) -> None:
        self.bytes = 0
        self.device_bytes = 0  # of them, on a GPU
        self.tensors = 0
        self._makers: list[Callable[[], Any]] = []
        self._kept: list[Any] = []  # ids must not be reused while the structure is read
        stream = io.BytesIO()
        pickler = _Pickler(stream, self)
        try:
            pickler.dump(batch)
        except CannotCopy:
            raise
        except Exception as error:
            raise CannotCopy(
                "a batch of type %s cannot be copied: %s" % (_kind(batch), _line(error))
            ) from None
        self._structure = stream.getvalue()
        self._kept.clear()
        try:
            again = self.build()
        except Exception as error:
            raise CannotCopy(
                "a batch of type %s cannot be built again: %s" % (_kind(batch), _line(error))
            ) from None
        if type(again) is not type(batch):
            raise CannotCopy("a batch of type %s comes back as another type" % _kind(batch))

    def build(self) -> Any:
        """A batch of its own."""
        made: dict[int, Any] = {}
        unpickler = _Unpickler(io.BytesIO(self._structure))
        unpickler.recipe = self
        unpickler.made = made
        return unpickler.load()

    def made(self, number: int) -> Any:
        """A fresh copy of one part."""
        return self._makers[number]()

    def keep(self, part: Any, maker: Callable[[], Any]) -> int:
        """Leave a part out of the structure; its number."""
        self._kept.append(part)
        self._makers.append(maker)
        return len(self._makers) - 1


class _Pickler(pickle.Pickler):
    def __init__(self, stream: Any, recipe: Recipe) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._recipe = recipe
        self._numbers: dict[int, int] = {}

    def persistent_id(self, part: Any) -> int | None:
        kind = type(part)
        if kind in (str, int, float, dict, list, tuple, bool, bytes) or part is None:
            return None
        number = self._numbers.get(id(part))
        if number is not None:
            return number
        maker = _maker(part, self._recipe)
        if maker is None:
            return None
        number = self._numbers[id(part)] = self._recipe.keep(part, maker)
        return number


class _Unpickler(pickle.Unpickler):
    recipe: Recipe
    made: dict[int, Any]

    def persistent_load(self, number: Any) -> Any:
        # The same tensor twice in a batch is one tensor again.
        if number not in self.made:
            self.made[number] = self.recipe.made(number)
        return self.made[number]


def _maker(part: Any, recipe: Recipe) -> Callable[[], Any] | None:
    if isinstance(part, _BY_REFERENCE):
        return lambda: part
    if isinstance(part, S.torch.Tensor):
        recipe.tensors += 1
        recipe.bytes += _size(part)
        recipe.device_bytes += _size(part) if part.is_cuda else 0
        return _tensor_maker(part)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and type(part) is numpy.ndarray and not part.dtype.hasobject:
        recipe.tensors += 1
        recipe.bytes += int(part.nbytes)
        kept = numpy.copy(part, order="K")
        return lambda: numpy.copy(kept, order="K")
    return None


def _size(tensor: Any) -> int:
    try:
        return int(tensor.nbytes)
    except Exception:  # a sparse one does not tell
        return 0


def _tensor_maker(tensor: Any) -> Callable[[], Any]:
    torch = S.torch
    if tensor.grad_fn is not None:
        raise CannotCopy("a tensor of the batch carries a gradient history")
    if type(tensor) is not torch.Tensor:
        kept = copy.deepcopy(tensor)
        if type(kept) is not type(tensor):
            raise CannotCopy("a tensor of type %s cannot be copied" % _kind(tensor))
        return lambda: copy.deepcopy(kept)
    asks_grad = bool(tensor.requires_grad)
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        clone = plain.clone()
        return lambda: clone.clone().requires_grad_(asks_grad)
    if _is_pinned(plain):
        return _Pinned(plain, asks_grad)
    master, shape = _with_strides(plain)
    lazy = _lazy_clone(master)

    def make() -> Any:
        fresh = master.clone() if lazy is None else lazy(master)
        if shape is not None:
            fresh = fresh.as_strided(*shape)
        return fresh.requires_grad_(asks_grad) if asks_grad else fresh

    return make


def _with_strides(tensor: Any) -> tuple[Any, Any]:
    """A clone, and the view of it that has the strides of the original where a clone has not."""
    clone = tensor.clone()
    if clone.stride() == tensor.stride() or not tensor.numel():
        return clone, None
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    whole = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return whole, (tuple(tensor.shape), tuple(tensor.stride()), 0)


def _lazy_clone(master: Any) -> Any:
    """``torch._lazy_clone`` where it exists, is worth it, and works on such a tensor."""
    lazy = getattr(S.torch, "_lazy_clone", None)
    if lazy is None or master.device.type != "cpu" or _size(master) < LAZY_BYTES:
        return None
    try:
        lazy(master)
        return lazy
    except Exception:
        return None


def _is_pinned(tensor: Any) -> bool:
    torch = S.torch
    if tensor.device.type != "cpu" or not torch.cuda.is_initialized():
        return False
    try:
        return bool(tensor.is_pinned())
    except Exception:
        return False


class _Pinned:
    """A pinned tensor: one buffer handed out again while nobody else holds it, as it was.

    Allocating pinned memory and filling it anew would cost as much as many a loader does. A buffer
    is only given again when its storage has no other owner; what was written into it is undone.
    """

    def __init__(self, tensor: Any, asks_grad: bool) -> None:
        self._master = tensor.clone()
        self._asks_grad = asks_grad
        self._probe = self._probed(self._master)
        self._new()

    def _new(self) -> None:
        buffer = self._master.pin_memory()
        self._storage = buffer.untyped_storage()
        self._version = buffer._version
        self._buffer = buffer
        self._owners = _owners(self._storage)

    def _probed(self, tensor: Any) -> Any:
        flat = tensor.reshape(-1) if tensor.is_contiguous() else None
        if flat is None or not flat.numel():
            return None
        return flat[:: max(1, flat.numel() // PROBED)].clone()

    def __call__(self) -> Any:
        torch = S.torch
        buffer = self._buffer
        if self._owners is None or _owners(self._storage) != self._owners:
            self._new()
        else:
            written = buffer._version != self._version or self._probe is None
            # Through numpy a script writes without a version: a bulk change shows in a few places.
            if written or not torch.equal(self._probed(buffer), self._probe):
                buffer.copy_(self._master)
                self._version = buffer._version
        fresh = self._buffer.detach()
        return fresh.requires_grad_(True) if self._asks_grad else fresh


def _owners(storage: Any) -> int | None:
    count = getattr(S.torch._C, "_storage_Use_Count", None)
    try:
        return None if count is None else int(count(storage._cdata))
    except Exception:
        return None


def _kind(part: Any) -> str:
    return type(part).__name__


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return "%s: %s" % (type(error).__name__, text[0][:120] if text else "")
