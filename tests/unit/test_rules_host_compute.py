from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import make_steps, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import host_compute, launch_bound
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, ProcSample


def line(func="confusion_matrix", call="np.add.at(table, (y, p), 1)", number=77, count=90):
    return site("sample", number, label="host_compute", func=func, call=call, count=count)


METRIC = (line(),)
USUAL = {"forward": 4, "backward": 5, "optimizer": 1}


def every_n(n, cost, *, sites=METRIC, **more):
    steps = make_steps(400, USUAL, extra=lambda i: {"other": cost} if i % n == 0 else {})
    return window(steps, sites=sites, **more)


def test_a_metric_every_20_steps_is_named_with_its_period_and_its_line():
    found = host_compute.judge(every_n(20, 100))
    assert isinstance(found, Finding)
    assert (found.id, found.severity, found.confidence) == ("host-compute", "critical", "high")
    assert found.lost_share == pytest.approx(100 / 300)
    assert "every 20 steps" in found.summary and "train.py:77" in found.summary
    assert "every 1,000 steps instead of every 20 (train.py:77)" in found.advice[0].text
    assert found.gain.ceiling == pytest.approx(1.5)


def test_on_a_gpu_what_recurs_is_measured_by_the_other_steps():
    found = host_compute.judge(every_n(20, 100, on_gpu=True, util=60))
    assert found.lost_share == pytest.approx(100 / 300)


def test_a_short_pause_now_and_then_is_silent():
    assert isinstance(host_compute.judge(every_n(40, 10)), RuledOut)


def test_hiccups_without_a_period_or_a_place_are_no_cause():
    made = every_n(20, 0, sites=())
    odd = {3, 9, 40, 41, 150, 157, 300}
    steps = make_steps(400, USUAL, extra=lambda i: {"other": 90} if i in odd else {})
    assert isinstance(host_compute.judge(window(steps, sites=made.sites)), RuledOut)


def busy_host(other, *, dry=0.9, util=30, sites=METRIC, syncs=0, **more):
    usual = {"forward": 5, "backward": 5, "other": other}
    steps = make_steps(200, usual, dry=dry, syncs=syncs)
    return window(steps, on_gpu=True, util=util, sites=sites, **more)


def test_on_a_gpu_its_part_of_the_idle_time_counts_and_launches_get_the_rest():
    made = busy_host(10)
    found, launches = host_compute.judge(made), launch_bound.judge(made)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.7 / 2)
    assert found.lost_share + launch_bound.launch_idle(made) <= 0.7
    assert isinstance(launches, Finding)
    assert [w.line for w in found.where] == [77]
    assert "confusion_matrix at train.py:77" in found.advice[0].text


def test_the_loop_around_thousands_of_reads_is_the_reads_own():
    # 1,024 reads a step, as recorded on an H200: the sampler sees the loop's lines between them.
    reads = site("sync", 79, func="count_each", call="hits[k].item()", count=200 * 1024)
    loop = line(func="count_each", call="for k in range(n):", number=78)
    said = host_compute.judge(busy_host(10, sites=(loop, reads), syncs=1024))
    assert isinstance(said, RuledOut) and "host-sync-stall" in said.why
    elsewhere = line(number=120)
    assert isinstance(
        host_compute.judge(busy_host(10, sites=(elsewhere, reads), syncs=1024)), Finding
    )


def test_host_code_while_the_gpu_works_is_harmless():
    assert isinstance(host_compute.judge(busy_host(4, dry=0.05, util=95)), RuledOut)


def test_host_code_beyond_what_the_gpu_was_busy_counts_whatever_the_queue_was():
    found = host_compute.judge(busy_host(40, dry=0.2, util=20))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.8 - 0.2)


def test_without_a_gpu_reading_or_samples_it_is_not_judged():
    assert isinstance(host_compute.judge(busy_host(10, util=None)), Abstention)
    assert isinstance(host_compute.judge(busy_host(10, sites=())), Abstention)
    assert isinstance(host_compute.judge(busy_host(6, dry=None)), Abstention)


def on_cpu(place, other=10):
    steps = make_steps(200, {"forward": 5, "backward": 5, "other": other})
    return window(steps, sites=(place,))


def test_on_a_cpu_a_function_that_measures_is_named():
    found = host_compute.judge(on_cpu(line()))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(0.5)


def test_samples_on_the_line_that_calls_a_function_are_the_functions():
    # As measured: 26 samples in auc_score, 18 on the line that calls it, 3 elsewhere.
    places = (
        line(func="auc_score", call="n", number=7, count=26),
        line(func="<module>", call="auc_score(p, y)", number=12, count=18),
        line(func="<module>", call="net(x)", number=11, count=3),
    )
    steps = make_steps(200, {"forward": 5, "backward": 5, "other": 3})
    found = host_compute.judge(window(steps, sites=places))
    assert found.lost_share == pytest.approx(3 / 13 * 44 / 47)


@pytest.mark.parametrize(
    "place",
    [
        line(func="contrastive_loss", call="np.log(z)"),
        line(func="step", call="F.softplus(x)"),
        line(func="main", call="rollout(x)"),
        line(func="confusion_matrix", count=5),
    ],
)
def test_on_a_cpu_what_may_be_a_loss_is_named_and_not_judged(place):
    said = host_compute.judge(on_cpu(place))
    assert isinstance(said, Abstention)
    assert "train.py:77" in said.missing
    assert diagnose(on_cpu(place)).verdict is None


def test_on_a_cpu_a_fifth_may_be_a_loss_unless_its_name_says_otherwise():
    loss = line(func="contrastive_loss", call="np.log(z)")
    assert isinstance(host_compute.judge(on_cpu(loss, other=2.5)), RuledOut)
    assert isinstance(host_compute.judge(on_cpu(line(), other=2.5)), Finding)
    assert isinstance(host_compute.judge(on_cpu(line(), other=1)), RuledOut)


def test_a_pause_is_told_from_the_small_part_that_the_sampler_spreads_over_all_steps():
    # As pickled every 6th step on 2 cores: 40 ms there, 2 to 6 ms in each of the others.
    def extra(i):
        return {"other": 40 if i % 6 == 0 else 2 + i % 5}

    steps = make_steps(120, {"forward": 10, "backward": 12, "optimizer": 4}, extra=extra)
    found = host_compute.judge(window(steps, sites=METRIC))
    assert isinstance(found, Finding) and found.confidence == "high"
    assert "every 6 steps" in found.summary
    assert found.lost_share == pytest.approx(20 * 36 / (120 * 26 + 20 * 40 + 100 * 4), rel=0.1)


def test_every_so_many_steps_makes_it_the_one_per_cent_that_is_promised():
    steps = make_steps(120, {"forward": 30, "backward": 30, "optimizer": 7, "other": 51})
    found = host_compute.judge(window(steps, sites=METRIC))
    every = int(found.advice[0].text.split(" every ")[1].split()[0])
    assert 51 / every / (67 + 51 / every) == pytest.approx(0.01, rel=0.05)


def test_a_whole_array_call_is_not_told_to_become_one():
    steps = make_steps(120, {"forward": 30, "backward": 30, "optimizer": 7, "other": 51})
    one = (line(func="update_stats", call="np.percentile(np.abs(g), [5, 50, 95])"),)
    found = host_compute.judge(window(steps, sites=one))
    assert "every tenth" in found.advice[1].text and "whole-tensor" not in found.advice[1].text


def in_process(made, *, main, delay=0.0):
    begin = made.t0_ns
    procs = [
        ProcSample(begin + k, 10, "trainer", cpu=main, main_cpu=main, run_delay=delay)
        for k in range(6)
    ]
    return replace(made, procs=tuple(procs))


def test_code_that_waits_for_a_network_is_handed_to_a_thread_and_not_vectorised():
    send = line(func="send_metrics", call="urlopen(request)")
    found = host_compute.judge(in_process(on_cpu(send), main=0.5))
    text = " ".join(step.text for step in found.advice)
    assert "thread" in text and "uses 50% of a core" in text
    assert "vectorise" not in text and "A call beside the model" in found.summary


@pytest.mark.parametrize(("main", "delay"), [(0.98, 0.0), (0.5, 0.45)])
def test_code_that_computes_or_has_no_core_does_not_wait(main, delay):
    found = host_compute.judge(in_process(on_cpu(line()), main=main, delay=delay))
    text = " ".join(step.text for step in found.advice)
    assert "thread (" not in text and found.summary.startswith("Python code")
