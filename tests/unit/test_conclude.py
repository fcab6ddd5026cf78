"""A verdict is not made from a part of the run because the rest could not be stored."""

from __future__ import annotations

import pytest
from synthetic_windows import loader, make_steps, probe

from gputop_train.launch import conclude, verdicts
from gputop_train.launch.pipeline import Pipeline
from gputop_train.store.errors import StoreBusy, StoreFull
from gputop_train.store.writer import RunWriter


@pytest.fixture
def writer(tmp_path):
    made = RunWriter(tmp_path / "run.sqlite")
    yield made
    made.close()


def test_a_run_that_was_not_stored_whole_is_not_judged(tmp_path, writer):
    steps = make_steps(200, {"data_wait": 64, "forward": 16, "backward": 20})
    writer.add_steps(steps)
    writer.put_probe_state(0, probe(False), steps[-1].t1_ns)
    writer.put_loaders([loader()], steps[-1].t1_ns)
    writer.commit()
    store = tmp_path / "run.sqlite"
    assert verdicts.judge_run(store, final=True)[1].status == "verdict"
    _, told = verdicts.judge_run(store, final=True, unsaved="the disk was full at the end")
    assert told.status == "abstained"
    assert "the disk was full" in told.note


@pytest.mark.parametrize(
    ("failure", "why"), [(StoreFull("no room"), "disk was full"), (StoreBusy("locked"), "locked")]
)
def test_what_could_not_be_committed_is_said(tmp_path, writer, monkeypatch, failure, why):
    def fails() -> None:
        raise failure

    pipeline = Pipeline(tmp_path, None, writer, {})
    writer.set_meta("last", 1)
    with monkeypatch.context() as broken:
        broken.setattr(conclude, "LAST_COMMIT_S", 0.0)
        broken.setattr(writer, "commit", fails)
        assert why in conclude._commit_all(pipeline)
    assert conclude._commit_all(pipeline) is None
