"""What counts as an evaluation, and what it is made of."""

from __future__ import annotations

from timeline_dsl import DATA_CLASS, FORWARD, HOST, MS, Thread, ms_by_label, read

from gputop_train.collect import words as W


def intervals(thread: Thread, label: str = "eval") -> list[float]:
    return [round((i.t1_ns - i.t0_ns) / MS, 3) for i in read(thread).intervals if i.label == label]


def test_eval_mode_until_train_mode_is_an_evaluation():
    thread = Thread().step().step().begin(W.EVAL).argument(0, 3)
    for _ in range(3):
        thread.data(2).run(5, FORWARD)
    thread.end(W.EVAL).step()
    batch = read(thread)
    assert ms_by_label(batch.steps[-1])["eval"] == 21
    assert [i.label for i in batch.intervals] == ["eval"]


def test_a_frozen_teacher_put_into_eval_mode_is_no_evaluation():
    thread = Thread().step().begin(W.EVAL).run(1).step().step()
    batch = read(thread)
    assert batch.intervals == ()
    assert all("eval" not in ms_by_label(step) for step in batch.steps)


def test_gradient_free_batches_are_an_evaluation_up_to_the_end_of_their_block():
    thread = Thread().step().step()
    begin = thread.at
    for _ in range(4):
        thread.eval_data(2).run(3, FORWARD)
    thread.phase(W.DATA_NOGRAD, 1)
    thread.run(2)
    thread.span(W.SPAN_NOGRAD, begin, (thread.at - begin) / MS)
    thread.run(6).step()
    batch = read(thread)
    assert ms_by_label(batch.steps[-1])["eval"] == 23
    assert ms_by_label(batch.steps[-1])["other"] == 6


def test_gradient_free_batches_without_a_block_last_until_training_goes_on():
    thread = Thread().step().step()
    for _ in range(4):
        thread.eval_data(2).run(3, FORWARD)
    thread.step()
    assert ms_by_label(read(thread).steps[-1])["eval"] == 20


def test_the_workers_of_the_evaluation_loader_start_up_inside_the_evaluation():
    thread = Thread().step().step().phase(W.ITER, 30)
    thread.eval_data(2).run(3).step()
    assert ms_by_label(read(thread).steps[-1])["eval"] == 35


def test_training_data_after_the_evaluation_is_not_evaluation():
    """Scripts that call ``train()`` inside the loop do so after the batch was fetched."""
    thread = Thread().step().step().begin(W.EVAL).argument(0)
    thread.eval_data(2).run(8)
    thread.begin(W.DATA).run(40).end(W.DATA).argument(8, 1)
    thread.end(W.EVAL).run(3).backward(4).optimizer(1)
    labels = ms_by_label(read(thread).steps[-1])
    assert labels["eval"] == 10
    assert labels["data_wait"] == 40


def test_a_save_in_eval_mode_is_checkpoint():
    thread = Thread().step().step().begin(W.EVAL).argument(0)
    thread.eval_data(2).run(8).save(20, 5).run(1).end(W.EVAL).step()
    labels = ms_by_label(read(thread).steps[-1])
    assert (labels["eval"], labels["checkpoint"]) == (11, 20)


def test_a_loop_that_enters_no_grad_for_every_batch_is_an_evaluation():
    thread = Thread(sample_every_ms=2)
    for _ in range(6):
        thread.step()
    for _ in range(5):
        thread.phase(W.DATA, 2, 8, 2)
        thread.run_in_span(W.SPAN_NOGRAD, 6, FORWARD)
    thread.phase(W.DATA, 1)
    thread.phase(W.ITER, 1).step()
    labels = ms_by_label(read(thread).steps[-1])
    assert labels["eval"] == 40


def test_a_rare_gradient_free_block_with_a_forward_in_it_is_an_evaluation():
    thread = Thread(sample_every_ms=7)
    for _ in range(9):
        thread.step()
    thread.run_in_span(W.SPAN_NOGRAD, 60, FORWARD)
    thread.step()
    assert intervals(thread) == [60]


def blocks(lengths, *, unseen):
    """Training with a gradient-free block every 9 steps; the sampler missed some of them."""
    thread = Thread(sample_every_ms=7)
    for number, length in enumerate(lengths):
        for _ in range(9):
            thread.step()
        if number in unseen:
            begin = thread.at
            thread.at += length * MS
            thread.span(W.SPAN_NOGRAD, begin, length)
        else:
            thread.run_in_span(W.SPAN_NOGRAD, length, FORWARD)
    return thread.step()


def test_a_block_the_sampler_missed_is_told_by_the_length_of_those_it_saw():
    thread = blocks([60, 62, 58, 61, 60, 59], unseen={2, 4})
    assert len(intervals(thread)) == 6


def test_a_block_the_sampler_missed_is_none_before_others_were_seen_or_at_another_length():
    assert len(intervals(blocks([60, 62, 58], unseen={0}))) == 2
    assert len(intervals(blocks([60, 62, 200, 58], unseen={2}))) == 3


def test_a_rare_gradient_free_block_without_a_forward_is_none():
    thread = Thread(sample_every_ms=7)
    for _ in range(9):
        thread.step()
    thread.run_in_span(W.SPAN_NOGRAD, 60, HOST)
    thread.step()
    batch = read(thread)
    assert batch.intervals == ()
    assert ms_by_label(batch.steps[-1])["other"] == 60


def test_a_teacher_in_every_step_is_forward():
    thread = Thread(sample_every_ms=7)
    for _ in range(12):
        thread.data(2)
        thread.run_in_span(W.SPAN_NOGRAD, 20, FORWARD)
        thread.run(10, FORWARD).backward(8).optimizer(2)
    batch = read(thread)
    assert batch.intervals == ()
    assert sum(step.labels["forward"] for step in batch.steps) == 12 * 30 * MS


def test_a_teacher_before_the_first_batch_of_a_loop_without_a_loader_is_no_evaluation():
    thread = Thread(sample_every_ms=7)
    for _ in range(12):
        thread.run_in_span(W.SPAN_NOGRAD, 20, FORWARD)
        thread.run(10, FORWARD).backward(8).optimizer(2)
    assert intervals(thread) == []


def test_an_evaluation_beside_a_short_metric_in_every_step_is_found():
    thread = Thread(sample_every_ms=7)
    for _ in range(12):
        thread.data(2).run(6, FORWARD).backward(8).optimizer(2)
        thread.run_in_span(W.SPAN_NOGRAD, 0.5, HOST)
    thread.run_in_span(W.SPAN_NOGRAD, 90, FORWARD)
    thread.step()
    assert intervals(thread) == [90]


def test_training_batches_fetched_without_gradients_are_data_wait():
    thread = Thread()
    for _ in range(6):
        thread.eval_data(4).run(3, FORWARD).backward(4).optimizer(1)
    batch = read(thread)
    assert batch.intervals == ()
    assert ms_by_label(batch.steps[-1])["data_wait"] == 4


def test_an_evaluation_after_the_last_step_is_kept():
    thread = Thread().step().step().begin(W.EVAL).argument(0)
    thread.eval_data(2).run(8).eval_data(2)
    batch = read(thread)
    assert [i.label for i in batch.intervals] == ["eval"]
    assert ms_by_label(batch.tail or {}) == {"eval": 12}


def test_an_evaluation_before_training_is_start_up():
    thread = Thread().begin(W.EVAL).argument(0).eval_data(50).run(100).end(W.EVAL)
    thread.step().step()
    batch = read(thread)
    assert batch.intervals == ()
    assert [step.wall_ns for step in batch.steps] == [10 * MS] * 2


def test_two_evaluation_loaders_in_a_row_are_one_evaluation():
    thread = Thread().step().step()
    thread.phase(W.ITER, 1).eval_data(2).run(3).phase(W.ITER, 1).eval_data(2).run(3).step()
    assert intervals(thread) == [12]


def test_an_evaluation_knows_its_own_parts():
    thread = Thread(sample_every_ms=1.7)
    for _ in range(3):
        thread.step()
    thread.begin(W.EVAL).argument(0)
    for _ in range(20):
        thread.eval_data(10).run(20, FORWARD).run(10, HOST)
        thread.run_in_span(W.SPAN_SYNC, 5)
    thread.end(W.EVAL).step()
    parts = ms_by_label(read(thread).eval_sub or {})
    assert parts["data_wait"] == 200
    assert parts["sync"] == 100
    assert abs(parts["forward"] - 400) < 10
    assert abs(parts["other"] - 200) < 10
    assert sum(parts.values()) == 900


def test_batches_made_by_hand_in_an_evaluation_are_its_data_wait():
    thread = Thread(sample_every_ms=3.3)
    for _ in range(3):
        thread.step()
    thread.begin(W.EVAL).argument(0).run(300, DATA_CLASS).run(100, FORWARD).end(W.EVAL).step()
    parts = ms_by_label(read(thread).eval_sub or {})
    assert abs(parts["data_wait"] - 300) < 5


def test_a_very_long_evaluation_stays_one_interval_in_bounded_memory():
    thread = Thread().step().step().step().step().begin(W.EVAL).argument(0)
    for _ in range(40_000):
        thread.eval_data(1).run(1)
    thread.end(W.EVAL).step()
    batch = read(thread, chunk=4000)
    assert [i.label for i in batch.intervals] == ["eval"]
    assert ms_by_label(batch.steps[-1])["eval"] == 80_000
    assert len(batch.steps) == 5
