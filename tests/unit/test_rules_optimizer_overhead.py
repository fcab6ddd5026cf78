from __future__ import annotations

import pytest
from synthetic_windows import make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import launch_bound, optimizer_overhead
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Finding

#: A 12-layer transformer on an H200: AdamW(fused=False) takes 16 of 40 ms, the GPU is at 40%.
ADAMW = {"id": 1, "cls": "AdamW", "fused": False, "foreach": None, "tensors": 148}
STEP = site("sample", 49, label="optimizer", call="opt.step()", count=120)


def made(*, optimizer=16, row=ADAMW, util=40, dry=0.9, **more):
    steps = make_steps(200, {"forward": 10, "backward": 14, "optimizer": optimizer}, dry=dry)
    state = probe(True, optimizers=[row] if row else [])
    return window(steps, on_gpu=True, util=util, probe=state, sites=(STEP,), **more)


def test_an_unfused_optimizer_is_named_beside_the_rest_of_the_launches():
    found = optimizer_overhead.judge(made())
    rest = launch_bound.judge(made())
    assert isinstance(found, Finding) and isinstance(rest, Finding)
    launch = launch_bound.launch_idle(made())
    # Shared out by host time: 16 of 40 ms; nothing is counted twice.
    assert found.lost_share == pytest.approx(launch * 16 / 40)
    assert found.lost_share + rest.lost_share == pytest.approx(launch)
    assert [w.line for w in found.where] == [49]
    assert "fused=True in AdamW" in found.advice[0].text and "148 tensors" in found.advice[0].text
    assert found.gain.ceiling == pytest.approx(1 / (1 - found.lost_share))


def test_both_are_told_the_larger_first():
    told = diagnose(made())
    assert told.verdict.id == "launch-bound"
    assert "optimizer-overhead" in [f.id for f in told.also]


def test_where_it_is_nearly_all_of_it_it_is_the_closer_cause():
    told = diagnose(made(optimizer=120))
    assert (told.verdict.id, told.verdict.refined) == ("launch-bound", "optimizer-overhead")
    assert "fused=True" in told.verdict.advice[0].text
    assert [f.id for f in told.also if f.id == "optimizer-overhead"] == []


def test_a_loop_over_parameters_is_told_to_use_foreach():
    row = ADAMW | {"foreach": False, "cls": "RMSprop"}
    text = " ".join(a.text for a in optimizer_overhead.judge(made(row=row)).advice)
    assert "foreach=True in RMSprop" in text and "fused=True" not in text


@pytest.mark.parametrize(
    "quiet",
    [
        {"row": ADAMW | {"fused": True}},
        {"row": None},
        {"optimizer": 6},  # 20% of the step
        {"util": 97, "dry": 0.1},  # the optimizer's kernels keep the GPU busy
    ],
)
def test_it_is_silent_otherwise(quiet):
    assert isinstance(optimizer_overhead.judge(made(**quiet)), RuledOut)


def test_never_on_a_cpu():
    steps = make_steps(100, {"forward": 5, "optimizer": 5})
    state = probe(False, optimizers=[ADAMW])
    assert isinstance(optimizer_overhead.judge(window(steps, probe=state)), RuledOut)


def test_an_optimizer_of_ones_own_that_works_tensor_by_tensor_is_told_of_lists():
    own = site("sample", 28, label="optimizer", call="momentum.mul_(b2).add_(p.grad)", count=90)
    lion = {"id": 1, "cls": "Lion", "fused": None, "foreach": None, "tensors": 706}
    steps = make_steps(200, {"forward": 10, "backward": 14, "optimizer": 16}, dry=0.9)
    state = probe(True, optimizers=[lion])
    made_one = window(steps, on_gpu=True, util=30, probe=state, sites=(own,))
    found = optimizer_overhead.judge(made_one)
    assert isinstance(found, Finding)
    assert "torch._foreach_mul_" in found.advice[0].text and "706 tensors" in found.advice[0].text
    assert found.advice[1].text.startswith("If that is not enough, torch.compile")


def test_an_optimizer_nobody_knows_is_told_to_be_compiled():
    row = {"id": 1, "cls": "Shampoo", "fused": None, "foreach": None, "tensors": 148}
    assert optimizer_overhead.judge(made(row=row)).advice[0].text.startswith("Compile it: torch.")
