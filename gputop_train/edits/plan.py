"""From a report's advice to changes of files, one after the other, each with a diff or why not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.edits import changes, diff, files, loaders
from gputop_train.edits.errors import EditError
from gputop_train.edits.parsing import parse
from gputop_train.edits.splice import Splice, apply
from gputop_train.edits.syntax import Source
from gputop_train.model import Loader

#: Why some advice is no diff, by the diagnosis that gives it.
_NOT_LOCAL: Mapping[str, str] = {
    "host-sync-stall": "what reads the value decides how it can stay on the GPU",
    "checkpoint-stall": "how often it saves is decided by your loop's own condition",
    "eval-stall": "how often it evaluates is decided by your loop's own condition",
    "logging-stall": "how often it logs is decided by your loop's own condition",
}
_ELSEWHERE = "it is more than a change of one line of your code"


@dataclass(frozen=True, slots=True)
class Proposal:
    """One piece of advice.

    Attributes:
        number: From 1, over the verdict and ``also``; what ``apply --only`` takes.
        finding: The diagnosis it comes from.
        text: The advice.
        diff: Relative to the proposals before it; empty where there is none.
        why_not: Why there is none, or what of it is left to do by hand; ``None`` = all is done.
        files: Names of the files it changes.
    """

    number: int
    finding: str
    text: str
    diff: str = ""
    why_not: str | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edited:
    """A file with all the proposals made."""

    original: files.Original
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the advice comes to.

    Attributes:
        base: The directory the diffs are relative to.
    """

    proposals: tuple[Proposal, ...]
    edited: tuple[Edited, ...]
    base: Path


@dataclass(frozen=True, slots=True)
class Run:
    """What a plan needs to know of a run besides its report.

    Attributes:
        cwd: Where it was started; relative paths are relative to it.
        script: The file that was launched, where it was one.
        started_ns: Wall time of the launch: what changed later is not what ran.
        ours: Digests of files as ``apply`` left them for this run: changed later, but by us.
    """

    cwd: str | None
    script: str | None
    command: Sequence[str]
    started_ns: int | None
    loaders: Sequence[Loader]
    ours: Collection[str] = ()


def make(report: Mapping[str, Any], run: Run, only: int | None = None) -> Plan:
    """Turn a report's advice into changes.

    Args:
        report: The report of ``report/json.py``.
        run: The run it is of.
        only: Number of the one piece of advice to take; ``None`` = all that can be.
    """
    desk = _Desk(run)
    made: list[tuple[Proposal, list[_Change]]] = []
    number = 0
    for finding in (report.get("verdict"), *(report.get("also") or ())):
        for advice in finding["advice"] if finding else ():
            number += 1
            if only in (None, number):
                made.append(_proposal(desk, report, finding, advice, number))
    base = _base(run.cwd, [c.path for _, group in made for c in group])
    return Plan(
        tuple(_with_diff(proposal, group, base) for proposal, group in made),
        tuple(Edited(f.original, f.text) for f in desk.files() if f.text != f.original.text),
        base,
    )


@dataclass(frozen=True, slots=True)
class _Change:
    path: Path
    before: str
    after: str


@dataclass(slots=True)
class _File:
    """A file with what was changed in it so far, and how that moved its lines."""

    original: files.Original
    text: str
    moved: list[list[tuple[int, int]]] = field(default_factory=list)

    def line(self, recorded: int) -> int:
        """Where a line of the original stands now."""
        now = recorded
        for batch in self.moved:
            now += sum(delta for line, delta in batch if line < now)
        return now

    def change(self, splices: list[Splice], source: Source) -> None:
        after = apply(source, splices)
        batch = []
        for s in splices:
            delta = s.text.count("\n") - source.text.count("\n", s.start, s.end)
            # What is put at the very start of a line stands before it.
            at = source.line_of(s.start)
            batch.append((at - (source.line_start(at) == s.start), delta))
        self.moved.append(batch)
        self.text = after


class _Desk:
    """Files opened for a plan; each is read and checked once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._files: dict[Path, _File | EditError] = {}
        #: What changes so far make of ``num_workers``, by the loader's place.
        self.workers: dict[tuple[str, int], int] = {}

    def files(self) -> list[_File]:
        """Those that could be opened."""
        return [f for f in self._files.values() if isinstance(f, _File)]

    def open(self, name: str) -> _File:
        """A file by its recorded name.

        Raises:
            EditError: It may not be changed.
        """
        path = files.locate(name, self.run.cwd)
        if path not in self._files:
            try:
                self._files[path] = self._read(path)
            except EditError as problem:
                self._files[path] = problem
        found = self._files[path]
        if isinstance(found, EditError):
            raise found
        return found

    def _read(self, path: Path) -> _File:
        original = files.read(path)
        started = self.run.started_ns
        late = started is None or original.mtime_ns > started
        if late and original.digest not in self.run.ours:
            raise EditError(f"{path.name} was changed after this run began: run it again first.")
        return _File(original, original.text)


def _proposal(
    desk: _Desk, report: Mapping[str, Any], finding: Mapping[str, Any], advice: Any, number: int
) -> tuple[Proposal, list[_Change]]:
    named = finding["refined"] or finding["id"]
    made: list[_Change] = []
    problems: list[str] = []
    asked = False
    for edit in _edits(desk, report, finding, advice):
        asked = True
        try:
            made.append(edit())
        except EditError as problem:
            if str(problem) not in problems:
                problems.append(str(problem))
    if not asked:
        reason = _NOT_LOCAL.get(named) or _NOT_LOCAL.get(finding["id"]) or _ELSEWHERE
        problems.append(f"No diff: {reason}.")
    proposal = Proposal(
        number,
        named,
        advice["text"],
        why_not=" ".join(problems) or None,
        files=tuple(dict.fromkeys(c.path.name for c in made)),
    )
    return proposal, made


Edit = Callable[[], _Change]


def _edits(
    desk: _Desk, report: Mapping[str, Any], finding: Mapping[str, Any], advice: Any
) -> Iterator[Edit]:
    """The changes a piece of advice asks for: by its setting, and by the code it spells out."""
    named = {finding["id"], finding["refined"]}
    text = advice["text"]
    places = finding["where"] or ()
    wanted = _loader_settings(advice["setting"] or {})
    for at, settings in wanted.items():
        yield lambda at=at, settings=settings: _change_loader(desk, places, at, settings)  # type: ignore[misc]
    if "non_blocking=True" in text:
        for place in places:
            if re.search(r"\.(?:to|cuda)\(", place["what"] or ""):
                yield lambda place=place: _at(desk, place, changes.non_blocking)  # type: ignore[misc]
    torch = report["run"].get("torch")
    for flag in ("fused", "foreach"):
        if f"{flag}=True" in text:
            yield lambda flag=flag: _search(  # type: ignore[misc]
                desk, places, lambda s, line: changes.optimizer_flag(s, flag, torch, line)
            )
            break
    if "set_float32_matmul_precision" in text:
        yield lambda: _search(desk, places, lambda s, line: changes.matmul_precision(s))
    if "dynamic=True" in text:
        yield lambda: _search(desk, places, changes.dynamic)
    if "anomaly-mode" in named and "detect_anomaly" in text:
        yield lambda: _search(desk, places, changes.without_anomaly)
    if "empty_cache" in text:
        for place in places:
            if "empty_cache" in (place["what"] or ""):
                yield lambda place=place: _at(desk, place, changes.without_empty_cache)  # type: ignore[misc]
    if "memory-leak" in named and "detach" in text:
        yield lambda: _search(desk, places, lambda s, line: changes.detached(s))


def _loader_settings(setting: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Loader keywords by the place they name (``num_workers@train.py:41``); empty = none."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in setting.items():
        name, _, at = key.partition("@")
        if name in loaders.KEYS:
            found.setdefault(at, {})[name] = value
    return found


def _change_loader(
    desk: _Desk, places: Sequence[Mapping[str, Any]], at: str, settings: Mapping[str, Any]
) -> _Change:
    loader = _loader(desk.run, places, at)
    file = desk.open(loader.file)
    _same_code(file.original.text, loader.file, loader.line, loader.call)
    place, command = (loader.file, loader.line), desk.run.command
    # A run under --set tells what was set, not what the script says.
    told = None if "num_workers" in loader.override else loader.num_workers
    workers = desk.workers.get(place, told)
    made = _made(
        file,
        lambda source: loaders.change(
            source, file.line(loader.line), settings, command, workers=workers
        ),
    )
    if "num_workers" in settings:
        desk.workers[place] = settings["num_workers"]
    return made


def _loader(run: Run, places: Sequence[Mapping[str, Any]], at: str) -> Loader:
    """The loader a setting is for.

    Raises:
        EditError: It cannot be told.
    """
    known = {(x.file, x.line): x for x in run.loaders if x.file}
    if at:
        found = [x for (f, n), x in known.items() if at in (f"{f}:{n}", f"{Path(f).name}:{n}")]
    else:
        found = [known[key] for p in places if (key := (p["file"], p["line"])) in known][:1]
        found = found or [x for x in known.values() if x.feeds_training]
    if len(found) != 1:
        raise EditError(
            "No DataLoader of this run is known." if not found else "Several loaders feed training."
        )
    return found[0]


def _at(
    desk: _Desk, place: Mapping[str, Any], change: Callable[[Source, int], list[Splice]]
) -> _Change:
    """A change at a recorded line."""
    file = desk.open(place["file"])
    _same_code(file.original.text, place["file"], place["line"], place["what"])
    return _made(file, lambda source: change(source, file.line(place["line"])))


def _search(
    desk: _Desk,
    places: Sequence[Mapping[str, Any]],
    change: Callable[[Source, int | None], changes.Change],
) -> _Change:
    """A change in the one file that has a place for it: those of the finding, else of the run.

    Raises:
        EditError: None has, or several do.
    """
    run = desk.run
    lines = {p["file"]: p["line"] for p in reversed(places)}
    names = dict.fromkeys([*lines, *([run.script] if run.script else [])])
    names |= dict.fromkeys(x.file for x in run.loaders if x.file)
    fit: list[tuple[_File, list[Splice], Source]] = []
    problems: list[EditError] = []
    seen: set[Path] = set()
    for name in names:
        try:
            file = desk.open(name)
            if file.original.path in seen:
                continue
            seen.add(file.original.path)
            source = parse(file.text)
            line = file.line(lines[name]) if name in lines else None
            fit.append((file, change(source, line)[1], source))
        except EditError as problem:
            problems.append(problem)
    if len(fit) > 1:
        fitting = " and ".join(f.original.path.name for f, _, _ in fit)
        raise EditError(f"{fitting} both have a place for it: change the right one by hand.")
    if not fit:
        raise problems[0] if problems else EditError("No file of your own is known of this run.")
    file, splices, source = fit[0]
    before = file.text
    file.change(splices, source)
    return _Change(file.original.path, before, file.text)


def _made(file: _File, change: Callable[[Source], list[Splice]]) -> _Change:
    before, source = file.text, parse(file.text)
    file.change(change(source), source)
    return _Change(file.original.path, before, file.text)


def _same_code(text: str, name: str, line: int, recorded: str | None) -> None:
    """See to it that a line still holds what was recorded there.

    Raises:
        EditError: It does not.
    """
    if re.fullmatch(r"\w+|<\w+>", recorded or ""):
        return  # the name of a function: its text was not at hand, and the change looks for itself
    wanted = _bare((recorded or "").removesuffix("...)"))
    lines = text.split("\n")[line - 1 : line + 12] if line >= 1 else []
    if not wanted or not lines or wanted not in _bare("".join(lines)):
        raise EditError(
            f"Line {line} of {Path(name).name} no longer holds `{recorded}`: run it again."
        )


def _bare(text: str) -> str:
    return re.sub(r"[\s,]", "", text)


def _base(cwd: str | None, paths: Sequence[Path]) -> Path:
    """Where the diffs are applied: the run's directory, or one above all the files."""
    home = Path(cwd) if cwd is not None else None
    if home is not None and all(p.is_relative_to(home) for p in paths):
        return home
    return Path(os.path.commonpath([p.parent for p in paths])) if paths else Path("/")


def _with_diff(proposal: Proposal, group: Sequence[_Change], base: Path) -> Proposal:
    text = "".join(
        diff.unified(c.before, c.after, c.path.relative_to(base).as_posix()) for c in group
    )
    return Proposal(
        proposal.number, proposal.finding, proposal.text, text, proposal.why_not, proposal.files
    )
