"""The overview's GPUs, where a run has several: a short line each, as many a row as fit."""

from __future__ import annotations

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, fit, meter
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import byte_unit, gib
from gputop_train.tui.views.devices import GpuView
from gputop_train.tui.widgets.panel import Panel

#: Cells of one GPU.
ENTRY = 58
#: A share of memory that is worth a colour.
TIGHT = 0.95


def _per_row(width: int) -> int:
    return max(1, (width + 1) // ENTRY)


def gpus_want(number: int, width: int) -> int:
    """Rows that so many GPUs fill; one alone has the chart."""
    return -(-number // _per_row(width)) if number > 1 else 0


def gpus_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The GPUs in order, column by column; what does not fit is counted."""
    gpus = snap.gpus
    per_row = _per_row(width)
    rows = min(height, gpus_want(len(gpus), width))
    if rows < 1:
        return []
    room = rows * per_row
    shown = gpus if len(gpus) <= room else gpus[: room - 1]
    more = len(gpus) - len(shown)
    cells = [_entry(gpu, glyphs) for gpu in shown]
    if more:
        cells.append([(f" and {more} more  ", "muted"), ("enter", "key")])
    down = -(-len(cells) // per_row)
    out: list[Row] = []
    for y in range(down):
        spans: list[Span] = []
        for x in range(per_row):
            if y + x * down < len(cells):
                spans += fit(cells[y + x * down], min(ENTRY, width), glyphs)
        out.append(fit(spans, width, glyphs))
    return out


def _entry(gpu: GpuView, glyphs: Glyphs) -> list[Span]:
    mark = glyphs.warn if gpu.others else " "
    spans: list[Span] = [
        (f" GPU {gpu.label:<3}", "gpu"),
        (f"{mark} ", "warn"),
    ]
    unread = "n/a" if gpu.mig else "-"
    if gpu.util is None:
        spans.append((f"{unread:>4} ".ljust(10), "muted"))
    else:
        bar = meter(gpu.util / 100, 4, glyphs).replace(glyphs.bar, glyphs.levels[-2])
        spans += [(f"{gpu.util:3.0f}% ", "text"), (f"{bar} ", "gpu")]
    active = unread if gpu.sm is None else f"{gpu.sm:.0f}%"
    spans.append((f"SM {active:>4}  ", "muted" if gpu.sm is None else "text"))
    spans.append(_memory(gpu))
    spans.append((_electric(gpu), "muted"))
    return spans


def _memory(gpu: GpuView) -> Span:
    if gpu.memory_used is None or not gpu.memory_total:
        return "-".ljust(15), "muted"
    total = gpu.memory_total
    words = f"{gib(gpu.memory_used, total)}/{gib(total)} {byte_unit(total)}"
    return words.ljust(max(15, cell_len(words) + 1)), (
        "warn" if gpu.memory_used > TIGHT * total else "text"
    )


def _electric(gpu: GpuView) -> str:
    watts = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c} C"
    return f"{watts:>6} {heat:>5}"


class Gpus(Panel):
    """See `gpus_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """A line each."""
        return gpus_rows(snapshot, width, height, self.glyphs)
