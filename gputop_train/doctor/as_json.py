"""The examination for programs, schema 1; docs/doctor.md has every key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gputop_train import __version__
from gputop_train.doctor.findings import LEVELS, Check, exit_code

SCHEMA = 1


def document(checks: Sequence[Check], *, strict: bool = False) -> dict[str, Any]:
    """The JSON object.

    Args:
        checks: Worst first.
        strict: As of `exit_code`.
    """
    return {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": exit_code(checks, strict=strict),
        "counts": {level: sum(c.level == level for c in checks) for level in LEVELS},
        "checks": [
            {
                "id": check.id,
                "level": check.level,
                "found": check.found,
                "do": check.remedy,
                "values": dict(check.values),
            }
            for check in checks
        ],
    }
