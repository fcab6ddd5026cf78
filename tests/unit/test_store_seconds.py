"""The rollup of a second is that of the steps that are stored, however they got there."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from report_runs import steps_of

from gputop_train.store import rows
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import roll_up, second
from gputop_train.store.writer import RunWriter


@pytest.fixture
def reads(monkeypatch):
    """How many seconds were read back from the store."""
    made = []
    real = rows.read_step
    monkeypatch.setattr(rows, "read_step", lambda *a: made.append(1) or real(*a))
    return made


def in_parts(steps, size):
    return [steps[i : i + size] for i in range(0, len(steps), size)]


def check(path, steps):
    """The rollups in the store are those of these steps."""
    by_second = {}
    for step in sorted(steps, key=lambda s: (s.rank, s.t1_ns)):
        by_second.setdefault((second(step.t1_ns), step.rank), []).append(step)
    with RunReader(path) as reader:
        assert reader.step_rollups() == [roll_up(found) for _, found in sorted(by_second.items())]
        assert len(reader.steps()) == len(steps)


def fail_to_commit(writer, path):
    """A commit while somebody else holds the store."""
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        writer.commit()
    lock.execute("ROLLBACK")
    lock.close()


def test_a_growing_second_is_not_read_back(tmp_path, reads):
    steps = steps_of(100, {"forward": 60, "backward": 40})
    with RunWriter(tmp_path / "run.sqlite") as writer:
        for part in in_parts(steps, 7):
            writer.add_steps(part)
            writer.commit()
        assert not reads
    check(tmp_path, steps)


def test_a_store_that_is_continued_in_the_middle_of_a_second_counts_what_is_there(tmp_path):
    steps = steps_of(50, {"forward": 60, "backward": 40}) + steps_of(50, {"forward": 90}, rank=1)
    for part in in_parts(steps, 23):
        with RunWriter(tmp_path / "run.sqlite") as writer:
            writer.add_steps(part)
    check(tmp_path, steps)


def test_steps_that_come_twice_late_or_out_of_order_count_once(tmp_path):
    steps = steps_of(60, {"forward": 60, "backward": 40})
    other = [replace(step, micro=9) for step in steps[20:30]]  # seen before: the first one stays
    with RunWriter(tmp_path / "run.sqlite") as writer:
        for part in (steps[:10], steps[20:40], other, steps[10:20], steps[40:], steps[35:45]):
            writer.add_steps(part)
            writer.commit()
    check(tmp_path, steps)


def test_a_commit_that_failed_leaves_no_trace_in_the_next_ones_rollups(tmp_path):
    steps = steps_of(60, {"forward": 60, "backward": 40})
    path = tmp_path / "run.sqlite"
    with RunWriter(path) as writer:
        writer.add_steps(steps[:25])
        writer.commit()
        writer.add_steps(steps[25:37])
        fail_to_commit(writer, path)
        writer.add_steps(steps[37:])
        writer.commit()
    check(path, steps)


def test_a_row_that_cannot_be_stored_is_in_no_rollup(tmp_path):
    steps = steps_of(30, {"forward": 60, "backward": 40})
    bad = replace(steps[12], syncs=1 << 70)
    with RunWriter(tmp_path / "run.sqlite") as writer:
        for part in (steps[:10], [*steps[10:12], bad, *steps[13:20]], steps[20:]):
            writer.add_steps(part)
            writer.commit()
        assert writer.dropped_rows == 1
    check(tmp_path, [*steps[:12], *steps[13:]])


def test_a_backlog_that_is_given_up_is_in_no_rollup(tmp_path, monkeypatch):
    from gputop_train.store import writer as module

    monkeypatch.setattr(module, "MAX_BACKLOG_ROWS", 20)
    steps = steps_of(60, {"forward": 60, "backward": 40})
    path = tmp_path / "run.sqlite"
    with RunWriter(path) as writer:
        writer.add_steps(steps[:5])
        writer.commit()
        writer.add_steps(steps[5:50])
        fail_to_commit(writer, path)
        writer.add_steps(steps[50:])
        writer.commit()
        assert writer.dropped_rows > 0
    with RunReader(path) as reader:
        kept = reader.steps()
    check(path, kept)
    assert len(kept) == 60 - writer.dropped_rows


def test_numbers_that_are_no_integers_are_refused():
    step = steps_of(1, {"forward": 60})[0]
    assert rows.is_sane(step)
    for odd in (1.5, float("nan"), "x", None, 1 << 60, -(1 << 60)):
        assert not rows.is_sane(replace(step, labels={**step.labels, "forward": odd}))
        assert not rows.is_sane(replace(step, exposed={"sync": odd}))
    assert rows.is_sane(replace(step, exposed={"sync": 5}))
