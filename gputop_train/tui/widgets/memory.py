"""Memory: what tensors hold, what the allocator keeps, and how close the device's end is."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, Span, fit, width_of
from gputop_train.tui.snapshot import MemoryView, Snapshot
from gputop_train.tui.text import byte_unit, gib, percent
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER, MARGIN

#: A shorter bar tells nothing.
MIN_BAR = 8


def memory_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """One row: a bar (solid allocated, hatched reserved, a line at the peak) and the numbers."""
    memory = snap.memory
    if memory is None:
        return [fit([(" memory", "muted"), ("  not measured yet", "faint")], width, glyphs)]
    head: Span = (_title(memory).ljust(GUTTER), "text")
    words = _words(memory)
    room = width - GUTTER - MARGIN - len(words) - 3
    if room < MIN_BAR:
        words = _words(memory, short=True)
        room = width - GUTTER - MARGIN - len(words) - 3
    if memory.total is None or room < MIN_BAR:
        return [fit([head, (words, "text")], width, glyphs)]
    bar = _bar(memory, memory.total, min(room, 80), glyphs)
    row: list[Span] = [head, *bar, ("  ", "text"), (words, "text")]
    if width_of(row) > width:
        row = [head, (words, "text")]
    return [fit(row, width, glyphs)]


def _title(memory: MemoryView) -> str:
    return " GPU memory" if memory.basis == "cuda-allocator" else " memory"


def _words(memory: MemoryView, *, short: bool = False) -> str:
    basis = memory.total if memory.total is not None else memory.allocated
    unit = byte_unit(basis)
    parts = []
    if memory.basis == "cuda-allocator":
        parts.append(f"{'alloc' if short else 'allocated'} {gib(memory.allocated, basis)}")
        if memory.reserved is not None:
            parts.append(f"{'rsvd' if short else 'reserved'} {gib(memory.reserved, basis)}")
        if memory.peak is not None:
            parts.append(f"peak {gib(memory.peak, basis)}")
    else:
        parts.append(f"trainer {gib(memory.allocated, basis)} private")
    of = f" of {gib(memory.total, basis)} {unit}" if memory.total is not None else f" {unit}"
    share = ""
    if not short and memory.total and memory.basis == "cuda-allocator" and memory.peak is not None:
        share = f" ({percent(memory.peak / memory.total)})"
    return "  ".join(parts) + of + share


def _bar(memory: MemoryView, total: int, size: int, glyphs: Glyphs) -> list[Span]:
    solid = _cells(memory.allocated, total, size)
    hatched = max(solid, _cells(memory.reserved or 0, total, size))
    peak = _cells(memory.peak, total, size) if memory.peak else None
    cells = [glyphs.bar] * solid + [glyphs.band] * (hatched - solid) + [" "] * (size - hatched)
    if peak and peak > solid:
        cells[min(size, peak) - 1] = glyphs.edge
    tight = (memory.peak or 0) > 0.9 * total
    return [
        (glyphs.edge, "muted"),
        ("".join(cells), "warn" if tight else "gpu" if memory.basis == "cuda-allocator" else "cpu"),
        (glyphs.edge, "muted"),
    ]


def _cells(amount: int, total: int, size: int) -> int:
    return max(1, min(size, round(amount / total * size))) if amount > 0 else 0


class MemoryBar(Panel):
    """See `memory_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """Bar and numbers."""
        return memory_rows(snapshot, width, height, self.glyphs)
