"""A report counts what was not recorded, and the summary says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report_runs import START, Recorded, ended, probe_state, steps_of

from gputop_train.report import text
from gputop_train.report.schema import validate

TRAIN = {"forward": 40, "backward": 50, "optimizer": 10}


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path).train(steps_of(100, TRAIN))


def reported(recorded: Recorded) -> tuple[list[dict[str, Any]], str]:
    report = recorded.report(ended())
    assert validate(report) == []
    return report["data_lost"], " ".join(" ".join(text.summary(report, 100)).split())


def put(recorded: Recorded, ring: dict[str, int], counted: int = 100) -> None:
    state = {**probe_state(), "ring": ring, "cost": {"steps": counted, "total_ns": 1}}
    recorded.writer.put_probe_state(0, state, START)
    recorded.writer.commit()


def test_a_whole_record_has_lost_nothing(recorded: Recorded) -> None:
    put(recorded, {"lost": 0, "probe_lost": 0})
    lost, said = reported(recorded)
    assert lost == [] and " lost 0" not in said and "overwritten" not in said


def test_overwritten_records_are_counted_with_the_steps_that_went_with_them(
    recorded: Recorded,
) -> None:
    put(recorded, {"lost": 40_000, "probe_lost": 2_000}, counted=2_100)
    (loss,), said = reported(recorded)
    assert (loss["what"], loss["count"]) == ("probe records", 42_000)
    assert "lost 42,000 records of rank 0" in said and "about 2,000 of its steps" in said


def test_steps_of_several_processes_of_a_rank_are_not_compared(recorded: Recorded) -> None:
    recorded.writer.set_meta("attempts", 2)
    put(recorded, {"lost": 7, "probe_lost": 0}, counted=2_100)
    (loss,), _ = reported(recorded)
    assert loss["count"] == 7 and "steps" not in loss["text"]


def test_rows_and_output_that_were_given_up_are_counted(recorded: Recorded) -> None:
    recorded.writer.add_note(START, "store-rows-dropped", {"rows": 300})
    recorded.writer.add_note(START, "store-rows-dropped", {"rows": 5})
    recorded.writer.set_meta("log_dropped_bytes", 1_000_000)
    recorded.writer.commit()
    lost, said = reported(recorded)
    assert [(loss["what"], loss["count"]) for loss in lost] == [
        ("rows", 305),
        ("output bytes", 1_000_000),
    ]
    assert "305 measured rows" in said and "1,000,000 bytes of output" in said
