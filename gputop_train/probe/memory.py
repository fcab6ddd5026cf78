"""What holds memory: parameters, gradients and optimizer state, counted now and then.

Counted from weak references to the optimizers, on the training thread at step ends, a slice at a
time: no count holds a tensor alive between two steps. A tensor costs 0.6 us alone and about 2.5 us
in a training loop (torch 2.13 on the CPU). Parameters that no optimizer steps (a frozen base
model) are in ``other``.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterator

from .hooks import hide_from_dynamo
from .state import S, ident, note_error, now

REFRESH_NS = 30_000_000_000
RETRY_NS = 1_000_000_000
#: A count is repeated only after so many times what the last one cost: 0.1% at most.
COST_FACTOR = 1000
#: What one step end may spend: this, or 1/200 of the time since the slice before, to 5 ms.
SLICE_NS, SLICE_PART, MAX_SLICE_NS = 100_000, 200, 5_000_000
CHECK_EVERY = 16  # parameters between two looks at the clock
FIRST_STEP = 2  # the optimizer's state is there by then
MAX_OPTIMIZERS = 64
MAX_TENSORS = 200_000
KINDS = ("parameters", "gradients", "optimizer_state")

_optimizers: list[weakref.ref[Any]] = []
#: Not before this time; a list so that the hot path reads one name.
due_ns = [0]
_noted: dict[str, int] = {}


def remember(optimizer: Any) -> None:
    """Keep a weak reference to an optimizer that stepped."""
    key = id(optimizer)

    def gone(_: Any) -> None:
        try:
            # The next optimizer may get this address: it is another one, and is remembered anew.
            row = S.optimizers.pop(key, None)
            if row is not None:
                S.optimizers[-row["id"]] = row
        except Exception:  # a callback's error would be printed
            pass

    alive = [reference for reference in _optimizers if reference() is not None]
    if len(alive) < len(_optimizers):
        _optimizers[:] = alive
        keeper.reset()
    if len(_optimizers) < MAX_OPTIMIZERS:
        _optimizers.append(weakref.ref(optimizer, hide_from_dynamo(gone)))


def note_device() -> None:
    """On the training thread: which device it uses. Other threads see device 0 until they choose.

    Returns nothing and never raises; reads the thread's current device, no CUDA work.
    """
    try:
        if ident() == S.thread_id and S.torch.cuda.is_initialized():
            _noted["device"] = S.torch.cuda.current_device()
    except Exception:
        pass


def device() -> int | None:
    """The training thread's CUDA device as last seen there; None while it is not known."""
    return _noted.get("device")


class Count:
    """Bytes by kind on one device; -1 is the CPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.bytes = dict.fromkeys(KINDS, 0)
        self.tensors = 0
        self.unknown = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, kind: str, tensor: Any, *, once: bool = True) -> None:
        """Add one tensor's bytes; ``once``: the same memory only once."""
        for part in _parts(tensor):
            try:
                if part.get_device() != self.index:
                    continue
                storage = part.untyped_storage()
                # FSDP frees a storage and keeps the tensor: it holds nothing then.
                if not storage.nbytes():
                    continue
                # Never data_ptr(): asking for it copies a lazily cloned tensor.
                place = (storage._cdata, part.storage_offset())
                if once and place in self._seen:
                    continue
                self._seen.add(place)
                self.bytes[kind] += part.numel() * part.element_size()
                self.tensors += 1
            except Exception:
                self.unknown += 1  # sparse, fake or opaque: its size is not ours to guess

    def add_parameter(self, optimizer: Any, parameter: Any, gradients: bool) -> None:
        """Add a parameter, its gradient and its part of the optimizer's state."""
        self.add("parameters", parameter)
        if gradients:
            gradient = parameter.grad
            if gradient is not None:
                # Its memory may be another gradient's by the next slice.
                self.add("gradients", gradient, once=False)
        state = optimizer.state.get(parameter)
        if isinstance(state, dict):
            for value in list(state.values()):
                for item in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(item, S.torch.Tensor):
                        self.add("optimizer_state", item)


def _parts(tensor: Any) -> Iterator[Any]:
    """The plain tensors a tensor is made of (a DTensor's shard, a quantised weight's pieces)."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    for name in flatten()[0]:
        part = getattr(tensor, name)
        if isinstance(part, S.torch.Tensor):  # newer DTensors name their mesh too
            yield from _parts(part)


def count_all(index: int, *, gradients: bool) -> dict[str, Any]:
    """Everything at once, for the moment of an out-of-memory error. Takes no device memory.

    Args:
        index: CUDA device, -1 for the CPU.
        gradients: Whether ``.grad`` may be read here: not while another thread writes it.

    Returns:
        Bytes by kind; ``gradients`` is None where they were not read.
    """
    count = Count(index)
    with S.torch._C.DisableTorchFunction():
        for reference in _optimizers:
            optimizer = reference()
            if optimizer is None:
                continue
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if count.tensors + count.unknown > MAX_TENSORS:
                        return {"partial": True, **dict.fromkeys(KINDS)}
                    count.add_parameter(optimizer, parameter, gradients)
    held: dict[str, Any] = dict(count.bytes)
    if not gradients:
        held["gradients"] = None
    held["partial"] = bool(count.unknown)
    return held


class Keeper:
    """Refreshes the steady picture, slice by slice."""

    def __init__(self) -> None:
        self.picture: dict[str, Any] | None = None
        self._count: Count | None = None
        self._cursor = (0, 0, 0)  # optimizer, group, parameter
        self._cost_ns = 0
        self._last_ns = 0

    def reset(self) -> None:
        """Give up the count under way."""
        self._count = None

    def step_end(self, t_ns: int) -> None:
        """Count one slice; at the end of the last one the picture is renewed."""
        if self._count is None:
            index = self._index()
            if index is None:
                due_ns[0] = t_ns + RETRY_NS
            if index is None or S.steps < FIRST_STEP:
                return
            self._count, self._cursor, self._cost_ns = Count(index), (0, 0, 0), 0
            self._last_ns = t_ns
        limit = min(max(SLICE_NS, (t_ns - self._last_ns) // SLICE_PART), MAX_SLICE_NS)
        self._last_ns = t_ns
        with S.torch._C.DisableTorchFunction():
            done = self._slice(self._count, t_ns + limit)
        self._cost_ns += now() - t_ns
        if done:
            self._publish(self._count, t_ns)
            self._count = None
            due_ns[0] = t_ns + max(REFRESH_NS, COST_FACTOR * self._cost_ns)

    @staticmethod
    def _index() -> int | None:
        if S.param_device == "cpu":
            return -1
        return device() if S.param_device == "cuda" else None

    def _slice(self, count: Count, until_ns: int) -> bool:
        at, group_at, first = self._cursor
        looked = 0
        while at < len(_optimizers):
            optimizer = _optimizers[at]()
            groups = optimizer.param_groups if optimizer is not None else ()
            while group_at < len(groups):
                parameters = groups[group_at]["params"]
                for k in range(first, len(parameters)):
                    looked += 1
                    if looked % CHECK_EVERY == 0 and now() > until_ns:
                        self._cursor = (at, group_at, k)
                        return False
                    count.add_parameter(optimizer, parameters[k], True)
                group_at, first = group_at + 1, 0
            at, group_at = at + 1, 0
        return True

    def _publish(self, count: Count, t_ns: int) -> None:
        picture: dict[str, Any] = {
            "t_ns": t_ns,
            "step": S.steps,
            "device": "cpu" if count.index < 0 else "cuda:%d" % count.index,
            **count.bytes,
            "allocated": None,
            "other": None,
            "tensors": count.tensors,
            "partial": bool(count.unknown),
            "cost_ns": self._cost_ns,
        }
        if count.index >= 0:
            allocated = allocated_bytes(count.index)
            picture["allocated"] = allocated
            picture["other"] = rest(allocated, count.bytes)
        self.picture = picture


def allocated_bytes(index: int) -> int | None:
    """What the caching allocator has handed out on a device."""
    try:
        stats = S.torch._C._cuda_memoryStats(index)
        return int(stats["allocated_bytes"]["all"]["current"])
    except Exception:
        return None


def rest(allocated: int | None, held: dict[str, Any]) -> int | None:
    """What parameters, gradients and optimizer state leave; None where one is not known."""
    parts = [held.get(kind) for kind in KINDS]
    if allocated is None or any(part is None for part in parts):
        return None
    left = allocated - sum(part for part in parts if part is not None)
    return left if left >= 0 else None


keeper = Keeper()


def forget() -> None:
    """In a forked child: what was counted, its parent holds."""
    keeper.picture = None
    keeper.reset()
    due_ns[0] = 0


def at_step_end(t_ns: int) -> None:
    """On the training thread, with dynamo's evaluator off, when ``due_ns`` has come."""
    try:
        keeper.step_end(t_ns)
    except Exception as error:
        due_ns[0] = t_ns + 10 * REFRESH_NS
        keeper.reset()
        note_error("held", error)
