"""A directory of cases: ``scripts/*.py``, ``fixed/*.py`` and what is expected of each.

Without a folder ``scripts`` the scripts lie beside ``expected.json`` (as in demos/fooling).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NONE = "none"


@dataclass(frozen=True)
class Case:
    """One script with one planted fault (``expected``), or with none.

    ``allowed`` are all ids that are right; ``must_not`` wrong causes, ``must_not_advise`` wrong
    mends in words; ``fix_args`` and ``fix_env`` are what the corrected twin needs to be one.
    ``beside`` must be named too, as verdict or also. The lines a cause may be pinned on are given
    as ``where_lines``, or as ``where_text``: every line that holds one of these texts.
    """

    name: str
    script: Path
    twin: Path | None
    expected: str
    allowed: frozenset[str]
    must_not: frozenset[str]
    must_not_advise: tuple[str, ...]
    where_lines: frozenset[int]
    steps: int
    needs_gpu: bool
    visible_on_cpu: bool
    fix_args: tuple[str, ...] = ()
    fix_env: tuple[tuple[str, str], ...] = ()
    args: tuple[str, ...] = ()
    beside: frozenset[str] = frozenset()

    @property
    def healthy(self) -> bool:
        return self.expected == NONE

    def here(self, on_gpu: bool) -> bool:
        """Whether the fault exists on such a machine."""
        return on_gpu or (self.visible_on_cpu and not self.needs_gpu)


def load(directory: Path, *, on_gpu: bool, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a directory that can be judged on this machine, by name.

    Args:
        only: Names or their numbers (``case_03`` or ``03``); named ones are taken in any case.

    Raises:
        SystemExit: There is no ``expected.json``, or a named case is not in it.
    """
    index = directory / "expected.json"
    if not index.is_file():
        raise SystemExit(f"{index} does not exist: DIR needs scripts/, fixed/ and expected.json.")
    body = json.loads(index.read_text())
    known = {name: _case(name, entry, directory, on_gpu) for name, entry in sorted(body.items())}
    if not only:
        return [case for case in known.values() if case.here(on_gpu)]
    wanted = [_named(word, known) for word in only]
    return [known[name] for name in sorted(set(wanted))]


def _named(word: str, known: dict[str, Case]) -> str:
    for name in (word, f"case_{word}"):
        if name in known:
            return name
    raise SystemExit(f"There is no case {word}. There are: {', '.join(known)}.")


def _case(name: str, entry: dict[str, Any], directory: Path, on_gpu: bool) -> Case:
    fix = entry.get("fix") or {}
    folder = directory / "scripts" if (directory / "scripts").is_dir() else directory
    script = folder / f"{name}.py"
    twin = directory / "fixed" / f"{name}.py"
    steps = entry.get("steps_h200") if on_gpu else entry.get("steps")
    return Case(
        name,
        script,
        twin if twin.is_file() else None,
        entry["expected"],
        frozenset({entry["expected"], *entry.get("refined_or_also", ())} - {NONE}),
        frozenset(entry.get("must_not", ())),
        tuple(entry.get("must_not_advise", ())),
        frozenset(entry.get("where_lines", ())) | _holding(script, entry.get("where_text", ())),
        int(steps or entry.get("steps") or 100),
        bool(entry.get("needs_gpu")),
        bool(entry.get("visible_on_cpu", True)),
        tuple(str(word) for word in fix.get("args", ())),
        tuple((str(k), str(v)) for k, v in (fix.get("env") or {}).items()),
        tuple(str(word) for word in entry.get("args", ())),
        frozenset(entry.get("beside", ())),
    )


def _holding(script: Path, texts: Sequence[str]) -> frozenset[int]:
    """Numbers of the lines that hold one of these texts."""
    if not texts:
        return frozenset()
    lines = script.read_text().splitlines()
    found = {n for n, line in enumerate(lines, 1) if any(text in line for text in texts)}
    if not found:
        raise SystemExit(f"{script} has no line with {' or '.join(texts)}.")
    return frozenset(found)
