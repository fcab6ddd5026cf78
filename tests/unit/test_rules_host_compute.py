from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import make_steps, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import host_compute, launch_bound
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.diagnose.user_code import BESIDE, MODEL, OBSERVES
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


def test_a_few_dozen_reads_are_not_what_a_long_function_around_them_does():
    # An actor's 34 reads a step among 14.6 ms of simulated worlds, as recorded on an H200.
    reads = site("sync", 62, func="collect", call="act.cpu()", count=200 * 34)
    inside = line(func="collect", call="np.stack(obs)", number=64)
    assert isinstance(host_compute.judge(busy_host(10, sites=(inside, reads), syncs=34)), Finding)


def test_what_computes_on_what_was_read_is_no_loop_around_reads():
    # 29 reads a step and a histogram of each on the next line, as recorded on an H200.
    reads = site("sync", 27, func="add_histogram", call="values.detach().cpu()", count=200 * 29)
    drawn = line(func="add_histogram", call="np.histogram(values, bins=self.edges)", number=28)
    found = host_compute.judge(busy_host(10, sites=(drawn, reads), syncs=29))
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [28]


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


BACKWARD = site("sample", 102, label="backward", func="<module>", call="loss.backward()", count=300)


@pytest.mark.parametrize(
    "text",
    [
        "add_histogram np.histogram(values, bins=self.edges)",
        "write f.write(line)",
        "factor_report extractor.fit(x)",
        "return table.tolist()",
        "np.unique(y, return_counts=True)",
        "lossless_copy x",
        "symmetric internet",
    ],
)
def test_letters_inside_other_words_do_not_make_code_the_models(text):
    assert not MODEL.search(text)


@pytest.mark.parametrize(
    "text",
    ["mse_loss", "mseLoss(x)", "F.softplus(x)", "compute_returns", "actor(x)", "self.net(x)",
     "torch.exp(x)", "gae_return", "PolicyNet(x)", "nn.functional.relu(x)"],
)  # fmt: skip
def test_the_models_words_are_known_at_their_own_bounds(text):
    assert MODEL.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 + logvar",
        "logsumexp",
        "log_prob(x)",
        "symmetric_kl",
        "mutual_information",
        "image - colours[idx]",
        "encode_positions",
        "transformation(x)",
        "map(f, x)",
        "reconfigure",
        "mixed_precision(x)",
        "f1 - cost",
        "sort_by_norm",
        "aucune",
    ],
)
def test_letters_inside_other_words_do_not_make_code_a_metric(text):
    assert not BESIDE.search(text)


@pytest.mark.parametrize(
    "name",
    ["mean_average_precision", "recall_at_k", "compute_ap", "mAP", "box_iou", "sentence_bleu",
     "accuracy", "top1_acc", "roc_auc", "AUCScore", "log_images", "add_histogram", "macro_f1",
     "f1_score", "compute_metrics"],
)  # fmt: skip
def test_names_of_what_only_looks_are_known(name):
    assert OBSERVES.search(name)


def test_a_histogram_of_a_methods_own_edges_is_named():
    # As sampled in a home-grown event writer: `self.` is no torch.nn.functional.
    places = (
        line(func="add_histogram", call="np.histogram(values, bins=self.edges)", count=569),
        line(func="add_histogram", call="values.max()", number=78, count=115),
        line(func="<module>", call="1 + logvar", number=62, count=9),
    )
    steps = make_steps(200, {"forward": 5, "backward": 5, "other": 10})
    assert isinstance(host_compute.judge(window(steps, sites=places)), Finding)


def test_a_function_is_read_by_its_name_and_by_more_than_its_first_line():
    def judged(func, *calls):
        places = [line(func=func, call=c, number=n, count=k) for n, (c, k) in enumerate(calls, 1)]
        steps = make_steps(200, {"forward": 5, "backward": 5, "other": 10})
        return host_compute.judge(window(steps, sites=tuple(places)))

    assert isinstance(judged("mean_average_precision", ("-sim[row]", 245)), Finding)
    most_numpy = (("x[row]", 40), ("np.cumsum(x)", 35), ("np.where(x)", 30))
    assert isinstance(judged("count_hits", *most_numpy), Finding)
    # The name of a loss, or a third of its lines in torch, keeps it from being blamed.
    assert isinstance(judged("ap_loss", ("-sim[row]", 245)), Abstention)
    third = (("np.sort(x)", 50), ("torch.softmax(x, 1)", 40))
    assert isinstance(judged("soft_rank", *third), Abstention)


def test_what_cannot_be_named_says_how_much_it_is():
    said = host_compute.judge(on_cpu(line(func="main", call="rollout(x)")))
    assert said.share == pytest.approx(0.5)


def advice_of(*places, **more):
    steps = make_steps(200, {"forward": 5, "backward": 5, "other": 10})
    found = host_compute.judge(window(steps, sites=places, **more))
    assert isinstance(found, Finding)
    return " ".join(step.text for step in found.advice)


RARER = ("every", "tenth", "late", "detached", "and go on")


@pytest.mark.parametrize(
    "call",
    [
        "np.stack([b[0] for b in batch])",
        "np.array(rows)",
        "np.concatenate([record for record in x])",
    ],
)
def test_a_batch_that_the_step_trains_on_is_made_earlier_and_not_more_rarely(call):
    text = advice_of(line(func="<module>", call=call, number=93), BACKWARD)
    assert "prepare it ahead" in text and "Vectorise" in text
    assert not any(word in text for word in RARER)


def test_code_before_the_backward_whose_name_says_nothing_is_not_made_rarer():
    place = line(func="match", call="scipy.optimize.linear_sum_assignment(c)", number=20)
    called = line(func="<module>", call="match(cost)", number=95, count=3)
    text = advice_of(place, called, BACKWARD)
    assert "prepare it ahead" in text and not any(word in text for word in RARER)


def test_what_only_looks_may_come_less_often_and_before_the_backward_only_with_care():
    after = line(func="<module>", call="update_confusion(table)", number=110)
    assert "Call update_confusion(table)" in advice_of(after, BACKWARD)
    before = line(func="<module>", call="update_confusion(table)", number=95)
    text = advice_of(before, BACKWARD)
    assert "If the loss does not use its result, call" in text
    assert "late" not in text and "tenth" not in text


def test_what_recurs_and_may_be_needed_is_not_made_rarer_either():
    refill = line(func="refill", call="np.stack(items)")
    found = host_compute.judge(every_n(20, 100, sites=(refill,)))
    text = " ".join(step.text for step in found.advice)
    assert isinstance(found, Finding) and "prepare it ahead" in text
    assert not any(word in text for word in ("every 1,000", "detached"))
    assert found.gain.expected is None


SINKHORN = (
    line(func="sinkhorn", call="f[:, None] - cost", number=18, count=60),
    line(func="sinkhorn", call="(g[None] - cost) / eps", number=17, count=40),
)


@pytest.mark.parametrize("places", [SINKHORN, (line(func="main", call="rollout(x)"),)])
def test_a_few_slow_steps_of_a_loss_on_a_cpu_are_no_cause(places):
    # As seen live beside other programs: five of 50 steps without a core, in a loss of one's own.
    odd = {3, 9, 23, 41, 46}
    usual = {"backward": 120, "other": 50}
    steps = make_steps(50, usual, extra=lambda i: {"other": 600} if i in odd else {})
    assert not isinstance(host_compute.judge(window(steps, sites=places)), Finding)
    assert isinstance(host_compute.judge(window(steps, sites=METRIC)), Finding)


def test_a_penalty_every_16_steps_on_a_cpu_is_the_models():
    penalty = line(func="path_length_penalty", call="torch.autograd.grad(y, w)")
    assert not isinstance(host_compute.judge(every_n(16, 100, sites=(penalty,))), Finding)


NERF = (
    line(func="query_field", call='torch.relu(h @ params[f"w{i}"] + params[f"b{i}"])', count=80),
    line(func="encode_positions", call="torch.sin(2.0**k * x)", number=21, count=20),
)
FUNCTIONS = {"backward": 54, "optimizer": 2, "other": 44}


@pytest.mark.parametrize("places", [SINKHORN, NERF])
def test_a_forward_in_functions_is_the_model_and_the_run_is_healthy(places):
    made = window(make_steps(200, FUNCTIONS), sites=places)
    said = host_compute.judge(made)
    assert isinstance(said, RuledOut) and "forward" in said.why
    assert diagnose(made).status == "healthy"


def test_tensors_in_lines_before_the_backward_are_the_loss_and_after_it_they_are_not():
    steps = make_steps(200, {"forward": 30, "backward": 30, "other": 40})

    def judged(number):
        place = line(func="<module>", call="torch.logsumexp(x, 1)", number=number)
        return host_compute.judge(window(steps, sites=(place, BACKWARD)))

    assert isinstance(judged(95), RuledOut)
    assert isinstance(judged(110), Abstention)


@pytest.mark.parametrize(
    ("usual", "place"),
    [
        ({"forward": 30, "backward": 30, "other": 40}, NERF[0]),  # the forward is known
        ({"backward": 20, "other": 80}, NERF[0]),  # more than a forward of that backward takes
        (FUNCTIONS, line(func="walk", call="table[i] + 1")),  # Python's own arithmetic
        (FUNCTIONS, line(func="main", call="rollout(x)")),
    ],
)
def test_what_may_be_more_than_the_forward_is_not_called_it(usual, place):
    made = window(make_steps(200, usual), sites=(place,))
    assert isinstance(host_compute.judge(made), Abstention)
    told = diagnose(made)
    assert told.status == "abstained"
    assert "train.py:77" in told.note and "/home" not in told.note


def test_an_average_kept_tensor_by_tensor_is_told_of_lists():
    own = line(func="update", call="value.mul_(decay).add_(new, alpha=1 - decay)", number=43)
    found = host_compute.judge(busy_host(10, sites=(own,)))
    assert isinstance(found, Finding)
    (only,) = found.advice  # nothing that the step needs can be made by a loader's workers
    assert "torch._foreach_mul_" in only.text and "update at train.py:43" in only.text
