"""Training processes become ranks, one after the other and side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_train.launch.feeds import Feeds, RankState, choose_rank
from gputop_train.launch.pipeline import Pipeline
from gputop_train.probe import ring, words
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from tests.limits import no_descriptors


@pytest.mark.parametrize(
    ("own", "living", "rank"),
    [
        (None, set(), 0),
        (None, {0}, 1),
        (None, {0, 1, 3}, 2),
        (5, {0, 1}, 5),
        (0, {0}, 1),
        (2, {0, 2}, 1),
    ],
)
def test_a_process_keeps_its_rank_unless_a_living_one_holds_it(own, living, rank):
    assert choose_rank(own, living) == rank


@pytest.fixture
def sleepers():
    """Two real processes that live until the test is over."""
    started = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def write_ring(directory: Path, pid: int, rank: int, first_ns: int, steps: int) -> None:
    directory.chmod(0o700)
    ticks = ring.start_ticks(pid)
    writer = ring.RingWriter(
        str(directory / f"{pid}-{ticks}.ring"), pid=pid, start_ticks=ticks, rank=rank,
        local_rank=rank, wall_ns=time.time_ns(), mono_ns=first_ns, words=4096,
    )  # fmt: skip
    log = []
    for step in range(steps):
        at = first_ns + step * 10_000_000
        for offset, phase, end in ((0, words.BACKWARD, 0), (4, words.BACKWARD, 1)):
            log.append(at + offset * 1_000_000 << words.CODE_BITS | phase << 1 | end)
        log.append(at + 5_000_000 << words.CODE_BITS | words.OPTIMIZER << 1)
        log.append((1 << 16) << words.CODE_BITS | words.ARG_SITE)
        log.append(at + 9_000_000 << words.CODE_BITS | words.OPTIMIZER << 1 | 1)
    writer.write(log)
    writer.beat(first_ns + steps * 10_000_000, 0)
    writer.close()


def indices(feeds: Feeds) -> list[tuple[int, int]]:
    return [
        (feed.rank, step.index)
        for feed, batches in [(feed, feeds.drop(feed)) for feed in list(feeds.active)]
        for batch in batches
        for step in batch.steps
    ]


def test_a_process_that_replaces_another_is_followed_once_that_one_was_read(tmp_path, sleepers):
    first, second = sleepers
    write_ring(tmp_path, first.pid, 0, first_ns=10**12, steps=5)
    feeds = Feeds(tmp_path, {}, refuse=pytest.fail)
    assert len(feeds.discover()) == 1
    first.kill()
    first.wait()
    write_ring(tmp_path, second.pid, 0, first_ns=2 * 10**12, steps=5)
    assert feeds.discover() == [], "its steps would come before those it continues"
    (gone,) = feeds.gone()
    batches = feeds.drop(gone)
    assert [step.index for batch in batches for step in batch.steps] == [0, 1, 2, 3, 4]
    assert [feed.pid for feed in feeds.discover()] == [second.pid]
    assert indices(feeds) == [(0, n) for n in range(5, 10)]
    assert feeds.attempts()[0][0] == 2


def test_a_ring_that_was_read_stays_until_its_data_is_in_the_store(tmp_path, sleepers):
    process = sleepers[0]
    rings = tmp_path / "rings"
    rings.mkdir()
    write_ring(rings, process.pid, -1, first_ns=10**12, steps=5)
    with RunWriter(tmp_path / "run.sqlite") as writer:
        pipeline = Pipeline(rings, None, writer, {})
        pipeline.tick(10**12)
        process.kill()
        process.wait()
        # A supervisor that is killed here leaves steps that are nowhere but in the ring.
        pipeline.tick(10**12 + 1)
        assert pipeline.feeds.active == []
        assert len(list(rings.iterdir())) == 1
        pipeline.commit(10**12 + 2)
    assert list(rings.iterdir()) == []
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert len(reader.steps()) == 5


def test_without_descriptors_a_ring_is_opened_later_and_its_process_not_given_up(
    tmp_path, sleepers
):
    process = sleepers[0]
    write_ring(tmp_path, process.pid, -1, first_ns=10**12, steps=5)
    feeds = Feeds(tmp_path, {}, refuse=pytest.fail)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        feeds.discover()
    (feed,) = feeds.discover()
    with no_descriptors():
        assert feed.alive()
    process.kill()
    process.wait()
    with no_descriptors():
        assert not feed.alive()


def test_steps_an_earlier_supervisor_stored_are_not_counted_again(tmp_path, sleepers):
    process = sleepers[0]
    write_ring(tmp_path, process.pid, -1, first_ns=10**12, steps=10)
    # Steps end at 9 ms of every 10: the third has ended, and the count goes on from there.
    known = {0: RankState(steps=3, until_ns=10**12 + 29_000_000)}
    feeds = Feeds(tmp_path, known, refuse=pytest.fail)
    feeds.discover()
    assert indices(feeds) == [(0, n) for n in range(3, 10)]


def test_words_an_earlier_supervisor_read_are_not_lost_when_the_ring_went_round(tmp_path, sleepers):
    process = sleepers[0]
    write_ring(tmp_path, process.pid, -1, first_ns=10**12, steps=2000)  # 10,000 words in 4,096
    identity = (process.pid, ring.start_ticks(process.pid))
    known = {0: RankState(steps=1600, until_ns=10**12, attempts=1, process=identity, position=8000)}
    read_before = Feeds(tmp_path, known, refuse=pytest.fail)
    (feed,) = read_before.discover()
    feed.pull()
    assert feed.ring.lost > 5000
    assert feed.lost == 0
    (unread,) = Feeds(tmp_path, {}, refuse=pytest.fail).discover()
    unread.pull()
    assert unread.lost == unread.ring.lost


def test_a_damaged_ring_is_refused_once_and_removed_files_are_no_trouble(tmp_path, sleepers):
    refused: list[str] = []
    (tmp_path / "1-1.ring").write_bytes(os.urandom(5000))
    write_ring(tmp_path, sleepers[0].pid, -1, first_ns=10**12, steps=5)
    feeds = Feeds(tmp_path, {}, refuse=refused.append)
    assert len(feeds.discover()) == 1
    feeds.discover()
    assert len(refused) == 1
    for path in tmp_path.iterdir():
        path.unlink()
    assert len(indices(feeds)) == 5, "the open descriptor is enough"


def test_every_training_process_is_asked_for_a_burst_by_a_number_new_to_it(sleepers, tmp_path):
    for rank, process in enumerate(sleepers):
        write_ring(tmp_path, process.pid, rank, first_ns=10_000_000, steps=3)
    feeds = Feeds(tmp_path, {}, lambda reason: None)
    feeds.discover()
    seen = [set(), set()]
    for _ in range(2):
        assert feeds.request_burst() == 2
        for numbers, feed in zip(seen, feeds.active, strict=True):
            numbers.add(feed.path.read_bytes()[132:136])
        time.sleep(0.01)
    assert all(len(numbers) == 2 and b"\0\0\0\0" not in numbers for numbers in seen)
    for feed in feeds.active:
        feed.close()


def a_step(at_ns: int) -> list[int]:
    edges = (
        (0, words.BACKWARD, 0),
        (4, words.BACKWARD, 1),
        (5, words.OPTIMIZER, 0),
        (6, words.OPTIMIZER, 1),
    )
    return [
        at_ns + ms * 1_000_000 << words.CODE_BITS | phase << 1 | end for ms, phase, end in edges
    ]


@pytest.mark.parametrize("noise", [[0], [(1 << 63) | words.BACKWARD << 1]], ids=["empty", "future"])
def test_words_no_probe_wrote_cost_what_was_read_with_them_and_nothing_later(tmp_path, noise):
    tmp_path.chmod(0o700)
    began_ns, ticks = time.monotonic_ns() - 10**10, ring.start_ticks(os.getpid())
    writer = ring.RingWriter(
        str(tmp_path / f"{os.getpid()}-{ticks}.ring"), pid=os.getpid(), start_ticks=ticks, rank=0,
        local_rank=0, wall_ns=time.time_ns(), mono_ns=began_ns, words=4096,
    )  # fmt: skip
    feeds = Feeds(tmp_path, {}, pytest.fail)
    feeds.discover()
    (feed,) = feeds.active
    ends = []
    for number in range(9):
        spoiled = noise if number == 4 else []
        writer.write(a_step(began_ns + number * 10_000_000) + spoiled)
        ends += [step.t1_ns for step in feed.pull().steps]
    ends += [step.t1_ns for batch in feed.drain() for step in batch.steps]
    assert feed.spoiled == 4 + 1
    assert max(ends) > began_ns + 8 * 10_000_000
    assert all(end < began_ns + 10**9 for end in ends)
