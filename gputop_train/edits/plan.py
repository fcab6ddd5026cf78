"""From a report's advice to changes of files, one after the other, each with a diff or why not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gputop_train.edits import asks, diff, files
from gputop_train.edits.desk import Change, Desk
from gputop_train.edits.desk import Run as Run
from gputop_train.edits.errors import EditError

#: How advice begins that stands in for what was said before it.
_INSTEAD = ("Or ", "If ")
_ONLY = "gputop-train apply RUN --only"
#: Why some advice is no diff, by words of it.
_NOT_LOCAL: Mapping[str, str] = {
    r"\bread\b.*\bGPU\b|\bRead every\b": "what reads the value decides how it can stay on the GPU",
    r"\bevery [\d,]+ steps\b": "how often it comes is decided by your loop's own condition",
    r"": "it is more than a change of one line of your code",
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """One piece of advice.

    Attributes:
        number: From 1, over the verdict and ``also``; what ``apply --only`` takes.
        finding: The diagnosis it comes from.
        text: The advice.
        diff: Relative to the proposals before it; empty where there is none.
        why_not: Why there is none, or what of it is left to do by hand; ``None`` = all is done.
        files: Names of the files it changes.
        results: How it changes the results; ``None`` where it does not, or there is no diff.
    """

    number: int
    finding: str
    text: str
    diff: str = ""
    why_not: str | None = None
    files: tuple[str, ...] = ()
    results: str | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """A file with all the proposals made."""

    original: files.Original
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the advice comes to.

    Attributes:
        base: The directory the diffs are relative to.
    """

    proposals: tuple[Proposal, ...]
    edited: tuple[Edited, ...]
    base: Path


def make(report: Mapping[str, Any], run: Run, only: int | None = None) -> Plan:
    """Turn a report's advice into changes.

    Without ``only``, what stands in for other advice ("Or ...", "If ...") is named and not made:
    it is meant for after the first has been tried.

    Args:
        report: The report of ``report/json.py``.
        run: The run it is of.
        only: Number of the one piece of advice to take; ``None`` = all that go together.
    """
    desk = Desk(run)
    made: list[tuple[Proposal, list[Change]]] = []
    number = 0
    for finding in (report.get("verdict"), *(report.get("also") or ())):
        for advice in finding["advice"] if finding else ():
            number += 1
            if only in (None, number):
                made.append(_proposal(desk, report, finding, advice, number, only is not None))
    base = _base(run.cwd, [c.path for _, group in made for c in group])
    return Plan(
        tuple(_with_diff(proposal, group, base) for proposal, group in made),
        tuple(Edited(f.original, f.text) for f in desk.files() if f.text != f.original.text),
        base,
    )


def _proposal(
    desk: Desk,
    report: Mapping[str, Any],
    finding: Mapping[str, Any],
    advice: Mapping[str, Any],
    number: int,
    chosen: bool,
) -> tuple[Proposal, list[Change]]:
    named = finding["refined"] or finding["id"]
    asked = list(asks.edits(desk, report, finding, advice))
    made: list[Change] = []
    problems: list[str] = []
    if not asked:
        words = advice["text"]
        reason = next(why for pattern, why in _NOT_LOCAL.items() if re.search(pattern, words))
        problems.append(f"No diff: {reason}.")
    elif finding["severity"] == "info" and not chosen:
        problems.append(f"No diff: this is information, no fault. To have it: {_ONLY} {number}.")
    elif advice["text"].startswith(_INSTEAD) and not chosen:
        problems.append(f"No diff yet: it stands in for what is said before it. {_ONLY} {number}.")
    else:
        for edit in asked:
            try:
                made.append(edit())
            except EditError as problem:  # noqa: PERF203 - the next change may still be made
                problems.append(str(problem))
    proposal = Proposal(
        number,
        named,
        advice["text"],
        why_not=" ".join(dict.fromkeys(problems)) or None,
        files=tuple(dict.fromkeys(c.path.name for c in made)),
        results=asks.changed_results(advice) if made else None,
    )
    return proposal, made


def _base(cwd: str | None, paths: Sequence[Path]) -> Path:
    """Where the diffs are applied: the run's directory, or one above all the files."""
    home = Path(cwd) if cwd is not None else None
    if home is not None and all(p.is_relative_to(home) for p in paths):
        return home
    return Path(os.path.commonpath([p.parent for p in paths])) if paths else Path("/")


def _with_diff(proposal: Proposal, group: Sequence[Change], base: Path) -> Proposal:
    text = "".join(
        diff.unified(c.before, c.after, c.path.relative_to(base).as_posix()) for c in group
    )
    return replace(proposal, diff=text)
