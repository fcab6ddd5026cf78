"""Unified diffs that ``patch -p1`` and ``git apply`` take."""

from __future__ import annotations

import difflib


def unified(before: str, after: str, name: str) -> str:
    """The difference of two texts, with line ends as they are.

    Args:
        before: The text as it is.
        after: The text as it would be.
        name: The file as the diff calls it, relative to where the diff is applied.

    Returns:
        An empty string where there is no difference.
    """
    # A name with a space ends at a tab, as in git's and GNU diff's own.
    end = "\t\n" if " " in name else "\n"
    found = difflib.unified_diff(_lines(before), _lines(after))
    lines = []
    for number, line in enumerate(found):
        if number < 2:
            mark, side = ("---", "a") if number == 0 else ("+++", "b")
            lines.append(f"{mark} {side}/{name}{end}")
        elif line.endswith("\n"):
            lines.append(line)
        else:
            lines.append(f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Lines as patch sees them: only a line feed ends one."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
