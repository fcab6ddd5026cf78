"""The words of the help. Pure.

A page is a sequence of lines, each a label and a text that wraps beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gputop_train.tui.paint import Glyphs, plain


class Line(NamedTuple):
    """A label with its text; without a label the text is a heading or a paragraph."""

    label: str
    text: str
    style: str = ""


KEYS = (
    Line("q, Ctrl-C", "leave: detach (training goes on), stop the script, or stay"),
    Line("t", "the settings the run really has: what is advised, and what the next run is to have"),
    Line("r", "run the script again with what was chosen, once this run has ended or is stopped"),
    Line(
        "p",
        "prove it: a trial runs the script a few dozen steps at a time, as it is and changed, in "
        "turns, and changes no file",
    ),
    Line("c", "side by side with another run, and where the difference came from"),
    Line("space", "freeze the view; measuring goes on. In a replay: play and pause"),
    Line("+  -", "a longer or a shorter time window"),
    Line("e", "the evidence behind the verdict, and what was ruled out"),
    Line("y", "copy the advice to the clipboard and to advice.txt in the run's directory"),
    Line(
        "s", "save the screen as an SVG picture in the run's directory; of a recording, right here"
    ),
    Line("tab", "go to the log; arrows and Page Up scroll it, End follows it again"),
    Line("left  right", "replay: ten seconds back or forth"),
    Line("home  end", "replay: to the beginning, to the end"),
    Line("<  >", "replay: slower or faster"),
    Line("ctrl+p", "commands and colour themes"),
)

READING = (
    Line(
        "chart",
        "how busy the device was, from 0 to 100%. Solid is the mean of a column, {band} reaches up "
        "to its largest sample. The mean and the shape are of the time from the first step to the "
        "last",
    ),
    Line(
        "lanes",
        "where the training thread's time went, on the same time axis. Blue lanes are work, warm "
        "ones are waits; the height is the share of that moment",
    ),
    Line(
        "step",
        "the mean step of the window, cut into its parts; p50 and p95 are the median and the 95th "
        "percentile of the newest steps, in ms",
    ),
    Line("{save} {evaluation}", "a checkpoint, an evaluation"),
    Line("blank", "not measured, which is never shown as zero"),
)

CLOSE = Line("", "Esc closes this.", "italic")


def help_page(glyphs: Glyphs) -> list[Line]:
    """Keys and how to read the screen."""
    names = {"band": glyphs.band, "save": glyphs.save, "evaluation": glyphs.evaluation}
    filled = [Line(line.label.format(**names), line.text.format(**names)) for line in READING]
    heads = [Line("", "Keys", "bold"), Line("", "How to read this", "bold")]
    return [heads[0], *KEYS, Line("", ""), heads[1], *filled, Line("", ""), CLOSE]


def laid_out(page: Sequence[Line], glyphs: Glyphs) -> RenderableType:
    """A page as Rich sees it: texts wrap beside their labels, in the alphabet in use."""
    width = max((len(line.label) for line in page), default=0) + 2
    parts: list[RenderableType] = []
    previous = ""
    for line in page:
        text = Text(plain(line.text, glyphs), line.style)
        if not line.label:
            parts.append(text)
            previous = ""
            continue
        grid = Table.grid(padding=0)
        grid.add_column(width=width, no_wrap=True)
        grid.add_column(ratio=1)
        label = "" if line.label == previous else plain(line.label, glyphs)
        grid.add_row(Text(label, "bold"), text)
        parts.append(grid)
        previous = line.label
    return Group(*parts)
