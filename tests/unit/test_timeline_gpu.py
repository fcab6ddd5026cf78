"""CUDA event pairs: exposed idle, and blocking reads while the device works."""

from __future__ import annotations

import pytest
from timeline_dsl import MS, Thread, ms_by_label, read, read_with

from gputop_train.collect import words as W
from gputop_train.collect.timeline import Timeline

DATA_B, DATA_E = W.begin(W.DATA), W.end(W.DATA)
SYNC_B, SYNC_E = W.begin(W.SYNC), W.end(W.SYNC)
BWD_B, BWD_E = W.begin(W.BACKWARD), W.end(W.BACKWARD)
OPT_B, OPT_E = W.begin(W.OPTIMIZER), W.end(W.OPTIMIZER)
SAVE_B, SAVE_E = W.begin(W.SAVE), W.end(W.SAVE)
NOGRAD_B, NOGRAD_E = W.begin(W.DATA_NOGRAD), W.end(W.DATA_NOGRAD)


def syncing(thread: Thread, blocked_ms: float = 10) -> int:
    """A step that reads its loss; returns when it began."""
    begin = thread.at
    thread.data(2).run(3).backward(4)
    thread.run_in_span(W.SPAN_SYNC, blocked_ms)
    thread.optimizer(1)
    return begin


def test_the_device_time_of_a_loader_wait_is_exposed():
    thread = Thread().step()
    begin = thread.at
    thread.step(data=120)
    thread.gpu(begin, (0, DATA_B), (121, DATA_E), (124, BWD_B), (128, BWD_E)).gpu_end()
    step = read(thread).steps[1]
    assert step.exposed is not None
    assert step.exposed["data_wait"] == 121 * MS


def test_a_step_without_events_has_no_exposed_idle():
    thread = Thread().step().step()
    assert all(step.exposed is None and step.dry is None for step in read(thread).steps)


def test_a_label_the_step_never_touched_is_a_measured_zero():
    thread = Thread().step()
    begin = thread.at
    thread.step()
    thread.gpu(begin, (0, DATA_B), (1, DATA_E)).gpu_end()
    exposed = read(thread).steps[1].exposed
    assert exposed == {
        "data_wait": 1 * MS,
        "h2d": 0,
        "sync": 0,
        "checkpoint": 0,
        "eval": 0,
        "logging": 0,
    }


def test_a_label_with_host_time_but_without_a_pair_was_not_measured():
    thread = Thread().step()
    begin = thread.at
    thread.save(30).step()
    thread.gpu(begin + 30 * MS, (0, DATA_B), (1, DATA_E)).gpu_end()
    assert "checkpoint" not in (read(thread).steps[1].exposed or {})


def test_a_read_that_waits_for_a_busy_device_is_gpu_wait():
    thread = Thread().step()
    begin = syncing(thread, blocked_ms=10)
    thread.gpu(begin, (0, DATA_B), (1, DATA_E), (15, SYNC_B), (15.2, SYNC_E)).gpu_end()
    labels = ms_by_label(read(thread).steps[1])
    assert labels["gpu_wait"] == pytest.approx(9.8)
    assert labels["sync"] == pytest.approx(0.2)


def test_the_idle_time_of_a_read_never_exceeds_the_time_the_host_was_blocked():
    thread = Thread().step()
    begin = syncing(thread, blocked_ms=3)
    thread.gpu(begin, (0, DATA_B), (1, DATA_E), (9, SYNC_B), (99, SYNC_E)).gpu_end()
    step = read(thread).steps[1]
    assert step.exposed is not None and step.exposed["sync"] == 3 * MS
    assert ms_by_label(step)["sync"] == 3


def test_steps_without_events_follow_those_with_events():
    thread = Thread().step()
    for i in range(20):
        begin = syncing(thread, blocked_ms=10)
        if i % 5 == 0:
            thread.gpu(begin, (0, SYNC_B), (4, SYNC_E)).gpu_end()
    steps = read(thread).steps
    assert ms_by_label(steps[-1])["sync"] == 4
    assert ms_by_label(steps[-1])["gpu_wait"] == 6
    assert steps[-1].exposed is None


def test_without_any_event_a_blocking_read_stays_sync():
    thread = Thread().step()
    syncing(thread, blocked_ms=10)
    assert ms_by_label(read(thread).steps[1])["sync"] == 10


def test_events_that_arrive_after_later_steps_still_find_theirs():
    timeline = Timeline(0)
    thread = Thread()
    begin = 0
    for i in range(60):
        if i == 30:
            begin = thread.at
        thread.step()
        if i == 3:
            thread.gpu(thread.at - 10 * MS, (0, DATA_B), (1, DATA_E)).gpu_end()
        if i == 50:
            thread.gpu(begin, (0, DATA_B), (7, DATA_E)).gpu_end()
    steps = read_with(timeline, thread).steps
    sampled = {step.index: step.exposed["data_wait"] for step in steps if step.exposed}
    assert sampled == {3: 1 * MS, 30: 7 * MS}
    assert timeline.late == 0


def test_a_slow_step_waits_for_its_events():
    """Steps of three seconds: the events of one are read back when the next one has ended."""
    thread = Thread()
    begins = []
    for _ in range(6):
        begins.append(thread.at)
        thread.step(data=1000, forward=500, backward=1000, optimizer=500)
        if len(begins) > 1:
            thread.gpu(begins[-2], (0, DATA_B), (5, DATA_E)).gpu_end()
    steps = read(thread, chunk=5).steps
    # The first ends before it is known that there will be events; the last one's never come.
    assert [step.index for step in steps if step.exposed] == [1, 2, 3, 4]


def test_events_of_a_step_long_handed_out_are_counted_as_late():
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(600):
        thread.step(1, 1, 1, 1)
    timeline.feed(thread.words)
    late = Thread().gpu(thread.at - 2390 * MS, (0, DATA_B), (1, DATA_E)).gpu_end()
    timeline.feed(late.words)
    assert timeline.late == 1


def test_a_save_hides_the_reads_inside_it():
    thread = Thread().step()
    begin = thread.at
    thread.begin(W.SAVE).run(1)
    thread.run_in_span(W.SPAN_SYNC, 8)
    thread.run(1).end(W.SAVE).argument(1, 1).step()
    thread.gpu(begin, (0, SAVE_B), (1, SYNC_B), (9, SYNC_E), (10, SAVE_E)).gpu_end()
    exposed = read(thread).steps[1].exposed or {}
    assert exposed["checkpoint"] == 10 * MS
    assert exposed["sync"] == 0


def test_waits_of_an_evaluation_are_exposed_as_eval():
    thread = Thread().step()
    begin = thread.at
    thread.eval_data(5).run(2)
    thread.run_in_span(W.SPAN_SYNC, 3)
    thread.step()
    thread.gpu(
        begin, (0, NOGRAD_B), (5, NOGRAD_E), (7, SYNC_B), (10, SYNC_E), (10, DATA_B), (12, DATA_E)
    ).gpu_end()
    exposed = read(thread).steps[1].exposed or {}
    assert exposed["eval"] == 8 * MS
    assert exposed["data_wait"] == 2 * MS


def test_a_queue_found_empty_at_launches_is_dry():
    thread = Thread().step()
    begin = thread.at
    thread.step()
    thread.gpu(
        begin,
        (0, DATA_B, 0),
        (1, DATA_E, 1),  # ends a wait: says nothing
        (3, BWD_B, 1),  # follows a wait: says nothing
        (7, BWD_E, 1),
        (8, OPT_B, 0),
        (9, OPT_E, 1),
    ).gpu_end()
    assert read(thread).steps[1].dry == pytest.approx(2 / 3)


def test_when_events_ran_out_the_reads_seen_stand_for_the_rest():
    thread = Thread().step()
    begin = thread.at
    thread.data(1).run(1)
    for _ in range(10):
        thread.run_in_span(W.SPAN_SYNC, 2)
    thread.backward(1).optimizer(1)
    thread.gpu(begin, (0, SYNC_B), (1, SYNC_E), (2, SYNC_B), (3, SYNC_E)).gpu_end(dropped=16)
    step = read(thread).steps[1]
    assert step.exposed is not None and step.exposed["sync"] == 10 * MS
    assert step.syncs == 10


IDLE = 1 | 2  # predecessor complete, and nothing at all on the stream


def test_the_idle_time_between_a_read_and_the_next_batch_is_the_reads():
    thread = Thread().step()
    begin = syncing(thread, blocked_ms=3)
    thread.gpu(
        begin, (0, OPT_E), (5, SYNC_B), (7, SYNC_E, 1), (11, DATA_B, IDLE), (12, DATA_E, 1)
    ).gpu_end()
    step = read(thread).steps[1]
    assert step.exposed is not None
    assert step.exposed["sync"] == (2 + 4) * MS
    assert step.exposed["data_wait"] == 1 * MS
    assert ms_by_label(step)["sync"] == 2  # of the host's time only what it was blocked for
    assert ms_by_label(step)["gpu_wait"] == 1


def test_work_found_on_the_stream_after_a_read_is_no_idle_time_of_it():
    thread = Thread().step()
    begin = syncing(thread, blocked_ms=3)
    thread.gpu(begin, (5, SYNC_B), (7, SYNC_E, 1), (11, DATA_B, 1), (12, DATA_E)).gpu_end()
    assert (read(thread).steps[1].exposed or {})["sync"] == 2 * MS


def test_what_follows_a_read_up_to_the_backward_is_launch_time_and_not_the_reads():
    thread = Thread().step()
    begin = syncing(thread, blocked_ms=3)
    thread.gpu(begin, (5, SYNC_B), (7, SYNC_E, 1), (11, BWD_B, IDLE), (12, BWD_E)).gpu_end()
    assert (read(thread).steps[1].exposed or {})["sync"] == 2 * MS


def test_between_two_reads_only_a_moment_is_the_first_ones():
    thread = Thread().step()
    begin = thread.at
    thread.data(2).run(3).backward(4)
    thread.run_in_span(W.SPAN_SYNC, 1)
    thread.run_in_span(W.SPAN_SYNC, 1)
    thread.optimizer(1)
    thread.gpu(
        begin, (0, SYNC_B), (1, SYNC_E, 1), (9, SYNC_B, IDLE), (10, SYNC_E, 1), (11, OPT_B, 1)
    ).gpu_end()
    assert (read(thread).steps[1].exposed or {})["sync"] == 2 * MS + 50_000


def test_a_call_of_a_logging_library_is_exposed_as_logging():
    thread = Thread().step()
    begin = thread.at
    thread.data(1).run(1)
    thread.run_in_span(W.SPAN_LOGGING, 6)
    thread.backward(1).optimizer(1)
    log_b, log_e = W.begin(W.LOGGING), W.end(W.LOGGING)
    thread.gpu(begin, (0, DATA_B), (1, DATA_E), (2, log_b), (7, log_e)).gpu_end()
    assert (read(thread).steps[1].exposed or {})["logging"] == 5 * MS
