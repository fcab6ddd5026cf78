"""The loader's workers, its queue, and the cores there are."""

from __future__ import annotations

from gputop_train.tui.paint import Glyphs, Row, Span, level, meter, spread, width_of
from gputop_train.tui.snapshot import HostView, LoaderView, Snapshot
from gputop_train.tui.text import percent, size
from gputop_train.tui.widgets.panel import Panel
from gputop_train.tui.widgets.timechart import GUTTER

#: Up to this many workers each get a meter; more are drawn one glyph each.
METERS = 4


def workers_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """One row: workers and queue on the left, the machine's cores on the right."""
    left: list[Span] = [(" loader".ljust(GUTTER), "text"), *_loader(snap.loader, glyphs)]
    right = _host(snap.host)
    while right and width_of(left) + width_of(right) + 2 > width:
        right = right[1:]
    return [spread(left, right, width, glyphs)]


def _loader(loader: LoaderView | None, glyphs: Glyphs) -> list[Span]:
    if loader is None:
        return [("no DataLoader seen yet", "faint")]
    if loader.num_workers == 0:
        return [("num_workers=0: the training process itself makes the batches", "text")]
    spans: list[Span] = []
    known = [cpu for cpu in loader.cpu if cpu is not None]
    if not known:
        spans.append((f"{loader.num_workers} workers, CPU not measured  ", "muted"))
    elif len(loader.cpu) <= METERS:
        for position, cpu in enumerate(loader.cpu):
            if cpu is not None:
                spans += [
                    (f"w{position} ", "muted"),
                    (meter(min(1.0, cpu), 6, glyphs), "data_wait"),
                ]
                spans.append((f" {percent(cpu)}  ", "text"))
    else:
        marks = "".join(
            " " if cpu is None else level(min(1.0, cpu), glyphs.lane) for cpu in loader.cpu[:32]
        )
        mean = sum(known) / len(known)
        spans += [(f"{loader.num_workers} workers ", "muted"), (marks, "data_wait")]
        spans.append((f" mean {percent(mean)}  ", "text"))
    return spans + _queue(loader, glyphs)


def _queue(loader: LoaderView, glyphs: Glyphs) -> list[Span]:
    if loader.ready is None:
        return []
    of = f" of {loader.capacity}" if loader.capacity else ""
    capacity = max(1, loader.capacity or max([1, *(d for d in loader.depth if d is not None)]))
    depth = "".join(
        " "
        if value is None
        else (level(value / capacity, glyphs.lane) if value else glyphs.lane[1])
        for value in loader.depth[-12:]
    )
    return [("queue ", "muted"), (depth, "info"), (f" {loader.ready}{of} ready", "text")]


def _host(host: HostView | None) -> list[Span]:
    if host is None:
        return []
    spans: list[Span] = []
    if host.read_bytes_per_s is not None and host.read_bytes_per_s >= 1 << 20:
        spans.append((f"reads {size(host.read_bytes_per_s)}/s  ", "muted"))
    if host.cores_busy is not None and host.cores_total:
        words = f"{host.cores_busy:.1f} of {host.cores_total} cores busy"
        if host.cores_allowed is not None and host.cores_allowed < host.cores_total:
            allowed = f"{host.cores_allowed:.1f}".removesuffix(".0")
            words += f" ({allowed} allowed)"
        spans.append((f"{words} ", "muted"))
    return spans


class Workers(Panel):
    """See `workers_rows`."""

    def rows(self, snapshot: Snapshot, width: int, height: int) -> list[Row]:
        """One row."""
        return workers_rows(snapshot, width, height, self.glyphs)
