"""The machine: cores, memory, disks, network, and what holds it up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_train.tui.paint import Glyphs, Row, Span, fit, level, meter, width_of
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import byte_unit, gib, size
from gputop_train.tui.views.devices import HostDevices
from gputop_train.tui.widgets.factrows import gutter
from gputop_train.tui.widgets.strips import strips

#: Cells of a core's own meter with its number, such as ``c12 ███ 99% ``.
CORE_CELLS = 14
#: A share of the last ten seconds in which something was held up that is worth a colour.
PRESSED = 10.0


def host_rows(
    snap: Snapshot, host: HostDevices, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    """The whole page of a machine without a GPU: facts first, then over time."""
    rows = [_cores_row(host, width, glyphs)]
    facts = [
        _row("memory", _memory(host, glyphs, width), width, glyphs),
        _row("disks", _pair("read", host.disk_read, "write", host.disk_write), width, glyphs),
        _row("network", _pair("in", host.net_rx, "out", host.net_tx), width, glyphs),
        _row("/dev/shm", _shm(host), width, glyphs),
        _row("pressure", _pressure(host, width), width, glyphs),
    ]
    # The cores one by one take what the facts and a chart leave.
    spare = height - 1 - len(facts)
    rows += core_rows(host.cores, width, max(0, min(spare - 8, 8) if spare > 9 else spare), glyphs)
    rows += facts
    left = height - len(rows)
    if left >= 4:
        rows += [(), *strips(snap, host.curves, width, left - 1, glyphs)]
    return rows[:height]


def core_rows(cores: Sequence[int | None], width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """Every core: with a meter each where they fit, else a glyph each."""
    if not cores or height < 1:
        return []
    lead = gutter(width)
    room = width - lead - 1
    per_row = max(1, room // CORE_CELLS)
    if -(-len(cores) // per_row) <= height:
        rows = []
        for first in range(0, len(cores), per_row):
            spans: list[Span] = [(" " * lead, "text")]
            for number in range(first, min(first + per_row, len(cores))):
                spans += _core(number, cores[number], glyphs)
            rows.append(fit(spans, width, glyphs))
        return rows
    cells = "".join(
        " " if busy is None else level(busy / 100, glyphs.lane) if busy else glyphs.lane[1]
        for busy in cores
    )
    return [
        fit([(" " * lead, "text"), (cells[at : at + room], "cpu")], width, glyphs)
        for at in range(0, len(cells), room)
    ][:height]


def _core(number: int, busy: int | None, glyphs: Glyphs) -> list[Span]:
    name: Span = (f"c{number:<3}", "muted")
    if busy is None:
        return [name, ("-".ljust(CORE_CELLS - 4), "muted")]
    bar = meter(busy / 100, 4, glyphs).replace(glyphs.bar, glyphs.levels[-2])
    return [name, (bar, "cpu"), (f"{busy:>4}%".ljust(6), "text")]


def _row(name: str, spans: Sequence[Span], width: int, glyphs: Glyphs) -> Row:
    return fit([(f" {name}".ljust(gutter(width)), "muted"), *spans], width, glyphs)


def _cores_row(host: HostDevices, width: int, glyphs: Glyphs) -> Row:
    return _row("cores", [(cores_words(host) or "not measured", "text")], width, glyphs)


def cores_words(host: HostDevices) -> str:
    """``1.1 of 16 cores busy, 4 allowed``; empty if not measured."""
    if host.busy is None or not host.total:
        return ""
    words = f"{host.busy:.1f} of {host.total} cores busy"
    if host.allowed is not None and host.allowed < host.total:
        words += f", {host.allowed:g} allowed"
    if host.iowait is not None and host.iowait >= 0.05:
        words += f", {host.iowait:.1f} waiting for storage"
    return words


def _memory(host: HostDevices, glyphs: Glyphs, width: int) -> list[Span]:
    if host.memory_used is None or not host.memory_total:
        return [("not measured", "faint")]
    total = host.memory_total
    words = f"{gib(host.memory_used, total)} of {gib(total)} {byte_unit(total)} in use"
    spans: list[Span] = [(words, "text")]
    if width >= 70:
        bar = meter(host.memory_used / total, 20, glyphs)
        spans[:0] = [(glyphs.edge, "muted"), (bar, "cpu"), (glyphs.edge + "  ", "muted")]
    if host.memory_limit and host.memory_limit < total:
        charged = f"{size(host.memory_charged)} of " if host.memory_charged is not None else ""
        spans.append((f", limited to {charged}{size(host.memory_limit)}", "text"))
    if host.swap_in:
        spans.append((f", swapping in {size(host.swap_in)}/s", "warn"))
    return spans


def _pair(a: str, first: float | None, b: str, second: float | None) -> list[Span]:
    if first is None and second is None:
        return [("not measured", "faint")]
    words = [
        f"{name} {'-' if rate is None else size(rate) + '/s'}"
        for name, rate in ((a, first), (b, second))
    ]
    return [("   ".join(words), "text")]


def _shm(host: HostDevices) -> list[Span]:
    if host.shm_used is None or not host.shm_total:
        return [("not measured", "faint")]
    tight = host.shm_used > 0.9 * host.shm_total
    return [(f"{size(host.shm_used)} of {size(host.shm_total)}", "warn" if tight else "text")]


#: What the percentages are of, from the longest on.
_PRESSURE_WORDS = (
    "of the last 10 s some task was held up",
    "of the last 10 s tasks were held up",
    "of 10 s held up",
    "of 10 s",
)


def _pressure(host: HostDevices, width: int) -> list[Span]:
    """Pressure stall information: the part of the last 10 s in which some task was held up."""
    if not host.psi:
        return [("not measured", "faint")]
    spans: list[Span] = []
    for name, value in host.psi:
        spans.append((f"{name} {value:.0f}%   ", "warn" if value >= PRESSED else "text"))
    room = width - gutter(width) - width_of(spans)
    fits = (words for words in _PRESSURE_WORDS if len(words) <= room)
    return [*spans, (next(fits, ""), "muted")]


def host_short(host: HostDevices, width: int, glyphs: Glyphs) -> Row:
    """The machine in one row, its parts dropped from the last on until they fit."""
    parts = [cores_words(host)]
    if host.memory_used is not None and host.memory_total:
        total = host.memory_total
        parts.append(f"memory {gib(host.memory_used, total)} of {gib(total)} {byte_unit(total)}")
    if host.disk_read is not None and host.disk_write is not None:
        parts.append(f"disks {size(host.disk_read)}/s read, {size(host.disk_write)}/s written")
    if host.net_rx is not None and host.net_tx is not None:
        parts.append(f"network {size(host.net_rx)}/s in, {size(host.net_tx)}/s out")
    spans: list[Span] = [(" host".ljust(gutter(width)), "cpu")]
    for position, part in enumerate(filter(None, parts)):
        text = (glyphs.sep if position else "") + part
        if width_of(spans) + len(text) > width:
            break
        spans.append((text, "text"))
    return fit(spans, width, glyphs)
