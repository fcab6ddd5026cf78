"""Every case, and every script that tries to fool the diagnosis, on a real GPU.

``CASES=DIR`` names a directory in the form of ``benchmarks/diagnosis.py``; demos/fooling is always
run. Some minutes: to look at more than right and wrong use the benchmark, which also measures gains.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.gpu.support import needs_cuda

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from diagnosis_bench import cases, judging, running  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]
FOLDERS = [ROOT / "demos" / "fooling"]
if os.environ.get("CASES"):
    FOLDERS.append(Path(os.environ["CASES"]))
CASES = [case for folder in FOLDERS for case in cases.load(folder, on_gpu=True)]


@pytest.fixture(autouse=True, scope="module")
def _gpu():
    needs_cuda()


def answer(case, kind):
    found = running.watch(case, kind, 240, None, sys.executable)
    assert found.report is not None, found.tail
    assert not found.ended, found.tail
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_named_and_nothing_else(case):
    found = answer(case, "as is")
    row = judging.judge(case, found.report, found.current)
    assert row.passed, (row.said, row.failures, row.also, row.abstained)


@pytest.mark.parametrize("case", [c for c in CASES if c.twin], ids=lambda case: case.name)
def test_the_corrected_script_is_not_warned_of_what_was_mended(case):
    before = answer(case, "as is").report
    row = judging.judge_twin(case, answer(case, "twin").report, before)
    assert row.passed, (row.said, row.failures, row.also, row.abstained)
