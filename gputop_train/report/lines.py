"""``report --lines``: what each line of the script cost, by kind. Pure.

Numbers by line come from the probe's hooks (calls, host time, bytes) and, where no hook reaches,
from its stack sampler. ``~`` marks an estimate: fast calls are drawn, one in sixteen, and fast
steps are sampled. GPU idle and GB/s come from pairs of GPU events alone: the host's time in a call
that returns before its copy is done says nothing about the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gputop_train.model import Site
from gputop_train.report import comm, flags
from gputop_train.report import format as fmt
from gputop_train.report.line_facts import Facts

MAX_WIDTH, MIN_WIDTH = 120, 60
MAX_ROWS = 8
#: Sampled lines with fewer samples, or a smaller share, say too little to be shown.
MIN_SAMPLES, MIN_SHARE = 4, 0.002
#: Lines that cost less of the wall time are counted, not listed; the costliest always is.
LISTED_SHARE = 0.0005
#: Columns a narrow table does without, in this order, while less than so much is left for the line
#: and the call.
_GIVEN_UP = (("of wall", 34), ("each", 20), ("one takes", 20), ("time", 20))
#: Lines of output in a second that are worth a number.
MIN_LINES_S = 1.0
_NOT_TOLD = "-"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the script under one kind; ``None`` = not measured."""

    place: str
    call: str
    calls: float | None
    ns: float
    estimated: bool
    site: Site | None = None

    @property
    def at_least(self) -> bool:
        """Recorded by a release that counted no fast call."""
        site = self.site
        return site is not None and site.seen is None and site.kind in ("sync", "h2d")


@dataclass(frozen=True, slots=True)
class Kind:
    """A section: which sites, which labels of the sampler, and its own columns."""

    title: str
    site: str
    label: str
    columns: tuple[tuple[str, Callable[[Row, Facts], str]], ...]


def lines(facts: Facts, width: int, *, ascii_only: bool = False) -> list[str]:
    """The whole text.

    Args:
        facts: What ``line_facts.gather`` found.
        width: Columns of the terminal; lines never exceed it, nor ``MAX_WIDTH``.
        ascii_only: Use no character beyond ASCII.

    Returns:
        Lines without line ends.
    """
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    found = [f"── gputop-train · {fmt.printable(facts.run_id)} · by line ".ljust(room, "─")]
    found += fmt.row("run", _scope(facts), room)
    if facts.state is None:
        found += fmt.row("", "Not measured: no probe of this run has told anything.", room)
        return _plain(found) if ascii_only else found
    none_seen: list[str] = []
    missing: dict[str, list[str]] = {}
    shown: list[Row] = []
    for kind in KINDS:
        rows = _rows(kind, facts)
        if rows:
            found += ["", *_table(kind, rows, facts, room)]
            shown += rows
        elif (why := not_measured(kind, facts.state)) is not None:
            missing.setdefault(why, []).append(kind.title)
        else:
            none_seen.append(kind.title)
    for title, block in (
        ("output", _output(facts)),
        ("torch.compile", flags.compiling(facts.state)),
        ("DistributedDataParallel", comm.notes(facts.state, _step_ns(facts))),
        ("garbage collection", flags.collecting(facts.state, facts.label_ns, facts.wall_ns)),
        ("flags", flags.notes(facts.state, facts.steps)),
    ):
        if block:
            found += ["", f" {title}"]
            for text in block:
                found += fmt.row("", fmt.printable(text), room, key_width=2)
    if missing or none_seen:
        found.append("")
    for why, titles in missing.items():
        text = f"{' and '.join(titles).capitalize()}: {why}"
        found += fmt.row("", fmt.printable(text), room, key_width=0)
    if none_seen:
        text = "None seen: " + ", ".join(none_seen) + "."
        found += fmt.row("", text, room, key_width=0)
    for legend, needed in (
        (_ESTIMATED, any(row.estimated for row in shown)),
        (_AT_LEAST, any(row.at_least for row in shown)),
    ):
        if needed:
            found += ["", *fmt.row("", legend, room, key_width=0)]
    return _plain(found) if ascii_only else found


def _plain(found: list[str]) -> list[str]:
    """ASCII alone, a character for a character so that columns stay where they are."""
    narrow = str.maketrans({"…": ".", "≥": ">"})
    return [fmt.to_ascii(line.translate(narrow)) for line in found]


_ESTIMATED = (
    "~ estimated: of fast calls one in 16 is looked at, of fast steps some; "
    "a line without calls was seen by the stack sampler alone."
)
_AT_LEAST = "≥ at least: this run was recorded by a release that counted only calls over 20 µs."


def _step_ns(facts: Facts) -> float | None:
    return facts.wall_ns / facts.steps if facts.wall_ns and facts.steps else None


def _scope(facts: Facts) -> str:
    parts = [f"{facts.steps:,} steps"]
    if facts.wall_ns is not None:
        parts[0] += f" in {fmt.duration(facts.wall_ns / 1e9)}"
    if facts.ranks > 1:
        parts.append(f"rank {facts.rank} of {facts.ranks}")
    if facts.steps:
        parts.append("calls, time and GPU idle are means of a step")
    else:
        parts.append("no step was seen, so calls and time are totals")
    return " · ".join(parts)


# -- rows ------------------------------------------------------------------------------------------


def _rows(kind: Kind, facts: Facts) -> list[Row]:
    """The costliest lines of a kind: those the hooks met, then those only the sampler saw."""
    hooked = merged(s for s in facts.sites if s.kind == kind.site and s.count)
    named = _namer(facts.sites)
    rows = [
        Row(named(s), s.call, s.count, s.total_ns, s.seen is not None and s.seen < s.count, s)
        for s in hooked
    ]
    met = {(s.file, s.line) for s in hooked}
    rows += [r for s, r in _sampled(kind, facts, named) if (s.file, s.line) not in met]
    return sorted(rows, key=lambda row: -row.ns)


def _sampled(kind: Kind, facts: Facts, named: Callable[[Site], str]) -> Iterable[tuple[Site, Row]]:
    samples = [s for s in facts.sites if s.kind == "sample"]
    total = sum(s.count for s in samples)
    for site in merged(s for s in samples if s.label == kind.label):
        share = site.count / total if total else 0.0
        if facts.wall_ns is not None and site.count >= MIN_SAMPLES and share >= MIN_SHARE:
            yield site, Row(named(site), site.call, None, share * facts.wall_ns, True)


def merged(sites: Iterable[Site]) -> list[Site]:
    """One site a line of the script: a restarted process has sites of its own."""
    found: dict[tuple[str, int], Site] = {}
    for site in sites:
        key = (site.file, site.line)
        found[key] = _sum(found[key], site) if key in found else site
    return list(found.values())


def _sum(one: Site, other: Site) -> Site:
    def add(left: int | None, right: int | None) -> int | None:
        return None if left is None or right is None else left + right

    return Site(
        one.rank, one.id, one.kind, one.file, one.line, one.func, one.call, one.label,
        one.count + other.count, one.total_ns + other.total_ns,
        add(one.bytes, other.bytes), add(one.unpinned_bytes, other.unpinned_bytes),
        add(one.seen, other.seen), add(one.pairs, other.pairs),
        add(one.pair_ns, other.pair_ns), add(one.pair_bytes, other.pair_bytes),
        add(one.after_ns, other.after_ns),
    )  # fmt: skip


def _namer(sites: Sequence[Site]) -> Callable[[Site], str]:
    """``train.py:41``; with its folder where two files of the run share a name."""
    files = {s.file for s in sites}
    shared = Counter(PurePath(file).name for file in files)

    def named(site: Site) -> str:
        path = PurePath(site.file)
        name = path.name if shared[path.name] == 1 else "/".join(path.parts[-2:])
        return f"{name}:{site.line}"

    return named


# -- columns ---------------------------------------------------------------------------------------


def _calls(row: Row, facts: Facts) -> str:
    if row.calls is None:
        return _NOT_TOLD
    mark = "~" if row.estimated else "≥" if row.at_least else ""
    if not facts.steps:
        return f"{mark}{row.calls:,.0f}"
    rate = row.calls / facts.steps
    if rate < 0.095:
        return f"{mark}1 in {max(1, round(1 / rate)):,}"
    return mark + (f"{rate:,.0f}" if rate >= 99.5 else f"{rate:.1f}")


def _time(row: Row, facts: Facts) -> str:
    return _ms(row.ns / 1e6 / max(1, facts.steps))


def _ms(value: float) -> str:
    return fmt.milliseconds(value) if value >= 0.005 else "<0.01 ms"


def _each(row: Row, facts: Facts) -> str:
    return _ms(row.ns / 1e6 / row.calls) if row.calls else _NOT_TOLD


def _of_wall(row: Row, facts: Facts) -> str:
    return fmt.percent(row.ns / facts.wall_ns) if facts.wall_ns else _NOT_TOLD


def _idle(row: Row, facts: Facts) -> str:
    """GPU idle a step."""
    each = idle_ns_a_call(row.site) if row.site is not None else None
    if row.site is None or each is None or not facts.steps:
        return _NOT_TOLD
    return _ms(each * row.site.count / facts.steps / 1e6)


def idle_ns_a_call(site: Site) -> float | None:
    """GPU idle of one blocking read: within it, at most as long as it took, and after its return.

    ``None`` where no GPU events enclosed one.
    """
    if not site.pairs or site.pair_ns is None or not site.count:
        return None
    inside = min(site.pair_ns / site.pairs, site.total_ns / site.count)
    return inside + (site.after_ns or 0) / site.pairs


def _size(row: Row, facts: Facts) -> str:
    """Bytes of one call."""
    site = row.site
    return fmt.size(site.bytes / site.count) if site is not None and site.bytes else _NOT_TOLD


def _memory(row: Row, facts: Facts) -> str:
    site = row.site
    if site is None or site.unpinned_bytes is None or not site.bytes:
        return _NOT_TOLD
    share = site.unpinned_bytes / site.bytes
    return "pinned" if share < 0.01 else "pageable" if share > 0.99 else "mixed"


def _rate(row: Row, facts: Facts) -> str:
    """GB/s between the events of the pairs: the copy as the GPU saw it."""
    site = row.site
    if site is None or not site.pair_ns or not site.pair_bytes:
        return _NOT_TOLD
    return f"{site.pair_bytes / site.pair_ns:.3g} GB/s"


_COMMON = (("calls", _calls), ("time", _time), ("of wall", _of_wall))

KINDS: tuple[Kind, ...] = (
    Kind("blocking reads", "sync", "sync", (*_COMMON, ("GPU idle", _idle))),
    Kind(
        "copies to the device", "h2d", "h2d",
        (*_COMMON, ("each", _size), ("memory", _memory), ("rate", _rate)),
    ),
    Kind("saves", "save", "checkpoint", (*_COMMON, ("one takes", _each), ("writes", _size))),
    Kind("logging", "logging", "logging", (*_COMMON, ("one takes", _each))),
    Kind("compilation", "compile", "compile", _COMMON),
)  # fmt: skip


def _table(kind: Kind, rows: Sequence[Row], facts: Facts, room: int) -> list[str]:
    """A title with the headings of its columns, a line for each row, and what is left out."""
    listed = [
        row
        for n, row in enumerate(rows)
        if n == 0 or (n < MAX_ROWS and row.ns >= LISTED_SHARE * (facts.wall_ns or 0))
    ]
    read = {head: [value(row, facts) for row in listed] for head, value in kind.columns}
    empty = [head for head, cells in read.items() if set(cells) == {_NOT_TOLD}]
    columns = [(head, cells) for head, cells in read.items() if head not in empty]
    widths, left = _fit(columns, room)
    for head, enough in _GIVEN_UP:
        if left < enough:
            columns = [column for column in columns if column[0] != head]
            widths, left = _fit(columns, room)
    heads = "".join(head.rjust(width) for (head, _), width in zip(columns, widths, strict=True))
    found = [f" {kind.title}".ljust(left) + heads]
    place_width = min(max(len(row.place) for row in listed), max(12, left - 12))
    for n, row in enumerate(listed):
        place = _cut(fmt.printable(row.place), place_width, keep_end=True).ljust(place_width)
        text = f"   {place}  {fmt.printable(row.call)}"
        numbers = "".join(
            cells[n].rjust(width) for (_, cells), width in zip(columns, widths, strict=True)
        )
        found.append((_cut(text, left).ljust(left) + numbers).rstrip())
    if len(rows) > len(listed):
        found.append(f"   and {len(rows) - len(listed)} more")
    missing = [f"{head}: {_WHY_EMPTY[head]}" for head in empty if head in _WHY_EMPTY]
    return found + (fmt.row("", "; ".join(missing), room, key_width=2) if missing else [])


def _fit(columns: Sequence[tuple[str, list[str]]], room: int) -> tuple[list[int], int]:
    """Widths of the columns, and what they leave for the line and the call."""
    widths = [max(len(head), *map(len, cells)) + 2 for head, cells in columns]
    return widths, room - sum(widths)


_WHY_EMPTY = {
    "GPU idle": "not measured, no GPU event enclosed these calls",
    "rate": "not measured, no GPU event enclosed these copies",
    "writes": "size not known",
}


def _cut(text: str, room: int, *, keep_end: bool = False) -> str:
    if len(text) <= room:
        return text
    return "…" + text[-(room - 1) :] if keep_end else text[: room - 1] + "…"


# -- what is missing, and the output ---------------------------------------------------------------


def not_measured(kind: Kind, state: Mapping[str, Any]) -> str | None:
    """Why a kind without rows says nothing; ``None`` when none having been seen is the answer."""
    hook = {"sync": "sync", "h2d": "h2d", "save": "save"}.get(kind.site)
    hooks = state.get("hooks")
    hooks = hooks if isinstance(hooks, Mapping) else {}
    if hook in ("sync", "h2d"):
        cuda = state.get("cuda")
        if not (isinstance(cuda, Mapping) and cuda.get("initialized")):
            return "none can be, no CUDA device is in use."
    if hook is not None and hooks.get(hook) is not True:
        why = hooks.get(hook)
        return f"not measured, {why}." if isinstance(why, str) else "not measured, no hook."
    return None


def _output(facts: Facts) -> list[str]:
    """How much the script prints, beside the time its logging takes."""
    out = facts.output
    if out is None or not out.total_bytes or not facts.run_s:
        return []
    parts = [f"{fmt.size(out.total_bytes)} printed"]
    if out.kept_lines and out.kept_bytes:
        count = out.kept_lines * out.total_bytes / out.kept_bytes
        parts.append(f"{count:,.0f} {'line' if count == 1 else 'lines'}")
        if count / facts.run_s >= MIN_LINES_S:
            parts.append(f"{fmt.number(count / facts.run_s)} a second")
    return [" · ".join(parts)]
