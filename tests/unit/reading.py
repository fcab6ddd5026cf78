"""What every line of advice must be: of this run, short, and nothing that is true of any run."""

from __future__ import annotations

import re
import textwrap

COLUMNS, LINES, MOST = 100, 3, 3
#: A number that is no part of a name (``bf16``), a place (``train.py:41``), a value and its successor
#: (``a -> b``), a value to set (``fused=True``), or what is so in this run now.
LIVE = re.compile(r"(?<![\w.])\d|\.py:\d| -> |\w=(?:True|False)|\bnow\b")
GENERIC = re.compile(
    r"\b(?:consider|try to|may want|might want|might help|e\.g\.|for example|if possible"
    r"|as needed|etc\.?|in general|usually helps|best practice)(?=\W|$)",
    re.IGNORECASE,
)


def faults(advice) -> list[str]:
    """What is wrong with the advice of one finding, in words; empty when it reads well."""
    found = [f"{len(advice)} steps of advice"] if len(advice) > MOST else []
    for step in advice:
        if not step.setting and not LIVE.search(step.text):
            found.append(f"nothing of this run in: {step.text}")
        if len(textwrap.wrap(step.text, COLUMNS)) > LINES:
            found.append(f"more than {LINES} lines: {step.text}")
        if GENERIC.search(step.text):
            found.append(f"true of any run: {step.text}")
    return found
