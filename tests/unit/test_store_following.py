"""A reader that keeps what it has read tells what one that reads everything tells."""

from __future__ import annotations

import pytest
from report_runs import steps_of

from gputop_train.model import HostSample, MemorySample, ProcSample, UtilSample
from gputop_train.store.following import FORGET_NS, FollowingReader
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter

S = 1_000_000_000


class Growing:
    """A store that grows by ten seconds at a time, ten steps a second."""

    def __init__(self, path):
        self.writer = RunWriter(path)
        self.steps = steps_of(8_000, {"forward": 60, "backward": 40})
        self.start_ns = self.steps[0].t0_ns
        self.now_ns = self.start_ns

    def grow(self, seconds=10):
        end_ns = self.now_ns + seconds * S
        self.writer.add_steps(s for s in self.steps if self.now_ns < s.t1_ns <= end_ns)
        for t_ns in range(self.now_ns + S, end_ns + 1, S):
            self.writer.add_host([HostSample(t_ns, cpus_total=4)])
            self.writer.add_procs([ProcSample(t_ns, pid, "worker", cpu=0.5) for pid in (7, 8)])
            self.writer.add_util([UtilSample(t_ns, "GPU-a", 50.0)])
            self.writer.add_memory([MemorySample(0, t_ns, None, "rss-anon", t_ns // S)])
        self.writer.commit()
        self.now_ns = end_ns


@pytest.fixture
def growing(tmp_path):
    made = Growing(tmp_path / "run.sqlite")
    yield made
    made.writer.close()


def told(reader, t0_ns, t1_ns):
    series = (reader.host, reader.procs, reader.util, reader.memory, reader.gpu, reader.gpm)
    return [read(t0_ns, t1_ns) for read in series] + [reader.steps_tail(300, 0)]


def test_it_tells_the_same_as_one_that_reads_everything(growing, tmp_path):
    growing.grow()
    with FollowingReader(tmp_path) as following, RunReader(tmp_path) as plain:
        for _ in range(12):
            window = (growing.now_ns - 60 * S, growing.now_ns)
            assert told(following, *window) == told(plain, *window)
            growing.grow()


def test_a_window_that_moves_back_or_far_ahead_is_read_anew(growing, tmp_path):
    growing.grow(200)
    with FollowingReader(tmp_path) as following, RunReader(tmp_path) as plain:
        begin, end = growing.start_ns, growing.now_ns
        windows = [(begin + 100 * S, end), (begin, end), (begin + 50 * S, begin + 90 * S)]
        growing.grow(2 * FORGET_NS // S)
        windows += [(end, growing.now_ns), (None, None), (begin, None)]
        for window in windows:
            assert told(following, *window) == told(plain, *window)


def test_rows_that_come_a_little_late_are_seen(growing, tmp_path):
    growing.grow()
    with FollowingReader(tmp_path) as following:
        begin, end = growing.start_ns, growing.now_ns
        before = following.util(begin, end)
        late = UtilSample(end - 2 * S + 1, "GPU-a", 70.0)
        growing.writer.add_util([late])
        growing.writer.commit()
        assert late not in before
        assert late in following.util(begin, end)


@pytest.mark.parametrize(("seconds", "read"), [(10, 100), (300, 300)])
def test_only_new_steps_are_read_and_no_more_than_asked_for(
    growing, tmp_path, monkeypatch, seconds, read
):
    growing.grow(100)
    with FollowingReader(tmp_path) as following, RunReader(tmp_path) as plain:
        following.steps_tail(300, 0)
        growing.grow(seconds)
        made = []
        real = RunReader._step
        monkeypatch.setattr(RunReader, "_step", lambda self, row: made.append(1) or real(self, row))
        found = following.steps_tail(300, 0)
        assert len(made) == read
        assert found == plain.steps_tail(300, 0)
