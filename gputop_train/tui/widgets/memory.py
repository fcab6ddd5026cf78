"""Memory: what tensors hold, what the allocator keeps, and how close the device's end is."""

from __future__ import annotations

from dataclasses import replace

from gputop_train.model import Finding
from gputop_train.tui.facts import quantity
from gputop_train.tui.paint import Glyphs, Row, Span, fit, level, width_of
from gputop_train.tui.snapshot import MemoryView, Snapshot
from gputop_train.tui.text import byte_unit, duration, gib, percent
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER, MARGIN, plot_columns

#: A shorter bar tells nothing.
MIN_BAR = 8
#: Units of a time in evidence.
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def memory_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """A bar (solid allocated, hatched reserved, a line at the peak) and the numbers.

    A second row, where there is one, shows over time what was held, on the chart's own axis.
    """
    rows = [_now(snap, width, glyphs)]
    if height >= 2 and snap.memory is not None and snap.memory.history:
        rows.append(_history(snap, snap.memory, width, glyphs))
    return rows


def memory_wants(snap: Snapshot) -> int:
    """Rows that are worth it: one more where memory is found to grow."""
    held = snap.memory is not None and any(v is not None for v in snap.memory.history)
    return 2 if held and _leak(snap) is not None else 1


def _leak(snap: Snapshot) -> Finding | None:
    found = snap.diagnosis
    if found is None:
        return None
    return next((f for f in (found.verdict, *found.also) if f and f.id == "memory-leak"), None)


def _history(snap: Snapshot, memory: MemoryView, width: int, glyphs: Glyphs) -> Row:
    """What was held in each bin, as a share of the device (or of the most that was held)."""
    columns = plot_columns(width)
    known = [value for value in memory.history if value is not None]
    full = memory.total or max(known, default=0.0)
    values = memory.history[-columns:]
    cells = " " * (columns - len(values)) + "".join(
        " " if value is None or full <= 0 else level(value / full, glyphs.lane) for value in values
    )
    share = percent(known[-1] / full) if known and full > 0 else ""
    ink = "gpu" if memory.basis == "cuda-allocator" else "cpu"
    head: list[Span] = [(f" {'held':<11}", ink), (f"{share:>5}", "text"), (glyphs.edge, "muted")]
    return fit([*head, (cells, ink)], width, glyphs)


def _growth(snap: Snapshot) -> str:
    """How fast it grows and when that ends, from the finding; empty without one."""
    finding = _leak(snap)
    if finding is None:
        return ""
    words = []
    for item in finding.evidence:
        number = item.value if isinstance(item.value, (int, float)) else None
        if item.what.startswith("growth of the low-water marks"):
            words.append("+" + quantity(item))
        elif item.what.startswith("time until memory") and number is not None:
            scale = _SECONDS.get(item.unit)
            words += [f"full in {duration(number * scale)}"] if scale is not None else []
    return ", ".join(words)


def _now(snap: Snapshot, width: int, glyphs: Glyphs) -> Row:
    memory = snap.memory
    if memory is None:
        return fit([(" memory", "muted"), ("  not measured yet", "faint")], width, glyphs)
    head: Span = (_title(memory).ljust(GUTTER), "text")
    choices = ["  ".join(filter(None, (_growth(snap), words))) for words in _wordings(memory)]
    rooms = [width - GUTTER - MARGIN - len(words) - 4 for words in choices]
    pick = next((i for i, room in enumerate(rooms) if room >= MIN_BAR), None)
    if pick is None:  # no bar, then: what can be said in full
        pick = next((i for i, room in enumerate(rooms) if room >= -4), len(rooms) - 1)
    words, room = choices[pick], rooms[pick]
    if not memory.total or room < MIN_BAR:
        return fit([head, (words, "text")], width, glyphs)
    bar = _bar(memory, memory.total, min(room, 80), glyphs)
    row: list[Span] = [head, *bar, ("  ", "text"), (words, "text")]
    if width_of(row) > width:
        row = [head, (words, "text")]
    return fit(row, width, glyphs)


def _title(memory: MemoryView) -> str:
    return " GPU memory" if memory.basis == "cuda-allocator" else " memory"


def _wordings(memory: MemoryView) -> list[str]:
    """The numbers in ever fewer words."""
    bare = replace(memory, reserved=None, peak=None)
    whole = [_words(memory), _words(replace(memory, used=None))]
    return [*dict.fromkeys(whole), _words(memory, short=True), _words(bare, short=True)]


def _words(memory: MemoryView, *, short: bool = False) -> str:
    basis = memory.total if memory.total is not None else memory.allocated
    unit = byte_unit(basis)
    parts = []
    if memory.basis == "cuda-allocator":
        parts.append(f"{'alloc' if short else 'allocated'} {gib(memory.allocated, basis)}")
        if memory.reserved is not None:
            parts.append(f"{'rsvd' if short else 'reserved'} {gib(memory.reserved, basis)}")
        if memory.used is not None and not short:
            parts.append(f"used {gib(memory.used, basis)}")
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
