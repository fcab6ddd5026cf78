"""Runs side by side: where a difference came from, whether there is one, and what is not known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gputop_train.model import Step
from gputop_train.report import compare as comparing
from gputop_train.report import compare_text
from gputop_train.report.compare import Comparison, RunSide, compare
from gputop_train.store.reader import RunReader
from tests.unit.report_runs import RUN, Recorded, ended, steps_of

STARVED = {"data_wait": 171.0, "h2d": 5.0, "forward": 40.0, "backward": 44.0, "optimizer": 8.0}
FED = {"data_wait": 20.0, "h2d": 1.0, "forward": 40.0, "backward": 44.0, "optimizer": 7.0}


def side(place: Path, steps: Sequence[Step], title: str, *, store: bool = True) -> RunSide:
    place.mkdir()
    recorded = Recorded(place).train(steps)
    report = recorded.report(ended(), run=RUN | {"id": title})
    if not store:
        return comparing.side(report, title=title)
    with RunReader(recorded.path) as reader:
        return comparing.side(report, reader, title=title)


def of(tmp_path: Path, *runs: Sequence[Step], store: bool = True) -> Comparison:
    sides = [
        side(tmp_path / f"run{n}", steps, f"run{n}", store=store) for n, steps in enumerate(runs)
    ]
    return compare(sides)


def wavering(ms: dict[str, float], count: int, by: float) -> list[Step]:
    """Steps whose time swings by a part of it, ten steps up and ten down."""
    found: list[Step] = []
    for n, step in enumerate(steps_of(count, ms)):
        more = round(step.wall_ns * by * (1 if n // 10 % 2 else -1))
        begin = found[-1].t1_ns if found else step.t0_ns
        labels = dict(step.labels) | {"other": max(0, step.labels["other"] + more)}
        if more < 0:
            labels["data_wait"] += more
        end = begin + sum(labels.values())
        found.append(dataclasses.replace(step, t0_ns=begin, t1_ns=end, labels=labels))
    return found


def test_says_where_the_gain_came_from_largest_first(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED), steps_of(100, FED))
    (difference,) = found.differences
    assert difference.sentence.startswith(
        "268 ms -> 112 ms a step (2.4x faster): data wait -151 ms (97%), H2D copy -4.0 ms (3%)"
    )
    assert [part.label for part in difference.parts] == ["data_wait", "h2d", "optimizer"]
    assert difference.speedup == pytest.approx(268 / 112)


def test_parts_add_up_to_the_difference(tmp_path: Path) -> None:
    found = of(
        tmp_path, steps_of(100, STARVED), steps_of(100, FED | {"sync": 33.3, "forward": 12.0})
    )
    (one,) = found.differences
    assert one.before is not None and one.after is not None
    assert sum(part.delta for part in one.parts) == pytest.approx(one.after - one.before)
    assert sum(part.share or 0 for part in one.parts) == pytest.approx(1)


def test_gives_no_shares_where_parts_cancel_out(tmp_path: Path) -> None:
    slower = {"data_wait": 20.0, "sync": 150.0, "forward": 40.0, "backward": 44.0, "optimizer": 8.0}
    (one,) = of(tmp_path, steps_of(100, STARVED), steps_of(100, slower)).differences
    assert all(part.share is None for part in one.parts)
    assert "%" not in one.sentence
    assert "data wait -151 ms" in one.sentence and "sync +150 ms" in one.sentence


def test_other_batch_sizes_are_compared_per_sample(tmp_path: Path) -> None:
    twice = {label: 2 * ms for label, ms in STARVED.items()}
    found = of(tmp_path, steps_of(100, STARVED), steps_of(100, twice, samples=64))
    (one,) = found.differences
    assert (found.unit, one.unit) == ("sample", "sample")
    assert one.speedup == pytest.approx(1)
    assert "the same" in one.sentence
    assert any("batch size" in warning for warning in found.warnings)
    (waits,) = [phase for phase in found.phases if phase.label == "data_wait"]
    assert waits.ms == pytest.approx((171, 342))
    assert waits.us == pytest.approx((171e3 / 32, 342e3 / 64))


def test_uncounted_samples_are_said_and_steps_compared(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED, samples=None), steps_of(100, FED))
    assert found.unit == "step"
    assert any("Samples were not counted" in warning for warning in found.warnings)
    assert all(phase.us[0] is None for phase in found.phases)
    rows = {row.key: row.values for row in found.rows}
    assert rows["samples_per_s"][0] is None


def test_tells_runs_apart_that_differ_by_more_than_they_waver(tmp_path: Path) -> None:
    found = of(tmp_path, wavering(STARVED, 100, 0.02), wavering(FED, 100, 0.02))
    assert found.differences[0].apart is True


def test_does_not_tell_runs_apart_that_waver_as_much_as_they_differ(tmp_path: Path) -> None:
    slightly = STARVED | {"data_wait": 185.0}
    (one,) = of(tmp_path, wavering(STARVED, 100, 0.1), wavering(slightly, 100, 0.1)).differences
    assert one.apart is False
    assert "cannot be told apart" in one.why


def test_does_not_tell_steady_runs_apart_below_what_hosts_drift(tmp_path: Path) -> None:
    slightly = STARVED | {"data_wait": 178.0}  # 2.6% more
    (one,) = of(tmp_path, steps_of(100, STARVED), steps_of(100, slightly)).differences
    assert one.apart is False


def test_a_short_run_is_not_told_apart_and_said_to_be_short(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED), steps_of(12, FED))
    assert found.differences[0].apart is None
    assert any("too short to compare" in warning for warning in found.warnings)


def test_a_run_without_a_step_has_no_difference(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED), [])
    (one,) = found.differences
    assert (one.before, one.after, one.speedup, one.parts) == (None, None, None, ())
    assert one.sentence == "run1 has no measured step."


def test_reports_alone_compare_whole_runs_and_say_so(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED), steps_of(100, FED), store=False)
    assert found.basis == "whole"
    (one,) = found.differences
    assert one.apart is None
    assert one.before == pytest.approx(268e3 / 32, rel=1e-3)  # a sample: all a report tells
    assert any("store" in warning for warning in found.warnings)


def test_warns_of_what_makes_runs_no_match(tmp_path: Path) -> None:
    a = side(tmp_path / "a", steps_of(60, STARVED), "a")
    b = dataclasses.replace(
        side(tmp_path / "b", steps_of(60, FED), "b"),
        host="node8",
        gpus=("NVIDIA A100",),
        torch="2.1.0",
        what_if=("replay_batch=8",),
        changes_results=("num_workers",),
        exit_code=1,
    )
    said = " ".join(compare([a, b]).warnings)
    for words in (
        "differ in host",
        "differ in torch",
        "what-if (replay_batch=8)",
        "num_workers changes results",
        "exit code 1",
    ):
        assert words in said
    assert "differ in cards" not in said  # one side tells of none: not measured is no difference


def test_costs_a_million_samples_by_the_price_of_an_hour(tmp_path: Path) -> None:
    a = side(tmp_path / "a", steps_of(60, STARVED), "a")
    found = compare([a, a], price_per_hour=3.6)
    rows = {row.key: row for row in found.rows}
    assert a.samples_per_s is not None
    assert rows["cost_per_million"].values[0] == pytest.approx(1e6 / a.samples_per_s * 0.001)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 300])
@pytest.mark.parametrize("runs", [2, 3, 7])
def test_text_fits_every_width(tmp_path: Path, width: int, runs: int) -> None:
    sides = [
        side(tmp_path / f"r{n}", steps_of(30, FED), f"a-long-run-name-{n}") for n in range(runs)
    ]
    found = compare(sides)
    told = compare_text.lines(found, width)
    assert max(map(len, told)) <= max(width, 40)
    assert all(any(f"name-{n}" in line for line in told) for n in range(runs))
    plain = compare_text.lines(found, width, ascii_only=True)
    assert all(line.isascii() and len(line) <= max(width, 40) for line in plain)


def test_json_is_plain_and_says_null_for_what_was_not_measured(tmp_path: Path) -> None:
    found = of(tmp_path, steps_of(100, STARVED), steps_of(100, FED, samples=None))
    body = json.loads(json.dumps(compare_text.as_json(found), allow_nan=False))
    assert body["schema"] == 1
    assert body["numbers"]["samples_per_s"][1] is None
    assert body["differences"][0]["parts"][0]["label"] == "data_wait"
    assert body["differences"][0]["against"] == "run0"


def test_markdown_takes_nothing_of_a_name_for_markup(tmp_path: Path) -> None:
    a = side(tmp_path / "a", steps_of(30, FED), "x|y <b>*z*`")
    told = compare_text.markdown(compare([a, a]))
    assert "x\\|y \\<b\\>\\*z\\*\\`" in told
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1


def test_a_foreign_or_half_report_is_no_report() -> None:
    assert not comparing.readable({"schema": 1})
    assert not comparing.readable([1])
    assert not comparing.readable({"schema": 2, "run": {}, "steps": {}, "time": {}, "gpu": {}})


def test_a_report_with_values_of_another_form_counts_as_not_measured() -> None:
    odd = {
        "schema": 1,
        "run": {"id": 7, "command": "x", "gpus": [3], "overrides": None},
        "steps": {"count": "many", "median_ms": float("nan"), "samples_per_s": True},
        "time": {"shares": [1], "training_s": "long"},
        "gpu": {"busy_share": "x"},
        "memory": {"peak_allocated": 1.5, "basis": None},
    }
    assert comparing.readable(odd)
    found = comparing.side(odd)
    assert (found.id, found.steps, found.step_median_ms, found.whole) == ("run", 0, None, None)
    assert found.peak_allocated is None
    compare_text.lines(compare([found, found]), 80)
