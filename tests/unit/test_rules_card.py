"""Precision, what the GPU is busy with, clocks, neighbours and idle cards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, UUID, gpm, loader, make_steps, probe, readings, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import (
    clock_throttling,
    dataparallel_used,
    gpu_bound,
    gpu_contention,
    idle_gpu,
    memory_bandwidth_bound,
    misleading_utilization,
    no_tensor_cores,
)
from gputop_train.diagnose.rules.base import Refinement, RuledOut
from gputop_train.model import Abstention, Finding, GpmSample, GpuSample

BUSY = {"gpu_wait": 16, "forward": 2, "backward": 2}
IDLE_NOWHERE = {"data_wait": 0.0, "h2d": 0.0, "sync": 0.02}
STEPS = make_steps(1000, BUSY, exposed=IDLE_NOWHERE, dry=0.02)
FP32 = {
    "optimizers": [{"id": 1, "cls": "AdamW", "fused": False, "dtypes": ["float32"]}],
    "flags": {"tf32": False, "cudnn_tf32": True, "data_parallel": False},
    "amp": {"autocast": []},
    "cuda": {"initialized": True, "available": True, "device": 0, "capability": [9, 0]},
}


def state(**changes):
    return probe(True, **{**FP32, **changes})


def made(steps=STEPS, **more):
    more.setdefault("util", 97)
    more.setdefault("gpu", readings(steps))
    more.setdefault("probe", state())
    return window(steps, on_gpu=True, **more)


def flags(**changes):
    return {"flags": {**FP32["flags"], **changes}}


# --- no-tensor-cores ---------------------------------------------------------------------------------


def test_a_busy_gpu_in_fp32_with_tensor_cores_at_rest_is_a_warning():
    found = no_tensor_cores.judge(made(gpm=gpm(sm=92.0, tensor=0.0)))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence, found.lost_share) == ("warn", "high", 0.0)
    assert '"highest" -> "high"' in found.advice[0].text
    assert found.gain.ceiling is None


@pytest.mark.parametrize(
    ("changes", "sure"),
    [(flags(cudnn_tf32=True), False), (flags(cudnn_tf32=False), True)],
)
def test_without_gpm_convolutions_may_use_tf32_all_the_same(changes, sure):
    found = no_tensor_cores.judge(made(probe=state(**changes)))
    assert (found.severity, found.confidence) == (("warn", "medium") if sure else ("info", "low"))


@pytest.mark.parametrize(
    "changes",
    [
        flags(tf32=True),
        {"optimizers": [{"dtypes": ["bfloat16"]}]},
        {"amp": {"autocast": [{"dtype": "bfloat16", "enabled": True, "blocks": 9}]}},
        {"cuda": {"capability": [7, 0], "initialized": True}},
    ],
    ids=["tf32", "bf16", "autocast", "volta"],
)
def test_precision_that_is_lower_already_or_cannot_be(changes):
    assert isinstance(no_tensor_cores.judge(made(probe=state(**changes))), RuledOut)


def test_tensor_cores_at_work_settle_it():
    assert isinstance(no_tensor_cores.judge(made(gpm=gpm(tensor=14.0))), RuledOut)


@pytest.mark.parametrize(
    ("steps", "util"),
    [
        (make_steps(400, {"data_wait": 16, "forward": 4}, exposed={"data_wait": 16}), 20),
        (make_steps(400, {"forward": 10, "backward": 10}, exposed=IDLE_NOWHERE, dry=0.9), 90),
        (make_steps(400, {"h2d": 6, "forward": 14}, exposed={"h2d": 6}, dry=0.1), 95),
        (make_steps(400, {"forward": 20}, exposed=IDLE_NOWHERE, dry=0.2), 50),
    ],
    ids=["starved", "launch-bound", "copying", "idle for no known cause"],
)
def test_a_gpu_that_waits_gains_nothing_from_faster_arithmetic(steps, util):
    found = no_tensor_cores.judge(made(steps, util=util, gpm=gpm(tensor=0.0, sm=60.0)))
    assert isinstance(found, RuledOut)


def test_precision_nobody_told_of_is_not_judged():
    for changes in ({"flags": {}}, {"optimizers": None}, {"amp": None}):
        assert isinstance(no_tensor_cores.judge(made(probe=state(**changes))), Abstention)
    unknown = {"cuda": {"initialized": True}}
    assert isinstance(no_tensor_cores.judge(made(probe=state(**unknown))), Abstention)
    assert isinstance(no_tensor_cores.judge(made(util=None)), Abstention)


def test_a_run_in_tf32_that_keeps_the_gpu_busy_is_healthy():
    found = diagnose(made(probe=state(**flags(tf32=True)), gpm=gpm(sm=90.0, tensor=30.0)))
    assert found.status == "healthy"
    assert [f.id for f in found.also] == ["gpu-bound"]


# --- gpu-bound and what it is busy with ----------------------------------------------------------------


def test_kernel_intervals_may_say_busy_where_the_driver_reads_less():
    # By the driver 0.80, by kernel intervals 0.95, and the queue was never empty (measured, H200).
    found = gpu_bound.judge(made(util=80))
    assert isinstance(found, Finding)
    waiting = make_steps(400, BUSY, exposed=IDLE_NOWHERE, dry=0.2)
    assert isinstance(gpu_bound.judge(made(waiting, util=80)), RuledOut)


def test_what_is_left_to_shorten_leaves_out_what_the_run_does_already():
    plain = " ".join(a.text for a in gpu_bound.judge(made()).advice)
    assert "TF32 is off" in plain and "torch.compile is not used" in plain
    tuned = state(
        amp={"autocast": [{"dtype": "bfloat16", "enabled": True, "blocks": 5}]},
        dynamo={"unique_graphs": 3},
    )
    left = gpu_bound.judge(made(probe=tuned)).advice
    assert len(left) == 1 and "TF32" not in left[0].text


def bandwidth(**percent):
    made_one = made(gpm=gpm(**percent))
    return memory_bandwidth_bound.refine(made_one, gpu_bound.judge(made_one))


def test_a_busy_memory_beside_idle_arithmetic_is_named():
    found = bandwidth(dram=74.0, tensor=4.0, sm=80.0)
    assert isinstance(found, Refinement)
    assert found.covers == 1.0
    assert "AdamW(fused=False -> True)" in found.advice[1].text
    assert isinstance(bandwidth(dram=55.0, tensor=60.0, sm=40.0), Refinement)


@pytest.mark.parametrize(
    "percent",
    [
        {"dram": 30.0, "tensor": 4.0, "sm": 90.0},
        {"dram": 75.0, "tensor": 60.0, "sm": 90.0},
        {"dram": 60.0, "tensor": 10.0, "sm": 90.0},
    ],
)
def test_a_memory_with_room_or_arithmetic_at_work_is_not_bandwidth_bound(percent):
    assert isinstance(bandwidth(**percent), RuledOut)


def test_dram_readings_that_are_missing_are_no_zero():
    assert isinstance(bandwidth(dram=None, tensor=1.0, sm=20.0), Abstention)
    mixed = gpm(20, dram=74.0, tensor=4.0) + gpm(20, dram=None, tensor=4.0)
    found = memory_bandwidth_bound.refine(made(gpm=mixed), gpu_bound.judge(made()))
    assert found.confidence == "medium"


def test_the_engine_refines_a_busy_gpu_to_its_memory_and_stays_healthy():
    busy = made(probe=state(**flags(tf32=True)), gpm=gpm(dram=74.0, tensor=4.0, sm=80.0))
    found = diagnose(busy)
    assert found.status == "healthy"
    assert [(f.id, f.refined) for f in found.also] == [("gpu-bound", "memory-bandwidth-bound")]


# --- misleading-utilization ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sm", "dry", "severity"),
    [(12.0, 0.02, "warn"), (40.0, 0.02, "info"), (12.0, 0.9, "info")],
)
def test_a_busy_reading_over_resting_sms_is_told(sm, dry, severity):
    steps = make_steps(400, BUSY, exposed=IDLE_NOWHERE, dry=dry)
    alone = made(steps, gpm=gpm(sm=sm), loaders=(loader(),))
    found = misleading_utilization.judge(alone)
    assert isinstance(found, Finding)
    assert found.severity == severity
    assert found.confidence == ("high" if dry < 0.5 else "medium")
    assert "batch_size 64 -> 128" in found.advice[0].text
    unseen = tuple(replace(g, foreign_processes=None) for g in alone.gpu)
    assert misleading_utilization.judge(replace(alone, gpu=unseen)).confidence == "medium"


@pytest.mark.parametrize(("util", "sm"), [(97, 70.0), (60, 12.0)])
def test_active_sms_or_a_low_reading_mislead_nobody(util, sm):
    assert isinstance(misleading_utilization.judge(made(util=util, gpm=gpm(sm=sm))), RuledOut)


def test_without_gpm_low_power_is_only_a_hint():
    low = made(gpu=readings(STEPS, power_w=200.0, power_limit_w=700.0))
    found = misleading_utilization.judge(low)
    assert (found.severity, found.confidence) == ("info", "low")
    high = made(gpu=readings(STEPS, power_w=600.0, power_limit_w=700.0))
    assert isinstance(misleading_utilization.judge(high), RuledOut)
    assert isinstance(misleading_utilization.judge(made()), Abstention)


def test_utilisation_shared_with_others_misleads_for_another_reason():
    shared = made(gpu=readings(STEPS, foreign_processes=1), gpm=gpm(sm=12.0))
    assert isinstance(misleading_utilization.judge(shared), Abstention)


# --- clock-throttling ------------------------------------------------------------------------------------

HOT = {"throttle_reasons": 0x40, "sm_clock_mhz": 1200, "temperature_c": 88}


def clocks(steps=STEPS, util=97, **fields):
    fields = {"sm_clock_mhz": 1980, "sm_clock_max_mhz": 1980, "throttle_reasons": 0} | fields
    return clock_throttling.judge(made(steps, util=util, gpu=readings(steps, **fields)))


def sometimes(name, usual):
    return lambda k: HOT[name] if k % 2 else usual


def test_heat_that_holds_the_clocks_is_named_with_what_it_costs():
    found = clocks(
        throttle_reasons=sometimes("throttle_reasons", 0),
        sm_clock_mhz=sometimes("sm_clock_mhz", 1900),
        temperature_c=sometimes("temperature_c", 70),
    )
    assert isinstance(found, Finding)
    assert "hardware thermal" in found.summary and "1200 MHz" in found.summary
    # Half of the time (10 of 21 readings) at 1200 instead of 1900 MHz, busy all along.
    assert found.lost_share == pytest.approx(10 / 21 * (1 - 1200 / 1900), rel=0.03)
    assert found.severity == "warn"
    assert "88 C" in found.advice[0].text


def test_without_a_free_reading_the_cards_maximum_is_the_target():
    found = clocks(**HOT)
    assert found.lost_share == pytest.approx(1 - 1200 / 1980, rel=0.02)
    assert found.confidence == "medium"
    assert found.severity == "critical"


def test_a_power_brake_is_no_matter_of_airflow():
    found = clocks(throttle_reasons=0x80, sm_clock_mhz=900)
    assert "power supply" in found.advice[0].text


@pytest.mark.parametrize(
    "fields",
    [{"throttle_reasons": 0x04}, {"throttle_reasons": 0x02}, {"throttle_reasons": 0x01}, {}],
    ids=["power cap", "application clocks", "idle", "none"],
)
def test_a_power_cap_and_set_clocks_are_normal(fields):
    assert isinstance(clocks(**fields), RuledOut)


def test_an_idle_card_is_held_down_by_nothing_that_costs():
    assert isinstance(clocks(util=5, **HOT), RuledOut)


def test_reasons_nobody_told_are_not_judged():
    assert isinstance(clocks(throttle_reasons=None), Abstention)


# --- gpu-contention ----------------------------------------------------------------------------------------

SHARED = {"memory_used": 60_000_000_000, "memory_ours": 20_000_000_000, "foreign_processes": 1}


def shared(steps=STEPS, util=97, **fields):
    return made(steps, util=util, gpu=readings(steps, **{**SHARED, **fields}))


def test_a_neighbour_that_computes_while_this_run_waits_is_named():
    steps = make_steps(1000, {"data_wait": 10, "forward": 10}, exposed={"data_wait": 10}, dry=0.1)
    found = gpu_contention.judge(shared(steps))
    assert isinstance(found, Finding)
    assert found.severity == "warn"
    assert "40 GB" in found.summary and "47%" in found.summary


def test_what_the_driver_tells_by_process_decides_where_this_run_never_waits():
    found = gpu_contention.judge(shared(foreign_util=45.0))
    assert (found.severity, found.confidence) == ("warn", "high")
    assert "keeps it busy 45% of the time" in found.summary
    assert diagnose(shared(foreign_util=45.0)).verdict.id == "gpu-contention"
    resting = gpu_contention.judge(shared(foreign_util=0.5))
    assert resting.severity == "info"


def test_a_neighbour_at_rest_leaves_the_utilisation_this_runs_own():
    assert isinstance(gpu_bound.judge(shared(foreign_util=0.5)), Finding)
    assert isinstance(gpu_bound.judge(shared(foreign_util=45.0)), Abstention)
    assert isinstance(gpu_bound.judge(shared()), Abstention)


def test_a_neighbour_that_comes_and_goes_is_measured_by_the_steps_beside_it():
    steps = make_steps(
        2000,
        BUSY,
        extra=lambda i: {"gpu_wait": 20} if i >= 1000 else {},
        exposed=IDLE_NOWHERE,
    )
    little = {"memory_used": 20_400_000_000, "foreign_processes": lambda k: int(k >= 20)}
    found = gpu_contention.judge(shared(steps, **little))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert found.lost_share == pytest.approx(1 / 3, rel=0.03)


def test_a_neighbour_that_only_holds_memory_is_information():
    found = gpu_contention.judge(shared(util=60))
    assert (found.severity, found.lost_share) == ("info", 0.0)


def test_a_neighbour_that_holds_little_and_rests_is_left_alone():
    found = gpu_contention.judge(shared(util=60, memory_used=20_500_000_000))
    assert isinstance(found, RuledOut)


def test_this_runs_own_processes_are_no_neighbours():
    assert isinstance(gpu_contention.judge(shared(foreign_processes=0)), RuledOut)


def test_processes_the_driver_does_not_tell_are_not_judged():
    found = gpu_contention.judge(shared(foreign_processes=None))
    assert isinstance(found, Abstention)


def test_beside_a_busy_neighbour_nothing_is_called_healthy():
    steps = make_steps(1000, {"data_wait": 10, "forward": 10}, exposed={"data_wait": 0.5}, dry=0.1)
    found = diagnose(shared(steps, util=99))
    assert found.status != "healthy"


# --- DataParallel, idle cards --------------------------------------------------------------------------------


def test_dataparallel_is_named_and_one_device_is_not():
    found = dataparallel_used.judge(made(probe=state(**flags(data_parallel=True))))
    assert found.severity == "warn"
    assert "DistributedDataParallel" in found.advice[0].text
    assert isinstance(dataparallel_used.judge(made()), RuledOut)
    assert isinstance(dataparallel_used.judge(made(probe=state(flags={}))), Abstention)


CARDS = tuple(GpuSample(0, f"GPU-{n}", memory_used=0, foreign_processes=0) for n in range(4))


def spread(cards=CARDS, ranks=2, **changes):
    states = {
        r: state(
            cuda={"initialized": True, "uuid": str(r)},
            world_size=ranks,
            ddp=[{"world_size": ranks, "device": "cuda"}],
            **changes,
        )
        for r in range(ranks)
    }
    return idle_gpu.judge(made(probe=states[0], probe_states=states, cards=cards))


def test_cards_without_a_rank_are_counted():
    found = spread()
    assert isinstance(found, Finding)
    assert "2 of 4 GPUs" in found.summary
    assert "--nproc-per-node 2 -> 4" in found.advice[0].text
    assert found.gain.ceiling == 2.0


def test_cards_that_others_use_are_not_idle():
    taken = tuple(
        replace(c, memory_used=30_000_000_000) if n >= 2 else c for n, c in enumerate(CARDS)
    )
    assert isinstance(spread(taken), RuledOut)
    computing = tuple(replace(c, foreign_processes=1) for c in CARDS)
    assert isinstance(spread(computing), RuledOut)
    assert isinstance(spread(CARDS[:2]), RuledOut)


def test_cards_of_which_nothing_was_read_are_not_called_idle():
    unread = tuple(replace(c, memory_used=None, foreign_processes=None) for c in CARDS)
    assert "memory in use" in spread(unread).missing
    assert "1 of 3 GPUs" in spread((*CARDS[:3], *unread[3:])).summary


def test_one_process_may_use_cards_that_are_not_watched():
    alone = made(probe=state(cuda={"initialized": True, "uuid": UUID}), cards=CARDS)
    assert isinstance(idle_gpu.judge(alone), Abstention)


@pytest.mark.parametrize(
    "rule",
    [
        no_tensor_cores,
        misleading_utilization,
        clock_throttling,
        gpu_contention,
        dataparallel_used,
        idle_gpu,
    ],
)
def test_a_cpu_run_has_no_card_to_judge(rule):
    assert isinstance(rule.judge(window(STEPS)), RuledOut)


def test_beside_a_busy_neighbour_other_causes_are_unsure():
    steps = make_steps(1000, {"data_wait": 10, "forward": 10}, exposed={"data_wait": 10}, dry=0.1)
    found = diagnose(replace(shared(steps), loaders=(loader(),)))
    told = {f.id: f.confidence for f in (found.verdict, *found.also)}
    assert told["gpu-contention"] == "medium"
    assert told["input-bound"] == "low"
    alone = diagnose(made(steps, util=47, loaders=(loader(),)))
    assert (alone.verdict.id, alone.verdict.confidence != "low") == ("input-bound", True)


def test_few_readings_that_cover_the_window_tell_as_much_as_many():
    far = tuple(
        GpmSample(1_000 * MS + k * 2_400 * MS, UUID, tensor=0.01, sm=96.0) for k in range(5)
    )
    found = no_tensor_cores.judge(made(gpm=far))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("warn", "high")
    # As many in less than three seconds are of a moment: a hint, as without any.
    near = tuple(replace(g, t_ns=1_000 * MS + k * 500 * MS) for k, g in enumerate(far))
    assert no_tensor_cores.judge(made(gpm=near)).severity == "info"
