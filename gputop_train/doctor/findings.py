"""What a check says: how bad, what was found, what to do. No guesses: what is not known says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: - ``fail``: a run will break, or we will be blind to it
#: - ``warn``: a run may break, is slowed, or a signal is missing from it
#: - ``note``: worth knowing; a run is as good without
#: - ``unchecked``: it could not be measured here, and why
#: - ``ok``: measured, and well
Level = Literal["fail", "warn", "note", "unchecked", "ok"]

#: Worst first, as they are shown.
LEVELS: tuple[Level, ...] = ("fail", "warn", "note", "unchecked", "ok")


@dataclass(frozen=True, slots=True)
class Check:
    """One answer of the doctor.

    Attributes:
        id: Stable name, such as ``torch-build``.
        title: The same for people.
        level: See `Level`.
        found: One sentence; for ``ok`` a few words.
        remedy: One sentence of what to do; ``None`` where there is nothing to be done.
        values: What was measured, for ``--json``; ``None`` = not measured.
    """

    id: str
    title: str
    level: Level
    found: str
    remedy: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def worst_first(checks: Iterable[Check]) -> list[Check]:
    """Sort by level; within a level the order stays that of the checks."""
    return sorted(checks, key=lambda check: LEVELS.index(check.level))


def exit_code(checks: Iterable[Check], *, strict: bool = False) -> int:
    """0 when all is well, 1 when something will break or blind a run.

    Args:
        checks: The answers.
        strict: Count warnings too.
    """
    bad = {"fail", "warn"} if strict else {"fail"}
    return int(any(check.level in bad for check in checks))


def plural(count: int, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``, ``3 processes``, ``4 directories``."""
    if count == 1:
        return f"{count} {noun}"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def gib(count: float) -> str:
    """Bytes as people read memory: ``64 MiB``, ``31.0 GiB``."""
    if count < 1 << 30:
        return f"{count / (1 << 20):,.0f} MiB"
    return f"{count / (1 << 30):,.1f} GiB"
