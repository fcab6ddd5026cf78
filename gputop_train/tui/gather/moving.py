"""Where lines of a file stand since it was edited, told from the code recorded of them. Pure.

A person reads what a line costs and edits the file while it trains. What stands where it stood, or
moved by as much as the lines before it, is found near there; what moved otherwise is found only if
its code occurs once. Anything else counts as lost: a number at a wrong line is worse than none.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

#: A recorded line is looked for this many lines around where it should be.
NEAR = 3
#: So much of its code, blanks left out: the rest may stand further below, or was cut.
TOLD = 40
#: Shorter code occurs by chance, so that it proves nothing far from its place.
TELLING = 8
_BLANKS = re.compile(r"\s+")


def squeezed(lines: Iterable[str]) -> tuple[str, ...]:
    """Lines without their blanks, for `located`."""
    return tuple(_BLANKS.sub("", line) for line in lines)


def located(lines: Sequence[str], recorded: Sequence[tuple[int, str]]) -> dict[int, int | None]:
    """Where recorded lines stand now.

    Args:
        lines: The file's, `squeezed`.
        recorded: Number and code of each, by number.

    Returns:
        Number in the run -> number now, ``None`` = lost. Their order is kept.
    """
    found: dict[int, int | None] = {}
    shift, last = 0, 0
    for number, code in recorded:
        wanted = _BLANKS.sub("", code)[:TOLD]
        now = _near(lines, wanted, number + shift, last) or _only(lines, wanted, last)
        found[number] = now
        if now is not None:
            shift, last = now - number, now
    return found


def _near(lines: Sequence[str], wanted: str, expected: int, last: int) -> int | None:
    around = sorted(range(expected - NEAR, expected + NEAR + 1), key=lambda n: abs(n - expected))
    return next((n for n in around if n > last and _begins(lines, wanted, n)), None)


def _only(lines: Sequence[str], wanted: str, last: int) -> int | None:
    if len(wanted) < TELLING:
        return None
    places = [n for n, line in enumerate(lines, 1) if wanted in line]
    return places[0] if len(places) == 1 and places[0] > last else None


def _begins(lines: Sequence[str], wanted: str, number: int) -> bool:
    """Whether the code begins at a line; it may end below."""
    if not 1 <= number <= len(lines):
        return False
    here = lines[number - 1]
    at = "".join(lines[number - 1 : number + NEAR]).find(wanted)
    return 0 <= at < max(1, len(here))


def shifted(number: int, found: Mapping[int, int | None]) -> int | None:
    """Where a line stands of which no code was recorded: with those around it, if they agree."""
    anchors = [(was, now) for was, now in sorted(found.items()) if now is not None]
    at = bisect_left(anchors, (number, 0))
    around = anchors[max(0, at - 1) : at + 1]
    shifts = {now - was for was, now in around}
    if not around:
        return number
    return number + shifts.pop() if len(shifts) == 1 else None
