"""The words of the help. Pure.

A page is a sequence of lines, each a label and a text that wraps beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


#: What each page is for; also what the palette of commands says of it.
PAGES: Mapping[str, str] = {
    "overview": "the verdict, the device, the steps, memory, loaders and the log at one glance",
    "steps": "every step with what set it apart, and how step times are spread",
    "lines": "your source with what each line costs",
    "memory": "what holds memory, how it grows, and the last out-of-memory error",
    "workers": "the loaders, their processes and their queues",
    "devices": "every GPU and the host, closely",
    "trials": "trials of this script, and what they proved",
    "findings": "every verdict of this run with its evidence, and what was ruled out",
    "log": "all that the script printed, to be searched",
}

#: Keys that work on every page.
KEYS = (
    Line("q, Ctrl-C", "leave: detach (training goes on), stop the script, or stay"),
    Line("1-9  tab", "the pages; Esc goes back to the overview"),
    Line("t", "the settings the run really has: what is advised, and what the next run is to have"),
    Line("r", "run the script again with what was chosen, once this run has ended or is stopped"),
    Line(
        "p",
        "prove it: a trial runs the script a few dozen steps at a time, as it is and changed, in "
        "turns, and changes no file",
    ),
    Line("c", "side by side with another run, and where the difference came from"),
    Line("e", "the evidence behind the verdict, and what was ruled out"),
    Line("g", "your source, at the line the verdict points at"),
    Line("space", "freeze the view; measuring goes on. In a replay: play and pause"),
    Line("+  -", "a longer or a shorter time window"),
    Line(
        "y",
        "copy what is in front, to the clipboard and to a file in the run's directory: the advice, "
        "a line, a finding, a command, a table",
    ),
    Line(
        "s", "save the screen as an SVG picture in the run's directory; of a recording, right here"
    ),
    Line("ctrl+z", "to the shell; fg comes back. The run goes on"),
    Line("ctrl+p", "all of this by name, and colour themes"),
)
REPLAY = (
    Line("left  right", "ten seconds back or forth"),
    Line("home  end", "to the beginning, to the end"),
    Line("<  >", "slower or faster"),
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
        "percentile of its steps, in ms",
    ),
    Line("{save} {evaluation}", "a checkpoint, an evaluation"),
    Line("blank", "not measured, which is never shown as zero"),
)

CLOSE = Line("", "Esc closes this.", "italic")


def help_page(
    glyphs: Glyphs,
    *,
    page: str = "overview",
    own: Sequence[tuple[str, str]] = (),
    pages: Sequence[tuple[str, str]] = (),
    without: Collection[str] = (),
    replay: bool = False,
) -> list[Line]:
    """Keys, pages, and how to read the screen.

    Args:
        glyphs: The alphabet.
        page: The page in front.
        own: Its own keys with their meanings.
        pages: Key and name of each page.
        without: Keys that do nothing here.
        replay: Whether a replay is shown.
    """
    names = {"band": glyphs.band, "save": glyphs.save, "evaluation": glyphs.evaluation}
    parts = [
        (f"On this page: {page}", [Line(*pair) for pair in own]),
        ("On every page", [line for line in KEYS if line.label not in without]),
        ("In a replay", list(REPLAY) if replay else []),
        ("Pages", [Line(f"{key} {name}", PAGES.get(name, "")) for key, name in pages[:9]]),
        (
            "How to read this",
            [Line(line.label.format(**names), line.text.format(**names)) for line in READING],
        ),
    ]
    lines: list[Line] = []
    for title, part in parts:
        if part:
            lines += [Line("", title, "bold"), *part, Line("", "")]
    return [*lines, CLOSE]


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
