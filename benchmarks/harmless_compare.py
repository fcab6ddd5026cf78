"""What two runs of a script have in common: masks, comparison and table of ``harmlessness.py``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ASPECTS = ("output", "exit", "rng", "parameters", "dynamo", "warnings", "files", "process")
#: A script is left out when plain runs disagree in one of these: nothing much would be compared.
ESSENTIAL = ("output", "exit", "rng", "parameters")
_UNIT = r"(?:s|ms|us|µs|ns|sec|secs|seconds|min|h|it/s|s/it|[A-Za-z]+/s(?:ec)?)"
_KEY = r"((?:time|elapsed|runtime|per_second|took|speed|eta|\bt)['\"]?\s*[:=]?\s*['\"]?)"
#: Digits that tell the time or number a process; everything else must be equal. Addresses differ
#: by ASLR.
_MASKS = tuple(
    (re.compile(pattern, re.I), replacement)
    for pattern, replacement in (
        (r"\b[WIEF]\d{4} [\d:.]+ +\d+ ", "LOG "),
        (r"\d{4}-\d\d-\d\d[ T]?", "DATE "),
        (r"\b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?", "TIME"),
        (r"\b\d+(?:\.\d+)?(?:e[+-]?\d+)?(?= ?" + _UNIT + r"\b)", "N"),
        (_KEY + r"[\d.]+(?:e[+-]?\d+)?", r"\1N"),
        (r"0x[0-9a-f]{6,}", "ADDRESS"),
        (r"\btmp[a-z0-9_]{8}\b", "TEMPORARY"),
        (r"\(pid=\d+\)", "(pid=N)"),  # Python 3.12 and newer warn of forks with threads about
    )
)  # fmt: skip


#: A bar of tqdm: how often one is drawn is a matter of time.
_BAR = re.compile(
    r"(?:[^\r\n|]*: )?[ \t]*\d+%\|[^|\r\n]*\| *[\d.]+\w?/[\d.]+\w? \[[^\]\r\n]*\]|\x1b\[A"
)


def mask(text: str) -> str:
    """A log without its clock: no progress bars, timing digits masked.

    Of what carriage returns overwrite the last is kept, and empty lines, which bars leave, go.
    """
    lines = []
    for line in _BAR.sub("", text).split("\n"):
        last = line.rstrip("\r").rsplit("\r", 1)[-1]
        for pattern, replacement in _MASKS:
            last = pattern.sub(replacement, last)
        if last.strip():
            # A bar that was cleared leaves its width in spaces.
            lines.append(last.lstrip() if last.startswith(" " * 20) else last)
    return "\n".join(lines)


@dataclass
class Outcome:
    """What one run left behind, aspect by aspect."""

    kind: str
    seconds: float
    seen: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    steps: int | None = None
    overhead: str = ""


@dataclass
class Row:
    """One script's line in the table."""

    script: str
    cells: dict[str, str] = field(default_factory=dict)
    left_out: str | None = None
    not_run: str | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def differs(self) -> list[str]:
        return [aspect for aspect, cell in self.cells.items() if cell == "DIFFERS"]


def recorded(records: Path) -> dict[str, Any]:
    """The records of every process that had torch, in an order that knows no process id."""
    found = sorted(
        (json.loads(path.read_text()) for path in records.glob("*.json")),
        key=lambda record: json.dumps([record["who"], record["parameters"]]),
    )
    names = [name for name in ASPECTS if name not in ("output", "exit", "files")]
    result = {n: [[r["who"], r[n]] for r in found if r[n] not in (None, [])] for n in names}
    result["warnings"] = [[who, [mask(str(w)) for w in shown]] for who, shown in result["warnings"]]
    return result


def tree(directory: Path) -> dict[str, str]:
    """Every file below a directory with mode and hash; text with its clock masked."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = mask(str(path.relative_to(directory)))
        if not path.is_file():
            found[name] = oct(path.lstat().st_mode)
            continue
        content = path.read_bytes()
        with contextlib.suppress(UnicodeDecodeError):
            content = mask(content.decode("utf-8")).encode()
        found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(content).hexdigest()[:16]}"
    return found


_ABSENT = object()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The single values inside lists and dictionaries, by their path."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}/{number}")
    elif value not in ("", None):
        yield path, value


def compare(row: Row) -> None:
    """Fill a row's cells from its outcomes."""
    plain = [o.seen for o in row.outcomes if o.kind == "plain"]
    watched = [o.seen for o in row.outcomes if o.kind != "plain"]
    for aspect in ASPECTS:
        parts = [dict(leaves(seen[aspect])) for seen in plain]
        stable = {
            key for key in parts[0] if all(p.get(key, _ABSENT) == parts[0][key] for p in parts)
        }
        unstable_too = {key for part in parts for key in part} - stable
        wrong = False
        for seen in watched:
            part = dict(leaves(seen[aspect]))
            wrong |= any(part.get(key, _ABSENT) != parts[0][key] for key in stable)
            wrong |= bool(part.keys() - stable - unstable_too)  # what no plain run has
        count = len(stable) + len(unstable_too)
        if wrong:
            row.cells[aspect] = "DIFFERS"
        elif not count:
            row.cells[aspect] = "none"
        elif not stable:
            row.cells[aspect] = "plain runs differ"
        else:
            row.cells[aspect] = "same" if not unstable_too else f"same ({len(stable)} of {count})"
    unstable = [a for a in ESSENTIAL if row.cells[a] == "plain runs differ"]
    if unstable:
        row.left_out = f"plain runs differ in {', '.join(unstable)}"


def table(rows: Sequence[Row], heading: str, still_to_run: int = 0) -> str:
    """The results as Markdown."""
    compared = [r for r in rows if r.not_run is None and r.left_out is None]
    left_out = [r for r in rows if r.left_out is not None]
    not_run = [r for r in rows if r.not_run is not None]
    differing = [r for r in rows if r.differs]
    lines = [
        heading,
        "",
        f"Compared: {len(compared)} scripts, {len(differing)} of them different. "
        f"Left out: {len(left_out)} of {len(compared) + len(left_out)}. "
        f"Not run here: {len(not_run)}."
        + (f" The run was cut short: {still_to_run} scripts are missing." if still_to_run else ""),
        "",
        f"| script | {' | '.join(ASPECTS)} | steps seen |",
        f"|---|{'---|' * len(ASPECTS)}---|",
    ]
    lines += [
        f"| {r.script} | {' | '.join(r.cells[a] for a in ASPECTS)} | {r.outcomes[-1].steps} |"
        for r in rows
        if r.not_run is None
    ]
    for title, some in (("Left out", left_out), ("Not run here", not_run)):
        if some:
            lines += ["", f"{title}:", ""]
            lines += [f"- {r.script}: {r.left_out or r.not_run}" for r in some]
    lines += [
        "",
        "`none`: the plain runs have nothing of it (no optimizer, killed before exit, no compile). "
        "`plain runs differ`: not compared. `same (a of b)`: a of b single values (a file, "
        "a random stream of a process, a warning) are equal in all plain runs and in the watched.",
    ]
    return "\n".join(lines) + "\n"
