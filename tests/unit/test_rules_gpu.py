"""host-sync-stall, launch-bound, gpu-bound and cpu-training: each beside what it is mistaken for."""

from __future__ import annotations

import pytest
from synthetic_windows import MS, UUID, make_steps, probe, site, window

from gputop_train.diagnose.rules import cpu_training, gpu_bound, host_sync_stall, launch_bound
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.launch.options import parse_setting
from gputop_train.model import Abstention, Finding, GpuSample

SYNCING = {"sync": 3, "gpu_wait": 2, "forward": 2, "backward": 3}
LAUNCHING = {"forward": 4, "backward": 4, "optimizer": 2}
ITEM = site("sync", 49, call="loss.item()", count=400, total_ns=400 * MS)


def sync(steps, **more):
    more.setdefault("sites", (ITEM,))
    return host_sync_stall.judge(window(steps, on_gpu=True, **more))


def test_idle_time_behind_reads_is_named_with_the_reading_line():
    steps = make_steps(100, SYNCING, exposed={"sync": 2.5}, dry=0.6, syncs=4)
    found = sync(steps, util=50)
    assert isinstance(found, Finding)
    assert found.id == "host-sync-stall"
    assert found.severity == "critical"
    assert found.confidence == "high"
    assert [(w.line, w.what) for w in found.where] == [(49, "loss.item()")]
    assert found.lost_share >= 0.25
    assert "every 50 steps" in found.advice[0].text
    assert found.gain.at_least


def test_a_long_block_while_the_gpu_is_busy_is_harmless():
    steps = make_steps(100, {"gpu_wait": 8, "forward": 1, "backward": 1}, exposed={"sync": 0.02})
    found = sync(steps, util=98)
    assert isinstance(found, RuledOut)
    assert "harmless" in found.why


def test_a_long_block_is_harmless_without_events_too_when_utilisation_covers_it():
    found = sync(make_steps(100, {"sync": 7, "forward": 3}), util=96)
    assert isinstance(found, RuledOut)


def test_without_events_only_the_part_beyond_the_gpus_busy_time_counts():
    found = sync(make_steps(100, {"sync": 8, "forward": 2}, syncs=4096), util=15)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.65)
    assert found.confidence == "medium"
    assert "at least" in found.summary


def test_blocking_reads_without_any_gpu_reading_cannot_be_judged():
    found = sync(make_steps(100, {"sync": 8, "forward": 2}))
    assert isinstance(found, Abstention)
    assert "GPU events" in found.missing


def test_a_read_in_a_host_bound_loop_finds_the_queue_empty_and_costs_nothing():
    steps = make_steps(100, {"sync": 0.1, "forward": 10}, exposed={"sync": 0.1}, dry=0.9, syncs=1)
    assert isinstance(sync(steps, util=40), RuledOut)


def test_serialised_host_and_gpu_cost_what_overlap_would_save():
    # Host 5 ms, then blocked 5 ms while the GPU computes: the pairs around the reads show little,
    # but running ahead would hide one behind the other.
    steps = make_steps(100, {"gpu_wait": 5, "forward": 5}, exposed={"sync": 0.1}, dry=0.8, syncs=1)
    found = sync(steps, util=50)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.5)
    assert found.confidence == "medium"


def test_idle_time_that_data_explains_is_not_charged_to_reads():
    usual = {"gpu_wait": 3, "data_wait": 5, "forward": 2}
    steps = make_steps(100, usual, exposed={"sync": 0.1, "data_wait": 5}, dry=0.9, syncs=1)
    assert isinstance(sync(steps, util=45), RuledOut)


def test_steps_that_read_more_than_usual_serve_as_the_natural_control():
    steps = make_steps(
        200,
        {"forward": 5, "backward": 3},
        extra=lambda i: {"sync": 6} if i % 3 == 0 else {},
        exposed={"sync": 2},
        syncs=lambda i: 5 if i % 3 == 0 else 0,
    )
    found = sync(steps, util=40)
    assert any("longer by" in e.what and e.value == pytest.approx(6) for e in found.evidence)


def test_a_cpu_run_has_no_sync_stall_and_no_launch_queue():
    cpu = window(make_steps(100, SYNCING))
    assert isinstance(host_sync_stall.judge(cpu), RuledOut)
    assert isinstance(launch_bound.judge(cpu), RuledOut)
    assert isinstance(gpu_bound.judge(cpu), RuledOut)


def test_reads_without_their_hook_are_not_judged():
    found = sync(make_steps(100, SYNCING), util=50, probe=probe(True, without=("sync",)))
    assert isinstance(found, Abstention)


def launch(steps, **more):
    return launch_bound.judge(window(steps, on_gpu=True, **more))


def test_a_dry_queue_under_a_busy_host_is_launch_bound():
    found = launch(make_steps(100, LAUNCHING, dry=0.9), util=20)
    assert isinstance(found, Finding)
    assert found.id == "launch-bound"
    assert found.confidence == "medium"
    # 80% idle, less a tenth of the 20% that the driver may have missed.
    assert found.lost_share == pytest.approx(0.78)
    assert found.gain.at_least
    assert found.where == () and found.where_missing


@pytest.mark.parametrize(
    ("told", "setting"),
    [
        ({}, {"compile": "reduce-overhead"}),
        ({"shapes": [[1, 5, 3]]}, {"compile": "default"}),  # a graph for each of five shapes
        ({"dynamo": {"unique_graphs": 4}}, None),  # compiled as it is
    ],
)
def test_compiling_can_be_tried_where_nothing_is_compiled(told, setting):
    found = launch(make_steps(100, LAUNCHING, dry=0.9), util=20, probe=probe(on_gpu=True, **told))
    assert isinstance(found, Finding)
    assert found.advice[0].setting == setting
    if setting is not None:
        (mode,) = setting.values()
        assert parse_setting(f"compile={mode}").value == mode
        assert (mode in found.advice[0].text) == (mode != "default")


def test_a_measured_launch_idle_is_taken_as_it_is():
    steps = make_steps(100, LAUNCHING, dry=0.9, exposed={"launch": 4})
    assert launch(steps, util=50).lost_share == pytest.approx(0.4)


def test_the_launch_idle_told_in_the_report_is_the_one_that_was_judged():
    steps = make_steps(100, LAUNCHING, dry=0.9)
    made = window(steps, on_gpu=True, util=20)
    assert launch_bound.launch_idle(made) == launch_bound.judge(made).lost_share
    # Below its threshold it is still a number; behind an earlier gate or without events it is none.
    little = launch_bound.launch_idle(window(steps, on_gpu=True, util=90))
    assert little is not None and 0 < little < launch_bound.LAUNCH
    full = make_steps(100, LAUNCHING, dry=0.1)
    assert launch_bound.launch_idle(window(full, on_gpu=True, util=20)) is None
    assert (
        launch_bound.launch_idle(window(make_steps(100, LAUNCHING), on_gpu=True, util=20)) is None
    )


def test_thousands_of_reads_are_written_as_a_person_would():
    steps = make_steps(100, {"sync": 8, "forward": 2}, syncs=1024)
    found = sync(steps, util=15)
    assert "1,024 a step" in found.summary
    assert "e+" not in found.summary + " ".join(a.text for a in found.advice)
    reads = next(e for e in found.evidence if e.what == "blocking reads")
    assert (reads.value, reads.unit) == (1024, "a step")


def test_without_dry_flags_launch_cannot_be_judged():
    found = launch(make_steps(100, LAUNCHING), util=20)
    assert isinstance(found, Abstention)
    assert "GPU events" in found.missing


def test_without_utilisation_launch_cannot_be_judged():
    found = launch(make_steps(100, LAUNCHING, dry=0.9))
    assert isinstance(found, Abstention)
    assert "utilisation" in found.missing


def test_a_queue_that_is_dry_because_of_data_is_not_launch_bound():
    steps = make_steps(100, {"data_wait": 6, **LAUNCHING}, dry=0.9, exposed={"data_wait": 6})
    assert isinstance(launch(steps, util=20), RuledOut)


def test_a_queue_that_is_dry_because_of_reads_is_not_launch_bound():
    steps = make_steps(100, SYNCING, dry=0.9, exposed={"sync": 3})
    assert isinstance(launch(steps, util=30), RuledOut)


def test_a_queue_that_stays_full_is_not_launch_bound():
    assert isinstance(launch(make_steps(100, LAUNCHING, dry=0.1), util=20), RuledOut)


def test_a_sleeping_trainer_is_not_launching():
    found = launch(make_steps(100, LAUNCHING, dry=0.9), util=20, trainer=0.1)
    assert isinstance(found, RuledOut)
    assert "waits" in found.why


def test_idle_time_during_user_code_is_not_charged_to_launches():
    steps = make_steps(100, {"other": 9, "forward": 0.5, "backward": 0.5}, dry=0.9)
    assert isinstance(launch(steps, util=10), RuledOut)


def test_a_busy_gpu_is_information_with_no_warning():
    steps = make_steps(100, {"gpu_wait": 8, "forward": 2}, exposed={"sync": 0.01}, dry=0.05)
    found = gpu_bound.judge(window(steps, on_gpu=True, util=97))
    assert isinstance(found, Finding)
    assert found.severity == "info"
    assert found.gain is None


def test_a_high_utilisation_over_an_empty_queue_is_not_gpu_bound():
    steps = make_steps(100, LAUNCHING, dry=0.9)
    assert isinstance(gpu_bound.judge(window(steps, on_gpu=True, util=97)), RuledOut)


def test_a_gpu_that_waits_for_data_is_not_gpu_bound():
    steps = make_steps(100, {"data_wait": 2, "forward": 8}, exposed={"data_wait": 1})
    assert isinstance(gpu_bound.judge(window(steps, on_gpu=True, util=88)), RuledOut)


def test_gpu_bound_is_not_judged_without_utilisation():
    found = gpu_bound.judge(window(make_steps(100, LAUNCHING), on_gpu=True))
    assert isinstance(found, Abstention)


COMPUTING = {"forward": 4, "backward": 5, "data_wait": 1}


def forgotten(*, util=0.0, cuda=None, **more):
    state = probe(False, cuda=cuda or {"built": True, "available": None, "initialized": False})
    more.setdefault("gpu", (GpuSample(0, UUID),))
    return cpu_training.judge(window(make_steps(100, COMPUTING), util=util, probe=state, **more))


def test_a_model_on_the_cpu_beside_an_idle_gpu_is_named():
    found = forgotten()
    assert isinstance(found, Finding)
    assert found.id == "cpu-training"
    assert found.severity == "critical"
    assert found.lost_share == pytest.approx(0.9)
    assert found.gain is None
    assert 'to("cuda")' in found.advice[0].text


def test_a_machine_without_a_gpu_trains_on_its_cpu_rightly():
    found = cpu_training.judge(window(make_steps(100, COMPUTING)))
    assert isinstance(found, RuledOut)


def test_a_cpu_build_of_torch_is_not_a_forgotten_gpu():
    assert isinstance(forgotten(cuda={"built": False}), RuledOut)


def test_a_gpu_in_use_is_not_forgotten():
    assert isinstance(forgotten(util=40.0), RuledOut)


def test_parameters_on_the_gpu_are_no_cpu_training():
    found = cpu_training.judge(window(make_steps(100, COMPUTING), on_gpu=True, util=0.0))
    assert isinstance(found, RuledOut)


def test_an_idle_gpu_nobody_measured_is_not_called_idle():
    found = forgotten(util=None, missing={"gpu_util": "the driver gives no utilisation samples"})
    assert isinstance(found, Abstention)
    assert "no utilisation" in found.missing


def test_a_burst_makes_launch_bound_certain_and_shows_the_kernels():
    steps = make_steps(100, LAUNCHING, exposed={"data_wait": 0.0}, dry=0.9)
    state = probe(
        True,
        burst={
            "state": "done",
            "step_ms": 10.0,
            "busy_share": 0.3,
            "traced_busy_share": 0.25,
            "copy_share": 0.0,
            "host_idle_share": 0.7,
            "sync_idle_share": 0.0,
            "kernels_per_step": 1200,
            "kernel_us": 2.5,
        },
    )
    found = launch_bound.judge(window(steps, on_gpu=True, util=60, probe=state))
    assert isinstance(found, Finding)
    assert found.confidence == "high"
    shown = {row.what: (row.value, row.unit) for row in found.evidence}
    assert shown["kernels"] == (1200, "a step")
    assert shown["a kernel takes, mean"] == (2.5, "us")
    assert shown["GPU busy, union of kernels"] == (0.3, "of wall")


def test_idle_time_after_a_short_block_is_the_hosts_own_way_to_its_next_launch():
    # The host is blocked for 2% of the step: without the reads it would take as long.
    usual = {"sync": 0.2, "other": 4, "forward": 5.8}
    found = sync(make_steps(100, usual, exposed={"sync": 3}, syncs=1), util=50)
    assert isinstance(found, RuledOut)


def test_reads_cost_no_more_than_the_host_is_blocked_in_them():
    usual = {"sync": 1, "gpu_wait": 0.5, "other": 2, "forward": 6.5}
    found = sync(make_steps(100, usual, exposed={"sync": 3}, syncs=1), util=50)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("usual", "exposed"),
    [
        # A wait of 12% beside 69% idle behind launches; the same of a read in each step.
        ({"data_wait": 1.2, **LAUNCHING}, {"data_wait": 1, "launch": 7.6}),
        ({"h2d": 1.2, **LAUNCHING}, {"h2d": 1.2, "launch": 7.6}),
        ({"sync": 0.7, **LAUNCHING}, {"sync": 0.5, "launch": 7.6}),
    ],
)
def test_launches_that_far_outweigh_a_wait_are_named(usual, exposed):
    steps = make_steps(100, usual, dry=0.9, exposed=exposed)
    found = launch(steps, util=20)
    assert isinstance(found, Finding)
    wall = sum(usual.values())
    spare = sum(usual.get(k, 0.0) - exposed.get(k, 0.0) for k in ("data_wait", "h2d", "sync"))
    assert found.lost_share == pytest.approx((7.6 - spare) / wall)
    # Behind a wait as long as themselves launches are not looked at.
    longer = {k: v * 5 if k in ("data_wait", "h2d", "sync") else v for k, v in usual.items()}
    told = exposed | {k: v * 4 for k, v in exposed.items() if k != "launch"}
    assert isinstance(launch(make_steps(100, longer, dry=0.9, exposed=told), util=20), RuledOut)
