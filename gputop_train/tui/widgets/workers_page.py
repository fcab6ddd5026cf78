"""The workers page: each loader, its queue, its processes, and who has the cores. Pure.

Worker processes get a row each, with what they did over time on the axis of the charts; where there
are more than rows they share rows, and the most of them are one glyph each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len

from gputop_train.tui.paint import Glyphs, Row, Span, clip, fit, level, meter, width_of
from gputop_train.tui.snapshot import Snapshot
from gputop_train.tui.text import count, milliseconds, percent, size
from gputop_train.tui.views.devices import Quantity
from gputop_train.tui.views.workers import CoresView, LoaderPage, WorkersPageView, WorkerView
from gputop_train.tui.widgets.factrows import fact_rows, gutter
from gputop_train.tui.widgets.host import core_rows
from gputop_train.tui.widgets.strips import lane, strip, time_axis
from gputop_train.tui.widgets.timechart import GUTTER, MARGIN, plot_columns

#: The kernel's letters in words.
STATES = {"R": "run", "S": "sleep", "D": "disk", "Z": "dead", "T": "stop", "I": "idle"}
#: A core's worth of waiting that is worth a colour, and a batch that comes too late by so much.
DENIED, LATE = 0.5, 1.05
#: Cells of an entry where several workers share a row: with everything, with the least.
WIDE_ENTRY, ENTRY = 28, 11
#: Rows of the page from which settings, and a second row of them, find room.
SHORT, ROOMY = 14, 26
_BAR = 6


def workers_page_rows(snap: Snapshot, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """The page at a size."""
    view = snap.workers_page
    if view is None:
        return [((" reading the loaders" + glyphs.ellipsis, "muted"),)]
    foot = _cores(view.cores, width, glyphs)
    if not view.loaders:
        none = fit([(" No DataLoader has been seen in this run.", "muted")], width, glyphs)
        rest = _trainer_strip(snap, view.cores, width, height - 2 - len(foot), glyphs)
        return [none, (), *foot, *rest][:height]
    chosen = view.loaders[view.chosen]
    others = [_short(view, at, width, glyphs) for at in range(len(view.loaders))]
    others = others if len(others) > 1 else []
    most = max(1, height // 4)
    if len(others) > most:
        first = max(0, min(view.chosen - most // 2, len(others) - most))
        others = others[first : first + most]
    head = [
        *others,
        *([()] if others and height >= 20 else []),
        *_head(chosen, width, height, glyphs),
    ]
    left = height - len(head) - len(foot)
    body = _body(snap, view, chosen, width, max(0, left - 1), glyphs)
    rows = [*head, *body]
    cores = view.cores.each if view.cores is not None else ()
    spare = height - len(rows) - len(foot) - 1
    each = core_rows(cores, width, min(max(0, spare), 8), glyphs) if height >= SHORT else []
    gap: list[Row] = [()] if spare >= 0 else []
    return [*rows, *gap, *foot, *each][:height]


# The loader


def _short(view: WorkersPageView, at: int, width: int, glyphs: Glyphs) -> Row:
    """One line of the list of loaders."""
    loader, here = view.loaders[at], at == view.chosen
    words = f"{loader.num_workers} workers" if loader.num_workers else "no workers"
    spans: list[Span] = [
        (" >" if here else "  ", "key"),
        (f"{loader.place}  ", "strong" if here else "text"),
        (f"{loader.dataset}  ", "muted"),
        (f"{words}, {count(loader.batches)} batches", "text"),
    ]
    if loader.feeds:
        spans.append(("  feeds training", "good"))
    return fit(spans, width, glyphs)


def _head(loader: LoaderPage, width: int, height: int, glyphs: Glyphs) -> list[Row]:
    """What the loader is, how it is set, and whether it keeps up."""
    about = [loader.dataset]
    if loader.items is not None:
        about.append(f"{count(loader.items)} items")
    about.append(f"{count(loader.batches)} batches taken")
    if loader.epochs > 1:
        about.append(f"pass {count(loader.epochs)}")
    if loader.feeds:
        about.append("feeds training")
    lead = f" {loader.place}  ".ljust(gutter(width))
    rows = [fit([(lead, "strong"), (glyphs.sep.join(about), "text")], width, glyphs)]
    settings = [[(f"{key} ", "muted"), (value, "text")] for key, value in loader.settings]
    if height >= SHORT:
        lines = 2 if height >= ROOMY else 1
        rows += fact_rows("settings", settings, width, glyphs, lines=lines)
    return [*rows, *_supply(loader, width, 2 if height >= SHORT else 1, glyphs)]


def _supply(loader: LoaderPage, width: int, lines: int, glyphs: Glyphs) -> list[Row]:
    """What a batch costs, against what training would take."""
    if loader.made_ms is None or loader.gives_ms is None:
        if loader.wait_ms is None:
            return []
        words = f"next() takes {milliseconds(loader.wait_ms)} on average"
        return fact_rows("supply", [[(words, "text")]], width, glyphs, lines=lines)
    made, gives = milliseconds(loader.made_ms), milliseconds(loader.gives_ms)
    said = [f"{made} to make a batch"]
    if loader.num_workers:
        said.append(f"one every {gives} from {loader.num_workers} workers")
    else:
        said.append("in the training process")
    late = False
    if loader.wants_ms is not None:
        late = loader.gives_ms > LATE * loader.wants_ms
        wants = f"training could take one every {milliseconds(loader.wants_ms)}"
        said.append(f"too slow: {wants}" if late and loader.num_workers else wants)
    parts: list[list[Span]] = [[(text, "warn" if late else "text")] for text in said]
    if loader.collate is not None and loader.collate >= 0.1:
        parts.append([(f"{percent(loader.collate)} in collate_fn", "muted")])
    return fact_rows("supply", parts, width, glyphs, lines=lines)


# Over time


def _body(
    snap: Snapshot,
    view: WorkersPageView,
    loader: LoaderPage,
    width: int,
    height: int,
    glyphs: Glyphs,
) -> list[Row]:
    """Queue, trainer and workers over time; the axis last."""
    if height < 1:
        return []
    rows: list[Row] = []
    roomy = height >= 10
    if loader.num_workers and any(v is not None for v in loader.depth) and height >= 5:
        top = float(loader.capacity or max((v or 0 for v in loader.depth), default=1) or 1)
        ready = "-" if loader.ready is None else str(loader.ready)
        now = f"{ready} of {loader.capacity}" if loader.capacity else ready
        queue = Quantity("queue", loader.depth, top, now, f"{top:.0f}", "info")
        spare = height - len(loader.workers) - 4
        rows += strip(queue, width, 4 if spare >= 10 else 2 if height >= 16 else 1, glyphs)
    if roomy:
        rows += _trainer(view.cores, width, 1, glyphs)
    workers, on_axis = worker_rows(
        loader.workers, width, height - len(rows), glyphs, axis=bool(rows)
    )
    axis = [time_axis(snap, width, glyphs)] if rows or on_axis else []
    # What shares rows is of this moment: the axis belongs to what stands above it.
    return [*rows, *workers, *axis] if on_axis else [*rows, *axis, *workers]


def _trainer(cores: CoresView | None, width: int, rows: int, glyphs: Glyphs) -> list[Row]:
    if cores is None or not any(v is not None for v in cores.trainer_history):
        return []
    top = max(1.0, *(v for v in cores.trainer_history if v is not None))
    now = f"{cores.trainer * 100:.0f}%" if cores.trainer is not None else ""
    return strip(
        Quantity("trainer", cores.trainer_history, top, now, "", "cpu"), width, rows, glyphs
    )


def _trainer_strip(
    snap: Snapshot, cores: CoresView | None, width: int, height: int, glyphs: Glyphs
) -> list[Row]:
    rows = _trainer(cores, width, max(1, min(6, height - 2)), glyphs) if height >= 3 else []
    return [(), *rows, time_axis(snap, width, glyphs)] if rows else []


def worker_rows(
    workers: Sequence[WorkerView], width: int, height: int, glyphs: Glyphs, *, axis: bool
) -> tuple[list[Row], bool]:
    """The workers, and whether they lie on the time axis.

    Args:
        workers: In the order of their numbers.
        width: Cells.
        height: Rows for them and for the time axis.
        glyphs: The alphabet.
        axis: Whether something else needs the axis.
    """
    if workers and len(workers) + 2 <= height:
        return [_heads(width, glyphs), *(_full(one, width, glyphs) for one in workers)], True
    height -= axis
    if not workers or height < 1:
        return [], False
    for cells in (WIDE_ENTRY, ENTRY):
        per_row = max(1, (width - 1) // cells)
        if -(-len(workers) // per_row) <= height:
            return _grid(workers, per_row, cells, width, glyphs), False
    marks = "".join(
        " "
        if one.cpu is None
        else level(min(1.0, one.cpu), glyphs.lane)
        if one.cpu > 0.004
        else glyphs.lane[1]
        for one in workers
    )
    known = [one.cpu for one in workers if one.cpu is not None]
    mean = f"mean {percent(sum(known) / len(known))}" if known else "not measured"
    room = max(1, width - GUTTER - MARGIN)
    if -(-len(marks) // room) <= height:
        leads = [f" {len(workers)} workers", f" {mean}"] if len(marks) > room else [f" {mean}"]
        cut = [marks[at : at + room] for at in range(0, len(marks), room)]
        leads = [lead.ljust(GUTTER) for lead in [*leads, *[""] * len(cut)][: len(cut)]]
    else:
        room = max(1, width - 2)
        cut = [marks[at : at + room] for at in range(0, len(marks), room)]
        leads = [" "] * len(cut)
    rows = [
        fit([(lead, "muted"), (part, "data_wait")], width, glyphs)
        for lead, part in zip(leads, cut, strict=True)
    ]
    if len(rows) < height and leads[0] == " ":
        title = f" {len(workers)} workers, {mean}"
        rows.insert(0, fit([(title, "muted")], width, glyphs))
    return rows[:height], False


_COLUMNS = (
    ("worker", 7, 0),
    ("CPU", 5 + _BAR + 1, 0),
    ("state", 9, 0),
    ("storage", 12, 2),
    ("memory", 10, 1),
    ("a batch", 9, 3),
    ("pid", 8, 4),
)


def _shown(width: int) -> list[tuple[str, int, int]]:
    """Columns that leave the lane its half of the row."""
    columns = list(_COLUMNS)
    while sum(size for _, size, _ in columns) > max(30, width * 0.62) and len(columns) > 3:
        columns.remove(max(columns, key=lambda column: column[2]))
    return columns


def _heads(width: int, glyphs: Glyphs) -> Row:
    spans: list[Span] = [(" ", "muted")]
    spans += [(name.ljust(size), "muted") for name, size, _ in _shown(width)]
    return fit(spans, width, glyphs)


def _full(worker: WorkerView, width: int, glyphs: Glyphs) -> Row:
    """One worker on a row: now at the left, over time up to the right edge of the charts."""
    cells = {
        "worker": (f"w{worker.number}", "text"),
        "CPU": _cpu(worker, glyphs),
        "state": _state(worker),
        "storage": _words(worker.reads_per_s, lambda v: f"{size(v)}/s"),
        "memory": _words(worker.memory, size),
        "a batch": _words(worker.batch_ms, milliseconds),
        "pid": _words(worker.pid, lambda v: f"{v:.0f}"),
    }
    spans: list[Span] = [(" ", "text")]
    for name, room, _ in _shown(width):
        text, ink = cells[name]
        text = clip(text, room - 1, glyphs)
        spans.append((text + " " * (room - cell_len(text)), ink))
    room = min(plot_columns(width), width - MARGIN - width_of(spans) - 1)
    if room >= 8:
        spans += [(glyphs.edge, "muted"), (lane(worker.history, 1.0, room, glyphs), "data_wait")]
    return fit(spans, width, glyphs)


def _cpu(worker: WorkerView, glyphs: Glyphs) -> Span:
    if worker.cpu is None:
        return "-", "muted"
    bar = meter(min(1.0, worker.cpu), _BAR, glyphs).replace(glyphs.bar, glyphs.levels[-2])
    return f"{worker.cpu * 100:3.0f}% {bar}", "data_wait"


def _state(worker: WorkerView) -> Span:
    if worker.state is None:
        return ("not seen", "muted")
    word = STATES.get(worker.state, worker.state)
    return word, "warn" if worker.state in "DZ" else "text"


def _words(value: float | None, say: Callable[[float], str]) -> Span:
    return ("-", "muted") if value is None else (say(value), "text")


def _grid(
    workers: Sequence[WorkerView], per_row: int, cells: int, width: int, glyphs: Glyphs
) -> list[Row]:
    rows = []
    for at in range(0, len(workers), per_row):
        spans: list[Span] = [(" ", "text")]
        for one in workers[at : at + per_row]:
            spans += _entry(one, cells, glyphs)
        rows.append(fit(spans, width, glyphs))
    return rows


def _entry(worker: WorkerView, cells: int, glyphs: Glyphs) -> list[Span]:
    name: Span = (f"w{worker.number}".ljust(4), "muted")
    if worker.cpu is None:
        return [name, ("-".ljust(cells - 4), "muted")]
    bar = meter(min(1.0, worker.cpu), 2, glyphs).replace(glyphs.bar, glyphs.levels[-2])
    number = f"{min(999, worker.cpu * 100):.0f}%"
    if cells < WIDE_ENTRY:
        return [name, (bar, "data_wait"), (f"{number:>4} ", "text")]
    word, ink = _state(worker)
    held = "-" if worker.memory is None else size(worker.memory)
    return [
        name,
        (bar, "data_wait"),
        (f"{number:>5} ", "text"),
        (word.ljust(6), ink),
        (held.ljust(cells - 18), "muted"),
    ]


# Cores


def _cores(cores: CoresView | None, width: int, glyphs: Glyphs) -> list[Row]:
    """Who has the cores, and whether there are too few or too many."""
    if cores is None:
        return []
    parts: list[list[Span]] = []
    if cores.trainer is not None:
        parts.append([(f"trainer {cores.trainer:.1f}", "text")])
    if cores.main_thread is not None:
        parts.append([(f"its main thread {cores.main_thread:.2f}", "text")])
    if cores.workers is not None:
        parts.append([(f"workers {cores.workers:.1f}", "text")])
    if cores.others is not None:
        parts.append([(f"other programs {cores.others:.1f}", "text")])
    rows = fact_rows("cores", parts, width, glyphs, lines=1) if parts else []
    verdict = _room(cores)
    if verdict is not None:
        rows += fact_rows("" if parts else "cores", verdict, width, glyphs)
    return rows


def _room(cores: CoresView) -> list[list[Span]] | None:
    """Whether cores are left over or fought for."""
    if cores.busy is None or not cores.total:
        return None
    allowed = cores.allowed if cores.allowed is not None else float(cores.total)
    parts: list[list[Span]] = [[(f"{cores.busy:.1f} of {cores.total} cores busy", "text")]]
    if allowed < cores.total:
        parts.append([(f"{allowed:g} allowed to this run", "text")])
    if cores.denied is not None and cores.denied >= DENIED:
        words = f"oversubscribed: {cores.denied:.1f} more wanted"
        parts.append([(words, "warn")])
    else:
        mine = (cores.trainer or 0.0) + (cores.workers or 0.0)
        idle = max(0.0, min(cores.total - cores.busy, allowed - mine))
        parts.append([(f"{idle:.1f} idle that this run could use", "text")])
    return parts
