"""What is done with the GPU's memory in the loop: retries, an emptied cache, nothing at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import MS, loader, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import (
    allocator_retry_stall,
    cudnn_benchmark_thrash,
    empty_cache_in_loop,
    idle_allocation,
)
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.diagnose.window import Since
from gputop_train.model import Abstention, Finding, MemorySample, Where

USUAL = {"forward": 40, "backward": 60}
GB = 1_000_000_000


def retrying(counts, *, slow=(), on_gpu=True, **more):
    """A reading of the allocator at each step's end; ``slow`` steps take 300 ms more."""
    steps = make_steps(len(counts), USUAL, extra=lambda i: {"forward": 300} if i in slow else {})
    samples = tuple(
        MemorySample(0, s.t1_ns - MS, s.index, "cuda-allocator", 70 * GB, 75 * GB, retries=n)
        for s, n in zip(steps, counts, strict=True)
    )
    return replace(window(steps, on_gpu=on_gpu, device_bytes=80 * GB, **more), memory=samples)


RISING = [n // 10 for n in range(100)]
SLOW = {i for i in range(1, 100) if RISING[i] > RISING[i - 1]}


def test_retries_are_told_with_what_their_steps_cost():
    found = allocator_retry_stall.judge(retrying(RISING, slow=SLOW, loaders=(loader(),)))
    assert isinstance(found, Finding)
    assert (found.id, found.severity, found.confidence) == (
        "allocator-retry-stall",
        "critical",
        "high",
    )
    assert found.lost_share == pytest.approx(9 * 300 / (100 * 100 + 9 * 300))
    assert "9 retries" in found.advice[0].text and "88% of the device" in found.advice[0].text
    assert "batch_size 64 -> 57 (train.py:41)" in found.advice[1].text


def test_retries_that_cost_nothing_are_information():
    found = allocator_retry_stall.judge(retrying(RISING))
    assert (found.severity, found.lost_share) == ("info", 0.0)


def test_retries_before_the_window_do_not_count_and_a_cpu_has_none():
    assert isinstance(allocator_retry_stall.judge(retrying([7] * 100)), RuledOut)
    assert isinstance(allocator_retry_stall.judge(retrying(RISING, on_gpu=False)), RuledOut)
    bare = window(make_steps(50, USUAL), on_gpu=True)
    assert isinstance(allocator_retry_stall.judge(bare), Abstention)


def emptying(calls, *, samples=0, util=60, **more):
    sites = [site("sample", 45, label="forward", call="model(x)", count=100 - samples)]
    if samples:
        call = "torch.cuda.empty_cache()"
        sites.append(site("sample", 52, label="host_compute", call=call, count=samples))
    state = probe(True, empty_cache=calls)
    steps = make_steps(100, USUAL)
    return window(steps, on_gpu=True, util=util, probe=state, sites=tuple(sites), **more)


def test_an_emptied_cache_in_each_step_is_a_warning_where_time_goes_there():
    found = empty_cache_in_loop.judge(emptying(110, samples=12))
    assert (found.severity, found.lost_share) == ("warn", pytest.approx(0.12))
    assert [w.line for w in found.where] == [52]
    assert "empty_cache() at train.py:52" in found.advice[0].text
    assert found.gain.at_least


def test_without_time_seen_there_it_is_information():
    found = empty_cache_in_loop.judge(emptying(110))
    assert (found.severity, found.lost_share, found.gain) == ("info", 0.0, None)
    assert "too short" in found.where_missing


def test_on_a_busy_gpu_the_call_costs_no_more_than_the_idle_time():
    assert empty_cache_in_loop.judge(emptying(110, samples=12, util=97)).lost_share == 0.0


def test_a_call_between_phases_is_silent_and_an_unknown_count_is_not_judged():
    assert isinstance(empty_cache_in_loop.judge(emptying(5)), RuledOut)
    assert isinstance(empty_cache_in_loop.judge(emptying(None)), Abstention)
    assert isinstance(empty_cache_in_loop.judge(window(make_steps(50, USUAL))), RuledOut)


def left_alone(seconds=900.0, *, util=0.0, trainer=0.01, label=None, place=None, **more):
    steps = make_steps(50, USUAL)
    after = Since(seconds, util, trainer, label, place)
    more.setdefault("memory", [30 * GB] * 10)
    more = {"final": False, "on_gpu": True, "util": 80, "since": after} | more
    return window(steps, **more)


def test_memory_held_by_a_sleeping_process_is_named():
    place = Where("/home/ann/train.py", 70, "input()")
    found = idle_allocation.judge(left_alone(place=place, label="host_compute"))
    assert isinstance(found, Finding)
    assert (found.severity, found.lost_share) == ("warn", 0.0)
    assert "900 s" in found.summary and "30 GB" in found.summary and "train.py:70" in found.summary


@pytest.mark.parametrize(
    "quiet",
    [
        {"final": True},
        {"seconds": 61.0, "since": None},
        {"util": 100.0},  # a hung collective spins
        {"trainer": 0.9},  # an evaluation on the host
        {"label": "checkpoint"},
        {"on_gpu": False},
    ],
)
def test_what_is_at_work_or_over_is_no_idle_allocation(quiet):
    assert isinstance(idle_allocation.judge(left_alone(**quiet)), RuledOut)


def test_ten_steps_must_have_passed_where_steps_are_long():
    long = make_steps(30, {"forward": 20_000})
    made = replace(left_alone(150.0), steps=tuple(long), median_ms=20_000)
    assert isinstance(idle_allocation.judge(made), RuledOut)


def test_without_readings_since_then_it_is_not_judged():
    assert isinstance(idle_allocation.judge(left_alone(util=None)), Abstention)
    assert isinstance(idle_allocation.judge(left_alone(memory=[])), Abstention)


def searching(*, shapes=20, long=10, on=True, looked=200, **more):
    every = 100 // long if long else 1000
    steps = make_steps(
        100, USUAL, extra=lambda i: {"forward": 260} if i % every == every - 1 else {}
    )
    state = probe(True, flags={"cudnn_benchmark": on}, shapes=[[1, shapes, looked]])
    return window(steps, on_gpu=True, probe=state, loaders=(loader(),), **more)


def test_a_search_for_each_new_shape_is_named():
    found = cudnn_benchmark_thrash.judge(searching())
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "medium")
    assert found.lost_share == pytest.approx(2600 / 12600)
    assert "benchmark = False" in found.advice[0].text and [w.line for w in found.where] == [41]


@pytest.mark.parametrize(
    "quiet",
    [
        {"on": False},
        {"shapes": 2},
        {"long": 0},
        {"shapes": 100, "looked": 100},  # 10 long steps for 100 new shapes: lengths, not searches
    ],
)
def test_long_steps_that_are_no_search_are_left_alone(quiet):
    assert isinstance(cudnn_benchmark_thrash.judge(searching(**quiet)), RuledOut)


def test_shapes_that_come_again_are_searched_for_once():
    # 40 shapes at random in 400 steps, one batch in 16 looked at: searches end as shapes repeat.
    def made(places):
        steps = make_steps(400, USUAL, extra=lambda i: {"forward": 300} if i in places else {})
        state = probe(True, flags={"cudnn_benchmark": True}, shapes=[[1, 15, 25]])
        return window(steps, on_gpu=True, probe=state, loaders=(loader(),))

    first = {int(1.13**n) for n in range(10, 49)}
    assert isinstance(cudnn_benchmark_thrash.judge(made(first)), Finding)
    later = {399 - at for at in first}
    assert isinstance(cudnn_benchmark_thrash.judge(made(later)), RuledOut)


def test_compilation_explains_long_steps_first():
    steps = make_steps(100, USUAL, extra=lambda i: {"compile": 200} if i % 10 == 0 else {})
    made = replace(searching(), steps=tuple(steps), totals=window(steps).totals)
    assert isinstance(cudnn_benchmark_thrash.judge(made), RuledOut)


def test_a_cpu_has_no_cudnn_and_an_unknown_flag_is_not_judged():
    assert isinstance(cudnn_benchmark_thrash.judge(window(make_steps(50, USUAL))), RuledOut)
    assert isinstance(cudnn_benchmark_thrash.judge(searching(on=None)), Abstention)


def test_a_sleeping_run_gets_a_verdict_though_no_time_of_a_step_is_lost():
    steps = make_steps(60, {"gpu_wait": 80, "forward": 20}, exposed={"data_wait": 0, "sync": 0})
    made = replace(left_alone(), steps=tuple(steps), totals=window(steps).totals)
    assert diagnose(made).verdict.id == "idle-allocation"
