"""What a step's time is booked on."""

from __future__ import annotations

import pytest
from timeline_dsl import DATA_CLASS, FORWARD, HOST, MS, Thread, ms_by_label, read

from gputop_train.collect import words as W


def last_step(thread: Thread) -> dict[str, float]:
    batch = read(thread)
    assert batch.steps, "no step was found"
    return ms_by_label(batch.steps[-1])


def test_phases_tile_the_step():
    thread = Thread().step().step(data=2, forward=3, backward=4, optimizer=1)
    assert last_step(thread) == {"data_wait": 2, "forward": 3, "backward": 4, "optimizer": 1}


def test_time_between_optimizer_and_loader_is_other():
    thread = Thread().step().run(7).step()
    assert last_step(thread)["other"] == 7


def test_a_host_read_inside_the_optimizer_is_sync():
    thread = Thread().step().data(1).run(1).backward(1).begin(W.OPTIMIZER).argument(1).run(2)
    thread.run_in_span(W.SPAN_SYNC, 3)
    thread.run(1).end(W.OPTIMIZER)
    assert last_step(thread) == {
        "data_wait": 1,
        "forward": 1,
        "backward": 1,
        "sync": 3,
        "optimizer": 3,
    }


def test_a_copy_inside_a_save_is_checkpoint():
    thread = Thread().step().begin(W.SAVE).run(2)
    thread.run_in_span(W.SPAN_H2D, 3)
    thread.run_in_span(W.SPAN_SYNC, 3)
    thread.run(2).end(W.SAVE).argument(500, 7).step()
    batch = read(thread)
    assert ms_by_label(batch.steps[-1])["checkpoint"] == 10
    assert [(i.label, i.bytes, i.site_id) for i in batch.intervals] == [("checkpoint", 500, 7)]


def test_a_loader_that_copies_to_the_device_is_data_wait():
    thread = Thread().step().begin(W.DATA).run(1)
    thread.run_in_span(W.SPAN_H2D, 2)
    thread.run(1).end(W.DATA).argument(8, 1).run(3).backward(1).optimizer(1)
    labels = last_step(thread)
    assert labels["data_wait"] == 4 and "h2d" not in labels


def test_compilation_wins_over_what_it_interrupts():
    thread = Thread().step().data(1).run(2).phase(W.COMPILE, 50).run(2).backward(1).optimizer(1)
    batch = read(thread)
    assert ms_by_label(batch.steps[-1]) == {
        "data_wait": 1,
        "forward": 4,
        "compile": 50,
        "backward": 1,
        "optimizer": 1,
    }
    assert [i.label for i in batch.intervals] == ["compile"]


def test_worker_start_up_is_data_wait():
    thread = Thread().step().phase(W.ITER, 20).step()
    assert last_step(thread)["data_wait"] == 22


def test_a_blocking_collective_is_comm_and_hides_the_sync_inside():
    thread = Thread().step().begin(W.COLLECTIVE)
    thread.run_in_span(W.SPAN_SYNC, 4)
    thread.run(1).end(W.COLLECTIVE).step()
    labels = last_step(thread)
    assert labels["comm"] == 5 and "sync" not in labels


def test_overlapping_spans_count_every_nanosecond_once():
    thread = Thread().step().data(1)
    start = thread.at
    thread.run(10)
    thread.span(W.SPAN_SYNC, start, 10)
    thread.span(W.SPAN_LOGGING, start + 2 * MS, 6)
    thread.span(W.SPAN_GC, start + 4 * MS, 2)
    thread.backward(1).optimizer(1)
    labels = last_step(thread)
    assert (labels["sync"], labels["logging"], labels["gc"]) == (4, 4, 2)


def test_the_forward_inside_a_closure_is_forward():
    """LBFGS and Lightning call the closure, hence forward and backward, inside ``step()``."""
    thread = Thread().step().data(1).begin(W.OPTIMIZER).argument(1)
    for _ in range(3):
        thread.run(5).backward(2)
    thread.run(4).end(W.OPTIMIZER)
    assert last_step(thread) == {"data_wait": 1, "forward": 15, "backward": 6, "optimizer": 4}


def test_a_span_written_after_its_step_ended_still_lands_in_it():
    thread = Thread().step().step()
    begin = thread.at - 1 * MS
    thread.data(2).span(W.SPAN_GC, begin, 1)
    thread.run(3).backward(4).optimizer(1)
    steps = read(thread).steps
    assert ms_by_label(steps[1]) == {"data_wait": 2, "forward": 3, "backward": 4, "gc": 1}
    assert "gc" not in ms_by_label(steps[2])


@pytest.mark.parametrize(("ms", "kept"), [(0.9, 0), (1.0, 1)])
def test_gc_pauses_of_a_millisecond_are_kept_as_intervals(ms, kept):
    thread = Thread().step()
    thread.run_in_span(W.SPAN_GC, ms)
    thread.step()
    batch = read(thread)
    assert ms_by_label(batch.steps[-1])["gc"] == ms
    assert len(batch.intervals) == kept


@pytest.mark.parametrize(("ms", "kept"), [(4.9, 0), (5.0, 1)])
def test_logging_calls_of_five_milliseconds_are_kept_as_intervals(ms, kept):
    thread = Thread().step()
    thread.run_in_span(W.SPAN_LOGGING, ms)
    thread.step()
    assert len(read(thread).intervals) == kept


def test_a_save_after_the_last_step_is_an_interval_and_the_tail_but_no_step():
    thread = Thread().step().step().run(1).save(40, 99).run(2)
    thread.sample(HOST)
    batch = read(thread)
    assert len(batch.steps) == 2
    assert [i.label for i in batch.intervals] == ["checkpoint"]
    assert batch.tail is not None
    assert ms_by_label(batch.tail) == {"checkpoint": 40, "other": 3}


def test_a_save_cut_short_by_the_end_of_the_process_is_still_seen():
    thread = Thread().step().step().begin(W.SAVE).run(30)
    thread.sample(HOST)
    batch = read(thread)
    assert [(i.label, i.t1_ns - i.t0_ns) for i in batch.intervals] == [("checkpoint", 30 * MS)]


# -- gaps --------------------------------------------------------------------------------------


def mean_ms(thread: Thread, label: str, skip: int = 3) -> float:
    steps = read(thread, chunk=200).steps[skip:]
    return sum(step.labels[label] for step in steps) / len(steps) / MS


def test_a_sleep_between_data_and_forward_is_other_and_not_forward():
    thread = Thread(sample_every_ms=25.37)
    for _ in range(64):
        thread.data(10).run(50, HOST).run(30, FORWARD).backward(50).optimizer(10)
    assert mean_ms(thread, "other") == pytest.approx(50, abs=2)
    assert mean_ms(thread, "forward") == pytest.approx(30, abs=2)


def test_a_short_sleep_at_the_head_of_a_long_gap_is_not_swallowed():
    thread = Thread(sample_every_ms=25.37)
    for _ in range(80):
        thread.data(3).run(12, HOST).run(68, FORWARD).backward(20).optimizer(3)
    assert mean_ms(thread, "other") == pytest.approx(12, abs=2)


def test_gaps_shorter_than_the_sampling_period_are_read_from_many_steps():
    thread = Thread(sample_every_ms=25.37)
    for _ in range(3000):
        thread.data(0.2).run(0.6, HOST).run(0.4, FORWARD).backward(0.5).optimizer(0.2)
    assert mean_ms(thread, "other") == pytest.approx(0.6, rel=0.05)
    assert mean_ms(thread, "forward") == pytest.approx(0.4, rel=0.06)


def test_short_gaps_of_like_steps_are_split_alike():
    """One sample must not paint twenty fast steps in its own colour."""
    thread = Thread(sample_every_ms=25.37)
    for _ in range(3000):
        thread.data(0.2).run(0.5, HOST).run(0.5, FORWARD).backward(0.5).optimizer(0.2)
    shares = [step.labels["forward"] for step in read(thread).steps[1500:]]
    assert max(shares) - min(shares) < 0.5 * MS


def test_a_rare_long_print_among_short_gaps_is_booked_where_it_happened():
    thread = Thread(sample_every_ms=25.37)
    for i in range(200):
        thread.step()
        if i % 50 == 49:
            thread.run(400, 9)
    steps = read(thread).steps
    logging = [step.index for step in steps if step.labels["logging"] > 100 * MS]
    assert logging == [50, 100, 150]
    total = sum(step.labels["logging"] for step in steps) / MS
    assert total == pytest.approx(3 * 400, rel=0.05)


def test_a_batch_made_by_hand_is_data_wait():
    thread = Thread(sample_every_ms=25.37)
    for _ in range(60):
        thread.run(40, DATA_CLASS).run(30, FORWARD).backward(50).optimizer(10)
    assert mean_ms(thread, "data_wait") == pytest.approx(40, abs=2)


def test_without_a_sampler_what_leads_to_backward_is_forward_and_the_rest_is_other():
    thread = Thread()
    for _ in range(5):
        thread.run(2).data(1).run(30).backward(10).run(4).optimizer(1)
    labels = ms_by_label(read(thread).steps[-1])
    assert labels == {"data_wait": 1, "forward": 30, "backward": 10, "optimizer": 1, "other": 6}


def test_only_what_edges_saw_counts_as_measured():
    thread = Thread().step().run(2).step()
    step = read(thread).steps[-1]
    assert step.wall_ns == 12 * MS
    assert step.measured_ns == 7 * MS


def test_a_change_of_habit_is_followed():
    thread = Thread(sample_every_ms=25.37)
    for _ in range(150):
        thread.data(1).run(40, FORWARD).backward(10).optimizer(1)
    for _ in range(150):
        thread.data(1).run(40, HOST).backward(10).optimizer(1)
    assert mean_ms(thread, "other", skip=200) == pytest.approx(40, abs=2)
