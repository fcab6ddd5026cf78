"""The report says what the store holds, in schema 1, and null where nothing was measured."""

from __future__ import annotations

import math

import pytest
from report_runs import RUN, SECOND, START, UUID, Recorded, ended, feeding_loader, steps_of

from gputop_train.model import (
    EXPOSED_LABELS,
    LABELS,
    Abstention,
    Advice,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    MemorySample,
    Where,
)
from gputop_train.report.schema import validate

TRAIN = {"forward": 40, "backward": 50, "optimizer": 10}
STARVED = {"data_wait": 60, "forward": 20, "backward": 20}


@pytest.fixture
def recorded(tmp_path):
    """An empty store."""
    return Recorded(tmp_path)


def finding(**more):
    usual = {
        "id": "memory-leak",
        "summary": "Memory grows.",
        "severity": "warn",
        "confidence": "high",
        "lost_share": 0.25,
    }
    return Finding(**(usual | more))


def test_a_healthy_run_is_reported_whole_and_valid(recorded):
    report = recorded.train(steps_of(100, TRAIN)).report(ended())
    assert validate(report) == []
    assert (report["status"], report["healthy"], report["verdict"]) == ("healthy", True, None)
    assert report["steps"] == {
        "count": 100,
        "warmup_excluded": 10,
        "median_ms": 100.0,
        "p95_ms": 100.0,
        "samples_per_s": 320.0,
    }


def test_the_shares_cover_first_to_last_step_warm_up_included(recorded):
    slow_start = steps_of(50, TRAIN | {"compile": 100})
    shift = slow_start[-1].t1_ns - START
    later = [
        type(s)(0, s.index + 50, s.t0_ns + shift, s.t1_ns + shift, s.labels, samples=32)
        for s in steps_of(50, TRAIN)
    ]
    report = recorded.train([*slow_start, *later]).report(ended())
    shares = report["time"]["shares"]
    assert set(shares) == set(LABELS)
    assert math.isclose(sum(shares.values()), 1, abs_tol=1e-4)
    assert shares["compile"] == pytest.approx(50 * 100 / 15_000, abs=1e-5)
    assert report["time"]["training_s"] == 15.0
    assert report["time"]["coverage"] == pytest.approx(10_000 / 15_000, abs=1e-5)


def test_a_starved_run_names_the_loader_and_what_to_set(recorded):
    recorded.writer.put_loaders([feeding_loader()], START)
    report = recorded.train(steps_of(100, STARVED)).report(ended())
    assert validate(report) == []
    verdict = report["verdict"]
    assert (verdict["id"], verdict["refined"]) == ("input-bound", "main-process-loading")
    assert verdict["where"] == [
        {"file": "/proj/train.py", "line": 41, "what": "DataLoader(train_set, batch_size=32)"}
    ]
    assert verdict["where_missing"] is None
    assert verdict["advice"][0]["setting"].keys() == {"num_workers"}
    assert verdict["gain"]["ceiling"] == pytest.approx(2.5)


def test_a_run_without_steps_measured_nothing(recorded):
    report = recorded.train([]).report(ended(3))
    assert validate(report) == []
    assert report["status"] == "no-steps"
    assert report["healthy"] is None
    assert set(report["time"]["shares"].values()) == {None}
    assert report["steps"]["median_ms"] is None
    assert report["run"]["exit_code"] == 3


def test_a_short_run_is_too_early_and_neither_healthy_nor_not(recorded):
    report = recorded.train(steps_of(12, TRAIN)).report(ended())
    assert (report["status"], report["healthy"]) == ("too-early", None)
    assert "of 20 steps" in report["note"]


def test_a_script_that_was_killed_exits_as_a_shell_would_say(recorded):
    report = recorded.train(steps_of(30, TRAIN)).report(ended(None, signal=9))
    assert report["run"]["exit_code"] == 137


def test_an_exit_nobody_saw_is_null_with_the_reason(recorded):
    why = "The shim was killed."
    report = recorded.train(steps_of(30, TRAIN)).report(ended(None, reason=why))
    assert report["run"]["exit_code"] is None
    assert report["run"]["exit_reason"] == why


def test_a_run_that_goes_on_has_no_exit_code_and_lasts_until_its_newest_reading(recorded):
    report = recorded.train(steps_of(30, TRAIN)).report(None)
    assert report["run"]["exit_code"] is None
    assert report["run"]["duration_s"] == pytest.approx(5 + 3, abs=0.1)


def test_requeues_of_a_job_count_as_attempts_before_those_that_were_seen(recorded):
    recorded.writer.set_meta("attempts", 2)
    report = recorded.train(steps_of(30, TRAIN)).report(ended(), RUN | {"attempt": 3})
    assert report["run"]["attempts"] == 4


def test_the_run_is_described_as_it_was_launched(recorded):
    recorded.writer.set_meta("stopped_by", "steps")
    recorded.writer.set_meta("attempts", 2)
    recorded.writer.set_meta("supervisor", {"cpu_s": 0.7, "wall_s": 35.0})
    changed = RUN | {"overrides": {"bf16": True}, "changes_results": ["bf16"]}
    report = recorded.train(steps_of(100, TRAIN)).report(ended(), changed)
    run = report["run"]
    assert run["command"] == ["python", "train.py", "--epochs", "3"]
    assert run["started"] == "2026-09-21T14:13:20.000+00:00"
    assert (run["stopped_by"], run["attempts"], run["duration_s"]) == ("steps", 2, 35.0)
    assert (run["torch"], run["python"], run["host"]) == ("2.13.0", "3.11.7", "node7")
    assert (run["overrides"], run["changes_results"]) == ({"bf16": True}, ["bf16"])
    assert report["overhead"] == {
        "probe_us_per_step": 20.0,
        "share": 0.0002,
        "supervisor_cpu_share": 0.02,
    }


def test_a_gpu_run_names_the_card_and_what_was_exposed(recorded):
    steps = steps_of(100, {"gpu_wait": 80, "forward": 20}, exposed={"data_wait": 1_000_000})
    report = recorded.train(steps, on_gpu=True).report(ended())
    assert validate(report) == []
    assert report["run"]["gpus"] == [{"uuid": UUID, "name": "NVIDIA H200", "util_mean": 97.0}]
    assert report["gpu"]["exposed"]["data_wait"] == pytest.approx(0.01)
    assert report["gpu"]["exposed"]["sync"] is None
    assert report["gpu"]["util_mean"] == 97.0
    assert report["memory"]["device_total"] == 139_000_000


def test_launch_idle_is_taken_out_of_what_nothing_explains(recorded):
    steps = steps_of(100, TRAIN, exposed={"data_wait": 0}, dry=1.0)
    report = recorded.train(steps, on_gpu=True, util=20).report(ended())
    assert report["verdict"]["id"] == "launch-bound"
    gpu = report["gpu"]
    assert gpu["exposed"]["launch"] == pytest.approx(report["verdict"]["lost_share"], abs=1e-5)
    told = gpu["busy_share"] + sum(v for v in gpu["exposed"].values() if v is not None)
    assert told == pytest.approx(1.0, abs=0.001)


def test_evaluation_has_shares_of_its_own(recorded):
    recorded.writer.set_meta("eval_sub", {"0": {"data_wait": 300, "forward": 900}, "1": {"h2d": 5}})
    report = recorded.train(steps_of(50, TRAIN)).report(ended())
    assert report["time"]["eval_shares"] == {"data_wait": 0.25, "forward": 0.75}
    assert validate(report) == []


def test_a_run_that_never_evaluated_has_no_evaluation_shares(recorded):
    recorded.writer.set_meta("eval_sub", {"0": {}})
    assert recorded.train(steps_of(50, TRAIN)).report(ended())["time"]["eval_shares"] is None


def test_a_cpu_run_measured_nothing_of_a_gpu(recorded):
    report = recorded.train(steps_of(100, TRAIN)).report(ended())
    assert report["gpu"] == {
        "util_mean": None,
        "util_shape": "unknown",
        "busy_share": None,
        "exposed": dict.fromkeys(EXPOSED_LABELS),
    }
    assert report["run"]["gpus"] == []
    assert report["run"]["signals_missing"] == ["gpu_events"]


def test_private_memory_of_a_cpu_run_is_told_apart_from_an_allocator(recorded):
    samples = [
        MemorySample(0, START + i * SECOND, i, "rss-anon", 200_000_000 + i * 1_000_000)
        for i in range(10)
    ]
    memory = recorded.train(steps_of(100, TRAIN)).remember(samples).report(ended())["memory"]
    assert (memory["basis"], memory["peak_allocated"]) == ("rss-anon", 209_000_000)
    assert (memory["peak_reserved"], memory["alloc_retries"]) == (None, None)


def test_an_allocators_peaks_are_its_own(recorded):
    sample = MemorySample(0, START, 1, "cuda-allocator", 900, 1000, 950, 1000, 2)
    recorded.train(steps_of(100, TRAIN), on_gpu=True).remember([sample])
    memory = recorded.report(ended())["memory"]
    assert memory["basis"] == "cuda-allocator"
    # The probe's last word (41,000 and 58,000) outranks the readings taken before it.
    assert (memory["peak_allocated"], memory["peak_reserved"]) == (41_000, 58_000)
    assert memory["alloc_retries"] == 2


def test_memory_nobody_read_has_no_basis(recorded):
    memory = recorded.train(steps_of(100, TRAIN)).report(ended())["memory"]
    assert (memory["basis"], memory["peak_allocated"]) == ("", None)


def test_every_rank_is_listed_with_its_own_numbers(recorded):
    recorded.train(steps_of(50, TRAIN)).train(steps_of(50, STARVED, rank=1), rank=1)
    ranks = recorded.report(ended())["ranks"]
    assert [r["rank"] for r in ranks] == [0, 1]
    assert ranks[0]["shares"]["data_wait"] == 0
    assert ranks[1]["shares"]["data_wait"] == pytest.approx(0.6)
    assert ranks[1]["step_median_ms"] == 100.0


def test_a_finding_without_a_line_has_null_and_the_reason(recorded):
    lost = finding(where_missing="allocations are not recorded by line")
    found = Diagnosis("verdict", False, verdict=lost)
    verdict = recorded.train(steps_of(50, TRAIN)).report(ended(), diagnosis=found)["verdict"]
    assert (verdict["where"], verdict["gain"]) == (None, None)
    assert verdict["where_missing"] == "allocations are not recorded by line"


def test_a_finding_is_reported_to_its_last_number(recorded):
    whole = finding(
        refined="slow",
        evidence=(Evidence("saves", 3, "of them"), Evidence("unknown", None)),
        where=(Where("train.py", 9, "torch.save(x)"),),
        advice=(Advice("Save less often."), Advice("Set it.", {"num_workers": 4})),
        gain=Gain(3.1, (1.9, 2.6), "T / (T - E)", at_least=True),
    )
    found = Diagnosis("verdict", False, verdict=whole, also=(finding(where=whole.where),))
    report = recorded.train(steps_of(50, TRAIN)).report(ended(), diagnosis=found)
    assert validate(report) == []
    verdict = report["verdict"]
    assert verdict["evidence"][0] == {"what": "saves", "value": 3, "unit": "of them"}
    assert verdict["evidence"][1]["value"] is None
    assert verdict["advice"][1] == {"text": "Set it.", "setting": {"num_workers": 4}}
    assert verdict["gain"] == {
        "ceiling": 3.1,
        "expected": [1.9, 2.6],
        "basis": "T / (T - E)",
        "at_least": True,
    }
    assert [f["id"] for f in report["also"]] == ["memory-leak"]


def test_what_is_no_number_is_not_measured(recorded):
    broken = finding(
        lost_share=0.5,
        where_missing="unknown",
        evidence=(Evidence("rate", math.nan), Evidence("gain", math.inf)),
    )
    found = Diagnosis("verdict", False, verdict=broken)
    verdict = recorded.train(steps_of(50, TRAIN)).report(ended(), diagnosis=found)["verdict"]
    assert [e["value"] for e in verdict["evidence"]] == [None, None]


def test_an_abstention_names_the_missing_signal(recorded):
    found = Diagnosis("abstained", None, abstained=(Abstention("launch-bound", "GPU events"),))
    report = recorded.train(steps_of(50, TRAIN)).report(ended(), diagnosis=found)
    assert validate(report) == []
    assert report["abstained"] == [{"id": "launch-bound", "missing": "GPU events"}]
