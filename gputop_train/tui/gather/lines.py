"""What the lines page shows, from the store: the sums of ``report --lines``, line by line.

Hooks time reads, copies, saves and logging to the call; where no hook reaches, the stack sampler
says which part of the wall time a line took. What a loader made training wait and what a whole
evaluation took are shown where the person wrote them and counted where the time went.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from gputop_train.model import Finding, Interval, Loader, Site
from gputop_train.report import lines as by_line
from gputop_train.tui.gather.asked import Asked
from gputop_train.tui.gather.code import Sources, in_folder, judged, place_of
from gputop_train.tui.gather.diagnoses import latest
from gputop_train.tui.views.lines import (
    EVALUATION,
    HOST_CODE,
    LOADER,
    WORKERS,
    File,
    Line,
    LinesView,
    Mark,
    Part,
    Source,
)

#: Kinds of sites whose calls are timed, and the label of that time.
_TIMED = {"sync": "sync", "h2d": "h2d", "save": "checkpoint", "logging": "logging"}
#: The sampler's word for Python of the person's own.
_HOST_LABEL = "host_compute"
#: Above this part of a copy's bytes, or below its complement, all of them count.
_ALL = 0.99
NS_MS = 1e6

Place = tuple[str, int]


@dataclass(slots=True)
class Found:
    """What was met at one line, while it is collected."""

    parts: list[Part] = field(default_factory=list)
    text: str = ""
    func: str = ""
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Span:
    """What all means are of: steps, and the wall time from the first to the newest."""

    steps: int
    wall_ns: int

    def ms(self, ns: float) -> float:
        """Of a step."""
        return ns / NS_MS / self.steps

    def share(self, ns: float) -> float:
        """Of the wall time."""
        return min(1.0, ns / self.wall_ns)


def parts(asked: Asked) -> dict[str, Any]:
    """The page's field of the `Snapshot`."""
    return {"lines": gather(asked, _SOURCES)}


def gather(asked: Asked, sources: Sources) -> LinesView:
    """The lines of one rank, with what they cost up to the moment shown.

    Raises:
        StoreError: The store cannot be read.
    """
    reader, rank = asked.reader, asked.rank
    states = reader.probe_states()
    diagnosis = latest(reader)
    verdict = diagnosis.verdict if diagnosis is not None else None
    if not states:
        return LinesView(why="Nothing is known of lines: no probe of this run has told anything.")
    span = None if rank is None else _span(asked, rank)
    if rank is None or span is None:
        return LinesView(why="No training step was seen yet: lines cost from the first step on.")
    sites = reader.sites(rank)
    told = "seen" in reader.codecs.layout.get("Site", ())
    found: defaultdict[Place, Found] = defaultdict(Found)
    add_sites(found, sites, span, counted=told)
    evaluations = [i for i in reader.intervals(label="eval") if i.rank == rank]
    add_evaluations(found, sites, evaluations, span)
    add_loaders(found, [ld for ld in reader.loaders(rank) if ld.batches], span)
    also = diagnosis.also if diagnosis is not None else ()
    add_marks(found, verdict, also)
    ranks = len(reader.ranks())
    first = verdict.where[0] if verdict is not None and verdict.where else None
    files = _files(found, asked.run, sources)
    return LinesView(
        files=files,
        steps=span.steps,
        wall_s=span.wall_ns / 1e9,
        rank=f"rank {rank} of {ranks}" if ranks > 1 else "",
        verdict=_now(files, first.file, first.line) if first is not None else None,
        notes=_notes(states.get(rank) or {}, sites),
    )


def _span(asked: Asked, rank: int) -> Span | None:
    first = asked.reader.first_rollups(1, rank)
    last = asked.reader.steps_tail(1, rank=rank)
    steps = asked.reader.steps_counted(rank)
    if not first or not last or not steps or last[-1].t1_ns <= first[0].t0_ns:
        return None
    return Span(steps, last[-1].t1_ns - first[0].t0_ns)


def add_sites(
    found: defaultdict[Place, Found], sites: Sequence[Site], span: Span, *, counted: bool
) -> None:
    """Costs from the hooks, and from the sampler where they have none.

    Args:
        found: Added to.
        sites: Of one rank.
        span: What means are of.
        counted: Whether fast calls were drawn; older releases left them out.
    """
    timed: dict[tuple[Place, str], Part] = {}
    for kind, label in _TIMED.items():
        for site in by_line.merged(s for s in sites if s.kind == kind and s.count):
            part = _timed(site, label, span, counted=counted)
            timed[(site.file, site.line), label] = part
            _say(found, site)
    samples = [s for s in sites if s.kind == "sample"]
    total = sum(s.count for s in samples)
    for label in sorted({s.label for s in samples if s.label}):
        for site in by_line.merged(s for s in samples if s.label == label):
            share = site.count / total
            if site.count < by_line.MIN_SAMPLES or share < by_line.MIN_SHARE:
                continue
            place = (site.file, site.line)
            kind = HOST_CODE if label == _HOST_LABEL else label
            ns = share * span.wall_ns
            seen = Part(kind, span.ms(ns), share, estimated=True, samples=site.count)
            known = timed.get((place, kind))
            # A measured time stands; a lower bound gives way to an estimate above it.
            if known is None:
                timed[place, kind] = seen
            elif known.at_least and (known.share or 0.0) < share:
                # Of the calls it met, what one moved still holds; how many there were does not.
                timed[place, kind] = replace(
                    seen, bytes_each=known.bytes_each, memory=known.memory, gb_per_s=known.gb_per_s
                )
            _say(found, site)
    for (place, _), part in timed.items():
        found[place].parts.append(part)


def _timed(site: Site, label: str, span: Span, *, counted: bool) -> Part:
    """What the hooks know of a line."""
    fast = site.kind in ("sync", "h2d")
    drawn = site.seen < site.count if site.seen is not None else fast and counted
    idle = by_line.idle_ns_a_call(site) if site.kind == "sync" else None
    rate = site.pair_bytes / site.pair_ns if site.pair_ns and site.pair_bytes else None
    return Part(
        label,
        span.ms(site.total_ns),
        span.share(site.total_ns),
        estimated=drawn,
        at_least=fast and not counted,
        calls=site.count / span.steps,
        each_ms=site.total_ns / site.count / NS_MS,
        bytes_each=site.bytes / site.count if site.bytes else None,
        memory=_memory(site),
        gb_per_s=rate if site.kind == "h2d" else None,
        idle_ms=None if idle is None else span.ms(idle * site.count),
    )


def _memory(site: Site) -> str:
    if site.kind != "h2d" or site.unpinned_bytes is None or not site.bytes:
        return ""
    share = site.unpinned_bytes / site.bytes
    return "pinned" if share < 1 - _ALL else "pageable" if share > _ALL else "mixed"


def _say(found: defaultdict[Place, Found], site: Site) -> None:
    """Keep the code as recorded, the longest piece of it: samples catch parts of a line."""
    here = found[site.file, site.line]
    here.func = here.func or site.func
    if site.call != site.func and len(site.call) > len(here.text):
        here.text = site.call


def add_evaluations(
    found: defaultdict[Place, Found],
    sites: Sequence[Site],
    intervals: Sequence[Interval],
    span: Span,
) -> None:
    """Whole evaluations, at the line that began them."""
    by_id = {site.id: site for site in sites}
    spent: Counter[Place] = Counter()
    times: Counter[Place] = Counter()
    for interval in intervals:
        site = by_id.get(interval.site_id or 0)
        if site is not None:
            spent[site.file, site.line] += interval.t1_ns - interval.t0_ns
            times[site.file, site.line] += 1
            _say(found, site)
    for place, ns in spent.items():
        n = times[place]
        found[place].parts.append(
            Part(
                EVALUATION,
                span.ms(ns),
                span.share(ns),
                calls=n / span.steps,
                each_ms=ns / n / NS_MS,
            )
        )


def add_loaders(found: defaultdict[Place, Found], loaders: Iterable[Loader], span: Span) -> None:
    """What training waited for a loader where it was built; what an item takes where it is made."""
    waits: dict[Place, tuple[int, int]] = {}
    for loader in loaders:
        place = (loader.file, loader.line)
        ns, batches = waits.get(place, (0, 0))
        waits[place] = ns + loader.wait_ns, batches + loader.batches
        found[place].text = loader.call or found[place].text
        items = sum(row.items for row in loader.fetch)
        if loader.source is None or not items:
            continue
        made_ns = sum(row.fetch_ns - row.collate_ns for row in loader.fetch)
        here = found[loader.source.file, loader.source.line]
        here.func = here.func or loader.source.what
        here.parts.append(
            Part(WORKERS, made_ns / items / NS_MS, calls=items, workers=loader.num_workers)
        )
    for place, (ns, batches) in waits.items():
        found[place].parts.append(
            Part(
                LOADER,
                span.ms(ns),
                span.share(ns),
                calls=batches / span.steps,
                each_ms=ns / batches / NS_MS,
            )
        )


def add_marks(
    found: defaultdict[Place, Found], verdict: Finding | None, also: Iterable[Finding]
) -> None:
    """Where the diagnosis points; the verdict's mark goes before another's."""
    marks: list[tuple[Finding, Mark]] = [(finding, "also") for finding in also]
    if verdict is not None:
        marks.append((verdict, "verdict"))
    for finding, mark in marks:
        for where in finding.where:
            here = found[where.file, where.line]
            here.mark = mark
            here.text = here.text or where.what


def _files(
    found: Mapping[Place, Found], run: Mapping[str, Any], sources: Sources
) -> tuple[File, ...]:
    """By file, the costliest first, each with its text as it is now."""
    by_file: defaultdict[str, list[Line]] = defaultdict(list)
    for (file, number), here in found.items():
        if number > 0 and (here.parts or here.mark):
            by_file[file].append(line_of(number, here))
    shares = {
        file: min(1.0, sum(line.share or 0.0 for line in lines)) for file, lines in by_file.items()
    }
    names = _names(by_file)
    order = sorted(by_file, key=lambda file: (-shares[file], file))
    out = []
    for file in order:
        lines = sorted(by_file[file], key=lambda line: line.number)
        source, placed = _source(file, names[file], lines, run, sources)
        out.append(File(file, names[file], shares[file], placed, source))
    return tuple(out)


def _now(files: Sequence[File], file: str, number: int) -> Place | None:
    """Where a line of the run stands now."""
    lines = (line for one in files if one.path == file for line in one.lines)
    return next(((file, line.number) for line in lines if line.recorded == number), None)


def line_of(number: int, here: Found) -> Line:
    """One line, its kinds costliest first."""
    own = [part for part in here.parts if part.own]
    return Line(
        number,
        here.text,
        here.func,
        min(1.0, sum(part.share or 0.0 for part in own)) if own else None,
        sum(part.ms or 0.0 for part in own) if own else None,
        tuple(sorted(here.parts, key=lambda p: (not p.own, -(p.share or 0.0), p.kind))),
        here.mark,
    )


def _names(files: Iterable[str]) -> dict[str, str]:
    """Each file's own name, with its folder where two share it."""
    paths = {file: PurePath(file.replace("\\", "/")) for file in files}
    shared = Counter(path.name for path in paths.values())
    return {
        file: path.name if shared[path.name] == 1 else "/".join(path.parts[-2:])
        for file, path in paths.items()
    }


def _source(
    file: str, name: str, lines: Sequence[Line], run: Mapping[str, Any], sources: Sources
) -> tuple[Source, tuple[Line, ...]]:
    cwd, script, started = (run.get(key) for key in ("cwd", "script", "started_wall_ns"))
    place = place_of(file, cwd if isinstance(cwd, str) else None, str(script))
    if isinstance(place, str):
        return Source(note=place), tuple(lines)
    began = started if isinstance(started, int) else None
    found, placed = judged(name, sources.read(place), lines, began)
    other = None if found.lines or not isinstance(cwd, str) else in_folder(file, cwd)
    if other is None or not any(line.text for line in lines):
        return found, placed
    # Only what reads as recorded, line by line, is taken for the same file.
    same, _ = judged(name, sources.read(other), lines, None)
    if not same.lines or not same.same:
        return found, placed
    note = f"{name} is shown as it is in this folder: its lines read as recorded."
    return Source(same.lines, note), tuple(lines)


def _notes(state: Mapping[str, Any], sites: Sequence[Site]) -> tuple[str, ...]:
    """Why kinds without a line say nothing, where it is not that there were none."""
    seen = {site.kind for site in sites if site.count}
    missing: defaultdict[str, list[str]] = defaultdict(list)
    for kind in by_line.KINDS:
        why = None if kind.site in seen else by_line.not_measured(kind, state)
        if why is not None:
            missing[why].append(kind.title)
    return tuple(f"{' and '.join(titles).capitalize()}: {why}" for why, titles in missing.items())


#: Texts outlive a look: files are read again only when they changed.
_SOURCES = Sources(time.monotonic)
