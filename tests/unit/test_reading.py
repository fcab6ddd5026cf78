"""The check of advice sees what it is for."""

from __future__ import annotations

import pytest
from reading import faults
from synthetic_windows import loader, make_steps, window

from gputop_train.diagnose.rules import input_bound
from gputop_train.model import Advice

GOOD = Advice("num_workers 0 -> 6 (train.py:41): 16 cores, 3 busy.", {"num_workers": 6})


@pytest.mark.parametrize(
    "text",
    [
        "Use more workers.",
        "Consider 4 workers.",
        "You may want to set num_workers, e.g. 4.",
        "bf16 halves what is moved.",
        "4 workers. " * 40,
    ],
)
def test_advice_for_any_run_is_seen(text):
    assert len(faults((Advice(text),))) >= 1


def test_advice_for_this_run_is_fine():
    assert faults((GOOD, Advice("fused=False -> True"), Advice("at train.py:3"))) == []
    assert faults((GOOD,) * 4) == ["4 steps of advice"]


def test_findings_of_rules_are_watched(monkeypatch):
    """The fixture of conftest.py wraps what rules make, so that a bad line would be told."""
    seen = []
    monkeypatch.setattr("conftest.faults", lambda advice: seen.append(advice) or [])
    input_bound.judge(
        window(make_steps(300, {"data_wait": 60, "forward": 40}), loaders=(loader(),))
    )
    assert seen
