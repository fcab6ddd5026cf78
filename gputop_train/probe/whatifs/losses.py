"""The first losses of a leg, and whether any was NaN or infinite, without a wait for the device.

A loss is what a backward starts from. On a GPU its value is copied to pinned memory behind an event
that is only ever asked, not waited for; after the warm-up one loss in ``EVERY`` is added to a sum
on the device (NaN and infinity stay in it), which is read the same way.
"""

from __future__ import annotations

import math
from typing import Any

from ..hooks import graphs
from ..state import S, note_error
from .counting import steps_done

FIRST = 8
EVERY = 8
#: Values on their way from one device at a time; a loss that meets none free is not told.
SLOTS = 16


class Losses:
    """Losses of this process.

    Args:
        warmup: Optimizer steps during which single losses are kept.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._first: dict[int, float | None] = {}
        self._seen = 0
        self._bad = False
        self._known = 0
        self._device: Any = None  # _OnDevice of the first CUDA loss
        self._item: Any = None
        self._dead = False

    def place(self, torch: Any) -> None:
        """Remember how a CPU tensor is read, before anything wraps it."""
        self._item = torch.Tensor.item

    def note(self, roots: Any) -> None:
        """A backward is about to start from ``roots``."""
        if self._dead:
            return
        try:
            root = roots[0] if isinstance(roots, (tuple, list)) and roots else roots
            if type(root) is not S.torch.Tensor or root.numel() != 1:
                return
            self._seen += 1
            first = len(self._first) < FIRST and steps_done() < self._warmup
            if not root.is_cuda:
                if root.device.type == "cpu":
                    self._tell(float(self._item(root.detach())), first)
                return
            if first or self._seen % EVERY == 0:
                self._note_device(root.detach(), first)
        except Exception as error:
            self._dead = True
            note_error("losses", error)

    def _tell(self, value: float, first: bool, number: int | None = None) -> None:
        self._known += 1
        if not math.isfinite(value):
            self._bad = True
        if number is not None:
            self._first[number] = value
        elif first:
            self._first[len(self._first)] = value

    def _note_device(self, root: Any, first: bool) -> None:
        # A copy or an event would become part of a graph that is being captured.
        if graphs.capturing[0] or S.torch.cuda.is_current_stream_capturing():
            return
        if self._device is None:
            self._device = _OnDevice(root)
        device = self._device
        if root.device != device.device:
            return
        device.collect(self._tell)
        if first:
            number = len(self._first)
            if device.send(root, number):
                self._first[number] = None
        else:
            device.add(root)

    def collect(self) -> None:
        """At the process's end: take what has arrived by now."""
        try:
            if self._device is not None and not self._dead:
                self._device.collect(self._tell)
        except Exception as error:
            note_error("losses", error)

    def report(self) -> dict[str, Any]:
        """For the snapshot; ``finite`` is ``None`` while no loss is known."""
        first = []
        for number in sorted(self._first):
            value = self._first[number]
            if value is None or not math.isfinite(value):
                break
            first.append(value)
        finite = None if not self._known else not self._bad
        return {"first": first, "finite": finite}


class _OnDevice:
    """Values under way from one CUDA device. Only for the thread that runs backward."""

    def __init__(self, like: Any) -> None:
        torch = S.torch
        self.device = like.device
        self._sum = torch.zeros((), dtype=torch.float32, device=like.device)
        self._host = torch.zeros(SLOTS, dtype=torch.float32, pin_memory=True)
        self._view = self._host.numpy()  # read without any method of Tensor
        self._under_way: list[tuple[int, int | None, Any]] = []
        self._free = list(range(SLOTS))
        self._adding = False

    def send(self, value: Any, number: int | None) -> bool:
        """Copy a value to the host behind an event; False where no slot is free."""
        if not self._free:
            return False
        torch = S.torch
        slot = self._free.pop()
        self._host[slot].copy_(value.float(), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._under_way.append((slot, number, event))
        return True

    def add(self, value: Any) -> None:
        """Add a value to the sum, and send the sum unless it is under way."""
        self._sum.add_(value.float())
        if not self._adding:
            self._adding = self.send(self._sum, None)

    def collect(self, tell: Any) -> None:
        """Tell what has arrived."""
        for entry in list(self._under_way):
            slot, number, event = entry
            if not event.query():
                continue
            self._under_way.remove(entry)
            tell(float(self._view[slot]), False, number)
            self._free.append(slot)
            if number is None:
                self._adding = False
