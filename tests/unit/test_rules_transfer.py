"""Copies to the GPU, round trips and the PCIe link: each beside what it is mistaken for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, gpm, loader, make_steps, probe, readings, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import (
    device_roundtrip,
    gpu_bound,
    pageable_h2d,
    pcie_bandwidth_bound,
    pcie_link_degraded,
    unoverlapped_h2d,
)
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

#: 200 MB a step at 15 GB/s, 20 ms a step: what a copy from pageable memory costs on an H200.
COPYING = {"h2d": 13.4, "forward": 3, "backward": 3, "optimizer": 0.6}
BYTES = 200_000_000
FAST_LINK = {"pcie_gen": 5, "pcie_gen_max": 5, "pcie_width": 16, "pcie_width_max": 16}
STEPS = 400


def copying(line=35, unpinned=1.0, a_step=BYTES, ms=13.4, steps=STEPS, **more):
    total = a_step * steps
    return site(
        "h2d",
        line,
        call="x = x.to(device)",
        count=steps,
        total_ns=round(ms * MS * steps),
        bytes=total,
        unpinned_bytes=round(unpinned * total),
        pairs=20,
        pair_ns=round(ms * MS * 20),
        pair_bytes=a_step * 20,
        **more,
    )


def made(usual=COPYING, exposed=None, sites=None, dry=0.1, count=STEPS, **more):
    steps = make_steps(count, usual, exposed={"h2d": 13.4} if exposed is None else exposed, dry=dry)
    more.setdefault("util", 17)
    more.setdefault("gpu", readings(steps, **FAST_LINK))
    return window(steps, on_gpu=True, sites=(copying(),) if sites is None else sites, **more)


def text(finding):
    return " ".join(a.text for a in finding.advice)


def test_a_blocking_pageable_copy_is_named_with_its_line_and_its_cost():
    found = pageable_h2d.judge(made())
    assert isinstance(found, Finding)
    assert (found.id, found.severity, found.confidence) == ("pageable-h2d", "critical", "high")
    assert found.lost_share == pytest.approx(0.67)
    assert [w.line for w in found.where] == [35]
    assert "200 MB a step at 14.9 GB/s" in found.summary


def test_without_a_loader_the_tensor_itself_is_to_be_pinned_and_no_loader_setting_is_advised():
    found = pageable_h2d.judge(made())
    assert "data = data.pin_memory()" in found.advice[0].text
    assert "pin_memory=True" not in text(found)
    assert all(a.setting is None for a in found.advice)
    assert "non_blocking=True" in found.advice[1].text


def test_a_loader_that_does_not_pin_is_named_with_its_line():
    found = pageable_h2d.judge(made(loaders=(loader(num_workers=4),)))
    assert "pin_memory False -> True (train.py:41)" in found.advice[0].text
    assert found.advice[0].setting == {"pin_memory": True}


def test_a_loader_without_workers_would_pin_in_the_training_thread():
    found = pageable_h2d.judge(made(loaders=(loader(num_workers=0),)))
    assert found.advice[0].setting == {"num_workers": 1, "pin_memory": True}
    stream = pageable_h2d.judge(made(loaders=(loader(num_workers=0, iterable=True),)))
    assert stream.advice[0].setting is None  # which --set would refuse


def test_a_batch_class_that_cannot_be_pinned_is_told_from_a_loader_that_does_not():
    found = pageable_h2d.judge(made(loaders=(loader(num_workers=4, pin_memory=True),)))
    assert "pin_memory() method" in found.advice[0].text
    assert all(a.setting is None for a in found.advice)


def test_the_gain_reaches_from_the_links_rate_to_no_copy_at_all():
    gain = pageable_h2d.judge(made()).gain
    # 200 MB at 80% of 63 GB/s are 4 ms of the 20 ms step.
    assert gain.ceiling == pytest.approx(20 / 6.6, rel=0.01)
    assert gain.expected == pytest.approx((20 / 10.57, 20 / 6.6), rel=0.01)


def test_without_the_link_no_forecast_is_made():
    steps = make_steps(STEPS, COPYING, exposed={"h2d": 13.4}, dry=0.1)
    found = pageable_h2d.judge(made(gpu=readings(steps)))
    assert found.gain.expected is None


def test_an_unpinned_copy_that_costs_little_is_not_worth_mending():
    found = pageable_h2d.judge(
        made({"h2d": 0.4, "forward": 10, "backward": 9.6}, {"h2d": 0.4}, (copying(ms=0.4),))
    )
    assert isinstance(found, RuledOut)
    assert "at most 1.02x" in found.why


def test_a_few_small_copies_cost_calls_and_are_left_alone():
    small = made({"h2d": 1.4, "forward": 9, "backward": 9.6}, {"h2d": 1.4}, (copying(a_step=9e4),))
    found = pageable_h2d.judge(small)
    assert isinstance(found, RuledOut)
    assert "90 kB a step" in found.why


def test_many_small_copies_are_to_become_one():
    many = replace(copying(a_step=400_000, ms=4), count=40 * STEPS)
    found = pageable_h2d.judge(made({"h2d": 4, "forward": 8, "backward": 8}, {"h2d": 4}, (many,)))
    assert found.advice[0].text.startswith("Move one tensor in place of 40 small ones a step")
    assert len(found.advice) == 3


def test_a_copy_that_waits_for_the_gpus_earlier_work_is_not_charged_for_it():
    found = pageable_h2d.judge(made(exposed={"h2d": 0.3}, util=95))
    assert isinstance(found, RuledOut)


def test_idle_time_beyond_the_blocking_copy_itself_is_not_its_own():
    usual = {"h2d": 5, "forward": 8, "backward": 7}
    assert pageable_h2d.judge(made(usual)).lost_share == pytest.approx(0.25)


def test_pinned_copies_are_not_pageable_but_unoverlapped():
    pinned = made(sites=(copying(unpinned=0.0),))
    assert isinstance(pageable_h2d.judge(pinned), RuledOut)
    found = unoverlapped_h2d.judge(pinned)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.67)
    assert found.advice[0].text.startswith("Move with non_blocking=True (train.py:35)")


def test_pageable_copies_are_not_unoverlapped():
    assert isinstance(unoverlapped_h2d.judge(made()), RuledOut)


def test_a_copy_that_holds_only_the_gpu_needs_a_stream_of_its_own():
    usual = {"h2d": 0.1, "gpu_wait": 13, "forward": 3, "backward": 3.9}
    found = unoverlapped_h2d.judge(made(usual, {"h2d": 4}, (copying(unpinned=0.0, ms=0.1),)))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.2)
    assert "torch.cuda.Stream()" in found.advice[0].text


def test_copies_hide_where_the_host_sets_the_pace():
    usual = {"h2d": 0.1, "forward": 10, "backward": 9.9}
    found = unoverlapped_h2d.judge(
        made(usual, {"h2d": 4}, (copying(unpinned=0.0, ms=0.1),), dry=0.9)
    )
    assert isinstance(found, RuledOut)
    assert "host sets the pace" in found.why


def test_without_events_the_host_time_beyond_the_busy_time_counts_for_pageable_copies_alone():
    steps = make_steps(STEPS, COPYING)
    bare = window(steps, on_gpu=True, util=17, sites=(copying(),))
    found = pageable_h2d.judge(bare)
    assert isinstance(found, Finding)
    assert found.confidence == "medium"
    assert found.lost_share == pytest.approx(0.67 - 0.17)
    assert found.gain.at_least
    pinned = window(steps, on_gpu=True, util=17, sites=(copying(unpinned=0.0),))
    assert isinstance(unoverlapped_h2d.judge(pinned), Abstention)


def test_copies_whose_memory_nobody_looked_at_are_not_judged():
    blind = made(sites=())
    assert isinstance(pageable_h2d.judge(blind), Abstention)
    assert isinstance(unoverlapped_h2d.judge(blind), Abstention)
    absent = made(probe=probe(True, without=("h2d",)))
    assert isinstance(pageable_h2d.judge(absent), Abstention)
    unknown = window(make_steps(STEPS, COPYING), on_gpu=True, sites=(copying(),))
    assert isinstance(pageable_h2d.judge(unknown), Abstention)


@pytest.mark.parametrize(
    "rule",
    [pageable_h2d, unoverlapped_h2d, device_roundtrip, pcie_link_degraded, pcie_bandwidth_bound],
)
def test_a_cpu_run_copies_nothing(rule):
    assert isinstance(rule.judge(window(make_steps(STEPS, COPYING))), RuledOut)


def test_the_engine_gives_a_pageable_copy_as_its_verdict_alone():
    found = diagnose(made(util=17))
    assert found.verdict.id == "pageable-h2d"
    assert {f.id for f in found.also} <= {"misleading-utilization"}


# --- to the host and back --------------------------------------------------------------------------

TRIP = {"sync": 3, "h2d": 3, "forward": 7, "backward": 7}
BACK = 8_000_000


def reading(line=60, a_step=BACK, func="loss_of", **more):
    return site(
        "sync", line, call="mask = out.cpu()", func=func, count=STEPS, total_ns=3 * MS * STEPS,
        bytes=a_step * STEPS, pairs=20, pair_ns=3 * MS * 20, after_ns=0, **more
    )  # fmt: skip


def tripping(*sites, exposed=None, **more):
    exposed = {"sync": 3, "h2d": 3} if exposed is None else exposed
    return made(TRIP, exposed, sites, util=60, **more)


def up(line=62, a_step=BACK, func="loss_of", ms=3):
    return copying(line, a_step=a_step, func=func, ms=ms)


def test_data_that_leaves_and_comes_back_is_named_with_both_lines():
    found = device_roundtrip.judge(tripping(reading(), up()))
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert found.lost_share == pytest.approx(0.3)
    assert [w.line for w in found.where] == [60, 62]
    assert "train.py:60" in found.advice[0].text and "train.py:62" in found.advice[0].text


def test_the_way_up_is_not_claimed_by_a_rule_on_copies_again():
    there = tripping(reading(), up())
    assert device_roundtrip.returned_share(there) == pytest.approx(0.15)
    assert isinstance(pageable_h2d.judge(there), RuledOut)
    assert device_roundtrip.returned_share(tripping(reading())) == 0.0


@pytest.mark.parametrize(
    ("sites", "why"),
    [
        ((reading(a_step=64), up(a_step=64)), "scalars"),
        ((reading(),), "nothing comes back"),
        ((reading(), up(line=20)), "the batch's own copy stands before the read"),
        ((reading(), up(func="main")), "another function's copy"),
        ((reading(), up(a_step=20 * BACK)), "another size"),
        ((reading(), up(a_step=BACK // 20)), "a few of its rows, which is the mend"),
    ],
)
def test_what_does_not_come_back_is_no_round_trip(sites, why):
    assert isinstance(device_roundtrip.judge(tripping(*sites)), RuledOut), why


def test_a_cheap_round_trip_is_left_alone():
    cheap = reading()
    quick = {"pair_ns": MS, "pairs": 20}
    down = site("sync", 60, **{"func": "loss_of", "count": STEPS, "bytes": cheap.bytes} | quick)
    back = site("h2d", 62, **{"func": "loss_of", "count": STEPS, "bytes": cheap.bytes} | quick)
    assert isinstance(device_roundtrip.judge(tripping(down, back)), RuledOut)


def test_optimizer_state_kept_on_the_host_on_purpose_is_exempt():
    state = probe(True, optimizers=[{"id": 1, "cls": "DeepSpeedCPUAdam"}])
    found = device_roundtrip.judge(tripping(reading(), up(), probe=state))
    assert isinstance(found, RuledOut)
    assert "on purpose" in found.why


# --- the link --------------------------------------------------------------------------------------

LONG = make_steps(1500, COPYING, exposed={"h2d": 13.4}, dry=0.1)


def linked(util=90, **fields):
    gpu = readings(LONG, **{**FAST_LINK, **fields})
    return window(LONG, on_gpu=True, util=util, gpu=gpu, sites=(copying(steps=1500),))


def test_a_narrow_link_under_load_is_named_with_what_it_costs():
    found = pcie_link_degraded.judge(linked(pcie_width=4))
    assert isinstance(found, Finding)
    assert "generation 5 x4" in found.summary and "generation 5 x16" in found.summary
    assert found.lost_share == pytest.approx(0.67 * 0.75)
    assert found.severity == "critical"


def test_a_narrow_link_that_copies_nothing_is_information():
    steps = make_steps(1500, {"forward": 10, "backward": 10}, exposed={"h2d": 0.0}, dry=0.1)
    gpu = readings(steps, **{**FAST_LINK, "pcie_width": 8})
    found = pcie_link_degraded.judge(window(steps, on_gpu=True, util=95, gpu=gpu))
    assert (found.severity, found.lost_share) == ("info", 0.0)


@pytest.mark.parametrize(
    "fields",
    [{}, {"pcie_width": 8, "pcie_width_max": 8}, {"pcie_gen": lambda k: 1 if k % 5 == 0 else 5}],
)
def test_a_link_as_good_as_its_slot_and_a_dip_are_no_fault(fields):
    assert isinstance(pcie_link_degraded.judge(linked(**fields)), RuledOut)


def test_an_idle_card_turns_its_link_down_by_itself():
    steps = make_steps(1500, {"forward": 20}, exposed={"h2d": 0.0})
    gpu = readings(steps, **{**FAST_LINK, "pcie_gen": 1})
    assert isinstance(
        pcie_link_degraded.judge(window(steps, on_gpu=True, util=5, gpu=gpu)), RuledOut
    )


def test_a_link_nobody_read_is_not_judged():
    steps = make_steps(100, {"forward": 20})
    found = pcie_link_degraded.judge(window(steps, on_gpu=True, util=90, gpu=readings(steps)))
    assert isinstance(found, Abstention)


def full_link(rx_gb_s=50.0, unpinned=0.0, a_step=1_000_000_000, **more):
    usual = {"h2d": 1, "gpu_wait": 12, "forward": 3, "backward": 4}
    steps = make_steps(STEPS, usual, exposed={"h2d": 12}, dry=0.0)
    return window(
        steps, on_gpu=True, util=40, gpu=readings(steps, **FAST_LINK),
        gpm=gpm(pcie_rx_mib_per_s=rx_gb_s * 1e9 / (1 << 20)),
        sites=(copying(unpinned=unpinned, a_step=a_step),), **more,
    )  # fmt: skip


def test_copies_that_fill_the_link_need_fewer_bytes():
    found = pcie_bandwidth_bound.judge(full_link())
    assert isinstance(found, Finding)
    assert "79% of the PCIe link" in found.summary
    assert "500 MB a step" in found.advice[0].text


@pytest.mark.parametrize(
    "other",
    [full_link(rx_gb_s=20), full_link(a_step=10_000_000), full_link(unpinned=1.0)],
    ids=["half used", "traffic of others", "pageable"],
)
def test_a_link_with_room_or_with_others_traffic_is_not_the_limit(other):
    assert isinstance(pcie_bandwidth_bound.judge(other), RuledOut)


def test_a_link_that_is_full_at_times_alone_is_not_the_limit():
    busy = {"pcie_rx_mib_per_s": 63e9 / (1 << 20)}
    some = {"pcie_rx_mib_per_s": 38e9 / (1 << 20)}
    mixed = gpm(18, **busy) + gpm(22, **some)
    found = pcie_bandwidth_bound.judge(replace(full_link(), gpm=mixed))
    assert isinstance(found, RuledOut)


def test_single_snapshots_at_the_limit_are_no_full_link():
    steps = make_steps(STEPS * 5, {"forward": 20}, exposed={"h2d": 0.0})
    rates = readings(
        steps, **FAST_LINK, pcie_rx_bytes_per_s=lambda k: 6.3e10 if k % 4 == 0 else 1e8
    )
    found = pcie_bandwidth_bound.judge(window(steps, on_gpu=True, util=90, gpu=rates))
    assert isinstance(found, RuledOut)


def test_the_reads_of_a_round_trip_are_not_claimed_by_the_rule_on_reads_again():
    there = tripping(reading(), up())
    assert device_roundtrip.read_share(there) == pytest.approx(0.15)
    found = diagnose(there)
    assert found.verdict.id == "device-roundtrip"
    assert not {"host-sync-stall", "pageable-h2d"} & {f.id for f in found.also}


@pytest.mark.parametrize("dry", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("ms", [10.0, 12.0, 13.4])
def test_a_queue_that_a_blocking_copy_left_empty_is_not_launch_bound(ms, dry):
    usual = {"h2d": ms, "forward": 10 - ms / 2, "backward": 10 - ms / 2}
    found = diagnose(made(usual, {"h2d": ms, "data_wait": 0}, (copying(ms=ms),), dry=dry))
    assert found.verdict.id == "pageable-h2d"
    assert not {"launch-bound", "small-batch", "input-bound"} & {f.id for f in found.also}


def test_a_gpu_that_waits_for_asynchronous_copies_is_not_the_limit():
    usual = {"h2d": 0.1, "gpu_wait": 13, "forward": 3, "backward": 3.9}
    steps = make_steps(STEPS, usual, exposed={"h2d": 4, "sync": 0, "data_wait": 0}, dry=0.0)
    assert isinstance(gpu_bound.judge(window(steps, on_gpu=True, util=88)), RuledOut)


def test_thousands_of_small_copies_cost_their_calls_between_the_events():
    # As recorded on an H200: 3,000 copies of 1.2 kB a step take 50 of 58 ms, the GPU is busy 11%.
    line = replace(copying(48, a_step=3_470_000, ms=50), count=3_000 * STEPS)
    usual = {"h2d": 50, "forward": 4, "backward": 3, "optimizer": 1}
    found = pageable_h2d.judge(made(usual, {"h2d": 1.3}, (line,), util=11))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(50 / 58 - 0.11)
    assert "one tensor in place of 3,000 small ones" in found.advice[0].text
    assert found.gain.at_least  # a bound by the host's time, not by events


def test_pinned_copies_cost_what_the_events_around_them_say():
    # As recorded on an H200: 240 copies a step, 14% of the host's time, 7% by their events.
    line = copying(48, unpinned=0.0, ms=1.4)
    usual = {"data_wait": 16, "h2d": 2.7, "forward": 0.7, "backward": 0.6}
    one = made(usual, {"h2d": 1.4, "data_wait": 16}, (line,), util=2, dry=0.9)
    found = unoverlapped_h2d.judge(one)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.07)


def test_the_same_time_behind_a_busy_gpu_costs_nothing():
    line = replace(copying(48, a_step=3_470_000, ms=50), count=3_000 * STEPS)
    usual = {"h2d": 50, "forward": 4, "backward": 3, "optimizer": 1}
    assert isinstance(
        pageable_h2d.judge(made(usual, {"h2d": 1.3}, (line,), util=97, dry=0.01)), RuledOut
    )
