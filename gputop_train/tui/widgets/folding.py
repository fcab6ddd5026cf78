"""Which lines a listing shows: those with costs, some around them, folds in between. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gputop_train.tui.views.lines import File, Line

#: Lines shown around one with costs.
AROUND = 2
#: A stretch is folded from this length on: the fold takes a row itself.
FOLDED_FROM = 3
#: So far up the head of the function around a line is looked for.
HEAD_LINES = 400


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a line of the file, a head without a number, or a fold of ``folded`` lines."""

    number: int = 0
    text: str = ""
    line: Line | None = None
    folded: int = 0


def entries(file: File, *, unfolded: bool) -> list[Entry]:
    """The rows of a file, top to bottom."""
    if not file.source.lines:
        return _recorded(file)
    known = {line.number: line for line in file.lines if line.number > 0}
    total = len(file.source.lines)

    def entry(number: int) -> Entry:
        return Entry(number, file.source.lines[number - 1], known.get(number))

    lost = [Entry(line.number, f"    {line.text}", line) for line in file.lines if line.number < 0]
    if lost:
        lost.insert(0, Entry(text="not found any more, with their numbers in the run:"))
    if unfolded:
        return [*map(entry, range(1, total + 1)), *lost]
    kept = {
        near
        for number in known
        for near in range(number - AROUND, number + AROUND + 1)
        if 1 <= near <= total
    }
    kept |= {head for number in known if (head := _head(file.source.lines, number))}
    return [*_folded(sorted(kept), total, entry), *lost]


def _folded(kept: Sequence[int], total: int, entry: Callable[[int], Entry]) -> list[Entry]:
    """The kept lines with what lies between them, short stretches whole."""
    rows: list[Entry] = []
    for before, number in pairwise((0, *kept, total + 1)):
        between = number - before - 1
        if 0 < between < FOLDED_FROM:
            rows += [entry(n) for n in range(before + 1, number)]
        elif between:
            rows.append(Entry(before + 1, folded=between))
        if number <= total:
            rows.append(entry(number))
    return rows


def _recorded(file: File) -> list[Entry]:
    """The lines alone, under the functions they are in: there is no text around them."""
    rows: list[Entry] = []
    func = ""
    for line in file.lines:
        if line.func != func:
            func = line.func
            rows.append(Entry(text=f"in {func}" if func else ""))
        rows.append(Entry(line.number, f"    {line.text}", line))
    return rows


def _head(lines: Sequence[str], number: int) -> int | None:
    """The line that begins the function around a line."""
    if number > len(lines):
        return None
    depth = depth_of(lines[number - 1])
    for above in range(number - 1, max(0, number - HEAD_LINES), -1):
        text = lines[above - 1]
        words = text.split(maxsplit=2)
        if words and (here := depth_of(text)) < depth:
            if words[0] in ("def", "class") or words[:2] == ["async", "def"]:
                return above
            depth = here
    return None


def depth_of(text: str) -> int:
    """Columns a line is indented by."""
    return len(text) - len(text.lstrip())
