"""oom-risk, memory-capped and fragmentation: what the allocator tells, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import loader, make_steps, probe, readings, window

from gputop_train.diagnose.rules import fragmentation, memory_capped, memory_leak, oom_risk
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, MemorySample

GB = 1_000_000_000
CARD = 80 * GB
STEPS = make_steps(
    400, {"forward": 10, "backward": 10}, exposed={"data_wait": 0.0, "sync": 0.0}, dry=0.3
)


def samples(*, allocated=40, reserved=50, split=None, retries=(0, 0), ooms=(0, 0), basis=None):
    rows = []
    for k in range(20):
        end = k >= 10
        rows.append(
            MemorySample(
                0,
                STEPS[0].t0_ns + k * 400_000_000,
                None,
                basis or "cuda-allocator",
                int(allocated * GB / 2),
                reserved=int(reserved * GB),
                peak_allocated=int(allocated * GB),
                peak_reserved=int(reserved * GB),
                retries=retries[end],
                ooms=ooms[end],
                inactive_split=None if split is None else int(split * reserved * GB),
            )
        )
    return tuple(rows)


def made(rows, util=95, **more):
    gpu = readings(STEPS, memory_total=CARD)
    return replace(window(STEPS, on_gpu=True, util=util, gpu=gpu, **more), memory=rows)


# --- oom-risk --------------------------------------------------------------------------------------


def test_memory_in_use_up_to_the_end_of_the_card_is_a_warning():
    found = oom_risk.judge(made(samples(allocated=72, reserved=75), loaders=(loader(),)))
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_share) == ("warn", 0.0)
    assert "8 GB are left" in found.summary
    assert "batch_size 64 -> 32 (train.py:41) with 2 times" in found.advice[0].text


def test_nearly_all_of_it_is_critical():
    assert oom_risk.judge(made(samples(allocated=78.5, reserved=79))).severity == "critical"


@pytest.mark.parametrize(
    ("allocated", "reserved"), [(40, 60), (40, 78), (60, 76)], ids=["room", "cache", "more cache"]
)
def test_reserved_memory_that_is_only_cache_is_no_risk(allocated, reserved):
    assert isinstance(
        oom_risk.judge(made(samples(allocated=allocated, reserved=reserved))), RuledOut
    )


def test_a_cache_that_had_to_be_emptied_to_find_room_is_one():
    found = oom_risk.judge(made(samples(allocated=60, reserved=76, retries=(0, 3))))
    assert (found.severity, found.confidence) == ("warn", "medium")


def test_what_holds_the_memory_shapes_the_advice():
    held = {"optimizer_state": 30 * GB, "other": 30 * GB}
    found = oom_risk.judge(made(samples(allocated=72, reserved=75), probe=probe(True, held=held)))
    text = " ".join(a.text for a in found.advice)
    assert "optimizer's state holds 30 GB" in text and "Activations and the like hold 30 GB" in text


OOM = {
    "count": 1,
    "steps_after": 0,
    "requested": 2 * GB,
    "stack": [{"file": "/home/ann/train.py", "line": 88, "call": "loss.backward()"}],
}


def test_a_run_that_died_of_it_points_at_the_line():
    died = made(
        samples(allocated=60, reserved=62), probe=probe(True, oom=OOM), exit_code=1, final=True
    )
    found = oom_risk.judge(died)
    assert found.severity == "critical"
    assert [(w.line, w.what) for w in found.where] == [(88, "loss.backward()")]


@pytest.mark.parametrize(
    ("oom", "code"), [({**OOM, "steps_after": 40}, 1), (OOM, 0), ({**OOM, "count": 0}, 1)]
)
def test_an_error_that_was_survived_is_no_end(oom, code):
    rows = samples(allocated=60, reserved=62)
    found = oom_risk.judge(made(rows, probe=probe(True, oom=oom), exit_code=code, final=True))
    assert isinstance(found, RuledOut)


# --- memory-capped ---------------------------------------------------------------------------------


def test_a_half_idle_gpu_with_full_memory_cannot_take_a_larger_batch():
    found = memory_capped.judge(made(samples(allocated=70, reserved=75), util=40))
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_share) == ("info", 0.0)
    assert "10 GB" in found.advice[0].text


@pytest.mark.parametrize(("util", "allocated"), [(95, 70), (40, 20)], ids=["busy", "free memory"])
def test_a_busy_gpu_or_free_memory_is_not_capped(util, allocated):
    found = memory_capped.judge(made(samples(allocated=allocated, reserved=75), util=util))
    assert isinstance(found, RuledOut)


def test_a_gpu_that_waits_for_data_is_idle_for_that():
    steps = make_steps(400, {"data_wait": 10, "forward": 10}, exposed={"data_wait": 10})
    starved = window(steps, on_gpu=True, util=40, gpu=readings(steps, memory_total=CARD))
    found = memory_capped.judge(replace(starved, memory=samples(allocated=70, reserved=75)))
    assert isinstance(found, RuledOut)
    assert "data_wait" in found.why


# --- fragmentation ---------------------------------------------------------------------------------


def test_pieces_and_retries_together_are_fragmentation():
    rows = samples(allocated=40, reserved=76, split=0.4, retries=(1, 4))
    state = probe(True, shapes=[[1, 37, 400]])
    found = fragmentation.judge(made(rows, probe=state))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("warn", "high")
    assert "30.4 GB of 76 GB" in found.summary
    assert "expandable_segments:True" in found.advice[0].text
    assert "37 different batch shapes" in found.advice[1].text


def test_pieces_in_a_nearly_full_card_are_information():
    found = fragmentation.judge(made(samples(allocated=40, reserved=76, split=0.4)))
    assert found.severity == "info"


@pytest.mark.parametrize(
    "rows",
    [
        samples(allocated=20, reserved=50, split=0.5),
        samples(allocated=74, reserved=76, split=0.5, retries=(0, 2)),
        samples(allocated=40, reserved=76, split=0.05, retries=(0, 2)),
        samples(allocated=40, reserved=50, split=0.5, retries=(3, 3)),
    ],
    ids=["healthy cache", "really full", "no pieces", "retries before the window"],
)
def test_a_healthy_cache_and_a_full_card_are_not_fragmented(rows):
    assert isinstance(fragmentation.judge(made(rows)), RuledOut)


@pytest.mark.parametrize("rule", [oom_risk, memory_capped, fragmentation])
def test_counters_nobody_read_are_no_zero_and_a_cpu_run_has_none(rule):
    assert isinstance(rule.judge(made((), util=40)), Abstention)
    assert isinstance(rule.judge(window(STEPS)), RuledOut)
    if rule is fragmentation:
        assert isinstance(rule.judge(made(samples(reserved=76))), Abstention)


# --- memory-leak: what its words rest on ----------------------------------------------------------


def leaking(a_step, **more):
    memory = [20 * GB + a_step * k * 400 / 240 for k in range(240)]
    return memory_leak.judge(
        window(STEPS, on_gpu=True, util=80, memory=memory, device_bytes=CARD, **more)
    )


def test_growth_beyond_numbers_means_that_tensors_are_kept():
    found = leaking(17_000_000)
    assert found.severity in ("warn", "critical")
    assert "MB a step is more than numbers take" in found.advice[0].text
    assert found.where == () and "only where the script asks" in found.where_missing


def test_the_lines_of_an_allocation_history_are_shown_where_there_is_one():
    lines = [
        {"file": "/home/ann/train.py", "line": 12, "bytes": 1_000_000},
        {"file": "/home/ann/train.py", "line": 31, "bytes": 9 * GB},
    ]
    found = leaking(17_000_000, probe=probe(True, oom={"lines": lines}))
    assert [w.line for w in found.where] == [31, 12]
    assert found.where_missing is None
