"""The files a plan opens, and changes made in them one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputop_train.edits import changes, files, loaders
from gputop_train.edits.errors import EditError
from gputop_train.edits.parsing import parse
from gputop_train.edits.splice import Splice, apply
from gputop_train.edits.syntax import Source
from gputop_train.model import Loader


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


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one file: its text before and after, a byte-order mark included."""

    path: Path
    before: str
    after: str


@dataclass(slots=True)
class File:
    """A file with what was changed in it so far, and how that moved its lines.

    Attributes:
        late: Whether ``apply`` changed it after the run, so that recorded lines may have moved.
    """

    original: files.Original
    text: str
    late: bool = False
    moved: list[list[tuple[int, int]]] = field(default_factory=list)

    def shown(self, text: str) -> str:
        """A text of this file as a diff must hold it: git takes the mark for a part of line 1."""
        return ("\ufeff" if self.original.mark else "") + text

    def line(self, recorded: int) -> int:
        """Where a line of the original stands now."""
        now = recorded
        for batch in self.moved:
            now += sum(delta for line, delta in batch if line < now)
        return now

    def change(self, splices: list[Splice], source: Source) -> None:
        """Make splices of ``source``, which is this text parsed.

        Raises:
            EditError: The result would not be Python; nothing is changed then.
        """
        after = apply(source, splices)
        batch = []
        for s in splices:
            delta = s.text.count("\n") - source.text.count("\n", s.start, s.end)
            # What is put at the very start of a line stands before it.
            at = source.line_of(s.start)
            batch.append((at - (source.line_start(at) == s.start), delta))
        self.moved.append(batch)
        self.text = after


class Desk:
    """Files opened for a plan; each is read and checked once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._files: dict[Path, File | EditError] = {}
        #: What changes so far make of ``num_workers``, by the loader's place.
        self.workers: dict[tuple[str, int], int] = {}

    def files(self) -> list[File]:
        """Those that could be opened."""
        return [f for f in self._files.values() if isinstance(f, File)]

    def open(self, name: str) -> File:
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

    def _read(self, path: Path) -> File:
        original = files.read(path)
        started = self.run.started_ns
        late = started is None or original.mtime_ns > started
        if late and original.digest not in self.run.ours:
            raise EditError(f"{path.name} was changed after this run began: run it again first.")
        return File(original, original.text, late)


def change_loader(
    desk: Desk, places: Sequence[Mapping[str, Any]], at: str, settings: Mapping[str, Any]
) -> Change:
    """Give the loader that a setting is for these keywords.

    Args:
        desk: The files.
        places: Of the finding.
        at: ``file:line`` where the setting names its loader; else empty.
        settings: Keyword to value.

    Raises:
        EditError: It cannot be told which loader, or the change is not local.
    """
    loader = _loader(desk.run, places, at)
    file = desk.open(loader.file)
    line = _recorded(file, loader.line, loader.call)
    place, command = (loader.file, loader.line), desk.run.command
    # A run under --set tells what was set, not what the script says.
    told = None if "num_workers" in loader.override else loader.num_workers
    workers = desk.workers.get(place, told)
    made = _made(
        file,
        lambda source: loaders.change(source, file.line(line), settings, command, workers=workers),
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


def at_line(
    desk: Desk, place: Mapping[str, Any], change: Callable[[Source, int], list[Splice]]
) -> Change:
    """A change at a recorded line."""
    file = desk.open(place["file"])
    line = _recorded(file, place["line"], place["what"])
    return _made(file, lambda source: change(source, file.line(line)))


def search(
    desk: Desk,
    places: Sequence[Mapping[str, Any]],
    change: Callable[[Source, int | None], changes.Change],
) -> Change:
    """A change in the one file that has a place for it: those of the finding, else of the run.

    Raises:
        EditError: None has, or several do.
    """
    run = desk.run
    lines = {p["file"]: p["line"] for p in reversed(places)}
    names = dict.fromkeys([*lines, *([run.script] if run.script else [])])
    names |= dict.fromkeys(x.file for x in run.loaders if x.file)
    fit: list[tuple[File, list[Splice], Source]] = []
    problems: list[EditError] = []
    seen: set[Path] = set()
    for name in names:
        try:
            file = desk.open(name)
            if file.original.path in seen:
                continue
            seen.add(file.original.path)
            source = parse(file.text)
            line = file.line(lines[name]) if name in lines and not file.late else None
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
    return Change(file.original.path, file.shown(before), file.shown(file.text))


def _made(file: File, change: Callable[[Source], list[Splice]]) -> Change:
    before, source = file.text, parse(file.text)
    file.change(change(source), source)
    return Change(file.original.path, file.shown(before), file.shown(file.text))


def _recorded(file: File, line: int, recorded: str | None) -> int:
    """The line of a file as it was read that holds what was recorded at a line of the run's.

    Raises:
        EditError: None does; or, where ``apply`` may have moved lines, several do.
    """
    name = file.original.path.name
    if re.fullmatch(r"\w+|<\w+>", recorded or ""):
        # The name of a function: its text was not at hand, and the change looks for itself.
        if file.late:
            raise EditError(f"{name} was changed since, line {line} may have moved: run it again.")
        return line
    wanted = _bare((recorded or "").removesuffix("...)"))
    lines = file.original.text.split("\n")
    asked = range(1, len(lines) + 1) if file.late else range(max(1, line), line + 1)
    found = [n for n in asked if wanted and _begins(lines, n, wanted)]
    if len(found) > 1:
        raise EditError(
            f"{name} was changed since, and holds `{recorded}` in {len(found)} places: run again."
        )
    if not found:
        raise EditError(f"Line {line} of {name} no longer holds `{recorded}`: run it again.")
    return found[0]


def _begins(lines: list[str], line: int, wanted: str) -> bool:
    """Whether a text begins at a line, and goes on below it where it is longer."""
    first = _bare("".join(lines[line - 1 : line]))
    at = (first + _bare("".join(lines[line : line + 12]))).find(wanted)
    return 0 <= at < len(first)


def _bare(text: str) -> str:
    return re.sub(r"[\s,]", "", text)
