"""What a click means: the key that is named where it went. Pure.

Every key is named somewhere with its meaning, in the ink ``key`` or as a page's name; a click there
is that key. Nothing can be done by mouse alone.
"""

from __future__ import annotations

import re
from itertools import accumulate

from rich.cells import cell_len

from gputop_train.tui.paint import Row

#: Names as they are shown and as Textual has them.
_NAMES = {
    "?": "question_mark",
    "/": "slash",
    "+": "plus",
    "-": "minus",
    "esc": "escape",
    **{name: name for name in ("space", "enter", "tab", "home", "end", "backspace", "ctrl+p")},
}


def key_at(row: Row, column: int) -> str | None:
    """The key whose name, or whose meaning right behind it, is at a column.

    Args:
        row: As painted.
        column: Cells from the row's left edge.

    Returns:
        As Textual names it; ``None`` where there is no key, or one of several.
    """
    ends = list(accumulate(cell_len(text) for text, _ in row))
    place = next((n for n, end in enumerate(ends) if column < end), None)
    if place is None:
        return None
    text, ink = row[place]
    if ink != "key" and place and row[place - 1][1] == "key":
        text, ink = row[place - 1]
    return _named(text.strip()) if ink == "key" else None


def page_at(row: Row, column: int) -> str | None:
    """The page's key whose name is at a column of `tabs.tabs_row`."""
    text = "".join(part for part, _ in row)
    for found in re.finditer(r"[1-9](?: [a-z]+)?", text):
        if found.start() <= column < found.end():
            return found[0][0]
    return None


def _named(text: str) -> str | None:
    bracketed = re.match(r"\[(.+?)\]", text)
    name = bracketed[1] if bracketed else text
    if len(name) == 1 and name.isalnum():
        return name
    return _NAMES.get(name)
