"""The whole run so far, judged by a process: ``python -m gputop_train.report.judged STORE``.

Judging hours takes some 50 MB for a moment, which a process that lives on never gives back whole.
A screen that is open for days asks here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: A judgement that takes longer is given up; that of 30 days takes some seconds.
LIMIT_S = 120.0


class JudgingError(Exception):
    """It could not be judged; the message is a clause that says why."""


def judged(store: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """Judge the run of a store aside, as it will be judged at its end.

    Args:
        store: The store's path.
        environ: Of the child process.

    Returns:
        ``status``, ``note``, ``verdict`` (as the report has it, or ``None``) and ``idle`` (exposed
        idle share of wall time by label).

    Raises:
        JudgingError: The process failed or took too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gputop_train.report.judged", str(store)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environ),
            timeout=LIMIT_S,
            check=False,
            start_new_session=True,  # Ctrl-C on the screen is not meant for it
        )
    except subprocess.TimeoutExpired:
        raise JudgingError(f"it took more than {LIMIT_S:.0f} s") from None
    except OSError as error:
        raise JudgingError(error.strerror or str(error)) from error
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise JudgingError(f"its process ended with {done.returncode}")
    if "error" in found:
        raise JudgingError(str(found["error"]))
    return found


def _answer(store: Path) -> dict[str, Any]:
    from gputop_train.diagnose import engine, evidence
    from gputop_train.report.json import exposed_idle, finding_body, plain
    from gputop_train.store.errors import StoreError
    from gputop_train.store.reader import RunReader

    try:
        with RunReader(store) as reader:
            window = evidence.build(reader, final=True)
    except StoreError as error:
        return {"error": str(error)}
    found = engine.diagnose(window)
    return {
        "status": found.status,
        "note": found.note,
        "idle": exposed_idle(window),
        "verdict": None if found.verdict is None else plain(finding_body(found.verdict)),
    }


def main() -> None:
    """Judge the store that is named and write what came of it to stdout, as JSON."""
    os.nice(5)  # training and screen go first
    json.dump(_answer(Path(sys.argv[1])), sys.stdout)


if __name__ == "__main__":
    main()
