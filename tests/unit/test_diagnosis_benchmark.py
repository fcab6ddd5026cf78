"""The judge of the diagnosis: what it calls right, wrong and silent, on reports made here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from diagnosis_bench import cases, judging, running, table  # noqa: E402


def case(tmp_path, *, name="case_01", **entry):
    """A case of a directory made for the test."""
    body = {
        "expected": "worker-respawn",
        "refined_or_also": [],
        "must_not": ["eval-stall"],
        "where_lines": [55, 56],
        "steps": 700,
        "steps_h200": 315,
        "needs_gpu": False,
        "visible_on_cpu": True,
    } | entry
    for folder in ("scripts", "fixed"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.py").write_text("print('hello')\n")
    (tmp_path / "expected.json").write_text(json.dumps({name: body}))
    return cases.load(tmp_path, on_gpu=False, only=[name])[0]


def finding(id_, refined=None, *, line=55, severity="warn", advice=(), gain=None):
    return {
        "id": id_,
        "refined": refined,
        "severity": severity,
        "confidence": "high",
        "lost_share": 0.4,
        "where": [{"file": "/home/ann/case_01.py", "line": line, "what": "DataLoader("}],
        "advice": [{"text": text, "setting": setting} for text, setting in advice],
        "gain": gain,
    }


def report(verdict=None, *also, status=None):
    return {
        "status": status or ("verdict" if verdict else "healthy"),
        "verdict": verdict,
        "also": list(also),
        "abstained": [],
        "steps": {"count": 300},
    }


def test_a_cause_named_as_refinement_at_its_line_is_right(tmp_path):
    row = judging.judge(case(tmp_path), report(finding("input-bound", "worker-respawn")))
    assert row.passed
    assert (row.said, row.where_hit) == ("input-bound/worker-respawn", True)


def test_the_parent_alone_is_not_the_refinement(tmp_path):
    row = judging.judge(case(tmp_path), report(finding("input-bound")))
    assert not row.right
    assert row.failures == ["not named"]


def test_a_refinement_nobody_listed_of_the_right_parent_is_remarked(tmp_path):
    one = case(tmp_path, expected="input-bound", refined_or_also=["main-process-loading"])
    row = judging.judge(one, report(finding("input-bound", "bursty-prefetch")))
    assert row.passed
    assert row.remarks == ["refined as bursty-prefetch, which is not listed"]


def test_a_wrong_cause_fails_even_beside_the_right_one(tmp_path):
    told = report(finding("input-bound", "worker-respawn"), finding("eval-stall", severity="info"))
    row = judging.judge(case(tmp_path), told)
    assert row.right
    assert not row.passed
    assert row.failures == ["must not: eval-stall"]


def test_the_right_cause_behind_another_is_not_the_verdict(tmp_path):
    told = report(finding("gc-pause"), finding("input-bound", "worker-respawn"))
    row = judging.judge(case(tmp_path), told)
    assert row.failures == ["worker-respawn only named as also"]


@pytest.mark.parametrize(("line", "hit"), [(55, True), (12, False)])
def test_the_line_counts(tmp_path, line, hit):
    row = judging.judge(case(tmp_path), report(finding("input-bound", "worker-respawn", line=line)))
    assert row.where_hit is hit
    assert row.passed is hit


def test_a_line_is_not_asked_for_where_none_is_given(tmp_path):
    one = case(tmp_path, where_lines=[])
    row = judging.judge(one, report(finding("input-bound", "worker-respawn", line=12)))
    assert row.where_hit is None
    assert row.passed


def test_healthy_means_said_to_be_healthy_without_a_warning(tmp_path):
    one = case(tmp_path, expected="none", where_lines=[])
    assert judging.judge(one, report()).passed
    assert not judging.judge(one, report(status="abstained")).passed
    assert judging.judge(one, report(None, finding("gpu-bound", severity="info"))).passed
    row = judging.judge(one, report(finding("gpu-bound")))
    assert row.failures == ["false alarm: gpu-bound"]


@pytest.mark.parametrize(
    ("text", "setting", "wrong"),
    [
        ("Keep the workers: persistent_workers=True.", {"persistent_workers": True}, False),
        ("Use 6 workers.", {"num_workers": 6}, True),
        ("Use fewer.", {"num_workers": 2}, False),
        ("Raise num_workers from 4 to 8.", None, True),
        ("num_workers=8 keeps up.", None, True),
        ("num_workers=2 is enough.", None, False),
        ("More workers would not help here.", None, False),
        ("Do not add workers.", None, False),
        ("Set num_workers=8, if that does not help, look at the disk.", None, True),
    ],
)
def test_a_higher_number_of_workers_is_told_from_a_lower_one_and_from_a_warning(
    text, setting, wrong
):
    told = [finding("input-bound", advice=((text, setting),))]
    assert bool(judging.forbidden_advice("a higher num_workers", told, {"num_workers": 4})) is wrong


def test_other_words_for_a_wrong_mend():
    told = [finding("pageable-h2d", advice=(("Set pin_memory=True.", {"pin_memory": True}),))]
    assert judging.forbidden_advice("pin_memory=True", told, {}) == "pin_memory=True"
    assert judging.forbidden_advice("pin_memory", told, {}) == "pin_memory=True"
    assert judging.forbidden_advice("pin_memory=False", told, {}) == ""
    assert judging.forbidden_advice("something to drink", told, {}) is None


def test_advice_that_cannot_be_checked_is_told(tmp_path):
    one = case(tmp_path, must_not_advise=["something to drink"])
    row = judging.judge(one, report(finding("input-bound", "worker-respawn")))
    assert row.passed
    assert row.remarks == ["not checked: must not advise 'something to drink'"]


def test_a_mended_script_may_have_another_bottleneck_but_not_the_old_one(tmp_path):
    one = case(tmp_path, expected="input-bound", refined_or_also=["main-process-loading"])
    before = report(finding("input-bound", "main-process-loading"))
    assert judging.judge_twin(one, report(), before).passed
    assert judging.judge_twin(one, report(finding("gc-pause")), before).passed
    left = judging.judge_twin(one, report(finding("input-bound", "prep-stall")), before)
    assert left.passed
    assert left.remarks == ["left: input-bound/prep-stall"]
    same = judging.judge_twin(one, before, before)
    assert same.failures == ["still warns: input-bound/main-process-loading"]
    assert not judging.judge_twin(one, report(finding("input-bound")), before).passed
    info = report(None, finding("input-bound", severity="info"))
    assert judging.judge_twin(one, info, before).passed


def test_what_stood_beside_the_fault_before_its_mend_may_be_left(tmp_path):
    one = case(tmp_path, expected="anomaly-mode", refined_or_also=["launch-bound"])
    before = report(finding("anomaly-mode"), finding("launch-bound"))
    left = judging.judge_twin(one, report(finding("launch-bound")), before)
    assert (left.passed, left.remarks) == (True, ["left: launch-bound"])
    assert not judging.judge_twin(one, report(finding("anomaly-mode")), before).passed
    alone = report(finding("launch-bound"))  # then it was what the fault was told as
    assert not judging.judge_twin(one, report(finding("launch-bound")), alone).passed


def test_a_mended_script_still_needs_an_answer(tmp_path):
    row = judging.judge_twin(case(tmp_path), report(status="too-early"), None)
    assert row.failures == ["no answer"]


@pytest.mark.parametrize(
    ("ceiling", "at_least", "expected", "achieved", "word"),
    [
        (2.0, False, (1.5, 2.0), 1.8, "ok"),
        (2.0, False, None, 2.2, "ok"),  # within the slack of the measurement
        (2.0, False, None, 2.3, "MISS ceiling too low"),
        (2.0, True, None, 5.0, "ok"),
        (9.0, False, (1.5, 2.0), 3.0, "MISS outside expected"),
        (None, False, None, 3.0, "no prediction"),
    ],
)
def test_the_predicted_gain_beside_the_achieved(ceiling, at_least, expected, achieved, word):
    gain = {"ceiling": ceiling, "at_least": at_least, "expected": expected, "basis": ""}
    assert judging.judge_gain(gain, achieved) == word


def test_pairs_are_run_in_turn_and_their_ratio_is_of_neighbours(tmp_path):
    order = []

    def run(one, kind, seconds, python):
        order.append(kind)
        return {"as is": [6.0, 8.0], "twin": [2.0, 4.0]}[kind][order.count(kind) - 1]

    found = running.measure(case(tmp_path), 2, 10, time.monotonic() + 60, run)
    assert order == ["as is", "twin", "as is", "twin"]
    assert found.ratios == [3.0, 2.0]
    assert found.middle == 2.5


def test_a_script_that_fails_plainly_has_no_gain(tmp_path):
    found = running.measure(case(tmp_path), 2, 10, time.monotonic() + 60, lambda *_: None)
    assert (found.middle, found.note) == (None, "script did not end in 10 s or failed")


def test_only_what_exists_on_this_machine_is_run_unless_named(tmp_path):
    case(tmp_path, needs_gpu=True, visible_on_cpu=False)
    assert cases.load(tmp_path, on_gpu=False) == []
    assert [c.steps for c in cases.load(tmp_path, on_gpu=True)] == [315]
    assert [c.steps for c in cases.load(tmp_path, on_gpu=False, only=["01"])] == [700]
    with pytest.raises(SystemExit, match="no case 77"):
        cases.load(tmp_path, on_gpu=False, only=["77"])


def test_the_table_counts_and_explains(tmp_path):
    one = case(tmp_path)
    gain = {"ceiling": 2.0, "at_least": False, "expected": None, "basis": ""}
    rows = [
        judging.judge(one, report(finding("input-bound", "worker-respawn", gain=gain))),
        judging.judge(
            one, report(status="abstained") | {"abstained": [{"id": "x", "missing": "y"}]}
        ),
    ]
    text = table.render(rows, {"case_01": running.Measured([1.9, 2.0])}, ["# Title"])
    assert "Cause named: 1 of 2. Line named: 1 of 2." in text
    assert "No verdict on a fault: 1." in text
    assert "| worker-respawn | 1 | 1 |" in text
    assert "| case_01 | input-bound/worker-respawn | 1.95 | 1.90-2.00 | 2.00 |  | ok |" in text
    assert "- case_01, as is: not named. Abstained: x: y." in text
    assert "Repeated runs: 0 of 1 scripts gave the same answer every time." in text
    assert "- case_01, as is: input-bound/worker-respawn (1), abstained (1)" in text


TRAINS = """
import sys, time, torch
from torch import nn
model = nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
ends = time.monotonic() + float(sys.argv[sys.argv.index("--seconds") + 1])
while time.monotonic() < ends:
    for _ in range(30):
        model(torch.randn(64, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.benchmark
def test_a_crash_and_a_run_without_end_are_lines_and_leave_nothing_behind(tmp_path):
    body = {
        "crash": {"expected": "input-bound"},
        "endless": {"expected": "none", "args": ["--seconds", "1000"]},
    }
    (tmp_path / "expected.json").write_text(json.dumps(body))
    (tmp_path / "crash.py").write_text("raise SystemExit('no data')\n")
    (tmp_path / "endless.py").write_text(TRAINS)
    kept = tmp_path / "kept"
    command = [sys.executable, str(BENCHMARKS / "diagnosis.py"), str(tmp_path)]
    done = subprocess.run(
        [*command, "--no-gain", "--seconds", "8", "--keep", str(kept), "--out", "table.md"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    text = (tmp_path / "table.md").read_text()
    assert "- crash, as is:" in text
    assert "exit code 1" in text
    assert "interrupted after 8 s" in text
    running_still = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert str(tmp_path / "endless.py") not in running_still
    again = subprocess.run([*command, "--rejudge", str(kept)], capture_output=True, text=True)
    assert "- endless, as is:" in again.stdout or "| endless | as is | none |" in again.stdout
