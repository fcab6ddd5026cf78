"""Steps of which only the end was recorded: exact walls and counts, shares within sampling error."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from timeline_dsl import DATA_CLASS, FORWARD, HOST, MS, Thread, read

from gputop_train.collect import words as W
from gputop_train.collect.batch import Batch
from gputop_train.collect.timeline import Timeline
from gputop_train.model import Step

RUN = 8


def shares(steps: Sequence[Step]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for step in steps:
        total.update(step.labels)
    wall = sum(step.wall_ns for step in steps)
    return {label: ns / wall for label, ns in total.items()}


def walls(batch: Batch) -> list[tuple[int, int]]:
    return [(step.t0_ns, step.t1_ns) for step in batch.steps]


def decimated(thread: Thread, keep: Callable[[int], bool], ids: bool = False) -> Thread:
    """What the probe writes of the same run when it records only some optimizer calls in detail."""
    out = Thread()
    call, optimizer = 0, 0
    stash: list[int] = []
    data: list[int] = []
    seen = code = -1
    for word in thread.words:
        seen = word & W.CODE_MASK
        if seen == W.ARG_SITE and code == W.OPTIMIZER << 1:
            optimizer = W.split_site(word >> W.CODE_BITS)[0]
        code = seen if seen != W.ARG_SITE else code
        phase = code >> 1
        if keep(call):
            stash.append(word)
        elif code == W.OPTIMIZER << 1 | 1:
            if ids:
                stash.append(W.word(W.TICK_OPTIMIZER, optimizer))
            stash.append(W.word(W.STEP_TICK, word >> W.CODE_BITS))
        elif phase in (W.DATA, W.BACKWARD, W.OPTIMIZER):
            if seen == W.DATA << 1:
                data = [word]
            elif seen == W.DATA << 1 | 1:
                data.append(word)
                if (data[1] - data[0]) >> W.CODE_BITS >= W.LONG_WAIT_NS:
                    stash += data
        else:
            stash.append(word)
        if seen == W.OPTIMIZER << 1 | 1:
            call += 1
    out.words = stash
    out.at = thread.at
    return out


def in_runs(seed: int, part: float) -> Callable[[int], bool]:
    """Runs of recorded steps, with jittered pauses between; the first 64 are all recorded."""
    rng = random.Random(seed)
    flags = [True] * 64
    while len(flags) < 20_000:
        flags += [False] * round(RUN * (1 / part - 1) * rng.uniform(0.5, 1.5)) + [True] * RUN
    return lambda call: flags[call]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("part", [0.5, 0.1, 0.03])
def test_shares_of_a_decimated_run_are_those_of_the_whole_and_its_walls_are_identical(
    seed: int, part: float
) -> None:
    rng = random.Random(seed)
    data, forward, backward, optimizer, other = (rng.uniform(0.02, 0.4) for _ in range(5))
    thread = Thread(sample_every_ms=rng.uniform(30, 70))
    for index in range(6_000):
        vary = rng.lognormvariate(0, 0.25)
        slow_batch = 3.0 if index % 7 == 0 else 0.7  # workers that take turns
        thread.data(data * slow_batch * vary).run(forward * vary, FORWARD)
        thread.backward(backward * vary).run(other * vary, HOST).optimizer(optimizer * vary)
    whole = read(thread, chunk=4_000)
    part_of_it = read(decimated(thread, in_runs(seed, part)), chunk=1_000)

    assert walls(part_of_it) == walls(whole)
    assert [step.index for step in part_of_it.steps] == list(range(6_000))
    for step in part_of_it.steps:
        assert sum(step.labels.values()) == step.wall_ns
    want, got = shares(whole.steps), shares(part_of_it.steps)
    recorded = 6_000 * part
    for label, share in want.items():
        # A label's share of a step varies by about half of itself; runs of 8 count once at worst.
        error = 0.01 + 3 * 0.5 * share / (recorded / RUN) ** 0.5
        assert abs(got[label] - share) <= error, label
    assert part_of_it.steps[-1].exposed is None
    assert sum(step.samples or 0 for step in part_of_it.steps) == 8 * 6_000


def test_how_much_was_measured_counts_recorded_steps_only() -> None:
    thread = Thread()
    for _ in range(200):
        thread.step(0.2, 0, 0.5, 0.3)
    batch = read(decimated(thread, lambda call: call < 100))
    assert [step.measured_ns == step.wall_ns for step in batch.steps] == [True] * 100 + [
        False
    ] * 100
    assert {step.measured_ns for step in batch.steps[100:]} == {0}


def test_a_rare_long_wait_is_booked_exactly_where_it_was() -> None:
    thread = Thread()
    for index in range(400):
        thread.step(40 if index % 40 == 17 else 0.1, 0.2, 0.4, 0.2)
    whole = read(thread)
    batch = read(decimated(thread, lambda call: call < 64))
    assert walls(batch) == walls(whole)
    for index in range(97, 400, 40):
        assert batch.steps[index].labels["data_wait"] == 40 * MS
        assert batch.steps[index].measured_ns == 40 * MS
    assert shares(batch.steps)["data_wait"] == pytest.approx(shares(whole.steps)["data_wait"], 0.01)


def test_a_long_wait_in_a_recorded_step_is_not_taken_over_by_its_neighbours() -> None:
    thread = Thread()
    for index in range(400):
        thread.step(5 if index == 60 else 0.1, 0.2, 0.4, 0.2)
    batch = read(decimated(thread, lambda call: call < 64))
    assert all(step.labels["data_wait"] <= 0.12 * MS for step in batch.steps[64:])


def test_interruptions_in_unrecorded_steps_stay_exact() -> None:
    thread = Thread()
    for index in range(300):
        thread.step(0.1, 0.2, 0.4, 0.2)
        if index == 200:
            thread.save(80, size=1_000_000, site=3)
        if index == 210:
            thread.run_in_span(W.SPAN_GC, 12)
    whole = read(thread)
    batch = read(decimated(thread, lambda call: call < 64))
    assert batch.intervals == whole.intervals
    assert walls(batch) == walls(whole)
    assert batch.steps[201].labels["checkpoint"] == 80 * MS
    assert batch.steps[211].labels["gc"] == 12 * MS
    assert batch.steps[211].labels["backward"] == pytest.approx(0.4 * MS, rel=0.01)


def test_time_that_no_recorded_step_explains_is_what_the_sampler_saw() -> None:
    thread = Thread(sample_every_ms=25)
    for index in range(200):
        thread.data(0.1).run(0.2, FORWARD).backward(0.4).optimizer(0.2)
        if index == 150:
            thread.run(2_000, DATA_CLASS)
    batch = read(decimated(thread, lambda call: call < 100))
    long = batch.steps[151]
    assert long.labels["data_wait"] > 0.95 * 2_000 * MS
    assert long.measured_ns == 0


def gan(thread: Thread, critics: int) -> None:
    for _ in range(critics):
        thread.data(0.1).run(0.1, FORWARD).backward(0.2).optimizer(0.1, id_=1)
    thread.run(0.1, FORWARD).backward(0.3).optimizer(0.1, id_=2)


@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("first", [64, 67])
def test_steps_of_two_optimizers_are_counted_as_ever(critics: int, first: int) -> None:
    thread = Thread()
    for _ in range(100):
        gan(thread, critics)
    whole = read(thread)
    kept = lambda call: call < first or 200 <= call < 223  # noqa: E731
    batch = read(decimated(thread, kept, ids=True), chunk=50)
    assert walls(batch) == walls(whole)
    for step in batch.steps:
        assert sum(step.labels.values()) == step.wall_ns


def test_accumulation_is_one_step_for_one_tick() -> None:
    thread = Thread()
    for _ in range(100):
        for _ in range(4):
            thread.data(0.1).run(0.1, FORWARD).backward(0.2)
        thread.optimizer(0.1)
    whole = read(thread)
    batch = read(decimated(thread, lambda call: call < 64))
    assert walls(batch) == walls(whole)
    assert {step.micro for step in batch.steps} == {4}
    assert {step.samples for step in batch.steps} == {32}


def test_a_step_that_a_scaler_skips_is_a_step_in_unrecorded_ones_too() -> None:
    thread = Thread()
    for _ in range(70):
        thread.data(0.1).run(0.1, FORWARD).backward(0.2).optimizer(0.1).scaler_update()
    for index in range(30):
        thread.run(0.5)
        if index == 10:
            thread.words.append(W.word(W.STEP_SKIPPED, thread.at))
        else:
            thread.tick()
    for index in range(5):
        thread.data(0.1).run(0.1, FORWARD).backward(0.2)
        if index != 2:
            thread.optimizer(0.1)
        thread.scaler_update()
    batch = read(thread)
    assert len(batch.steps) == 105
    assert {step.wall_ns for step in batch.steps[70:100]} == {MS // 2}


def test_a_reader_that_comes_while_nothing_is_recorded_begins_at_a_tick() -> None:
    thread = Thread()
    for _ in range(20):
        thread.run(0.5).tick()
    for _ in range(20):
        thread.step(0.1, 0.2, 0.4, 0.2)
    batch = read(thread)
    assert [step.wall_ns for step in batch.steps] == [MS // 2] * 19 + [9 * MS // 10] * 20


def test_after_words_were_lost_the_next_tick_is_the_boundary() -> None:
    thread = Thread()
    for _ in range(70):
        thread.step(0.1, 0.2, 0.4, 0.2)
    for _ in range(10):
        thread.run(0.5).tick()
    timeline = Timeline(0)
    before = timeline.feed(thread.words).steps
    timeline.lost()
    thread.run(50)  # of this nothing is known
    lost_until = thread.at
    thread.words.clear()
    thread.tick()
    for _ in range(10):
        thread.run(0.5).tick()
    after = (timeline.feed(thread.words).steps + timeline.finish().steps)[80 - len(before) :]
    assert [(step.t0_ns - lost_until) / (MS // 2) for step in after] == list(range(10))
