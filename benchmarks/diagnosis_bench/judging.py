"""Whether a report's answer is the one expected of a case. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnosis_bench.cases import Case

#: A mend's achieved gain may exceed the ceiling by measurement noise of this much.
CEILING_SLACK = 0.9
WARNING = ("warn", "critical")
_MORE = r"\b(?:rais\w*|increas\w*|more|add(?:ing)?|higher|larger|double|grow)\b"
#: Words that make a sentence speak against what it names.
_AGAINST = re.compile(
    r"\b(?:not|no|never|nothing|n't|cannot|instead of|rather than|without|worse|useless|"
    r"fewer|less|lower)\b|n't\b",
    re.I,
)
_CALLED = {"num_workers": r"(?:num_workers|workers?)", "batch_size": r"(?:batch(?:_size| size)?s?)"}


@dataclass
class Judged:
    """One answer beside what was expected of it."""

    name: str
    kind: str  # "as is" or "twin"
    expected: str
    said: str  # id/refinement, healthy, abstained, too-early, or what ended the run
    right: bool = False
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    where: str = ""
    where_hit: bool | None = None
    abstained: list[str] = field(default_factory=list)
    confidence: str = ""
    lost: float | None = None
    gain: dict[str, Any] | None = None
    steps: int | None = None
    wall_s: float | None = None

    @property
    def passed(self) -> bool:
        return self.right and not self.failures


def findings(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Verdict first, then what was said also."""
    verdict = report.get("verdict")
    return [*([verdict] if verdict else []), *(report.get("also") or ())]


def ids(finding: Mapping[str, Any]) -> set[str]:
    """The id and its refinement."""
    return {finding["id"], finding.get("refined")} - {None}


def spoken(finding: Mapping[str, Any]) -> str:
    """``id`` or ``id/refinement``."""
    return "/".join(str(part) for part in (finding["id"], finding.get("refined")) if part)


def said(report: Mapping[str, Any]) -> str:
    """The answer in one word."""
    verdict = report.get("verdict")
    return spoken(verdict) if verdict else str(report.get("status"))


def judge(
    case: Case, report: Mapping[str, Any], current: Mapping[str, float] | None = None
) -> Judged:
    """The answer to a script as it is.

    Args:
        current: Settings as they are (``num_workers``), to tell a higher value from a lower one.
    """
    row = _row(case, "as is", report)
    named = set().union(*(ids(f) for f in findings(report)))
    verdict = report.get("verdict")
    if case.healthy:
        row.right = report.get("status") == "healthy"
        row.failures += [
            f"false alarm: {spoken(f)}" for f in findings(report) if f["severity"] in WARNING
        ]
    elif verdict and ids(verdict) & case.allowed:
        row.right = True
        refined = verdict.get("refined")
        if refined and refined not in case.allowed:
            row.remarks.append(f"refined as {refined}, which is not listed")
    elif named & case.allowed:
        row.failures.append(f"{' '.join(sorted(named & case.allowed))} only named as also")
    else:
        row.failures.append("not named")
    row.failures += [f"not named beside it: {word}" for word in sorted(case.beside - named)]
    row.failures += [f"must not: {word}" for word in sorted(named & case.must_not)]
    for words in case.must_not_advise:
        found = forbidden_advice(words, findings(report), current or {})
        if found is None:
            row.remarks.append(f"not checked: must not advise {words!r}")
        elif found:
            row.failures.append(f"must not advise {words}: {found}")
    _place(row, case, report)
    return row


def _place(row: Judged, case: Case, report: Mapping[str, Any]) -> None:
    verdict = report.get("verdict")
    mine = [f for f in findings(report) if ids(f) & case.allowed] or ([verdict] if verdict else [])
    places = [(Path(w["file"]).name, w["line"]) for f in mine[:1] for w in f.get("where") or ()]
    row.where = " ".join(f"{file}:{line}" for file, line in places)
    if case.where_lines:
        row.where_hit = any(
            file == case.script.name and line in case.where_lines for file, line in places
        )
        if row.right and not row.where_hit:
            row.failures.append(f"where: {row.where or 'no line'} is not among the right lines")


def judge_twin(case: Case, report: Mapping[str, Any], as_is: Mapping[str, Any] | None) -> Judged:
    """The answer to a corrected script: no warning for the fault that was mended.

    A cause with another refinement than before the mend is what is left, and may be named; so may
    one that already stood beside the expected cause itself.
    """
    row = _row(case, "twin", report)
    row.right = report.get("status") in ("healthy", "verdict", "abstained")
    told = [f for f in findings(as_is or {}) if ids(f) & case.allowed]
    exact = [f for f in told if _specific(f) == case.expected]
    before = {spoken(f) for f in exact or told}
    for finding in findings(report):
        if finding["severity"] not in WARNING or not ids(finding) & case.allowed:
            continue
        if _specific(finding) == case.expected or spoken(finding) in before or as_is is None:
            row.failures.append(f"still warns: {spoken(finding)}")
        else:
            row.remarks.append(f"left: {spoken(finding)}")
    if not row.right:
        row.failures.append("no answer")
    return row


def _specific(finding: Mapping[str, Any]) -> str:
    return str(finding.get("refined") or finding["id"])


def _row(case: Case, kind: str, report: Mapping[str, Any]) -> Judged:
    verdict = report.get("verdict") or {}
    row = Judged(case.name, kind, case.expected, said(report))
    row.also = [spoken(f) for f in report.get("also") or ()]
    row.abstained = [f"{a['id']}: {a['missing']}" for a in report.get("abstained") or ()]
    row.confidence = verdict.get("confidence") or ""
    row.lost = verdict.get("lost_share")
    mine = [f for f in findings(report) if ids(f) & case.allowed] or ([verdict] if verdict else [])
    row.gain = mine[0].get("gain") if mine else None
    row.steps = (report.get("steps") or {}).get("count")
    return row


def forbidden_advice(
    words: str, told: Sequence[Mapping[str, Any]], current: Mapping[str, float]
) -> str | None:
    """What of the advice is a mend that is wrong here; ``""`` if nothing is.

    Returns:
        ``None`` if the words are of a form this cannot check: ``a higher SETTING``,
        ``SETTING=VALUE`` and a bare setting's name are understood.
    """
    higher = re.fullmatch(r"(?:a |an )?(?:higher|larger|more) (\w+)", words.strip(), re.I)
    exact = re.fullmatch(r"(\w+)(?:=(\w+))?", words.strip())
    advice = [a for finding in told for a in finding.get("advice") or ()]
    if higher:
        return _higher(higher.group(1), advice, current)
    if exact is None:
        return None
    key, value = exact.groups()
    for one in advice:
        setting = one.get("setting") or {}
        if key in setting and (value is None or str(setting[key]).lower() == value.lower()):
            return f"{key}={setting[key]}"
        pattern = key if value is None else rf"{key} ?= ?{value}"
        for sentence in sentences(one["text"]):
            if re.search(pattern, sentence, re.I) and not _AGAINST.search(sentence):
                return sentence
    return ""


def _higher(key: str, advice: Sequence[Mapping[str, Any]], current: Mapping[str, float]) -> str:
    now = current.get(key)
    called = _CALLED.get(key, re.escape(key))
    for one in advice:
        value = (one.get("setting") or {}).get(key)
        if isinstance(value, (int, float)) and (now is None or value > now):
            return f"{key}={value}"
        for sentence in sentences(one["text"]):
            assigned = re.search(rf"\b{re.escape(key)} ?= ?(\d+)", sentence)
            if assigned and now is not None and float(assigned.group(1)) > now:
                if not _AGAINST.search(sentence):
                    return sentence
                continue
            asked = re.search(rf"{_MORE}[^.]{{0,40}}\b{called}\b", sentence, re.I)
            if asked and not _AGAINST.search(sentence):
                return sentence
    return ""


def sentences(text: str) -> list[str]:
    """Parts of a text that stand on their own; a file name's dot does not end one."""
    return [part for part in re.split(r"(?<=[.;:!?])\s+|, (?=if|when|but|so) ?", text) if part]


def judge_gain(gain: Mapping[str, Any] | None, achieved: float | None) -> str:
    """The predicted gain beside the measured one, in words that begin with ``ok`` or ``MISS``."""
    if achieved is None:
        return ""
    if gain is None or (gain.get("ceiling") is None and not gain.get("expected")):
        return "no prediction"
    problems = []
    ceiling, expected = gain.get("ceiling"), gain.get("expected")
    if ceiling is not None and ceiling < CEILING_SLACK * achieved and not gain.get("at_least"):
        problems.append("ceiling too low")
    if expected and not expected[0] <= achieved <= expected[1]:
        problems.append("outside expected")
    return "MISS " + ", ".join(problems) if problems else "ok"
