"""Where steps begin and end."""

from __future__ import annotations

import pytest
from timeline_dsl import FORWARD, MS, Thread, ms_by_label, read, read_with

from gputop_train.collect import words as W
from gputop_train.collect.timeline import Timeline


def test_every_optimizer_step_is_a_step():
    thread = Thread()
    for _ in range(7):
        thread.step()
    batch = read(thread)
    assert [step.index for step in batch.steps] == list(range(7))
    assert all(step.micro == 1 and step.samples == 8 for step in batch.steps)


def test_reads_that_were_only_counted_count_as_syncs_of_their_step():
    thread = Thread()
    thread.step()
    for count in (3, 0, 500):
        thread.data(1).run(1).backward(2).begin(W.OPTIMIZER).argument(1).run(1)
        if count:
            thread.words.append(W.word(W.UNRECORDED, count))
        thread.end(W.OPTIMIZER)
    assert [step.syncs for step in read(thread).steps] == [0, 3, 0, 500]


def test_steps_follow_one_another_without_a_hole():
    thread = Thread()
    for _ in range(5):
        thread.step().run(2)
    steps = read(thread).steps
    assert [step.t0_ns for step in steps[1:]] == [step.t1_ns for step in steps[:-1]]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50])
def test_how_the_stream_is_cut_into_polls_does_not_matter(chunk):
    thread = Thread()
    for _ in range(12):
        thread.step()
        thread.run_in_span(W.SPAN_SYNC, 2)
    whole, pieces = read(thread), read(thread, chunk)
    assert pieces.steps == whole.steps


def test_accumulation_is_one_step_with_several_backwards():
    thread = Thread()
    for _ in range(6):
        for _ in range(4):
            thread.data(1).run(1).backward(2)
        thread.optimizer(1)
    steps = read(thread).steps
    assert [step.micro for step in steps] == [4] * 6
    assert [step.samples for step in steps] == [32] * 6


def test_long_accumulation_is_not_over_counted_before_the_first_step():
    thread = Thread()
    for _ in range(60):
        thread.data(1).run(1).backward(2)
    thread.optimizer(1)
    steps = read(thread, chunk=10).steps
    assert [step.micro for step in steps] == [60]


def test_both_optimizers_of_a_gan_make_one_step():
    thread = Thread()
    for _ in range(6):
        thread.data(1).run(1).backward(1).optimizer(1, 1).run(1).backward(1).optimizer(1, 2)
    steps = read(thread).steps
    assert [step.micro for step in steps] == [2] * 6
    assert {step.wall_ns for step in steps} == {7 * MS}


def test_several_parameter_group_optimizers_make_one_step():
    thread = Thread()
    for _ in range(6):
        thread.data(1).run(1).backward(2).optimizer(1, 1).optimizer(1, 2).optimizer(1, 3)
    assert len(read(thread).steps) == 6


def test_each_critic_repeat_of_a_wgan_is_a_step():
    thread = Thread()
    for _ in range(6):
        for _ in range(5):
            thread.data(1).run(1).backward(1).optimizer(1, 1)
        thread.run(1).backward(1).optimizer(1, 2)
    steps = read(thread, chunk=9).steps
    # The generator's call belongs to a critic's step: 5 steps an iteration, up to the partial ends.
    assert 29 <= len(steps) <= 31
    assert sum(step.micro for step in steps) == 36


def test_a_settled_cycle_closes_at_once():
    """The screen must not lag a whole step behind."""
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(4):
        thread.step()
    timeline.feed(thread.words)
    fifth = Thread()
    fifth.at = thread.at
    fifth.step()
    batch = timeline.feed(fifth.words, now_ns=fifth.at + 2_000 * MS)
    assert batch.steps[-1].t1_ns == fifth.at


def test_an_optimizer_that_joins_a_settled_cycle_late_makes_no_step_of_its_own_in_the_end():
    thread = Thread()
    for _ in range(10):
        thread.data(1).run(1).backward(1).optimizer(1, 1)
    for _ in range(10):
        thread.data(1).run(1).backward(1).optimizer(1, 1).run(1).backward(1).optimizer(1, 2)
    steps = read(thread).steps
    assert 19 <= len(steps) <= 21


def test_a_step_skipped_by_the_grad_scaler_is_a_step():
    thread = Thread()
    for i in range(12):
        thread.data(1).run(1).backward(2)
        if i % 3:
            thread.optimizer(1)
        thread.scaler_update()
    steps = read(thread).steps
    assert len(steps) == 12
    assert [step.micro for step in steps] == [1] * 12


def test_steps_skipped_before_the_first_optimizer_call_count_too():
    thread = Thread()
    for i in range(6):
        thread.data(1).run(1).backward(2)
        if i > 2:
            thread.optimizer(1)
        thread.scaler_update()
    assert len(read(thread).steps) == 6


def test_a_loop_without_an_optimizer_counts_batches():
    thread = Thread()
    for _ in range(80):
        thread.data(2).run(1).backward(3).run(1)
    steps = read(thread, chunk=13).steps
    assert len(steps) == 80
    assert {step.micro for step in steps} == {1}


def test_a_loop_with_neither_optimizer_nor_loader_counts_backwards():
    thread = Thread()
    for _ in range(70):
        thread.run(1).backward(3)
    assert len(read(thread, chunk=13).steps) == 70


def test_a_few_backwards_alone_are_no_training():
    thread = Thread()
    for _ in range(4):
        thread.run(1).backward(3)
    assert read(thread).steps == ()


def test_start_up_is_not_part_of_the_first_step():
    thread = Thread()
    thread.data(5).data(5).data(5)  # statistics of the data set
    thread.run(5_000).eval_data(3).run(4).save(9)  # a sanity evaluation, a first save
    thread.phase(W.ITER, 50)
    thread.step().step()
    steps = read(thread).steps
    assert [step.wall_ns for step in steps] == [10 * MS, 10 * MS]


def test_a_loop_without_a_loader_starts_at_its_first_backward():
    thread = Thread().run(500)
    thread.backward(4).optimizer(1)
    thread.run(3, FORWARD).backward(4).optimizer(1)
    assert [step.wall_ns for step in read(thread).steps] == [5 * MS, 8 * MS]


def test_an_optimizer_that_calls_another_is_one_step():
    thread = Thread()
    for _ in range(6):
        thread.data(1).run(1).backward(2)
        thread.begin(W.OPTIMIZER).argument(2).run(1).optimizer(2, 1).run(1).end(W.OPTIMIZER)
    steps = read(thread).steps
    assert len(steps) == 6
    assert ms_by_label(steps[-1])["optimizer"] == 4


def test_an_optimizer_whose_step_calls_its_base_class_is_one_step():
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(6):
        thread.data(1).run(1).backward(2)
        thread.begin(W.OPTIMIZER).argument(1).run(1).optimizer(2, 1).run(1).end(W.OPTIMIZER)
    steps = read_with(timeline, thread).steps
    assert [ms_by_label(step).get("optimizer") for step in steps] == [4] * 6
    assert timeline.bad == 0


def test_optimizers_that_run_inside_backward_do_not_cut_it_in_two():
    thread = Thread()
    for _ in range(8):
        thread.data(1).run(1).begin(W.BACKWARD).run(2)
        for id_ in (1, 2, 3):
            thread.optimizer(1, id_)
        thread.run(2).end(W.BACKWARD)
    batch = read(thread)
    assert len(batch.steps) == 8
    assert ms_by_label(batch.steps[-1])["backward"] == 7


def test_an_optimizer_call_that_raised_does_not_stop_the_count():
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(5):
        thread.step()
    thread.data(2).run(3).backward(4).begin(W.OPTIMIZER).argument(1).run(1)  # out of memory
    for _ in range(5):
        thread.step()
    batch = read_with(timeline, thread)
    assert len(batch.steps) == 10
    assert timeline.bad >= 1


def test_after_lost_words_the_next_step_starts_at_a_boundary():
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(5):
        thread.step()
    half = Thread()
    half.at = thread.at + 10_000 * MS
    half.run(1).backward(4).optimizer(1).step().step()
    steps = list(timeline.feed(thread.words).steps)
    timeline.lost()
    steps += timeline.feed(half.words).steps
    last = timeline.finish()
    steps += last.steps
    assert len(steps) == 5 + 2
    assert max(step.wall_ns for step in steps) == 10 * MS


def test_a_fork_drops_the_open_step_and_starts_anew():
    thread = Thread()
    thread.step().step().data(1)
    thread.words.append(W.word(W.FORK, thread.at))
    thread.run(60_000).step().step()
    batch = read(thread)
    assert [step.wall_ns for step in batch.steps] == [10 * MS] * 4
    assert [kind for _, kind in batch.events] == ["fork"]


def test_never_more_than_256_steps_are_kept_back():
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(400):
        thread.step(0.01, 0.01, 0.01, 0.01)
    assert len(timeline.feed(thread.words).steps) >= 400 - 257


def test_allocator_readings_name_the_step_that_ended_before_them():
    thread = Thread()
    for _ in range(3):
        thread.step()
        thread.words += [
            W.word(W.MEM_AT, thread.at + 10),
            W.word(W.MEM_ALLOCATED, 1000),
            W.word(W.MEM_RESERVED, 2000),
        ]
        thread.run(1)
    memory = read(thread).memory
    assert [(m.step, m.allocated, m.reserved) for m in memory] == [
        (0, 1000, 2000),
        (1, 1000, 2000),
        (2, 1000, 2000),
    ]


def test_batches_of_unknown_size_make_the_samples_unknown():
    thread = Thread()
    thread.data(1, samples=0).run(1).backward(1).optimizer(1)
    assert read(thread).steps[0].samples is None


def test_the_end_of_an_epoch_does_not_hide_the_samples():
    """StopIteration leaves ``next()`` without a batch, hence without a size."""
    thread = Thread()
    thread.step()
    thread.phase(W.DATA, 1).phase(W.ITER, 1)
    thread.step()
    assert [step.samples for step in read(thread).steps] == [8, 8]


def test_a_loop_that_fetches_ahead_ends_its_epoch_with_no_samples():
    """Its last step asks once more, and no batch comes: eight and eight, not unknown."""
    thread = Thread()
    thread.data(1)
    thread.step()
    thread.phase(W.DATA, 1).run(3).backward(4).optimizer(1)
    assert [step.samples for step in read(thread).steps] == [16, 0]


# -- a notebook's kernel between cells ----------------------------------------------------------------

IDLE = 14


def idle(thread: Thread, seconds: int) -> Thread:
    for _ in range(seconds * 4):
        thread.run(250).sample(IDLE)
    return thread


def test_a_step_ends_where_the_thread_begins_to_wait_for_the_next_cell():
    thread = Thread()
    thread.step().step().save(20, size=100)
    saved_ns = thread.at
    idle(thread, 30)
    began_ns = thread.run(200, 13).at
    thread.step().step()
    batch = read(thread)
    assert [step.wall_ns for step in batch.steps] == [10 * MS] * 4
    assert [step.index for step in batch.steps] == [0, 1, 2, 3]
    assert batch.steps[2].t0_ns == began_ns
    assert [(i.label, i.t1_ns) for i in batch.intervals] == [("checkpoint", saved_ns)]


def test_a_moment_in_the_event_loop_is_part_of_the_step():
    thread = Thread()
    thread.step()
    thread.run(250).sample(IDLE).run(250).sample(IDLE).run(100)
    thread.step()
    assert [step.wall_ns for step in read(thread).steps] == [10 * MS, 610 * MS]
