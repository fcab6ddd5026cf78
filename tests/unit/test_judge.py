"""What the supervisor records while a run lives: one cause until another one holds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from report_runs import Recorded, steps_of

from gputop_train.diagnose import engine
from gputop_train.launch import verdicts
from gputop_train.launch.verdicts import Judge
from gputop_train.model import Diagnosis, Finding

MINUTE = 60_000_000_000


def verdict(id_):
    return Diagnosis("verdict", False, verdict=Finding(id_, id_, "warn", "high", 0.2))


@pytest.fixture
def store(tmp_path):
    recorded = Recorded(tmp_path).train(steps_of(50, {"forward": 60, "backward": 40}))
    recorded.writer.commit()
    return recorded.path


def test_two_causes_that_take_turns_are_recorded_as_the_first(store, monkeypatch):
    turns = iter(["input-bound", "eval-stall"] * 3 + ["eval-stall"])
    monkeypatch.setattr(engine, "diagnose", lambda window: verdict(next(turns)))
    judge = Judge(store)
    told = [judge.judge(minute * MINUTE) for minute in range(1, 8)]
    judge.close()
    ids = [d.verdict.id for d in told if d is not None and d.verdict is not None]
    assert ids == [*["input-bound"] * 6, "eval-stall"]


def test_a_judgement_that_is_not_due_changes_nothing(store, monkeypatch):
    calls = []
    monkeypatch.setattr(engine, "diagnose", lambda window: calls.append(1) or verdict("a"))
    judge = Judge(store)
    assert judge.judge(MINUTE) is not None
    assert judge.judge(MINUTE + 1) is None
    judge.close()
    assert len(calls) == 1


def test_while_it_is_too_early_the_next_look_is_at_most_four_seconds_off(store, monkeypatch):
    """However dear a look was: a verdict is due within 15 s of the first steps."""
    clock = iter(range(0, 10**12, 10**9))  # each look takes a second of processor time
    monkeypatch.setattr(verdicts.time, "thread_time_ns", lambda: next(clock))
    monkeypatch.setattr(engine, "diagnose", lambda window: Diagnosis("too-early", None))
    judge = Judge(store)
    looks = [t for t in range(1, 40) if judge.judge(MINUTE + t * 10**9) is not None]
    monkeypatch.setattr(engine, "diagnose", lambda window: verdict("a"))
    later = [t for t in range(40, 100) if judge.judge(MINUTE + t * 10**9) is not None]
    judge.close()
    assert {b - a for a, b in pairwise(looks)} == {4}
    assert {b - a for a, b in pairwise(later)} == {15}
