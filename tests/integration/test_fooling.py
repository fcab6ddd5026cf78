"""Scripts that try to fool the diagnosis (demos/fooling), run on a CPU through the command line.

What is right for each is in their ``expected.json``, which ``benchmarks/diagnosis.py demos/fooling``
reads too; what only a GPU shows is asked of windows in tests/unit/test_fooling_windows.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gputop_train.report.schema import validate
from tests.watching import undisturbed_at_least_once

ROOT = Path(__file__).resolve().parents[2]
FOOLING = ROOT / "demos" / "fooling"
sys.path.insert(0, str(ROOT / "benchmarks"))

from diagnosis_bench import cases, judging, running  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HERE = {case.name: case for case in cases.load(FOOLING, on_gpu=False)}


def watched(name):
    """The report of a demo that ran to its end."""
    found = running.watch(HERE[name], "as is", 200, None, sys.executable)
    assert found.report is not None, found.tail
    assert not found.ended, found.tail
    assert validate(found.report) == []
    return found


def test_each_of_them_says_what_is_expected_of_it():
    names = {path.stem for path in FOOLING.glob("*.py")}
    assert names == set(json.loads((FOOLING / "expected.json").read_text()))
    assert names - set(HERE) == {"busy_neighbour"}  # takes a GPU


@undisturbed_at_least_once
@pytest.mark.parametrize("name", sorted(HERE))
def test_it_is_not_fooled(name):
    found = watched(name)
    row = judging.judge(HERE[name], found.report, found.current)
    assert row.passed, (row.said, row.failures, row.also, row.abstained)
    if name == "accumulation":
        assert found.report["steps"]["count"] == HERE[name].steps
    if name == "two_networks":
        assert found.report["steps"]["count"] == HERE[name].steps
    if name == "two_halves":
        gains = [f["gain"]["ceiling"] for f in judging.findings(found.report)[:2]]
        assert all(1 < gain < 1 / (1 - 0.8) for gain in gains)  # neither promises all of it
