"""The whole run judged in a process of its own: the same answer, and clear words where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputop_train.diagnose import engine, evidence
from gputop_train.report import judged as aside
from gputop_train.store.reader import RunReader
from tests.unit.report_runs import Recorded, steps_of

STARVED = {"data_wait": 60, "forward": 20, "backward": 20}


def test_it_says_what_a_judgement_here_says(tmp_path: Path) -> None:
    Recorded(tmp_path).train(steps_of(60, STARVED))
    found = aside.judged(tmp_path, os.environ)
    with RunReader(tmp_path) as reader:
        here = engine.diagnose(evidence.build(reader, final=True))
    assert (found["status"], found["note"]) == (here.status, here.note)
    assert (found["verdict"] or {}).get("id") == (here.verdict.id if here.verdict else None)
    assert set(found["idle"]) >= {"data_wait", "sync"}


def test_a_store_that_cannot_be_read_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(aside.JudgingError, match="There is no store"):
        aside.judged(tmp_path / "run.sqlite", os.environ)


def test_a_process_that_fails_or_never_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(aside.JudgingError, match="ended with 1"):
        aside.judged(tmp_path, {**os.environ, "PYTHONPATH": "", "PYTHONHOME": str(tmp_path)})
    monkeypatch.setattr(aside, "LIMIT_S", 0.01)
    with pytest.raises(aside.JudgingError, match=r"more than 0 s"):
        aside.judged(tmp_path, os.environ)
