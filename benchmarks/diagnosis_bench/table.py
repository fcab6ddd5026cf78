"""The answers of a sweep as Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from diagnosis_bench.judging import Judged, judge_gain
from diagnosis_bench.running import Measured

NO_ANSWER = ("no answer", "too-early", "no-steps", "abstained")


def machine(python: str) -> dict[str, Any]:
    """What a sweep ran on; torch is asked in the interpreter that runs the scripts."""
    asked = (
        "import torch\n"
        "print(torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() "
        "else '', sep='|')"
    )
    answer = subprocess.run(
        [python, "-c", asked], capture_output=True, text=True, check=False
    ).stdout.strip()
    torch, _, card = answer.rpartition("\n")[2].partition("|")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "card": card or None,
        "cpus": len(os.sched_getaffinity(0)),
        "torch": torch or "not found",
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _commit() -> str:
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.stdout.strip() or "unknown"


def heading(facts: Mapping[str, Any], how: str) -> list[str]:
    """Where, when and how to run it again."""
    where = facts["card"] or "no GPU"
    return [
        f"# Diagnosis of the cases ({where})",
        "",
        f"{facts['date']}, {where}, {facts['cpus']} CPU cores, torch {facts['torch']}, "
        f"Python {facts['python']}, commit {facts['commit']}. Rerun: `{how}`.",
    ]


def render(rows: Sequence[Judged], measured: Mapping[str, Measured], top: Sequence[str]) -> str:
    """Summary, confusion table, one line per answer, gains, and every miss with its reason."""
    lines = [*top, "", *_summary(rows), "", *_confusion(rows), "", *_answers(rows)]
    if measured:
        lines += ["", *_gains(rows, measured)]
    lines += _repeats(rows)
    lines += ["", *_misses(rows)]
    return "\n".join(lines) + "\n"


def _summary(rows: Sequence[Judged]) -> list[str]:
    as_is = [r for r in rows if r.kind == "as is"]
    faulty = [r for r in as_is if r.expected != "none"]
    well = [r for r in as_is if r.expected == "none"]
    twins = [r for r in rows if r.kind == "twin"]
    located = [r for r in faulty if r.where_hit is not None]
    wrong = [r for r in as_is if any(f.startswith("must not:") for f in r.failures)]
    advised = [r for r in as_is if any(f.startswith("must not advise") for f in r.failures)]
    silent = [r for r in faulty if not r.right and r.said in NO_ANSWER]
    return [
        f"Cause named: {sum(r.right for r in faulty)} of {len(faulty)}. "
        f"Line named: {sum(bool(r.where_hit) for r in located)} of {len(located)}. "
        f"A wrong cause named: {len(wrong)}. A wrong mend advised: {len(advised)}. "
        f"No verdict on a fault: {len(silent)}. "
        f"Healthy left alone: {sum(r.passed for r in well)} of {len(well)}. "
        f"Twins left alone: {sum(r.passed for r in twins)} of {len(twins)}."
    ]


def _confusion(rows: Sequence[Judged]) -> list[str]:
    counted = Counter((r.expected, r.said) for r in rows if r.kind == "as is")
    expected = sorted({e for e, _ in counted})
    said = sorted({s for _, s in counted})
    lines = [f"| expected \\ said | {' | '.join(said)} |", "|---|" + "---|" * len(said)]
    for one in expected:
        cells = [str(counted[one, word] or "") for word in said]
        lines.append(f"| {one} | {' | '.join(cells)} |")
    return lines


def _answers(rows: Sequence[Judged]) -> list[str]:
    lines = [
        "| case | run | expected | said | also | confidence | lost | where | steps | took "
        "| result |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda row: (row.name, row.kind)):
        lost = "" if r.lost is None else f"{r.lost:.0%}"
        cells = [r.name, r.kind, r.expected if r.kind == "as is" else "no such warning", r.said]
        cells += [", ".join(r.also), r.confidence, lost, r.where, str(r.steps or "")]
        cells.append("" if r.wall_s is None else f"{r.wall_s:.0f} s")
        lines.append(_line([*cells, "right" if r.passed else "WRONG"]))
    return lines


def _gains(rows: Sequence[Judged], measured: Mapping[str, Measured]) -> list[str]:
    lines = [
        "Speed-up of the corrected twin, plain interleaved runs, time between the first and the "
        "last optimizer step; spread is lowest to highest pair:",
        "",
        "| case | said | achieved | spread | ceiling | expected | result |",
        "|---|---|---|---|---|---|---|",
    ]
    first = {}
    for row in rows:
        if row.kind == "as is":
            first.setdefault(row.name, row)
    for name in sorted(measured):
        found, judged = measured[name], first.get(name)
        gain = (judged.gain if judged else None) or {}
        achieved = found.middle
        spread = f"{min(found.ratios):.2f}-{max(found.ratios):.2f}" if found.ratios else ""
        expected = "-".join(f"{edge:.2f}" for edge in gain.get("expected") or ())
        ceiling = "" if gain.get("ceiling") is None else f"{gain['ceiling']:.2f}"
        if gain.get("at_least") and ceiling:
            ceiling = f"at least {ceiling}"
        told = judge_gain(gain, achieved) or found.note
        shown = "" if achieved is None else f"{achieved:.2f}"
        named = judged.said if judged else ""
        lines.append(_line([name, named, shown, spread, ceiling, expected, told]))
    return lines


def _repeats(rows: Sequence[Judged]) -> list[str]:
    """What repeated runs of one script said, where there were any."""
    answers: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        answers.setdefault((row.name, row.kind), []).append(row.said)
    many = {key: said for key, said in answers.items() if len(said) > 1}
    if not many:
        return []
    same = sum(len(set(said)) == 1 for said in many.values())
    lines = ["", f"Repeated runs: {same} of {len(many)} scripts gave the same answer every time."]
    for (name, kind), said in many.items():
        if len(set(said)) > 1:
            told = ", ".join(f"{word} ({n})" for word, n in Counter(said).most_common())
            lines.append(f"- {name}, {kind}: {told}")
    return lines


def _misses(rows: Sequence[Judged]) -> list[str]:
    lines = []
    for r in rows:
        if r.failures or r.remarks or r.said in NO_ANSWER:
            said = "; ".join([*r.failures, *(f"({remark})" for remark in r.remarks)]) or "silent"
            why = f" Abstained: {'; '.join(r.abstained)}." if r.abstained else ""
            lines.append(f"- {r.name}, {r.kind}: {said}.{why}")
    return ["Misses and remarks:", "", *lines] if lines else ["No misses."]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
