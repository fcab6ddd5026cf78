"""A baseline in a file: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop_train.launch import identity
from gputop_train.trial import baseline, check, store, yardstick
from gputop_train.trial.baseline import BaselineProblem
from gputop_train.trial.check_record import Side
from gputop_train.trial.fingerprint import differences, fingerprint
from gputop_train.trial.record import LegResult
from tests.unit.report_runs import Recorded, ended, steps_of

REPORT = {"run": {"torch": "2.13.0", "python": "3.11.7", "gpus": [{"uuid": "GPU-1", "name": "X"}]}}


def some_side() -> Side:
    leg = LegResult(
        "now",
        "measured",
        step_ns=(50_000_000, 52_000_000) * 30,
        samples_per_step=8.0,
        peak_allocated=10**9,
        peak_reserved=2 * 10**9,
        loss_finite=True,
        invariants={"syncs_per_step": 1.0, "peak_allocated": 1e9},
        phases_ms={"forward": 20.0, "other": 31.0},
    )
    return Side.of("now", [leg, leg], {"interpreter": (1.1, 1.2)})


def written(tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    path.write_bytes(baseline.encode(some_side(), fingerprint(REPORT), script="t.py", warmup=10))
    return path


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    found = baseline.load(written(tmp_path))
    wanted = some_side()
    assert found.side.title == "base.json"
    for name in ("per_sample_us", "step_ms", "steps", "samples", "peak_allocated", "invariants"):
        assert getattr(found.side, name) == getattr(wanted, name), name
    assert found.side.yardstick == {"interpreter": (1.1, 1.2)}
    assert found.side.loss_finite is True
    assert differences(found.machine, fingerprint(REPORT)) == []


def test_it_names_no_host_and_no_card(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert os.uname().nodename not in text.replace('"machine"', "")
    assert "GPU-1" not in text


def test_every_torn_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    torn = tmp_path / "torn.json"
    for length in range(0, len(whole) - 2, 97):
        torn.write_bytes(whole[:length])
        with pytest.raises(BaselineProblem, match="is no baseline"):
            baseline.load(torn)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step_ms", "fast"),
        ("step_ms", [1.0, None]),
        ("step_ms", [-1.0]),
        ("step_ms", [float("nan")]),
        ("steps", None),
        ("steps", True),
        ("invariants", 3),
        ("phases_ms", [1, 2]),
        ("machine", "here"),
        ("peak_allocated", "much"),
    ],
)
def test_values_of_another_form_are_a_damaged_baseline(
    tmp_path: Path, key: str, value: object
) -> None:
    path = written(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(BaselineProblem, match="damaged"):
        baseline.load(path)


def test_absent_keys_are_a_damaged_baseline(tmp_path: Path) -> None:
    path = written(tmp_path)
    body = json.loads(path.read_text())
    for key in set(body) - {"kind", "schema", "made", "version", "script", "warmup"}:
        path.write_text(json.dumps({k: v for k, v in body.items() if k != key}))
        with pytest.raises(BaselineProblem, match="damaged"):
            baseline.load(path)


def test_foreign_files_are_told_from_baselines(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ("", "{}", "[]", '{"schema": 1}', "\x00\xff", "[" * 100_000, '{"kind": 3}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(BaselineProblem, match="is no baseline"):
            baseline.load(path)
    with pytest.raises(BaselineProblem, match="cannot be read"):
        baseline.load(tmp_path / "absent.json")
    with pytest.raises(BaselineProblem, match="cannot be read"):
        baseline.load(tmp_path)


def test_a_newer_version_is_said_to_be_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    with pytest.raises(BaselineProblem, match="another version"):
        baseline.load(path)


def test_a_report_tells_peak_memory_alone_and_says_so(tmp_path: Path) -> None:
    report = Recorded(tmp_path).train(steps_of(60, {"forward": 20}), on_gpu=True).report(ended())
    report["memory"] |= {"basis": "cuda-allocator", "peak_allocated": 41_000}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    found = baseline.load(path)
    assert (found.side.peak_allocated, found.machine) == (41_000, None)
    assert "peak memory alone" in found.notes[0]
    report["memory"]["basis"] = "rss-anon"
    path.write_text(json.dumps(report))
    assert baseline.load(path).side.peak_allocated is None


# -- the machine --------------------------------------------------------------------------------------


def test_each_difference_is_named(tmp_path: Path) -> None:
    now = fingerprint(REPORT, root=tmp_path)
    for key, value in {
        "host": "0" * 16,
        "cpu": "Another",
        "cores": 3.5,
        "gpus": [],
        "driver": "1.2",
        "torch": "2.1.0",
        "python": None,
    }.items():
        found = differences(now | {key: value}, now)
        assert any(
            words in found[0] for words in ("host", "CPU", "cores", "GPU", "torch", "Python")
        )


def test_what_neither_knows_is_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    nothing = fingerprint({}, root=tmp_path)
    assert nothing["cpu"] is None and nothing["torch"] is None
    assert any("CPU model not known" in words for words in differences(nothing, nothing))


def test_a_machine_id_is_hashed_and_an_uninitialized_one_is_none(tmp_path: Path) -> None:
    place = tmp_path / "etc"
    place.mkdir()
    (place / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    first = fingerprint(REPORT, root=tmp_path)["machine"]
    assert isinstance(first, str) and first not in "0123456789abcdef0123456789abcdef"
    (place / "machine-id").write_text("uninitialized\n")
    assert fingerprint(REPORT, root=tmp_path)["machine"] is None


def test_a_quota_of_cores_is_part_of_the_machine(tmp_path: Path) -> None:
    place = tmp_path / "sys" / "fs" / "cgroup"
    place.mkdir(parents=True)
    (place / "cpu.max").write_text("50000 100000\n")
    assert fingerprint(REPORT, root=tmp_path)["cores"] == 0.5


def test_the_yardstick_reads_every_kind_of_work_and_compares_the_middle() -> None:
    found = yardstick.read()
    assert set(found) == {"interpreter", "memory", "arithmetic"}
    assert all(value > 0 for value in found.values())
    before = {"a": [1.0, 9.0, 1.0], "b": [2.0]}
    assert yardstick.ratio(before, {"a": [1.2], "b": [1.8]}) == (0.9, 1.2)
    assert yardstick.ratio(before, {}) == (1.0, 1.0)


def test_older_code_of_a_killed_check_is_swept_and_that_of_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    boot = identity.boot_id()
    me = {"pid": os.getpid(), "start_ticks": identity.start_ticks(os.getpid()), "boot_id": boot}
    for state, who in (("dead", me | {"start_ticks": 1}), ("alive", me)):
        place = store.make(tmp_path, state)
        store.write(place, {"schema": 1, "state": "running", **who})
        (place.trial_dir / "older" / "tree").mkdir(parents=True)
    check.sweep(tmp_path)
    left = sorted(p.parent.name for p in tmp_path.glob("trials/*/older"))
    assert left == ["alive"]
