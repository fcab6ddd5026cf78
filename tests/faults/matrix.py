"""The fault matrix: what can go wrong around a run, and what then becomes of training and record.

Each fault is a row here and a test that shows it. ``benchmarks/fault_matrix.py`` runs the tests,
the long ones included, and writes the table; `told` is how a test that does more than one round
says what each of them lost and what was said of it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

#: Where rounds are written down, a JSON object a line; unset in an ordinary test run.
OUTCOMES = "GPUTOP_FAULT_OUTCOMES"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row.

    Attributes:
        name: As in the table; unique.
        training: What becomes of training.
        lost: What of the record is lost, and where the loss is counted.
        said: What the person is told, and where.
        tests: What pytest is to run, relative to ``tests/``: files or node ids.
    """

    name: str
    training: str
    lost: str
    said: str
    tests: tuple[str, ...]


#: Processes and signals.
PROCESSES: tuple[Fault, ...] = ()
#: Files, disks and output.
FILES: tuple[Fault, ...] = ()


def faults() -> tuple[Fault, ...]:
    """All rows."""
    return PROCESSES + FILES


def told(name: str, *, lost: str = "nothing", said: str = "", detail: str = "") -> None:
    """Write down a round that did no harm; one that did fails its test instead.

    Args:
        name: The fault.
        lost: What was lost, as the product counted it.
        said: The product's own sentence.
        detail: Anything worth a look later.
    """
    place = os.environ.get(OUTCOMES)
    if place:
        line = json.dumps({"fault": name, "lost": lost, "said": said, "detail": detail})
        with open(place, "a") as file:
            file.write(line + "\n")
