from __future__ import annotations

import pytest
from synthetic_windows import make_steps, probe, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import anomaly_mode
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

STEPS = make_steps(100, {"forward": 4, "backward": 5, "optimizer": 0.8})
LINE = ["/home/ann/train.py", 16, "torch.autograd.set_detect_anomaly(True)"]


def state(*, on_gpu=False, anomaly=False, looks=None, **more):
    flags = {"threads": 1, "anomaly": anomaly, "user_profiler": False} | more.pop("flags", {})
    return probe(on_gpu, flags=flags, modes=looks, **more)


def looks(mode, on, *, looked=531, since=0, at=True):
    other = "profiler" if mode == "anomaly" else "anomaly"
    return {
        "looked": looked,
        mode: [on, since],
        other: [0, None],
        "at": {mode: [LINE]} if at else {},
    }


def judge(**kwargs):
    return anomaly_mode.judge(
        window(STEPS, on_gpu=kwargs.get("on_gpu", False), probe=state(**kwargs))
    )


def test_anomaly_detection_left_on_is_named_with_the_line_that_switches_it():
    found = judge(anomaly=True, looks=looks("anomaly", 531))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence, found.lost_share) == ("warn", "high", 0.0)
    assert [(w.line, w.what) for w in found.where] == [(16, LINE[2])]
    assert "train.py:16" in found.advice[0].text
    # What it costs is not known in the run, and not made up.
    assert found.gain.ceiling is None and "not measured here" in found.gain.basis


def test_it_is_a_verdict_though_no_lost_time_can_be_told():
    made = window(STEPS, probe=state(anomaly=True, looks=looks("anomaly", 531)))
    assert diagnose(made).verdict.id == "anomaly-mode"


def test_a_block_around_backward_is_on_in_some_looks_and_off_at_the_end():
    found = judge(looks=looks("anomaly", 250, since=2))
    assert isinstance(found, Finding)
    assert found.evidence[0].value == pytest.approx(250 / 531, rel=0.01)


def test_a_few_steps_of_debugging_long_ago_are_silent():
    assert isinstance(judge(looks=looks("anomaly", 20, since=500)), RuledOut)
    assert isinstance(judge(looks=looks("anomaly", 100, since=400)), RuledOut)


def test_what_no_line_switches_and_is_off_now_is_left_alone():
    # dynamo traces under detect_anomaly: on in 9 of 67 looks of a compiled loop, as measured.
    assert isinstance(judge(looks=looks("anomaly", 9, looked=67, since=21, at=False)), RuledOut)


def test_a_store_without_looks_goes_by_the_flag():
    assert isinstance(judge(anomaly=True), Finding)
    assert isinstance(judge(), RuledOut)


def test_a_profiler_around_the_whole_loop_is_named_and_a_scheduled_one_is_not():
    line = ["/home/ann/train.py", 30, "with torch.profiler.profile() as prof:"]
    told = looks("profiler", 500) | {"at": {"profiler": [line]}}
    found = judge(looks=told)
    assert "profiler" in found.summary
    assert "schedule" in found.advice[0].text and "train.py:30" in found.advice[0].text
    assert isinstance(judge(looks=looks("profiler", 15, since=500)), RuledOut)


def test_launch_blocking_counts_on_a_gpu_only():
    flags = {"launch_blocking": True}
    found = judge(on_gpu=True, flags=flags)
    assert isinstance(found, Finding) and "CUDA_LAUNCH_BLOCKING" in found.summary
    assert isinstance(judge(flags=flags), RuledOut)


def test_the_sync_debug_mode_alone_is_information():
    assert judge(on_gpu=True, flags={"sync_debug": True}).severity == "info"


def test_without_flags_it_is_not_judged():
    assert isinstance(anomaly_mode.judge(window(STEPS, probe=probe(False, flags=None))), Abstention)
