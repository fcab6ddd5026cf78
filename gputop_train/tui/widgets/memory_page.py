"""The memory page: over time, who holds what, whether it grows, and the last error. Pure."""

from __future__ import annotations

import math

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, fit, meter, width_of
from gputop_train.tui.plot import Curve, Plot, nice_top
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import byte_unit, count, duration, gib, percent, size
from gputop_train.tui.views.memory import HostMemory, MemoryPageView
from gputop_train.tui.widgets.factrows import NARROW, fact_rows, gutter
from gputop_train.tui.widgets.timechart import past, plot_rows

ON_GPU = "cuda-allocator"
#: Rows of the chart: fewer show nothing, more say no more.
FEWEST, MOST = 5, 22
#: What is held close to the end of the device is worth a colour.
TIGHT = 0.9
#: Cells of a share's bar.
BAR = 24


def memory_page_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The page at a size: the numbers always, the chart in what they leave."""
    view = snap.memory_page
    if view is None:
        return [((" no reading of memory yet", "muted"),)]
    facts = [
        *_now(view, width, glyphs),
        *_growth(view, width, glyphs),
        *_pool(view, width, glyphs),
        *_holding(view, width, glyphs),
        *_card(view, width, glyphs),
        *_host(view.host, view, width, glyphs),
    ]
    oom = _oom(view, width, glyphs)
    left = height - len(facts) - len(oom) - 1
    if left < FEWEST:
        left = min(height - len(facts) - 1, FEWEST)
    if left < FEWEST:
        return [*facts, *oom][:height]
    chart = plot_rows(plot_of(snap, view), width, min(left, MOST), glyphs)
    return [*chart, (), *facts, *oom][:height]


def plot_of(snap: Snapshot, view: MemoryPageView) -> Plot:
    """Memory over time on a scale that is the device's, or a round number well below it."""
    curves: tuple[Curve, ...]
    if view.basis == ON_GPU:
        curves = (
            Curve("reserved", view.reserved_history, "gpu", "area"),
            Curve("allocated", view.allocated_history, "forward"),
            Curve("used", view.used_history, "warn"),
            Curve("peak", view.peak_history, "muted"),
        )
        title = f"{view.device or 'GPU'} memory"
    else:
        basis = (view.host.worker_basis if view.host else "") or "private"
        curves = (
            Curve("trainer, private", view.allocated_history, "cpu", "area"),
            Curve(f"workers, {basis}", view.worker_history, "data_wait"),
        )
        title = "memory of the run"
    curves = tuple(curve for curve in curves if any(v is not None for v in curve.values))
    largest = max((v for c in curves for v in c.values if v is not None), default=None)
    top = nice_top(largest * 1.05 if largest else None, "bytes")
    if view.total and top > view.total / 2:
        top = float(view.total)
    full = float(view.total) if view.total == top else None
    rank = (f"rank {view.rank} of {view.ranks}",) if view.ranks > 1 else ()
    return Plot(
        title,
        snap.axis,
        curves,
        top=top,
        unit="bytes",
        limit=full,
        facts=rank,
        marks=snap.marks,
        now_s=past(snap),
        ink="gpu" if view.basis == ON_GPU else "cpu",
    )


def _now(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    total = view.total
    on_gpu = view.basis == ON_GPU
    named = (
        (("allocated", view.allocated), ("reserved", view.reserved), ("used", view.used))
        if on_gpu
        else (("trainer", view.allocated),)
    )
    parts: list[list[Span]] = []
    for word, value in named:
        text = "-" if value is None else size(value)
        parts.append([(f"{word} ", "muted"), (text, "text")])
    peak = view.peak_allocated
    if peak is not None:
        tight = bool(total) and peak > TIGHT * (total or 1)
        parts.append([("peak ", "muted"), (size(peak), "warn" if tight else "text")])
    if width < NARROW:  # how close the end is matters most
        parts = [parts[0], parts[2]] if on_gpu and view.used is not None else parts[:1]
    if total is not None:
        of = f"of {size(total)}"
        most = view.used if on_gpu and view.used is not None else view.allocated
        of += f", {percent(most / total)} {'used' if on_gpu else 'held'}" if most and total else ""
        parts[-1] += [(f" {of}", "muted")]
    return fact_rows("memory", parts, width, glyphs)


def _growth(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    found = view.growth
    if found.per_step is None:
        steady = found.why and not found.why.startswith(("not judged", "too few"))
        words: list[Span] = [("steady", "good")] if steady else [("not known yet", "muted")]
        if found.why:
            words.append((f": {found.why}", "muted"))
        return fact_rows("growth", [words], width, glyphs)
    parts: list[list[Span]] = [[(f"+{size(found.per_step)} a step", "warn")]]
    if found.full_s is not None and math.isfinite(found.full_s):
        parts.append([(f"full in {duration(found.full_s)} at this rate", "warn")])
    if found.steps is not None and math.isfinite(found.steps):
        parts.append([(f"lowest after a step, over {count(round(found.steps))} steps", "muted")])
    return fact_rows("growth", parts, width, glyphs, lines=1 if width >= 60 else 2)


def _pool(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    if view.basis != ON_GPU:
        return []
    parts: list[list[Span]] = []
    if view.reserved is not None and view.allocated is not None:
        free = max(0, view.reserved - view.allocated)
        parts.append([(f"{size(free)} reserved and free", "text")])
    if view.split is not None:
        parts.append([(f"{size(view.split)} of split blocks", "text")])
    if view.retries is not None:
        ink = "warn" if view.retries else "text"
        word = "retry" if view.retries == 1 else "retries"
        parts.append([(f"{count(view.retries)} {word} after a flush", ink)])
    if view.ooms is not None:
        word = "error" if view.ooms == 1 else "errors"
        ink = "critical" if view.ooms else "text"
        parts.append([(f"{count(view.ooms)} out-of-memory {word}", ink)])
    return fact_rows("allocator", parts or [[("not measured", "faint")]], width, glyphs)


def _holding(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    if not view.held:
        return fact_rows("held", [[("not counted", "faint")]], width, glyphs)
    whole = sum(value for _, value in view.held)
    rows: list[Row] = []
    for position, (word, value) in enumerate(view.held):
        lead = " held by" if position == 0 else ""
        share = value / whole if whole > 0 else 0.0
        spans: list[Span] = [
            (lead.ljust(gutter(width)), "muted"),
            (f"{word:<15}", "text"),
            (f"{size(value):>9}", "text"),
            (f"{percent(share):>5}", "muted"),
        ]
        if width_of(spans) + BAR + 2 <= width:
            bar = meter(share, BAR, glyphs).replace(glyphs.bar, glyphs.levels[-2])
            spans.append(("  " + bar, "gpu" if view.basis == ON_GPU else "cpu"))
        note = _held_note(view, position)
        if note and width_of(spans) + cell_len(note) + 2 <= width:
            spans.append((f"  {note}", "faint"))
        rows.append(fit(spans, width, glyphs))
    return rows


def _held_note(view: MemoryPageView, position: int) -> str:
    if position == len(view.held) - 1 and view.held[-1][0] == "other":
        return "activations, buffers, batches"
    if position == 0 and view.held_step is not None:
        partial = ", not all could be sized" if view.held_partial else ""
        return f"at step {count(view.held_step)}{partial}"
    return ""


def _card(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    """Who is on the device, by the driver's account."""
    if view.basis != ON_GPU or view.used is None:
        return []
    parts: list[list[Span]] = []
    if view.ours is not None:
        parts.append([(f"this run {size(view.ours)}", "text")])
    for process in view.foreign[:4]:
        held = f" {size(process.memory)}" if process.memory is not None else ""
        parts.append([(f"{process.name or 'pid'} {process.pid}{held}", "warn")])
    if view.foreign_count == 0:
        parts.append([("nobody else", "muted")])
    elif view.foreign_count and not view.foreign:
        parts.append([(f"{view.foreign_count} processes of others", "warn")])
    if (
        view.ours is not None
        and view.reserved is not None
        and view.ours > view.reserved
        and view.ranks == 1
    ):
        beside = size(view.ours - view.reserved)
        parts.append([(f"{beside} of it beside the pool: CUDA's context, libraries", "muted")])
    return fact_rows("on the card", parts, width, glyphs, lines=1) if parts else []


def _host(host: HostMemory | None, view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    if host is None:
        return []
    parts: list[list[Span]] = []
    if host.trainer_private is not None:
        who = "trainer" if host.trainers == 1 else f"{host.trainers} trainers"
        resident = f" ({size(host.trainer_rss)} resident)" if host.trainer_rss is not None else ""
        parts.append([(f"{who} {size(host.trainer_private)} private{resident}", "text")])
    if host.workers:
        who = "1 worker" if host.workers == 1 else f"{host.workers} workers"
        held = "not measured" if host.worker_private is None else size(host.worker_private)
        basis = f" ({host.worker_basis})" if host.worker_basis else ""
        parts.append([(f"{who} {held}{basis}", "text")])
    if host.available is not None and host.total:
        words = f"{gib(host.available, host.total)} of {gib(host.total)} {byte_unit(host.total)}"
        ink = "warn" if host.available < (1 - TIGHT) * host.total else "text"
        parts.append([(f"{words} available", ink)])
    if host.limit and host.total and host.limit < host.total:
        used = f"{size(host.charged)} of " if host.charged is not None else ""
        parts.append([(f"limited to {used}{size(host.limit)}", "text")])
    if host.swap_in:
        parts.append([(f"swapping in {size(host.swap_in)}/s", "warn")])
    return fact_rows("host", parts, width, glyphs) if parts else []


def _oom(view: MemoryPageView, width: int, glyphs: Glyphs) -> list[Row]:
    if not view.oom:
        return []
    title = f" {glyphs.critical} the last out-of-memory error"
    rows: list[Row] = [(), fit([(title, "critical")], width, glyphs)]
    return [*rows, *(fit([(line, "text")], width, glyphs) for line in view.oom)]
