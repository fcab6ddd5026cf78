"""What goes into a store comes out of it: rollups, windows, views of the past, bounds."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_train.model import (
    GpmSample,
    GpuSample,
    HostSample,
    Interval,
    MemorySample,
    ProcSample,
    UtilSample,
)
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import roll_up, second
from gputop_train.store.writer import RunWriter
from tests import store_support as any_of
from tests.store_support import GPU, SECOND, any_steps, loader, site, step, steps

few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def store(path: Path, **records) -> RunReader:
    with RunWriter(path) as writer:
        for name, value in records.items():
            getattr(writer, name)(value)
    return RunReader(path)


@few
@given(any_steps(), st.data())
def test_steps_come_back_equal_and_rollups_do_not_depend_on_the_batches(found, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(found)))))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.sqlite"
        with RunWriter(path) as writer:
            for begin, end in itertools.pairwise([0, *cuts, len(found)]):
                writer.add_steps(found[begin:end])
                writer.commit()
        with RunReader(path) as reader:
            assert reader.steps() == found
            assert reader.step_rollups() == [
                roll_up(list(group))
                for _, group in itertools.groupby(found, key=lambda s: second(s.t1_ns))
            ]


KINDS = {
    "gpu": (any_of.gpus, "add_gpu", lambda r: (r.t_ns, r.uuid)),
    "gpm": (any_of.gpms, "add_gpm", lambda r: (r.t_ns, r.uuid)),
    "host": (any_of.hosts, "add_host", lambda r: r.t_ns),
    "procs": (any_of.procs, "add_procs", lambda r: (r.t_ns, r.pid)),
    "memory": (any_of.memories, "add_memory", lambda r: (r.t_ns, r.rank)),
    "sites": (any_of.sites, "put_sites", lambda r: (r.rank, r.id)),
    "loaders": (any_of.loaders, "put_loaders", lambda r: (r.rank, r.id)),
    "intervals": (any_of.intervals, "add_intervals", lambda r: (r.t0_ns, r.rank, r.label)),
}


@pytest.mark.parametrize("kind", KINDS)
@few
@given(data=st.data())
def test_any_series_comes_back_equal_and_in_order(kind, data):
    strategy, add, key = KINDS[kind]
    found = data.draw(st.lists(strategy, unique_by=key, max_size=6))
    with (
        tempfile.TemporaryDirectory() as directory,
        store(Path(directory) / "run.sqlite", **{add: found}) as reader,
    ):
        assert sorted(getattr(reader, kind)(), key=key) == sorted(found, key=key)


def test_a_ring_read_twice_is_counted_once(path):
    found = steps(250, 7 * SECOND)
    with RunWriter(path) as writer:
        writer.add_steps(found)
        writer.commit()
    with RunWriter(path) as writer:  # a new supervisor reads the ring from its beginning
        writer.add_steps([replace(s, index=s.index - 100) for s in found[100:]])
        writer.add_steps(steps(50, found[-1].t1_ns))
        writer.commit()
    with RunReader(path) as reader:
        assert len(reader.steps()) == 300
        assert reader.steps()[120].index == 120
        assert sum(r.n for r in reader.step_rollups()) == 300


def test_steps_of_ranks_are_kept_apart_and_the_tail_is_per_rank(path):
    with store(path, add_steps=steps(30, SECOND) + steps(20, SECOND, rank=3)) as reader:
        assert reader.ranks() == [0, 3]
        assert len(reader.steps(rank=3)) == 20
        assert [(s.rank, s.index) for s in reader.steps_tail(1)] == [(3, 19), (0, 29)]
        assert [s.index for s in reader.steps_tail(3, rank=0)] == [27, 28, 29]
        assert {r.rank for r in reader.step_rollups(rank=3)} == {3}


def test_a_window_holds_what_ended_in_it_and_interruptions_that_overlap_it(path):
    pauses = [Interval(0, "eval", i * SECOND, i * SECOND + 900_000_000) for i in range(1, 9)]
    with RunWriter(path) as writer:
        writer.add_steps(steps(8, SECOND, SECOND))
        writer.add_intervals(pauses)
        writer.add_intervals([Interval(0, "gc", 4 * SECOND, 4 * SECOND + 5)])
    with RunReader(path) as reader:
        assert [s.index for s in reader.steps(3 * SECOND, 5 * SECOND)] == [1, 2, 3]
        window = (3 * SECOND + 10, 5 * SECOND)
        assert reader.intervals(*window, label="eval") == pauses[2:5]
        assert len(reader.intervals(*window)) == 4


def test_an_interruption_that_goes_on_is_replaced_by_its_longer_self(path):
    with RunWriter(path) as writer:
        for end in (2, 3):
            writer.add_intervals([Interval(0, "checkpoint", SECOND, end * SECOND, 7, 99)])
            writer.commit()
    with RunReader(path) as reader:
        assert reader.intervals() == [Interval(0, "checkpoint", SECOND, 3 * SECOND, 7, 99)]


def test_sites_of_a_window_count_only_the_window(path):
    with RunWriter(path) as writer:
        for t, calls in enumerate((10, 10, 25, 70)):
            writer.put_sites([site(1, calls, calls * 1000, bytes=calls * 4)], t_ns=t * SECOND)
            writer.put_sites([site(2, 5, 5)], t_ns=t * SECOND)
    with RunReader(path) as reader:
        assert [(s.id, s.count) for s in reader.sites()] == [(1, 70), (2, 5)]
        (seen,) = reader.sites_between(SECOND, 2 * SECOND)
        assert (seen.id, seen.count, seen.total_ns, seen.bytes) == (1, 15, 15_000, 60)
        assert [s.count for s in reader.sites_between(2 * SECOND)] == [45]
        assert [s.count for s in reader.sites_between()] == [70, 5]
        assert [s.count for s in reader.as_of(2 * SECOND).sites()] == [25, 5]


def test_counters_of_a_restarted_process_begin_again(path):
    with RunWriter(path) as writer:
        writer.put_sites([site(1, 500, 500)], t_ns=SECOND)
        writer.put_sites([site(1, 20, 20)], t_ns=5 * SECOND)
    with RunReader(path) as reader:
        assert [s.count for s in reader.sites_between(2 * SECOND)] == [20]


def test_a_view_of_the_past_sees_nothing_later(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(1000, SECOND))
        writer.add_util([UtilSample(i * SECOND // 5, GPU, 50.0) for i in range(55)])
        writer.add_memory([MemorySample(0, i * SECOND, None, "rss-anon", i) for i in range(1, 11)])
        for t in range(1, 11):
            writer.put_loaders([loader(ready=t, batches=t * 10, wait_ns=t)], t_ns=t * SECOND)
            writer.add_finding(t * SECOND, {"status": f"at {t}"})
            writer.add_note(t * SECOND, "kind", {"n": t})
    with RunReader(path) as reader:
        past = reader.as_of(4 * SECOND)
        assert past.steps()[-1].t1_ns == 4 * SECOND
        assert past.steps_tail(1)[0].t1_ns == 4 * SECOND
        assert past.step_rollups()[-1].sec == 3
        assert max(s.t_ns for s in past.util()) == 4 * SECOND
        assert [r.sec for r in past.util_rollups()] == [0, 1, 2, 3]
        assert [m.allocated for m in past.memory()] == [1, 2, 3, 4]
        assert [(one.ready, one.batches) for one in past.loaders()] == [(4, 40)]
        assert [d.ready for d in past.loader_depths()] == [1, 2, 3, 4]
        assert past.latest_finding().body == {"status": "at 4"}
        assert len(past.findings()) == len(past.notes()) == 4
        assert past.span() == (0, 4 * SECOND)
        assert reader.as_of(-1).span() is None
        assert reader.latest_finding().body == {"status": "at 10"}


def test_an_empty_run_has_no_span_and_empty_series(path):
    with store(path) as reader:
        assert reader.span() is None
        for name in ("steps", "step_rollups", "intervals", "sites", "loaders", "memory", "util"):
            assert getattr(reader, name)() == []
        assert reader.probe_states() == {}
        assert reader.latest_finding() is None
        assert reader.meta("anything", 5) == 5


def test_probe_state_is_the_newest_and_leaves_out_what_has_tables_of_its_own(path):
    with RunWriter(path) as writer:
        writer.put_probe_state(1, {"v": 1, "t_ns": 7, "sites": [1], "loaders": [2]}, t_ns=7)
        writer.put_probe_state(1, {"v": 1, "t_ns": 9, "flags": {"tf32": True}}, t_ns=9)
    with RunReader(path) as reader:
        assert reader.probe_states() == {1: {"t_ns": 9, "v": 1, "flags": {"tf32": True}}}


def test_the_same_diagnosis_is_stored_once(path):
    with RunWriter(path) as writer:
        for t, status in enumerate(("too-early", "too-early", "healthy", "too-early")):
            writer.add_finding(t, {"status": status})
    with RunReader(path) as reader:
        assert [f.t_ns for f in reader.findings()] == [0, 2, 3]


def test_nothing_is_visible_before_the_commit_and_all_of_it_after(path):
    with RunWriter(path) as writer, RunReader(path) as reader:
        writer.add_steps(steps(3, SECOND))
        writer.set_meta("a", {"b": [1, None]})
        assert (reader.steps(), reader.meta("a")) == ([], None)
        writer.commit()
        assert len(reader.steps()) == 3
        assert reader.meta("a") == {"b": [1, None]}


def test_a_row_sqlite_cannot_hold_bars_no_other_and_is_told(path):
    bad = MemorySample(0, None, 1, "rss-anon", 5)  # type: ignore[arg-type]
    good = MemorySample(0, SECOND, 1, "rss-anon", 6)
    with RunWriter(path) as writer:
        writer.add_memory([bad, replace(bad, t_ns=2**70), good])
        writer.add_steps([step(0, SECOND), step(1, 2 * SECOND, 2**57)])
        writer.add_note(SECOND, "kept", {})
        writer.commit()
        assert writer.dropped_rows == 2
        writer.add_note(SECOND, "later", {})
    with RunReader(path) as reader:
        assert reader.memory() == [good]
        assert [s.index for s in reader.steps()] == [0]
        notes = {note.kind: note.body for note in reader.notes()}
        lost = notes["store-rows-dropped"]
        assert notes == {"kept": {}, "later": {}, "store-rows-dropped": lost}
        assert lost["rows"] == 2 and "2 measured rows" in lost["text"]


def test_old_steps_go_and_their_rollups_stay(path):
    with RunWriter(path, keep_ns=10 * SECOND) as writer:
        writer.add_steps(steps(4000, 100 * SECOND))
        writer.commit()
        with RunReader(path) as reader:
            before = reader.step_rollups()
        writer.prune(140 * SECOND)
        writer.add_steps(steps(10, 105 * SECOND))  # late, of a second that is closed for good
        writer.add_steps(steps(10, 90 * SECOND))  # late, of a second never seen
        writer.commit()
    with RunReader(path) as reader:
        kept = reader.steps(100 * SECOND)
        assert kept[0].t1_ns == 130 * SECOND
        assert len(kept) == 1001
        assert [r for r in reader.step_rollups() if r.sec >= 100] == before
        assert [r.n for r in reader.step_rollups(t1_ns=95 * SECOND)] == [10]


def test_steps_are_bounded_by_number_too_a_second_at_a_time(path):
    with RunWriter(path, keep_steps=1500) as writer:
        writer.add_steps(steps(5000, 10 * SECOND, 1_000_000))
        writer.commit()
        writer.prune(16 * SECOND)
    with RunReader(path) as reader:
        counts = {r.sec: r.n for r in reader.step_rollups()}
        kept = {second(s.t1_ns) for s in reader.steps()}
        assert sum(counts.values()) == 5000
        assert 1000 <= len(reader.steps()) <= 1500
        assert len(reader.steps()) == sum(counts[sec] for sec in kept)


def test_a_run_that_ends_with_long_silence_keeps_its_last_steps(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(300, 10 * SECOND))
        writer.commit()
        writer.prune(7200 * SECOND)
    with RunReader(path) as reader:
        assert len(reader.steps()) == 300


def test_old_series_are_thinned_to_one_row_a_bucket(path):
    def at(count: int, hz: int = 1) -> list[int]:
        return [i * SECOND // hz for i in range(count * hz)]

    low = [MemorySample(0, t, None, "rss-anon", 1000 + (t // SECOND) % 7) for t in at(200)]
    with RunWriter(path, keep_ns=100 * SECOND) as writer:
        writer.add_memory(low)
        writer.add_gpu(GpuSample(t, GPU, t // SECOND) for t in at(200))
        writer.add_gpm(GpmSample(t, GPU, float(t // SECOND), None) for t in at(200))
        writer.add_host(HostSample(t) for t in at(200))
        writer.add_procs(ProcSample(t, pid, "worker") for t in at(200) for pid in (7, 8))
        writer.add_util(UtilSample(t, GPU, 10.0) for t in at(200, 5))
        for t in at(200):
            writer.add_finding(t, {"n": t})
            writer.put_loaders([loader(ready=t // SECOND)], t_ns=t)
            writer.put_sites([site(1, t // SECOND + 1, 1)], t_ns=t)
        writer.commit()
        for now in (150, 200):
            writer.prune(now * SECOND)
    with RunReader(path) as reader:
        old = (None, 100 * SECOND - 1)
        assert [m.allocated for m in reader.memory(*old)] == [1000] * 10
        assert [g.memory_used for g in reader.gpu(*old)] == list(range(0, 100, 10))
        assert [g.graphics for g in reader.gpm(*old)] == [i + 4.5 for i in range(0, 100, 10)]
        assert {g.sm for g in reader.gpm(*old)} == {None}
        assert len(reader.host(*old)) == 10
        assert len(reader.procs(*old)) == 20
        assert reader.util(*old) == []
        assert len(reader.util_rollups(*old)) == 100
        assert [d.ready for d in reader.loader_depths(*old)] == list(range(9, 100, 10))
        assert [f.t_ns // SECOND for f in reader.findings(*old)][:1] == [59]
        assert [s.count for s in reader.sites_between(None, 59 * SECOND)] == [60]
        for name in ("memory", "gpu", "gpm", "host", "loader_depths"):
            assert len(getattr(reader, name)(100 * SECOND)) == 100
        assert len(reader.procs(100 * SECOND)) == 200


def test_short_interruptions_by_the_thousand_leave_the_longest_and_a_sum(path):
    pauses = [Interval(0, "gc", i * SECOND // 50, i * SECOND // 50 + i) for i in range(3000)]
    save = Interval(0, "checkpoint", 5 * SECOND, 6 * SECOND)
    with RunWriter(path) as writer:
        writer.add_intervals([*pauses, save])
        writer.commit()
        writer.prune(700 * SECOND)
    with RunReader(path) as reader:
        assert reader.intervals(label="gc") == pauses[-30:]
        assert reader.intervals(label="checkpoint") == [save]
        gone = {"count": 2970, "total_ns": sum(range(2970))}
        assert reader.meta("intervals_thinned") == {"gc": gone}


def test_notes_of_one_kind_keep_the_first_and_the_newest(path):
    with RunWriter(path) as writer:
        writer.add_note(0, "rare", {})
        for n in range(1200):
            writer.add_note(n, "often", {"n": n})
        writer.commit()
        writer.prune(0)
    with RunReader(path) as reader:
        kept = [note.body["n"] for note in reader.notes("often")]
        assert kept == [*range(500), *range(700, 1200)]
        assert len(reader.notes("rare")) == 1


def test_a_snapshot_holds_several_calls_to_one_state(path):
    with RunWriter(path) as writer, RunReader(path) as reader:
        writer.add_steps(steps(5, SECOND))
        writer.commit()
        with reader.snapshot():
            before = reader.steps()
            writer.add_steps(steps(5, 9 * SECOND))
            writer.commit()
            assert reader.steps() == before
            assert sum(r.n for r in reader.step_rollups()) == 5
        assert len(reader.steps()) == 10


def test_times_of_steps_and_steps_by_their_ends_are_those_of_the_steps_themselves(path):
    with store(path, add_steps=[*steps(2_000, 0), *steps(5, 0, rank=1)]) as reader:
        whole = reader.steps(rank=0)
        times = reader.step_times(rank=0, most=5_000)
        assert times == [(s.t0_ns, s.t1_ns) for s in whole]
        assert reader.step_times(rank=0, most=7) == times[-7:]
        assert reader.steps_ending([*(t1 for _, t1 in times[::2]), 7], rank=0) == whole[::2]
        earlier = reader.as_of(whole[99].t1_ns)
        assert len(earlier.step_times(rank=0, most=5_000)) == 100
        assert earlier.steps_ending([s.t1_ns for s in whole[98:102]], rank=0) == whole[98:100]
        assert reader.step_times(whole[10].t1_ns, whole[12].t1_ns, rank=0, most=9) == times[10:13]
