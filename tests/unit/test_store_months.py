"""A month of a run is no more rows than a few hours, and says what its seconds said."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_train.model import LABELS, HostSample, MemorySample, UtilSample
from gputop_train.store import retention
from gputop_train.store.reader import RunReader
from gputop_train.store.retention import DAY_NS, HOUR_NS, MINUTE_NS
from gputop_train.store.rollup import merge, roll_up
from gputop_train.store.writer import RunWriter
from tests.store_support import GPU, SECOND, any_steps, step

BEGIN = 5_000 * SECOND


@settings(max_examples=40)
@given(any_steps(), st.integers(1, 5))
def test_several_rollups_sum_up_as_their_steps_would(found, size):
    parts = [roll_up(found[at : at + size]) for at in range(0, len(found), size)]
    merged, whole = merge(parts), roll_up(found)
    for name in ("rank", "n", "first_idx", "t0_ns", "t1_ns", "min_ns", "max_ns", "micro"):
        assert getattr(merged, name) == getattr(whole, name)
    for name in ("samples", "dry_n", "syncs", "measured_ns", "wall_ns", "exposed"):
        assert getattr(merged, name) == getattr(whole, name)
    assert {k: merged.labels[k] for k in LABELS} == {k: whole.labels[k] for k in LABELS}
    assert merged.dry == (None if whole.dry is None else pytest.approx(whole.dry))
    assert whole.min_ns <= merged.median_ns <= whole.max_ns
    assert merged.sec == parts[-1].sec


def test_no_rollups_make_none():
    with pytest.raises(ValueError, match="no rollups"):
        merge([])


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    """A step, a sample of each series and an interruption a minute: a month, pruned each hour."""
    path = tmp_path_factory.mktemp("month") / "run.sqlite"
    draw, rows = random.Random(1), {}
    with RunWriter(path) as writer:
        for minute in range(30 * 24 * 60):
            t_ns = BEGIN + minute * MINUTE_NS
            idle = draw.randrange(100)
            writer.add_steps([step(minute, t_ns, samples=8)])
            writer.add_util([UtilSample(t_ns, GPU, float(idle))])
            writer.add_host(HostSample(t_ns, cpu_busy=1.0))
            writer.add_memory([MemorySample(0, t_ns, minute, "cuda-allocator", 10**9 + minute)])
            if minute % 60 == 59:
                writer.commit()
                writer.prune(t_ns)
                day, rest = divmod(minute + 1, 24 * 60)
                if rest == 0 and day in (15, 30):
                    rows[day] = _rows(path)
    return path, rows


def _rows(path):
    with RunReader(path) as reader:
        return {
            "rollups": len(reader.step_rollups()),
            "utilisation": len(reader.util_rollups()),
            "host": len(reader.host()),
            "memory": len(reader.memory()),
        }


def test_old_rows_are_one_in_ten_minutes(month):
    _, rows = month
    for name, count in rows[30].items():
        assert count - rows[15][name] == 15 * 24 * 6, name
        assert count < 16_000


def test_no_step_and_no_sample_is_lost_in_a_sum(month):
    path, _ = month
    minutes = 30 * 24 * 60
    with RunReader(path) as reader:
        rollups = reader.step_rollups()
        assert sum(r.n for r in rollups) == reader.steps_counted(0) == minutes
        assert sum(r.samples for r in rollups) == 8 * minutes
        assert sum(r.wall_ns for r in rollups) == minutes * 10_000_000
        assert sum(r.n for r in reader.util_rollups()) == minutes
        assert all(a.t1_ns <= b.t0_ns for a, b in pairwise(rollups))


def test_first_hour_and_newest_two_stay_as_they_were(month):
    path, _ = month
    end = BEGIN + 30 * DAY_NS
    with RunReader(path) as reader:
        assert len(reader.step_rollups(BEGIN, BEGIN + HOUR_NS - 1)) == 60
        assert len(reader.step_rollups(end - 2 * HOUR_NS, end)) == 120
        assert [r.n for r in reader.first_rollups(60, 0)] == [1] * 60


def test_a_bucket_of_utilisation_says_how_long_it_is(month):
    path, _ = month
    with RunReader(path) as reader:
        early, old, new = (
            reader.util_rollups(BEGIN + at, BEGIN + at + HOUR_NS)
            for at in (0, 3 * DAY_NS, 30 * DAY_NS - HOUR_NS)
        )
        assert {r.seconds for r in early} == {r.seconds for r in new} == {1}
        assert {r.seconds for r in old} == {600}
        assert all(r.t1_ns - r.t0_ns <= 600 * SECOND and r.n == 10 for r in old)


def test_a_step_that_comes_again_after_its_second_was_summed_up_counts_once(month):
    path, _ = month
    with RunWriter(path) as writer:
        minute = 24 * 60
        writer.add_steps([step(minute, BEGIN + minute * MINUTE_NS, samples=8)])
        writer.commit()
    with RunReader(path) as reader:
        assert reader.steps_counted(0) == 30 * 24 * 60


def test_the_first_hour_counts_from_the_first_step_however_late_that_comes(tmp_path):
    path, late = tmp_path / "run.sqlite", 5 * 60
    with RunWriter(path) as writer:
        for minute in range(14 * 60):
            t_ns = BEGIN + minute * MINUTE_NS
            writer.add_host(HostSample(t_ns, cpu_busy=1.0))
            if minute >= late:
                writer.add_steps([step(minute - late, t_ns + k * SECOND) for k in (0, 1)])
            if minute % 10 == 9:
                writer.commit()
                writer.prune(t_ns)
    with RunReader(path) as reader:
        begin = BEGIN + late * MINUTE_NS
        assert len(reader.step_rollups(begin, begin + HOUR_NS - 1)) == 120
        assert len(reader.step_rollups(begin + 2 * HOUR_NS, begin + 3 * HOUR_NS - 1)) == 60


def test_rules_tell_their_watermarks_apart():
    names = [rule.name for rule in retention.RULES]
    assert len(names) == len(set(names))
