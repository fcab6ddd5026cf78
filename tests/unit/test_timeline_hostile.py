"""Any stream at all: no exception, no hole, no growth."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timeline_dsl import FORWARD, HOST, MS, START_NS, Thread, read, read_with

from gputop_train.collect import words as W
from gputop_train.collect.timeline import Timeline
from gputop_train.model import LABELS

EDGES = [W.DATA, W.DATA_NOGRAD, W.ITER, W.BACKWARD, W.OPTIMIZER, W.SAVE, W.COMPILE, W.LOGGING]
SPANS = [W.SPAN_SYNC, W.SPAN_H2D, W.SPAN_NOGRAD, W.SPAN_GC, W.SPAN_LOGGING, W.SPAN_COMPILE]


def check(batch):
    last = None
    for step in batch.steps:
        assert set(step.labels) == set(LABELS)
        assert all(ns >= 0 for ns in step.labels.values())
        assert sum(step.labels.values()) == step.wall_ns
        assert 0 <= step.measured_ns <= step.wall_ns
        if last is not None:
            assert step.t0_ns >= last.t1_ns
            assert step.index == last.index + 1
        last = step
    for interval in batch.intervals:
        assert interval.t1_ns >= interval.t0_ns
    if batch.tail is not None and batch.tail_ns is not None:
        assert sum(batch.tail.values()) == batch.tail_ns[1] - batch.tail_ns[0]


any_word = st.integers(0, (1 << 64) - 1)
near_word = st.builds(
    lambda code, t: W.word(code, START_NS + t), st.integers(0, 63), st.integers(0, 50 * MS)
)
small_word = st.builds(W.word, st.integers(0, 63), st.integers(0, 1 << 20))


@given(st.lists(st.one_of(any_word, near_word, small_word), max_size=300), st.integers(1, 40))
@settings(max_examples=300, deadline=None)
def test_random_words_never_raise_and_shares_still_add_up(words, chunk):
    thread = Thread()
    thread.words = words
    check(read_with(Timeline(0), thread, chunk))


actions = st.one_of(
    st.tuples(st.just("run"), st.floats(0, 30), st.integers(0, 13)),
    st.tuples(st.just("begin"), st.sampled_from([*EDGES, W.EVAL]), st.integers(0, 4)),
    st.tuples(st.just("end"), st.sampled_from([*EDGES, W.EVAL]), st.integers(0, 4)),
    st.tuples(st.just("span"), st.sampled_from(SPANS), st.floats(0, 60)),
    st.tuples(st.just("step"), st.floats(0, 5), st.integers(1, 3)),
    st.tuples(st.just("sample"), st.floats(0, 40), st.integers(0, 15)),
    st.tuples(st.just("scaler"), st.just(0), st.just(0)),
    st.tuples(st.just("gpu"), st.floats(0, 40), st.integers(0, 27)),
)


def play(script) -> Thread:
    thread = Thread(sample_every_ms=11)
    for name, first, second in script:
        if name == "run":
            thread.run(first, second)
        elif name == "begin":
            thread.begin(first)
            if second:
                thread.argument(second, second)
        elif name == "end":
            thread.end(first)
            if second:
                thread.argument(second, second)
        elif name == "span":
            thread.span(first, thread.at - round(second * MS), second / 2 + 1)
        elif name == "step":
            thread.step(first, first, first, first)
        elif name == "sample":
            thread.sample(second, thread.at - round(first * MS))
        elif name == "scaler":
            thread.scaler_update()
        else:
            begin = thread.at - round(first * MS)
            thread.gpu(begin, (0, second), (first, second ^ 1, 1), (first, 8, 1)).gpu_end()
    return thread


@given(st.lists(actions, max_size=80), st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_unbalanced_streams_never_raise_and_shares_still_add_up(script, chunk):
    check(read(play(script), chunk))


@given(st.lists(actions, max_size=60), st.data())
@settings(max_examples=100, deadline=None)
def test_torn_streams_never_raise(script, data):
    words = play(script).words
    keep = [data.draw(st.booleans()) for _ in words]
    thread = Thread()
    thread.words = [word for word, kept in zip(words, keep, strict=True) if kept]
    check(read_with(Timeline(0), thread, 25))


def test_a_clock_that_jumps_back_costs_a_step_and_no_more():
    timeline = Timeline(0)
    thread = Thread()
    thread.step().step().step()
    thread.words.append(W.word(W.begin(W.BACKWARD), thread.at + 10**15))  # a torn word
    for _ in range(10):
        thread.step()
    batch = read_with(timeline, thread)
    check(batch)
    assert len([s for s in batch.steps if s.wall_ns == 10 * MS]) >= 3 + 7
    assert timeline.bad >= 1


def test_memory_stays_bounded_when_nothing_ever_ends_a_step():
    """A day of inference after training; a backward that never ends; spans without end."""
    streams = []
    inference = Thread().step().step()
    for _ in range(24_000):
        inference.eval_data(0.1).run(0.1)
    streams.append(inference)
    stuck = Thread().step().step().begin(W.BACKWARD)
    for _ in range(24_000):
        stuck.data(0.1)
    streams.append(stuck)
    reading = Thread().step().step()
    for _ in range(40_000):
        reading.span(W.SPAN_SYNC, reading.at, 0.1).run(0.2)
    streams.append(reading)
    for thread in streams:
        timeline = Timeline(0)
        tracemalloc.start()
        for at in range(0, len(thread.words), 5000):
            check(timeline.feed(thread.words[at : at + 5000]))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        check(timeline.finish())
        assert held < 16 << 20


@pytest.mark.parametrize("scale", [0.001, 1.0], ids=["part still kept back", "part already read"])
def test_losing_words_in_a_very_long_step_drops_all_of_it(scale):
    timeline = Timeline(0)
    thread = Thread()
    for _ in range(5):
        thread.step()
    for _ in range(20_000):
        thread.eval_data(0.3 * scale).run(0.2 * scale)
    steps = []
    for at in range(0, len(thread.words), 34_000):
        steps += timeline.feed(thread.words[at : at + 34_000]).steps
    timeline.lost()
    after = Thread()
    after.at = thread.at + 10_000 * MS
    after.optimizer(1).step().step()
    steps += timeline.feed(after.words).steps
    steps += timeline.finish().steps
    assert [step.wall_ns for step in steps] == [10 * MS] * 7


def test_work_stays_linear_in_the_words_when_spans_overlap_everywhere():
    """Thirty thousand overlapping spans in one step: quadratic painting would take minutes."""
    rng = random.Random(5)
    thread = Thread().step()
    begin = thread.at
    thread.data(1).run(3_000, FORWARD)
    for _ in range(30_000):
        code = rng.choice(SPANS)
        thread.span(code, begin + rng.randrange(3_000 * MS), rng.randrange(1, 3000))
    thread.backward(1).optimizer(1).step()
    batch = read(thread)
    check(batch)
    assert len(batch.steps) == 3


def test_samples_of_an_hour_without_an_edge_are_kept_in_bounded_memory():
    thread = Thread(sample_every_ms=25).step().step().begin(W.EVAL).argument(0)
    for _ in range(60):
        thread.run(60_000, HOST)
    thread.end(W.EVAL).step()
    batch = read(thread, chunk=3000)
    check(batch)
    assert [round((i.t1_ns - i.t0_ns) / 1e9) for i in batch.intervals] == [3600]
