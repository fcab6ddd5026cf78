"""The words of the help and of the evidence view. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from rich.text import Text

from gputop_train.model import Abstention, Diagnosis, Finding
from gputop_train.tui.paint import Glyphs, plain
from gputop_train.tui.text import percent
from gputop_train.tui.widgets.verdict import advice_texts, evidence_text, gain_text

KEYS = (
    ("q, Ctrl-C", "leave: detach (training goes on), stop the script, or stay"),
    ("space", "freeze the view; measuring goes on (in a replay: play and pause)"),
    ("+  -", "a shorter or a longer time window"),
    ("e", "the evidence behind the verdict, and what was ruled out"),
    ("y", "copy the advice to the clipboard and to advice.txt in the run's directory"),
    ("s", "save the screen as an SVG picture"),
    ("tab", "go to the log; arrows, Page Up and Page Down scroll it, End follows again"),
    ("left  right", "replay: ten seconds back or forth"),
    ("<  >", "replay: slower or faster"),
    ("ctrl+p", "commands and colour themes"),
)

READING = (
    "Chart: share of time in which the device was at work; solid is the mean of each column, "
    "{band} reaches up to its largest sample. A blank column was not measured.",
    "Lanes under it, on the same time axis: where the training thread's wall time went. Blue lanes "
    "are work, warm ones are waits; the height of a column is the share of that moment.",
    "Step: the median step; the bar is the mean of the steps in the window, cut into its parts.",
    "{save} is a checkpoint, {evaluation} an evaluation.",
    "A dash or a blank means not measured, never zero.",
)


def help_text(glyphs: Glyphs) -> Text:
    """Keys and how to read the screen."""
    text = Text()
    text.append("Keys\n", "bold")
    for key, meaning in KEYS:
        text.append(f"  {key:<12}", "bold")
        text.append(f"{meaning}\n")
    text.append("\nHow to read this\n", "bold")
    for line in READING:
        filled = line.format(band=glyphs.band, save=glyphs.save, evaluation=glyphs.evaluation)
        text.append(f"  {filled}\n")
    text.append("\nEsc closes this.", "italic")
    return text


def evidence(diagnosis: Diagnosis | None, glyphs: Glyphs) -> Text:
    """Everything a diagnosis rests on."""
    text = Text()
    if diagnosis is None:
        text.append("Nothing has been diagnosed yet.\n")
    else:
        if diagnosis.note:
            text.append(f"{diagnosis.note}\n\n")
        for finding in filter(None, (diagnosis.verdict, *diagnosis.also)):
            _finding(text, finding)
        _list(text, "Not judged, a signal is missing", diagnosis.abstained)
        _list(text, "Ruled out", diagnosis.ruled_out)
        if not text.plain.strip():
            text.append("The diagnosis gave no details.\n")
    text.append("Esc closes this.", "italic")
    return _cleaned(text, glyphs)


def _finding(text: Text, finding: Finding) -> None:
    name = f"{finding.id} / {finding.refined}" if finding.refined else finding.id
    text.append(f"{name}", "bold")
    text.append(f"   {finding.severity}, confidence {finding.confidence}")
    text.append(f", costs {percent(finding.lost_share)} of time\n")
    text.append(f"  {finding.summary}\n")
    for item in finding.evidence:
        text.append(f"    {evidence_text(item)}\n")
    for where in finding.where:
        text.append(f"  where  {where.file}:{where.line}  {where.what}\n")
    if not finding.where and finding.where_missing:
        text.append(f"  where  {finding.where_missing}\n")
    for line in advice_texts(finding.advice):
        text.append(f"  do     {line}\n")
    if finding.gain is not None:
        text.append(f"  gain   {gain_text(finding.gain)}\n")
    text.append("\n")


def _list(text: Text, title: str, items: Iterable[Abstention]) -> None:
    lines = [f"  {item.id}: {item.missing}\n" for item in items]
    if lines:
        text.append(f"{title}\n", "bold")
        text.append("".join(lines) + "\n")


def _cleaned(text: Text, glyphs: Glyphs) -> Text:
    """The same text without control characters, in the alphabet in use."""
    out = Text()
    for position, line in enumerate(text.split("\n", allow_blank=True)):
        if position:
            out.append("\n")
        for span_text, style in _runs(line):
            out.append(plain(span_text, glyphs), style)
    return out


def _runs(line: Text) -> Iterable[tuple[str, str]]:
    edges = sorted({0, len(line), *(s.start for s in line.spans), *(s.end for s in line.spans)})
    for start, end in itertools.pairwise(edges):
        style = next((str(s.style) for s in line.spans if s.start <= start < s.end), "")
        yield line.plain[start:end], style
