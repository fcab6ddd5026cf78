"""A model on the wrong device: a torch without CUDA beside a card."""

from __future__ import annotations

import pytest
from synthetic_windows import UUID, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import cpu_only_build, cpu_training
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding, GpuSample

STEPS = make_steps(100, {"forward": 4, "backward": 5, "optimizer": 1})
CARD = GpuSample(0, UUID, memory_used=4 << 20, memory_total=80 << 30, foreign_processes=0)
BUILT = {"built": False, "initialized": False, "available": None}


def judge(*, cards=(CARD,), util=0.0, cuda=BUILT, **more):
    state = probe(False, cuda=cuda, torch="2.13.0+cpu", **more)
    return cpu_only_build.judge(window(STEPS, util=util, cards=cards, probe=state))


def test_a_cpu_build_beside_an_idle_card_is_named():
    found = judge()
    assert isinstance(found, Finding)
    assert (found.severity, found.confidence) == ("critical", "high")
    assert "2.13.0+cpu" in found.summary and "2.13.0+cpu" in found.advice[0].text
    assert found.gain is None


def test_it_comes_first_and_cpu_training_stays_silent():
    state = probe(False, cuda=BUILT)
    made = window(STEPS, util=0.0, cards=(CARD,), probe=state)
    assert diagnose(made).verdict.id == "cpu-only-build"
    assert isinstance(cpu_training.judge(made), RuledOut)


def test_the_line_that_calls_the_model_is_named_where_it_was_sampled():
    place = site("sample", 45, label="forward", call="model(x)", count=200)
    made = window(STEPS, util=0.0, cards=(CARD,), probe=probe(False, cuda=BUILT), sites=(place,))
    assert [w.line for w in cpu_only_build.judge(made).where] == [45]


def test_several_free_cards_are_enough_without_a_reading_of_their_use():
    other = GpuSample(0, "GPU-bbbb", memory_used=0, foreign_processes=0)
    found = judge(cards=(CARD, other), util=None)
    assert found.confidence == "medium" and "2 NVIDIA GPUs stand idle" in found.summary


@pytest.mark.parametrize(
    "quiet",
    [
        {"cards": (), "util": None},
        {"cuda": BUILT | {"built": True}},
        {"cards": (GpuSample(0, UUID, memory_used=40 << 30, foreign_processes=1),)},
        {"util": 60.0},
        {"param_device": "xpu:0"},
    ],
)
def test_it_is_silent_otherwise(quiet):
    assert isinstance(judge(**quiet), RuledOut)


def test_a_card_of_which_nothing_was_read_is_not_called_free():
    unread = GpuSample(0, UUID, memory_total=80 << 30)
    assert "memory in use" in judge(cards=(unread,)).missing
    assert "1 NVIDIA GPU " in judge(cards=(CARD, unread)).summary


def test_without_the_probes_word_it_is_not_judged():
    assert isinstance(judge(cuda=None), Abstention)
