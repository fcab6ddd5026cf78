from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_windows import loader, make_steps, probe, site, window

from gputop_train.diagnose.engine import diagnose
from gputop_train.diagnose.rules import launch_bound, small_batch
from gputop_train.diagnose.rules.base import RuledOut
from gputop_train.model import Abstention, Finding

#: 32 micro-batches of 2 on an H200, as measured: utilisation 12.6%, 3 of 140 GB in use.
GB = 1_000_000_000
HELD = {"parameters": GB // 2, "gradients": GB // 2, "optimizer_state": GB}


def made(*, micro=32, memory=3 * GB, util=12.6, dry=0.95, usual=None, optimizers=1, **more):
    usual = usual or {"forward": 70, "backward": 110, "optimizer": 4}
    steps = [replace(s, micro=micro) for s in make_steps(60, usual, dry=dry)]
    rows = [{"id": n, "cls": "AdamW", "fused": True} for n in range(optimizers)]
    more.setdefault("sites", (site("sample", 49, label="backward", call="loss.backward()"),))
    return window(
        steps,
        on_gpu=True,
        util=util,
        memory=[memory] * 20,
        device_bytes=140 * GB,
        probe=probe(True, optimizers=rows, held=HELD),
        **more,
    )


def test_many_small_micro_batches_are_the_closer_cause_of_launch_idle():
    told = diagnose(made(loaders=(loader(batch_size=2),)))
    assert (told.verdict.id, told.verdict.refined) == ("launch-bound", "small-batch")
    # 1 GB of activations, 2 GB fixed: x 32 peaks at 34 of 140 GB.
    text = told.verdict.advice[0].text
    assert "Micro-batch 2 -> 64 and accumulation 32 -> 1" in text
    assert "about 34 of 140 GB" in text and "global batch" in text
    assert [w.line for w in told.verdict.where] == [49]


def test_the_factor_is_what_the_memory_allows_and_the_accumulation_divides():
    # 8 GB of activations: x 8 is 66 GB, x 16 would be 130 of 140 GB.
    text = small_batch.refine(m := made(memory=10 * GB), launch_bound.judge(m)).advice[0].text
    assert "Micro-batch x 8 and accumulation 32 -> 4" in text
    m = made(micro=12)
    assert "accumulation 12 -> 3" in small_batch.refine(m, launch_bound.judge(m)).advice[0].text


def test_without_a_verdict_on_launches_it_speaks_for_itself():
    found = small_batch.judge(made(dry=None))
    assert isinstance(found, Finding)
    assert (found.id, found.severity) == ("small-batch", "critical")
    assert found.gain.at_least


@pytest.mark.parametrize(
    "quiet",
    [
        {"micro": 1},  # a small batch alone: for a trial to say
        {"micro": 4, "optimizers": 2},  # two optimizers, two losses each
        {"memory": 80 * GB},
        {"util": 60},
        {"usual": {"data_wait": 60, "forward": 60, "backward": 60}, "exposed": None},
    ],
)
def test_it_is_silent_otherwise(quiet):
    exposed = quiet.pop("exposed", 0)
    m = made(**quiet)
    if exposed is None:
        steps = tuple(replace(s, exposed={"data_wait": 50_000_000}) for s in m.steps)
        m = window(steps, on_gpu=True, util=12, memory=[3 * GB] * 20, device_bytes=140 * GB)
    assert isinstance(small_batch.judge(m), RuledOut)
    assert not isinstance(small_batch.refine(m, None), Finding)


def test_without_a_memory_reading_it_is_not_judged():
    steps = [replace(s, micro=32) for s in make_steps(60, {"forward": 70}, dry=0.9)]
    assert isinstance(small_batch.judge(window(steps, on_gpu=True, util=12)), Abstention)


def test_never_on_a_cpu():
    steps = [replace(s, micro=32) for s in make_steps(60, {"forward": 70})]
    assert isinstance(small_batch.judge(window(steps)), RuledOut)
