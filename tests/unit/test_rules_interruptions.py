from __future__ import annotations

import pytest
from synthetic_windows import MS, intervals_of, loader, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import checkpoint_stall, eval_stall, host_compute
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, Interval


def saves(every, cost_ms, *, label="checkpoint", steps=200, step_ms=10.0):
    return make_steps(
        steps,
        {"forward": step_ms},
        extra=lambda i: {label: cost_ms} if i % every == every - 1 else {},
    )


def judge_saves(steps, **more):
    more.setdefault("intervals", tuple(intervals_of(steps, "checkpoint", site_id=88)))
    more.setdefault("sites", (site("save", 88, call="torch.save(state, path)"),))
    return checkpoint_stall.judge(window(steps, **more))


def test_a_slow_save_every_20_steps_is_named_with_its_line_and_its_numbers():
    found = judge_saves(saves(20, 200))
    assert isinstance(found, Finding)
    assert found.id == "checkpoint-stall"
    assert found.severity == "critical"
    assert [(w.line, w.what) for w in found.where] == [(88, "torch.save(state, path)")]
    assert found.lost_share == pytest.approx(0.5)
    values = {e.what: e.value for e in found.evidence}
    assert values["saves"] == 10
    assert values["one save, mean"] == pytest.approx(200)
    assert values["steps between saves"] == 20
    assert values["step without it, mean"] == pytest.approx(10)


def test_the_advice_says_how_rare_saves_must_be_and_what_they_cost_then():
    found = judge_saves(saves(20, 200))
    # c = 200 ms, T = 10 ms: 1% at c / (nT + c) <= 0.01, that is n >= 1,980.
    assert "Save every 2,000 steps instead of every 20" in found.advice[0].text
    assert "1% of the time instead of 50%; a crash then costs up to 20 s" in found.advice[0].text
    assert "train.py:88" in found.advice[0].text
    assert "async_save" in found.advice[1].text
    assert len(found.advice) <= 3


def test_the_gain_is_that_of_the_formula():
    gain = judge_saves(saves(20, 200)).gain
    assert gain.ceiling == pytest.approx(2.0)
    # From ten times rarer, every 200 steps, to none at all.
    assert gain.expected == pytest.approx((2.0 * 200 * 10 / (200 * 10 + 200), 2.0))


def test_saving_below_three_percent_is_silent():
    assert isinstance(judge_saves(saves(100, 20)), RuledOut)


def test_three_percent_warns_and_ten_is_critical():
    assert judge_saves(saves(20, 8)).severity == "warn"
    assert judge_saves(saves(20, 24)).severity == "critical"


def test_a_single_save_is_information_not_a_pattern():
    steps = make_steps(100, {"forward": 10}, extra=lambda i: {"checkpoint": 300} if i == 60 else {})
    found = judge_saves(steps)
    assert isinstance(found, Finding)
    assert found.severity == "info"


def test_model_and_optimizer_saved_by_two_calls_are_one_save():
    steps = saves(20, 40)
    pairs = []
    for s in steps:
        if s.labels["checkpoint"]:
            middle = s.t0_ns + 20 * MS
            pairs += [
                Interval(0, "checkpoint", s.t0_ns, middle - MS, 88),
                Interval(0, "checkpoint", middle, s.t0_ns + 40 * MS, 89),
            ]
    both = (site("save", 88, total_ns=200 * MS), site("save", 89, total_ns=200 * MS))
    found = judge_saves(steps, intervals=tuple(pairs), sites=both)
    assert {e.what: e.value for e in found.evidence}["saves"] == 10
    assert [w.line for w in found.where] == [88, 89]


def test_the_size_of_a_save_by_two_calls_is_that_of_both():
    steps = saves(20, 200)
    halves = [
        Interval(0, "checkpoint", i.t0_ns + at * MS, i.t0_ns + (at + 100) * MS, 88, 60_000_000)
        for i in intervals_of(steps, "checkpoint")
        for at in (0, 100)
    ]
    found = judge_saves(steps, intervals=tuple(halves))
    values = {e.what: e.value for e in found.evidence}
    assert values["saves"] == 10
    assert "120 MB" in found.advice[1].text


def packed(func):
    """As seen on 2 cores: ``torch.save`` into memory in 3 ms, then 131 ms of zlib in ``func``."""
    steps = make_steps(
        400,
        {"forward": 3, "backward": 5},
        extra=lambda i: {"checkpoint": 3, "other": 131} if i % 25 == 24 else {},
    )
    return window(
        steps,
        intervals=tuple(intervals_of(steps, "checkpoint", site_id=22)),
        sites=(
            site("save", 22, func="persist", call="torch.save(state, buf)"),
            site("sample", 23, label="host_compute", func=func, call="zlib.compress(b)", count=26),
            site("sample", 30, label="backward", func="run", call="loss.backward()", count=40),
        ),
    )


def test_packing_what_was_saved_is_part_of_the_save():
    made = packed("persist")
    found = checkpoint_stall.judge(made)
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(134 / (25 * 8 + 134), rel=0.01)
    assert [w.line for w in found.where] == [23, 22]
    assert isinstance(host_compute.judge(made), RuledOut)


def test_metrics_at_the_boundary_of_a_small_save_are_no_save():
    made = packed("confusion_matrix")
    assert isinstance(checkpoint_stall.judge(made), RuledOut)
    assert isinstance(host_compute.judge(made), Finding)


def test_a_save_without_its_hook_is_not_judged():
    steps = saves(20, 200)
    found = checkpoint_stall.judge(window(steps, probe=probe(False, without=("save",))))
    assert isinstance(found, Abstention)
    assert "save hook" in found.missing


def test_an_evaluation_of_a_quarter_of_the_run_is_named():
    steps = saves(50, 170, label="eval")
    evals = tuple(intervals_of(steps, "eval", site_id=61))
    found = eval_stall.judge(
        window(
            steps,
            intervals=evals,
            sites=(site("eval", 61, call="model.eval()"), site("save", 88)),
            loaders=(loader(),),
        )
    )
    assert isinstance(found, Finding)
    assert found.id == "eval-stall"
    assert found.severity == "critical"
    assert [w.line for w in found.where] == [61]
    assert found.lost_share == pytest.approx(170 / 670)
    assert found.gain.ceiling == pytest.approx(670 / 500)
    assert (
        "every 250 steps instead of every 50 (train.py:61): at 170 ms each" in found.advice[0].text
    )


def test_a_teacher_in_every_step_is_no_evaluation():
    steps = make_steps(200, {"forward": 4, "backward": 4, "eval": 4})
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval", site_id=61)),
            sites=(site("eval", 61, call="teacher.eval()"),),
        )
    )
    assert isinstance(found, RuledOut)
    assert "part of training" in found.why


def test_an_evaluation_below_ten_percent_is_silent():
    steps = saves(50, 40, label="eval")
    assert isinstance(eval_stall.judge(window(steps)), RuledOut)


def test_saves_are_no_evaluation_and_evaluations_are_no_saves():
    steps = saves(20, 200)
    assert isinstance(eval_stall.judge(window(steps)), RuledOut)
    steps = saves(20, 200, label="eval")
    assert isinstance(checkpoint_stall.judge(window(steps)), RuledOut)


def test_a_policy_that_collects_its_own_data_is_not_told_to_evaluate_less():
    steps = saves(32, 240, label="eval")
    evals = tuple(intervals_of(steps, "eval"))

    def judged(*sites, **more):
        return eval_stall.judge(window(steps, intervals=evals, sites=sites, **more))

    acting = site("nograd", 17, func="collect", call="with torch.no_grad():", total_ns=900 * MS)
    switch = site("eval", 14, func="collect", call="policy.eval()")
    assert isinstance(judged(acting, switch), Abstention)
    # The same switch in code that says it evaluates, or beside a loader that trains.
    named = site("eval", 14, func="estimate_loss", call="model.eval()")
    assert isinstance(judged(acting, named), Finding)
    assert isinstance(judged(acting, switch, loaders=(loader(),)), Finding)


@pytest.mark.parametrize(
    ("func", "call", "evaluates"),
    [
        ("evaluate", "model.eval()", True),
        ("run_eval", "model.eval()", True),
        ("main", "run_eval(model)", True),
        ("main", "loss = self.evaluate(model)", True),
        ("val_epoch", "model.eval()", True),
        ("validate", "model.train(False)", True),
        ("main", "model.eval()", False),
        ("play_values", "policy.eval()", False),
        ("collect_latest", "policy.eval()", False),
    ],
)
def test_a_name_that_says_evaluation_is_told_from_the_call_that_switches_the_mode(
    func, call, evaluates
):
    steps = saves(32, 240, label="eval")
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            sites=(site("eval", 14, func=func, call=call),),
        )
    )
    assert isinstance(found, Finding) is evaluates


def test_text_generated_every_few_steps_to_train_on_is_no_evaluation():
    steps = saves(4, 100, label="eval")
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            sites=(site("eval", 14, func="rollout", call="policy.eval()"),),
            loaders=(loader(),),
        )
    )
    assert isinstance(found, Abstention)


def test_a_gradient_free_block_without_a_sign_of_evaluation_is_not_called_one():
    steps = saves(10, 50, label="eval")
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            sites=(site("nograd", 57, call="with torch.no_grad():", total_ns=900 * MS),),
            loaders=(loader(),),
        )
    )
    assert isinstance(found, Abstention)
    assert "train.py:57" in found.missing and "33%" in found.missing


def drawing(call, *, func="main", every=40, more=(), **labels):
    block = site("nograd", 77, func=func, call=call, total_ns=450 * MS)
    steps = make_steps(
        200, {"forward": 10}, extra=lambda i: {"eval": 110} | labels if i % every == 39 else {}
    )
    made = window(steps, intervals=tuple(intervals_of(steps, "eval")), sites=(block, *more))
    return eval_stall.judge(made)


WRITTEN = site("sample", 56, label="checkpoint", func="generate", call="np.save(path, x)")


@pytest.mark.parametrize(
    ("call", "func", "more"),
    [
        ('preview(ema.shadow, os.path.join(folder, f"{step:06d}.npy"))', "<module>", ()),
        ("with torch.no_grad():", "visualise_predictions", ()),
        ("render_view(field, pose)", "main", ()),
        ('sample_grid(model, f"{step}.png")', "main", ()),
        ("generate(model)", "main", (WRITTEN,)),
    ],
)
def test_previews_every_40_steps_are_named_by_their_block(call, func, more):
    found = drawing(call, func=func, more=more)
    assert isinstance(found, Finding)
    assert (found.id, found.severity, found.confidence) == ("eval-stall", "critical", "medium")
    assert "previews" in found.summary and "every 40 steps" in found.summary
    assert [w.line for w in found.where] == [77]
    assert (
        "Make previews at train.py:77 every 200 steps instead of every 40" in found.advice[0].text
    )
    assert found.gain.ceiling == pytest.approx(1.275)


@pytest.mark.parametrize(
    ("call", "func"),
    [
        ("generate(policy, prompts)", "main"),
        ("sample_batch(replay)", "main"),
        ('rollout(env, "video.mp4")', "main"),
        ("with torch.no_grad():", "render_episode"),
        ('generate_pseudo_labels(model, "labels.npy")', "main"),
        ("with torch.no_grad():", "main"),
    ],
)
def test_what_may_make_the_data_of_the_next_steps_is_no_preview(call, func):
    said = drawing(call, func=func)
    assert isinstance(said, Abstention) and said.share > 0.1


def test_previews_every_few_steps_or_at_odd_ones_are_not_told_as_such():
    steps = saves(4, 100, label="eval")
    block = site("nograd", 77, call="preview(model)", total_ns=5000 * MS)
    often = window(steps, intervals=tuple(intervals_of(steps, "eval")), sites=(block,))
    assert isinstance(eval_stall.judge(often), Abstention)
    odd = {3, 14, 60, 77, 150, 199}
    steps = make_steps(200, {"forward": 10}, extra=lambda i: {"eval": 90} if i in odd else {})
    made = window(steps, intervals=tuple(intervals_of(steps, "eval")), sites=(block,))
    assert isinstance(eval_stall.judge(made), Abstention)


def test_previews_whose_writing_takes_most_are_left_to_the_rule_that_tells_it():
    assert isinstance(drawing("preview(model)", checkpoint=300), Abstention)


def test_a_block_that_computes_what_only_an_evaluation_does_is_one():
    steps = saves(5, 90, label="eval")
    block = site("nograd", 19, call="with torch.no_grad():", total_ns=3600 * MS, label="acc")
    found = eval_stall.judge(
        window(steps, intervals=tuple(intervals_of(steps, "eval")), sites=(block,))
    )
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [19]


def test_the_block_that_evaluates_is_named_before_the_switch_and_a_short_teacher_is_not():
    steps = saves(50, 170, label="eval")
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            sites=(
                site("nograd", 30, call="teacher(x)", total_ns=20 * MS),
                site("nograd", 124, call="evaluate(model, held_out)", total_ns=680 * MS),
                site("eval", 61, call="model.eval()", count=0, total_ns=0),
            ),
        )
    )
    assert [w.line for w in found.where] == [124, 61]


def test_an_evaluation_without_a_site_points_at_its_own_loader():
    steps = saves(50, 170, label="eval")
    found = eval_stall.judge(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            loaders=(loader(), loader(id=2, line=52, feeds_training=False)),
        )
    )
    assert [w.line for w in found.where] == [52]


def test_evaluation_is_not_judged_without_its_hook():
    steps = saves(50, 170, label="eval")
    found = eval_stall.judge(window(steps, probe=probe(False, without=("eval",))))
    assert isinstance(found, Abstention)


def evaluating(wait_ms, *, cores=8, **changes):
    steps = saves(50, 170, label="eval")
    own = loader(id=2, line=90, feeds_training=False, wait_ns=wait_ms * MS, batches=40, **changes)
    return window(
        steps, intervals=tuple(intervals_of(steps, "eval")), loaders=(loader(), own), cores=cores
    )


def test_a_loader_constructed_for_each_evaluation_is_told_to_be_constructed_once():
    steps = saves(50, 170, label="eval")
    own = [
        loader(id=2 + k, line=90, feeds_training=False, wait_ns=125 * MS, batches=40, num_workers=2)
        for k in range(4)
    ]
    found = eval_stall.judge(
        window(
            steps, intervals=tuple(intervals_of(steps, "eval")), loaders=(loader(), *own), cores=2
        )
    )
    assert "constructed 4 times and starts its workers each time" in found.advice[0].text
    assert "construct it once, before the loop, with persistent_workers" in found.advice[0].text


@pytest.mark.parametrize(
    ("cores", "mend"),
    [
        (8, "num_workers 0 -> 2, persistent_workers=True."),
        (1, "make its items once, before training, and keep them."),
    ],
)
def test_workers_are_kept_only_where_there_are_any(cores, mend):
    found = eval_stall.judge(evaluating(500, cores=cores))
    assert found.advice[0].text.endswith(mend)


def test_an_evaluation_that_waits_for_its_loader_is_told_to_feed_it_first():
    found = eval_stall.judge(evaluating(500))
    assert {e.what: e.value for e in found.evidence}["waiting for its loader"] == pytest.approx(
        500 / 680, rel=0.01
    )
    assert "74% of each 170 ms waits for its loader (train.py:90)" in found.advice[0].text
    assert "num_workers 0 -> 2" in found.advice[0].text and len(found.advice) <= 3
    assert "num_workers" not in eval_stall.judge(evaluating(100)).advice[0].text


def test_a_save_and_an_evaluation_at_one_boundary_are_both_named_with_their_own_time():
    steps = make_steps(
        400,
        {"forward": 10},
        extra=lambda i: {"checkpoint": 150, "eval": 250} if i % 50 == 49 else {},
    )
    told = diagnose(
        window(
            steps,
            intervals=(*intervals_of(steps, "checkpoint", 88), *intervals_of(steps, "eval")),
            sites=(
                site("save", 88, call="torch.save(state, path)"),
                site("eval", 61, call="model.eval()"),
            ),
            loaders=(loader(),),
        )
    )
    shares = {f.id: f.lost_share for f in (told.verdict, *told.also)}
    assert shares == pytest.approx({"eval-stall": 250 / 900, "checkpoint-stall": 150 / 900})
    assert told.verdict.id == "eval-stall"


def test_code_around_a_save_is_part_of_what_the_save_costs():
    # A framework's save every 10 steps: 70 ms in torch.save, 140 ms of its own code around it.
    steps = make_steps(
        200,
        {"forward": 10},
        extra=lambda i: {"checkpoint": 70, "other": 140} if i % 10 == 9 else {},
    )
    made = window(
        steps,
        intervals=tuple(intervals_of(steps, "checkpoint", 27)),
        sites=(
            site("save", 27, call="trainer.fit(model, loader)"),
            site("sample", 27, label="host_compute", call="trainer.fit(model, loader)", count=90),
        ),
    )
    found = checkpoint_stall.judge(made)
    assert found.lost_share == pytest.approx(210 / 310)
    assert isinstance(host_compute.judge(made), RuledOut)
    told = diagnose(made)
    assert (told.verdict.id, told.also) == ("checkpoint-stall", ())


def test_other_work_at_times_of_its_own_is_no_part_of_a_save():
    steps = make_steps(
        200,
        {"forward": 10},
        extra=lambda i: (
            {"checkpoint": 70} if i % 20 == 19 else {"other": 140} if i % 20 == 9 else {}
        ),
    )
    made = window(
        steps,
        intervals=tuple(intervals_of(steps, "checkpoint", 27)),
        sites=(site("save", 27), site("sample", 40, label="host_compute", count=90)),
    )
    assert checkpoint_stall.judge(made).lost_share == pytest.approx(70 / 410)
    assert host_compute.judge(made).lost_share == pytest.approx(140 / 410)


@pytest.mark.parametrize(("each_ms", "verdict"), [(80, "eval-stall"), (8, "host-compute")])
def test_what_is_computed_from_an_evaluation_is_its_own_unless_that_is_the_least(each_ms, verdict):
    steps = make_steps(
        400, {"forward": 10}, extra=lambda i: {"eval": each_ms, "other": 90} if i % 40 == 39 else {}
    )
    told = diagnose(
        window(
            steps,
            intervals=tuple(intervals_of(steps, "eval")),
            sites=(site("sample", 70, label="host_compute", func="auc_score", count=80),),
            loaders=(loader(), loader(id=2, line=52, feeds_training=False)),
        )
    )
    assert (told.verdict.id, told.also) == (verdict, ())
