"""What a person reads on the normal screen: the exit summary and the line of a new verdict. Pure.

Calm on purpose: one verdict, the number behind it, the line, what to change and what it will bring.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gputop_train.model import Diagnosis, Finding, ids_by_reason
from gputop_train.report import format as fmt
from gputop_train.report import settings

#: Widest text that is still easy to read; a wider terminal leaves the rest empty.
MAX_WIDTH = 110
MIN_WIDTH = 40
#: Rows of evidence and shares worth a person's time at the end of a run.
MAX_EVIDENCE, MAX_GAPS, MIN_SHARE = 5, 3, 0.01
_RULE = "─"


def summary(
    report: Mapping[str, Any],
    width: int,
    *,
    log_path: str | None = None,
    more: str | None = None,
    ascii_only: bool = False,
) -> list[str]:
    """The exit summary of a finished run.

    Args:
        report: The report of ``report/json.py``.
        width: Columns of the terminal; lines never exceed it, nor ``MAX_WIDTH``.
        log_path: Where the script's output is kept.
        more: The command that shows this again; ``None`` = by the run's id alone.
        ascii_only: Use no character beyond ASCII.

    Returns:
        Lines without line ends.
    """
    if ascii_only:  # before wrapping: some characters become several
        report = in_ascii(report)
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    lines = head(report, width)
    lines += _numbers(report, room)
    lines += _run(report, log_path, room)
    again = more or f"gputop-train report {report['run']['id']}"
    lines += fmt.row("more", fmt.printable(again), room)
    return [fmt.to_ascii(line) for line in lines] if ascii_only else lines


def head(report: Mapping[str, Any], width: int, *, title: str = "gputop-train") -> list[str]:
    """The summary's title and what was found."""
    room = max(MIN_WIDTH, min(width, MAX_WIDTH)) - 1
    verdict = report.get("verdict")
    lines = [_title(title, room)]
    lines += _verdict(verdict, room) if verdict else _no_verdict(report, room)
    for other in report.get("also") or ():
        lines += fmt.row("also", _in_short(other), room)
    return lines + (_larger_unnamed(report, verdict, room) if verdict else [])


def live_line(diagnosis: Diagnosis, *, ascii_only: bool = False) -> str:
    """One line for a verdict that is new; empty while there is nothing to say yet."""
    finding = diagnosis.verdict
    if finding is not None:
        line = _live_finding(finding)
    elif diagnosis.status in ("healthy", "abstained") and diagnosis.note:
        line = f"{diagnosis.status}: {diagnosis.note}"
    else:
        return ""
    line = fmt.printable(line)
    return fmt.to_ascii(line) if ascii_only else line


def live_key(diagnosis: Diagnosis) -> str:
    """What makes a verdict another one: its cause and first line, not its wavering numbers.

    Lines after the first may come from samples of the stack, whose order wavers too.
    """
    finding = diagnosis.verdict
    if finding is None:
        ids = diagnosis.abstained if diagnosis.status == "abstained" else ()
        return " ".join([diagnosis.status, *sorted({a.id for a in ids})])
    places = [f"{w.file}:{w.line}" for w in finding.where[:1]]
    return " ".join([finding.id, finding.refined or "", *places])


def _live_finding(finding: Finding) -> str:
    parts = [f"{_name(finding.id, finding.refined)}: {finding.summary}"]
    if finding.where:
        parts.append("at " + ", ".join(_place(w.file, w.line) for w in finding.where[:2]))
    if finding.advice:
        parts.append(f"do: {finding.advice[0].text}")
    return " · ".join(parts)


def _title(text: str, room: int) -> str:
    return f"{_RULE * 2} {fmt.safe(text)} ".ljust(room, _RULE)


def _name(id_: str, refined: str | None) -> str:
    return f"{id_} ({refined})" if refined and refined != id_ else id_


def _place(file: str, line: int) -> str:
    return f"{PurePath(file).name}:{line}"


def _verdict(verdict: Mapping[str, Any], room: int) -> list[str]:
    head = f"{_name(verdict['id'], verdict['refined'])} · {verdict['severity']}"
    lines = fmt.row("verdict", f"{head} · confidence {verdict['confidence']}", room)
    lines += fmt.row("", fmt.printable(verdict["summary"]), room)
    lines += _where(verdict, room)
    why = [_evidence(e) for e in verdict["evidence"] if e["value"] is not None][:MAX_EVIDENCE]
    if why:
        lines += fmt.row("why", " · ".join(why), room)
    for n, advice in enumerate(verdict["advice"]):
        lines += fmt.row("do" if n == 0 else "", _advice(advice), room)
    gain = _gain(verdict["gain"])
    return lines + (fmt.row("gain", gain, room) if gain else [])


def in_ascii(value: Any) -> Any:
    """A report with no character beyond ASCII: before wrapping, some become several."""
    if isinstance(value, str):
        return fmt.to_ascii(value)
    if isinstance(value, Mapping):
        return {key: in_ascii(item) for key, item in value.items()}
    return [in_ascii(item) for item in value] if isinstance(value, list) else value


def _where(verdict: Mapping[str, Any], room: int) -> list[str]:
    places = verdict["where"]
    if not places:
        return fmt.row("where", f"no line: {verdict['where_missing']}", room)
    lines = []
    for n, place in enumerate(places):
        what = fmt.printable(place["what"])
        text = f"{_place(place['file'], place['line'])}  {what}{'...)' * what.endswith('(')}"
        lines += fmt.row("where" if n == 0 else "", text.rstrip(), room)
    return lines


def _evidence(evidence: Mapping[str, Any]) -> str:
    value, unit = evidence["value"], evidence["unit"]
    if unit.startswith("of ") and isinstance(value, float) and 0 <= value <= 1:
        shown = fmt.percent(value)  # a share of something: "0.53 of wall" reads worse
    else:
        shown = fmt.number(value)
    return f"{evidence['what']} {shown}{'' if unit in ('', '%') else ' '}{unit}"


def _advice(advice: Mapping[str, Any]) -> str:
    flags = " ".join(f"--set {key}={value}" for key, value in (advice["setting"] or {}).items())
    return fmt.printable(advice["text"]) + (f" ({flags})" if flags else "")


def _gain(gain: Mapping[str, Any] | None) -> str:
    """``1.9x to 2.6x expected, at most 3.1x once it is gone: T / (T - E)``, or why not known."""
    if gain is None:
        return ""
    parts = []
    if gain["expected"] is not None:
        low, high = (fmt.factor(value) for value in gain["expected"])
        parts.append(f"{low} faster expected" if low == high else f"{low} to {high} expected")
    if gain["ceiling"] is not None:
        bound = "at least" if gain["at_least"] else "at most"
        parts.append(f"{bound} {fmt.factor(gain['ceiling'])} once it is gone")
    basis = fmt.printable(gain["basis"])
    if not basis:
        return ", ".join(parts)
    return f"{', '.join(parts) or 'not known'}: {basis}"


_STATUS = {
    "healthy": "healthy",
    "abstained": "no verdict",
    "too-early": "too early to say",
    "no-steps": "no training step seen",
}


def _no_verdict(report: Mapping[str, Any], room: int) -> list[str]:
    status = report["status"]
    lines = fmt.row("verdict", _STATUS.get(status, status), room)
    gaps = report["abstained"] if status == "abstained" else []
    lacks = ids_by_reason((gap["id"], gap["missing"]) for gap in gaps)
    for n, (lack, ids) in enumerate(list(lacks.items())[:MAX_GAPS]):
        text = f"{', '.join(ids)}: {fmt.printable(lack)}"
        lines += fmt.row("missing" if n == 0 else "", text, room)
    if report["note"] and not gaps:  # the note of an abstention is its first gap again
        lines += fmt.row("", fmt.printable(report["note"]), room)
    return lines


def _larger_unnamed(report: Mapping[str, Any], verdict: Mapping[str, Any], room: int) -> list[str]:
    """The largest part of the time that no rule could name, where it is more than the verdict's."""
    # A report of an older release does not have the share; a risk has no lost time to compare.
    told = [gap for gap in report.get("abstained") or () if gap.get("share") is not None]
    gap = max(told, key=lambda gap: float(gap["share"]), default=None)
    if gap is None or not 0 < verdict["lost_share"] < gap["share"]:
        return []
    return fmt.row("unnamed", f"{gap['id']}: {fmt.printable(gap['missing'])}", room)


def _in_short(finding: Mapping[str, Any]) -> str:
    """A second finding: what, how much, where, and what to do first."""
    text = f"{_name(finding['id'], finding['refined'])}: {fmt.printable(finding['summary'])}"
    if finding["where"]:
        place = finding["where"][0]
        text += f" · {_place(place['file'], place['line'])}"
    if finding["severity"] != "info" and finding["advice"]:
        text += f" · {_advice(finding['advice'][0])}"
    return text


def _numbers(report: Mapping[str, Any], room: int) -> list[str]:
    lines = []
    known = {k: v for k, v in report["time"]["shares"].items() if v is not None}
    parts = [
        f"{fmt.label(label)} {fmt.percent(share)}"
        for label, share in sorted(known.items(), key=lambda item: -item[1])
        if share >= MIN_SHARE
    ]
    if parts:
        lines += fmt.row("time", " · ".join(parts), room)
    lines += fmt.row("steps", _step_numbers(report["steps"]), room)
    # A report of an older release does not have it.
    for loss in report.get("data_lost") or ():
        lines += fmt.row("lost", fmt.printable(loss["text"]), room)
    memory = report["memory"]
    if memory["peak_allocated"] is not None:
        what = "private memory (RssAnon)" if memory["basis"] == "rss-anon" else "allocated"
        total = memory["device_total"]
        of = f" of {fmt.size(total)}" if total is not None else ""
        lines += fmt.row("memory", f"{what} peak {fmt.size(memory['peak_allocated'])}{of}", room)
    for gpu in report["run"]["gpus"]:
        used = "not measured" if gpu["util_mean"] is None else f"{gpu['util_mean']:.0f}%"
        lines += fmt.row("gpu", f"{gpu['name'] or gpu['uuid']} · mean utilisation {used}", room)
    return lines


def _step_numbers(steps: Mapping[str, Any]) -> str:
    parts = [f"{steps['count']:,}"]
    if steps["median_ms"] is not None:
        parts.append(f"median {fmt.milliseconds(steps['median_ms'])}")
    if steps["p95_ms"] is not None:
        parts.append(f"p95 {fmt.milliseconds(steps['p95_ms'])}")
    if steps["samples_per_s"] is not None:
        parts.append(f"{fmt.number(float(steps['samples_per_s']))} samples/s")
    return " · ".join(parts)


def _run(report: Mapping[str, Any], log_path: str | None, room: int) -> list[str]:
    run = report["run"]
    parts = [run["id"], _ending(run)]
    if run["attempts"] > 1:
        parts.append(f"{run['attempts']} attempts")
    lines = fmt.row("run", " · ".join(parts), room)
    if run["overrides"]:
        # A report of an older release does not say what became of them.
        became = run.get("settings") or settings.outcomes(run, ())
        parts = [fmt.printable(settings.words(setting)) for setting in became]
        lines += fmt.row("set", " · ".join(parts), room)
    if log_path is not None:
        lines += fmt.row("log", fmt.printable(log_path), room)
    return lines


def _ending(run: Mapping[str, Any]) -> str:
    after = "" if run["duration_s"] is None else f" after {fmt.duration(run['duration_s'])}"
    if run["stopped_by"] == "steps":
        return f"stopped{after}, as asked by --steps"
    if run["exit_code"] is None:
        return f"exit code unknown{after}: {run['exit_reason'] or 'nobody saw the end'}"
    stopped = " (stopped on request)" if run["stopped_by"] else ""
    if run.get("exit_reason"):
        stopped += f": {fmt.printable(str(run['exit_reason']))}"
    return f"exit code {run['exit_code']}{after}{stopped}"
