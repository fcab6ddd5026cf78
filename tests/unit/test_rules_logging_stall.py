from __future__ import annotations

import pytest
from synthetic_windows import make_steps, probe, site, window

from gputop_train.diagnose.rules import checkpoint_stall, eval_stall, host_compute, logging_stall
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

#: A GAN on a CPU that writes a compressed grid every 5 steps, as measured: 113 ms a step, 877 ms
#: for the preview, of which 170 ms are its own forward and the sampler put a tenth one step late.
GRID = site(
    "sample",
    59,
    label="checkpoint",
    call='np.savez_compressed(os.path.join(out_dir, f"preview_{step}.npz"), grid=grid)',
    count=117,
    total_ns=0,
)


def with_previews(steps=160, *, sites=(GRID,), **more):
    def extra(i):
        if i % 5 == 0:
            return {"checkpoint": 600, "eval": 170, "other": 30}
        return {"checkpoint": 60} if i % 5 == 1 else {}

    return window(
        make_steps(steps, {"forward": 50, "backward": 60, "optimizer": 3}, extra=extra),
        sites=sites,
        **more,
    )


def test_previews_written_every_five_steps_are_named_with_their_period_and_their_line():
    found = logging_stall.judge(with_previews())
    assert isinstance(found, Finding)
    assert found.severity == "critical"
    assert [w.line for w in found.where] == [59]
    values = {e.what: e.value for e in found.evidence}
    assert values["steps between previews"] == 5
    # The forward that makes the grid is part of what it costs.
    assert values["one preview, mean"] == pytest.approx(800, rel=0.1)
    assert "every 5" in found.advice[0].text and "train.py:59" in found.advice[0].text
    assert "np.savez in place of np.savez_compressed" in found.advice[1].text
    # 800 ms every five steps of 113 ms: what the sampler put one step late goes as well.
    assert found.gain.ceiling == pytest.approx(1 + 800 / (5 * 113), rel=0.01)
    assert found.gain.ceiling >= 1 / (1 - found.lost_share)
    assert found.gain.at_least is False


def test_work_of_the_same_steps_that_is_told_as_something_else_makes_the_ceiling_a_lower_one():
    def extra(i):
        return {"checkpoint": 600, "backward": 200} if i % 5 == 0 else {}

    steps = make_steps(160, {"forward": 50, "backward": 60, "optimizer": 3}, extra=extra)
    found = logging_stall.judge(window(steps, sites=(GRID,)))
    assert found.lost_share == pytest.approx(650 / (5 * 113 + 800), rel=0.05)
    assert found.gain.at_least is True


def test_every_preview_counts_though_the_sampler_booked_some_of_it_elsewhere():
    # As measured: 450 ms each, of which 0 to 410 were seen in the writing, the rest as forward.
    def extra(i):
        if i % 5:
            return {}
        seen = (410, 390, 360, 205, 0)[i // 5 % 5]
        return {"checkpoint": seen, "forward": 450 - seen}

    steps = make_steps(160, {"forward": 6, "backward": 8, "optimizer": 1}, extra=extra)
    found = logging_stall.judge(window(steps, sites=(GRID,)))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(450 / (450 + 5 * 15), rel=0.02)
    # Without them the loop is 7 times as fast; a ceiling below that would be wrong.
    assert found.gain.ceiling == pytest.approx(7, rel=0.05)


def test_previews_are_no_checkpoint_and_their_forward_no_evaluation():
    made = with_previews()
    assert isinstance(checkpoint_stall.judge(made), RuledOut)
    assert not isinstance(eval_stall.judge(made), Finding)


def test_a_model_that_numpy_writes_is_a_checkpoint_and_no_preview():
    weights = site(
        "sample", 70, label="checkpoint", call="np.savez(ckpt_path, **weights)", count=117
    )
    made = with_previews(sites=(weights,))
    assert not isinstance(logging_stall.judge(made), Finding)
    found = checkpoint_stall.judge(made)
    assert isinstance(found, Finding)
    assert [w.line for w in found.where] == [70]
    assert {e.what: e.value for e in found.evidence}["steps between saves"] == 5


def test_a_checkpoint_of_torch_beside_a_small_preview_stays_a_checkpoint():
    steps = make_steps(
        100, {"forward": 10}, extra=lambda i: {"checkpoint": 100} if i % 10 == 9 else {}
    )
    total = sum(s.labels["checkpoint"] for s in steps)
    saves = site("save", 88, call="torch.save(state, path)", total_ns=total)
    made = window(steps, sites=(saves, GRID))
    assert not isinstance(logging_stall.judge(made), Finding)
    assert isinstance(checkpoint_stall.judge(made), Finding)


def chatty(share, **more):
    lines = (
        site("logging", 31, call="run.log(metrics)", count=400, total_ns=10**9),
        site("sample", 33, label="logging", call="print(step, loss)", count=30),
    )
    steps = make_steps(400, {"forward": 10 * (1 - share), "logging": 10 * share})
    return window(steps, sites=lines, **more)


def test_logging_in_every_step_is_named_with_how_rarely_it_would_be_cheap():
    state = probe(False, logging={"wandb": {"calls": 410, "total_ns": 10**9}})
    found = logging_stall.judge(chatty(0.12, probe=state))
    assert (found.id, found.severity) == ("logging-stall", "warn")
    assert [w.line for w in found.where] == [31, 33]
    # 12% now; one step in 20 costs 0.12/20 / (0.88 + 0.12/20).
    assert "Log every 20 steps (train.py:31): it costs 1.2 ms a step now" in found.advice[0].text
    assert "0.7% of the time instead of 12%" in found.advice[0].text
    assert {e.what: e.value for e in found.evidence}["calls of wandb in the run"] == 410


@pytest.mark.parametrize(
    ("share", "severity"), [(0.035, "info"), (0.06, "warn"), (0.25, "critical")]
)
def test_three_percent_is_information_five_a_warning_and_twenty_critical(share, severity):
    assert logging_stall.judge(chatty(share)).severity == severity


LOG = "log.info('%d %s %.5f', i, n, p.std().item())"


def printed(usual, extra=None, **more):
    sites = (
        site("sample", 8, label="logging", call=LOG, count=30),
        site("sample", 8, label="host_compute", call="p.std()", count=250),
        site("sample", 20, label="host_compute", call="x + y", count=10),
    )
    return window(make_steps(400, usual, extra=extra), sites=sites, **more)


def test_what_a_line_computes_to_log_is_part_of_logging():
    # 48 log lines a step that print a mean and a spread each, as measured: 43% computed, 5% logged.
    made = printed({"forward": 52, "other": 43, "logging": 5})
    found = logging_stall.judge(made)
    assert found.lost_share == pytest.approx(0.05 + 0.43 * 250 / 260)
    assert [w.line for w in found.where] == [8]
    assert isinstance(host_compute.judge(made), RuledOut)


def test_a_dear_log_every_20_steps_is_told_with_its_period():
    made = printed({"forward": 10}, lambda i: {"other": 90, "logging": 10} if i % 20 == 0 else {})
    found = logging_stall.judge(made)
    assert found.lost_share == pytest.approx(100 / 300)
    assert "every 1,000 steps instead of every 20 at train.py:8" in found.advice[0].text
    assert isinstance(host_compute.judge(made), RuledOut)


def test_a_print_now_and_then_is_silent():
    assert isinstance(logging_stall.judge(chatty(0.02)), RuledOut)


def test_logging_while_the_gpu_works_costs_nothing():
    steps = make_steps(
        200,
        {"forward": 8, "logging": 2},
        exposed={"logging": 0.05, "data_wait": 0, "sync": 0, "h2d": 0},
        dry=0.0,
    )
    assert isinstance(logging_stall.judge(window(steps, on_gpu=True, util=97)), RuledOut)


def test_on_a_gpu_without_events_a_pause_in_some_steps_is_measured_by_the_others():
    steps = make_steps(200, {"forward": 10}, extra=lambda i: {"logging": 20} if i % 4 == 0 else {})
    found = logging_stall.judge(window(steps, on_gpu=True))
    assert isinstance(found, Finding)
    assert found.lost_share == pytest.approx(5 / 15)


def test_on_a_gpu_logging_in_every_step_without_any_signal_is_not_judged():
    steps = make_steps(200, {"forward": 8, "logging": 2})
    assert isinstance(logging_stall.judge(window(steps, on_gpu=True)), Abstention)


def test_a_log_every_25_steps_is_not_advised_as_if_it_were_in_every_step():
    """A dashboard rewritten every 25 steps: it cost 23%, every 50 steps left more than half."""
    steps = make_steps(
        800, {"forward": 12}, extra=lambda i: {"logging": 114, "other": 26} if i % 25 == 0 else {}
    )
    place = site("sample", 17, label="logging", call="json.dump(doc, f)", count=200)
    found = logging_stall.judge(window(steps, sites=(place,)))
    assert found.lost_share == pytest.approx(140 / (25 * 12 + 140), rel=0.01)
    assert "instead of every 25 at train.py:17" in found.advice[0].text
    assert "QueueHandler" not in " ".join(step.text for step in found.advice)
    assert found.gain.ceiling >= (25 * 12 + 140) / (25 * 12) * 0.999
