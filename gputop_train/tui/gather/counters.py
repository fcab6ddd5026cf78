r"""Counts in a script's output: progress bars and lines such as ``step 120/5000``. Pure.

A count is ``n`` of ``total`` of something. What reads like one and is none (``12/16 GiB``,
``11/30/2026``, ``accuracy 9500/10000``) has no word of a loop before it and no bar around it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gputop_train.tui.views.progress import Unit

#: Lines from the end that are looked at; the newest text of each count is what stands.
LINES = 60
#: Characters of a line that are looked at, and digits of a number: a log may hold anything.
WIDTH = 400
_N = r"(\d{1,12}|\d{1,3}(?:,\d{3}){1,3})"
_WORDS: dict[str, Unit] = {
    "epoch": "epoch",
    "step": "step",
    "iter": "step",
    "iteration": "step",
    "update": "step",
    "batch": "batch",
}
#: ``Epoch 3/10``, ``Epoch [3/10], Step [100/600]``, ``global_step: 120 of 5,000``.
_WORD = re.compile(
    rf"(?<![A-Za-z])(?:global[ _])?(epoch|step|iteration|iter|update|batch)(?:e?s)?"
    rf"\s*[:=#]?\s*[\[(]?\s*{_N}\s*(?:/|of)\s*{_N}(?![\d./,]\d|\d|\s*[KMGT]i?B)",
    re.IGNORECASE,
)
#: tqdm: ``334/1284 [01:29<04:12,  3.73it/s`` with a bar before it or not.
_TQDM = re.compile(rf"(?<![\d.,/]){_N}/{_N} \[\s*[\d:]+<")
#: Keras: ``120/500 [====>....]`` and ``120/500 ━━━━━``; Rich: ``120/500 0:00:10 • 0:00:30``.
_KERAS = re.compile(rf"^\s*{_N}/{_N}\s+(?:\[[=>.]+\]|[\u2500-\u257f]+)")
_RICH = re.compile(rf"(?<![\d.,/]){_N}/{_N}\s+\d+:\d\d(?::\d\d)?\s+\u2022")
#: PyTorch's examples: ``Train Epoch: 1 [640/60000 (1%)]``, a count of samples.
_SAMPLES = re.compile(rf"\[{_N}/{_N}\s*\(\s*\d{{1,3}}%\s*\)\]")
_BARS: tuple[tuple[re.Pattern[str], Unit], ...] = (
    (_TQDM, "it"),
    (_KERAS, "it"),
    (_RICH, "it"),
    (_SAMPLES, "sample"),
)
_DIGITS = re.compile(r"\d+")
#: tqdm names the passes of a loop over epochs itself only in its description.
_EPOCHS = re.compile(r"epochs\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Counter:
    """One count.

    Attributes:
        key: What it is recognised by from one look to the next, its total among it.
        exact: Whether ``n`` are over and done with (a bar), which a line does not tell.
    """

    key: tuple[str, int]
    n: int
    total: int
    unit: Unit
    exact: bool


def counters(lines: Sequence[str]) -> list[Counter]:
    """The counts in the newest lines, each as it stands now."""
    found: dict[tuple[str, int], Counter] = {}
    for line in lines[-LINES:]:
        for counter in _of_line(line[:WIDTH]):
            found[counter.key] = counter
    return list(found.values())


def _of_line(line: str) -> list[Counter]:
    out: list[Counter] = []
    taken: list[tuple[int, int]] = []
    for pattern, unit in _BARS:
        for match in pattern.finditer(line):
            before = line[: match.start()]
            said: Unit = "epoch" if unit == "it" and _EPOCHS.search(before) else unit
            counter = _counter(f"{unit}:{_name(before)}", match[1], match[2], said, exact=True)
            if counter is not None:
                out.append(counter)
                taken.append(match.span())
    for match in _WORD.finditer(line):
        if any(a < match.end() and match.start() < b for a, b in taken):
            continue
        word = match[1].lower()
        before = line[: match.start()]
        key = f"{word}:{_name(before)}"
        counter = _counter(key, match[2], match[3], _WORDS[word], exact=False)
        if counter is not None:
            out.append(counter)
    return out


def _name(before: str) -> str:
    """What stands before a count, without its numbers: the description of a bar."""
    words = _DIGITS.sub("#", before.split("|")[0]).split()
    return " ".join(words[:2])


def _counter(name: str, n: str, total: str, unit: Unit, *, exact: bool) -> Counter | None:
    done, end = int(n.replace(",", "")), int(total.replace(",", ""))
    if not 0 <= done <= end or end < 2:
        return None
    return Counter((name, end), done, end, unit, exact)
