"""The words of the help, of the evidence view and of the question on leaving. Pure.

A page is a sequence of lines, each a label and a text that wraps beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gputop_train.model import Abstention, Diagnosis, Finding
from gputop_train.tui.facts import evidence_text, without_exponents
from gputop_train.tui.paint import Glyphs, plain
from gputop_train.tui.text import percent
from gputop_train.tui.widgets.verdict import advice_texts, gain_text


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


def evidence_page(diagnosis: Diagnosis | None) -> list[Line]:
    """Everything a diagnosis rests on."""
    if diagnosis is None:
        return [Line("", "Nothing has been diagnosed yet."), Line("", ""), CLOSE]
    page = [Line("", diagnosis.note), Line("", "")] if diagnosis.note else []
    for finding in filter(None, (diagnosis.verdict, *diagnosis.also)):
        page += [*_finding(finding), Line("", "")]
    page += _list("Not judged: a signal is missing", diagnosis.abstained)
    page += _list("Ruled out", diagnosis.ruled_out)
    return [*(page or [Line("", "The diagnosis gave no details.")]), CLOSE]


def _finding(finding: Finding) -> list[Line]:
    name = f"{finding.id} / {finding.refined}" if finding.refined else finding.id
    lines = [
        Line("", name, "bold"),
        Line(
            "",
            f"{finding.severity}, confidence {finding.confidence}, "
            f"costs {percent(finding.lost_share)} of time",
        ),
        Line("what", without_exponents(finding.summary)),
    ]
    lines += [Line("why", evidence_text(item)) for item in finding.evidence]
    lines += [Line("where", f"{w.file}:{w.line}  {w.what}".rstrip()) for w in finding.where]
    if not finding.where and finding.where_missing:
        lines.append(Line("where", finding.where_missing))
    lines += [Line("do", text) for text in advice_texts(finding.advice)]
    if finding.gain is not None:
        lines.append(Line("gain", gain_text(finding.gain)))
    return lines


def _list(title: str, items: Iterable[Abstention]) -> list[Line]:
    lines = [Line("", f"{item.id}: {item.missing}") for item in items]
    return [Line("", title, "bold"), *lines, Line("", "")] if lines else []


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
