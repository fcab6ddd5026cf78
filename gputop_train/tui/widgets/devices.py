"""The devices page: GPUs a line each, one of them closely, and the machine around them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, meter, width_of, wrap
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import byte_unit, duration, gib, size
from gputop_train.tui.views.devices import DevicesView, GpuView, Quantity
from gputop_train.tui.widgets.host import host_rows, host_short
from gputop_train.tui.widgets.strips import strip, strips, time_axis

#: What is not measured, and what a MIG instance does not have.
DASH, NOT_OF_MIG = "-", "n/a"
#: From this many rows on why there is no GPU may take two of them.
_ROOMY = 14


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of the table; ``rank``: the higher, the sooner it gives way."""

    head: str
    width: int
    rank: int
    cell: Callable[[GpuView, Glyphs], Span]


def devices_rows(snap: Snapshot, cursor: int, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The page at a size.

    Args:
        snap: The run.
        cursor: The GPU the keys act on.
        width: Cells.
        height: Rows.
        glyphs: The alphabet.
    """
    view = snap.devices
    if view is None:
        return [((" reading the devices" + glyphs.ellipsis, "muted"),)]
    draw = _gpus if view.gpus else _no_gpu
    return draw(snap, view, cursor, width, height, glyphs)[:height]


def _gpus(
    snap: Snapshot, view: DevicesView, cursor: int, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    rows = _missing(view, width, glyphs)
    rows += gpu_table(view, cursor, width, glyphs, room=max(2, height - len(rows)))
    if height - len(rows) < 3:
        return rows
    rows.append(())
    left = height - len(rows)
    if view.zoom is not None:
        return [*rows, *_zoomed(snap, view, view.gpus[view.zoom], width, left, glyphs)]
    return [*rows, *_several(snap, view, width, left, glyphs)]


def _missing(view: DevicesView, width: int, glyphs: Glyphs) -> list[Row]:
    if not view.missing:
        return []
    return [fit([(f" {glyphs.warn} ", "warn"), (view.missing, "warn")], width, glyphs)]


def _no_gpu(
    snap: Snapshot, view: DevicesView, _cursor: int, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    why = view.missing or "No GPU readings: this run uses none, as far as is known."
    said = wrap(why, width - 2, 2 if height >= _ROOMY else 1, glyphs)
    rows: list[Row] = [*(fit([(f" {text}", "muted")], width, glyphs) for text in said), ()]
    if view.host is None:
        return [*rows, ((" The machine has not been read yet.", "muted"),)]
    return [*rows, *host_rows(snap, view.host, width, height - len(rows), glyphs)]


# The table


def gpu_table(
    view: DevicesView, cursor: int, width: int, glyphs: Glyphs, *, room: int
) -> list[Row]:
    """Heads, a line each, and under a line the processes of others on that GPU."""
    columns = _columns(view, width)
    heads: list[Span] = [("  ", "muted")]
    heads += [(column.head.ljust(column.width), "muted") for column in columns]
    blocks: list[list[Row]] = []
    for position, gpu in enumerate(view.gpus):
        here = position == cursor and len(view.gpus) > 1
        row: list[Span] = [(" >" if here else "  ", "key")]
        for column in columns:
            text, ink = column.cell(gpu, glyphs)
            text = clip(text, column.width - 1, glyphs)
            strong = "strong" if here and ink == "text" else ink
            row.append((text + " " * (column.width - cell_len(text)), strong))
        note = _late(gpu)
        if note:
            row = [*row[:3], (note, "warn")]
        blocks.append([fit(row, width, glyphs), *_contention(gpu, width, glyphs)])
    while sum(map(len, blocks)) + 1 > room and any(len(block) > 1 for block in blocks):
        longest = max(range(len(blocks)), key=lambda at: (len(blocks[at]), at != cursor))
        blocks[longest] = blocks[longest][:1]
    fits, first = max(1, room - 1), 0
    rows = [row for block in blocks for row in block]
    if len(rows) > fits:
        first = max(0, min(cursor - fits // 2, len(rows) - fits))
    return [fit(heads, width, glyphs), *rows[first : first + fits]]


def _late(gpu: GpuView) -> str:
    """Why a GPU has no numbers."""
    if gpu.age_s is None:
        return "no reading"
    if gpu.memory_used is None and gpu.temperature_c is None and gpu.util is None:
        return f"no reading for {duration(gpu.age_s)}"
    return ""


def _contention(gpu: GpuView, width: int, glyphs: Glyphs) -> list[Row]:
    """Who else computes on it."""
    if not gpu.others:
        return []
    busy = f", busy {gpu.others_util:.0f}% of the time" if gpu.others_util is not None else ""
    several = "s" if gpu.others > 1 else ""
    words = f"contention: {gpu.others} process{'es' if several else ''} of others{busy}"
    named = []
    for process in gpu.foreign:
        held = f" {size(process.memory)}" if process.memory is not None else ""
        named.append(f"{process.name or 'pid'} {process.pid}{held}")
    spans: list[Span] = [(f"     {glyphs.warn} {words}", "warn")]
    for name in named:
        if width_of(spans) + cell_len(name) + 3 > width:
            break
        spans.append((f"{glyphs.sep}{name}", "text"))
    return [fit(spans, width, glyphs)]


def _value(gpu: GpuView, text: str | None) -> Span:
    if text is not None:
        return text, "text"
    return (NOT_OF_MIG if gpu.mig else DASH), "muted"


def _bar(gpu: GpuView, value: float | None, glyphs: Glyphs, ink: str) -> Span:
    if value is None:
        return _value(gpu, None)
    # Not quite full blocks, so that bars one above the other stay apart.
    bar = meter(value / 100, 6, glyphs).replace(glyphs.bar, glyphs.levels[-2])
    return f"{value:3.0f}% {bar}", ink


def _memory(gpu: GpuView, _: Glyphs) -> Span:
    if gpu.memory_used is None or not gpu.memory_total:
        return _value(gpu, None)
    total = gpu.memory_total
    words = f"{gib(gpu.memory_used, total)} of {gib(total)} {byte_unit(total)}"
    return words, "warn" if gpu.memory_used > 0.95 * total else "text"


def _power(gpu: GpuView, _: Glyphs) -> Span:
    if gpu.power_w is None:
        return _value(gpu, None)
    limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
    return f"{gpu.power_w:.0f}{limit} W", "text"


def _clock(gpu: GpuView, _: Glyphs) -> Span:
    if gpu.sm_clock_mhz is None:
        return _value(gpu, None)
    most = f" of {gpu.sm_clock_max_mhz}" if gpu.sm_clock_max_mhz else ""
    return f"{gpu.sm_clock_mhz}{most}", "text"


def _pcie(gpu: GpuView, _: Glyphs) -> Span:
    if gpu.rx is None and gpu.tx is None:
        return _value(gpu, None)
    rx, tx = (DASH if rate is None else _mib(rate) for rate in (gpu.rx, gpu.tx))
    return f"{rx} in {tx} out", "text"


def _mib(rate: float) -> str:
    """Bytes/s in five cells."""
    for power, unit in ((3, "G"), (2, "M"), (1, "K")):
        value = rate / 1024**power
        if value >= 1:
            return f"{value:.1f}{unit}" if value < 9.95 else f"{value:.0f}{unit}"
    return f"{rate:.0f}B"


def _throttle(gpu: GpuView, _: Glyphs) -> Span:
    if gpu.throttle is None:
        return DASH, "muted"
    if not gpu.throttle:
        return "none", "muted"
    return ", ".join(gpu.throttle), "warn" if gpu.throttle != ("power limit",) else "text"


def _label(gpu: GpuView, glyphs: Glyphs) -> Span:
    """Its number, marked where others compute on it too."""
    return (f"{gpu.label} {glyphs.warn}", "warn") if gpu.others else (gpu.label, "gpu")


def _ranks(gpu: GpuView, _: Glyphs) -> Span:
    return (",".join(map(str, gpu.ranks)) or DASH), "text" if gpu.ranks else "muted"


def _columns(view: DevicesView, width: int) -> list[_Column]:
    name = max((cell_len(gpu.name) for gpu in view.gpus), default=0) + 2
    throttle = max((cell_len(", ".join(gpu.throttle or ())) for gpu in view.gpus), default=4)
    columns = [
        _Column("GPU", 6, 0, _label),
        _Column("name", max(6, min(name, 22)), 7, lambda gpu, _: (gpu.name or DASH, "muted")),
        _Column("rank", 6, 8, _ranks),
        _Column("util", 13, 0, lambda gpu, glyphs: _bar(gpu, gpu.util, glyphs, "gpu")),
        _Column("SM active", 13, 3, lambda gpu, glyphs: _bar(gpu, gpu.sm, glyphs, "gpu")),
        _Column("memory", 20, 1, _memory),
        _Column("power", 14, 2, _power),
        _Column("temp", 6, 4, lambda gpu, _: _temperature(gpu)),
        _Column("SM clock MHz", 14, 6, _clock),
        _Column("PCIe bytes/s", 17, 9, _pcie),
        _Column("clocks held by", max(15, min(throttle + 2, 34)), 5, _throttle),
    ]
    if not any(gpu.ranks for gpu in view.gpus) or len(view.gpus) == 1:
        columns = [column for column in columns if column.head != "rank"]
    while sum(column.width for column in columns) + 2 > width and len(columns) > 2:
        columns.remove(max(columns, key=lambda column: column.rank))
    return columns


def _temperature(gpu: GpuView) -> Span:
    return _value(gpu, None if gpu.temperature_c is None else f"{gpu.temperature_c} C")


# Under the table


def _zoomed(
    snap: Snapshot, view: DevicesView, gpu: GpuView, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """One GPU over time."""
    title: list[Span] = [(f" GPU {gpu.label}", "gpu")]
    facts = [gpu.name] if gpu.name else []
    facts += ["a MIG instance: power, link and utilisation are its card's"] if gpu.mig else []
    facts += [f"PCIe {gpu.link}"] if gpu.link else []
    if gpu.memory_ours is not None and gpu.memory_used is not None:
        facts.append(f"this run holds {size(gpu.memory_ours)}")
    title.append(("  " + glyphs.sep.join(facts), "muted"))
    rows: list[Row] = [fit(title, width, glyphs)]
    curves = strips(snap, view.curves, width, height - 1 - 2, glyphs)
    if not curves:
        rows.append(fit([("  nothing of it was recorded over time", "faint")], width, glyphs))
    rows += curves
    if view.host is not None and height - len(rows) >= 2:
        rows += [(), host_short(view.host, width, glyphs)]
    return rows


def _several(
    snap: Snapshot, view: DevicesView, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """Utilisation of every GPU on one time axis, and the machine."""
    count = len(view.gpus)
    rows: list[Row] = []
    if height >= count + 2:
        rows.append(fit([(f" {_models(view.gpus)}", "muted")], width, glyphs))
        each = 2 if height >= 2 * count + 4 else 1
        for gpu in view.gpus:
            rows += strip(_util_curve(gpu), width, each, glyphs)
        rows.append(time_axis(snap, width, glyphs))
    if view.host is not None and height - len(rows) >= 2:
        rows += [*([()] if rows else []), host_short(view.host, width, glyphs)]
    return rows


def _models(gpus: Sequence[GpuView]) -> str:
    """``8 x H200``."""
    names = [gpu.name or "GPU" for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _util_curve(gpu: GpuView) -> Quantity:
    """Its utilisation, or SM activity where only that is measured, with the mean."""
    known = [value for value in gpu.history if value is not None]
    mean = f"{sum(known) / len(known):.0f}%" if known else NOT_OF_MIG if gpu.mig else DASH
    return Quantity(f"GPU {gpu.label} {gpu.history_of}", gpu.history, 100.0, mean)
