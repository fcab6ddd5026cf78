"""One writes, others read, processes die and disks fill: what was committed is there."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop_train.store import writer as writer_module
from gputop_train.store.errors import StoreError, StoreFull
from gputop_train.store.files import schema_tables
from gputop_train.store.reader import RunReader
from gputop_train.store.rollup import second
from gputop_train.store.writer import RunWriter
from tests.store_support import SECOND, in_child, site, steps

WRITE_FOR_EVER = """
import sys
import time
from tests.store_support import SECOND, steps
from gputop_train.store.writer import RunWriter

writer = RunWriter(sys.argv[1], keep_steps=1000)
for batch in range(10**6):
    writer.add_steps(steps(40, batch * SECOND * 2 // 5))
    writer.commit()
    print(batch, flush=True)
    time.sleep(0.005)
"""


@contextmanager
def endless_writer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that commits 40 steps at a time until it is killed."""
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


def check_whole(reader: RunReader) -> int:
    """Rollups and steps of one state agree to the step; returns how many there are."""
    with reader.snapshot():
        found, rollups = reader.steps(), reader.step_rollups()
    counted: dict[int, int] = {}
    for one in found:
        counted[second(one.t1_ns)] = counted.get(second(one.t1_ns), 0) + 1
    assert {r.sec: r.n for r in rollups} == counted
    return len(found)


@pytest.mark.parametrize("batches", [1, 7, 40])
def test_a_writer_killed_at_any_time_leaves_every_committed_step(path, batches):
    with endless_writer(path) as child:
        told = 0
        while told < batches:
            told = int(child.stdout.readline()) + 1
        child.send_signal(signal.SIGKILL)
        told += len(child.stdout.readlines())
    with RunReader(path) as reader:
        count = check_whole(reader)
        assert count % 40 == 0
        assert told * 40 <= count <= (told + 1) * 40
        last_ns = reader.steps_tail(1)[0].t1_ns
    with RunWriter(path) as writer:  # the next supervisor goes on in the second that was open
        writer.add_steps(steps(10, last_ns, 1_000_000))
    with RunReader(path) as reader:
        assert check_whole(reader) == count + 10


def test_a_reader_sees_whole_states_while_a_writer_writes(path):
    RunWriter(path).close()
    with endless_writer(path) as child:
        child.stdout.readline()
        drain = threading.Thread(target=child.stdout.read)
        drain.start()
        with RunReader(path) as reader:
            seen = [check_whole(reader)]
            while len(seen) < 20 or seen[-1] == seen[0]:
                seen.append(check_whole(reader))
        child.kill()
        drain.join()
    assert seen == sorted(seen)


def test_a_reader_in_a_snapshot_does_not_hold_up_the_writer(path):
    with RunWriter(path) as writer, RunReader(path) as reader:
        writer.add_steps(steps(10, SECOND))
        writer.commit()
        with reader.snapshot():
            assert len(reader.steps()) == 10
            for batch in range(50):
                writer.add_steps(steps(10, (batch + 2) * SECOND))
                writer.commit()
                writer.prune((batch + 2) * SECOND)
            with RunReader(path) as another:
                assert len(another.steps()) == 510
            assert len(reader.steps()) == 10


def test_a_reader_may_stay_when_the_run_ends_and_sees_the_end(path):
    writer = RunWriter(path)
    writer.add_steps(steps(10, SECOND))
    writer.commit()
    with RunReader(path) as reader:
        assert len(reader.steps()) == 10
        writer.add_steps(steps(10, 5 * SECOND))
        writer.close()
        assert len(reader.steps()) == 20
    with RunReader(path) as reader:
        assert len(reader.steps()) == 20


def test_a_finished_run_is_one_plain_file(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(10, SECOND))
    assert [p.name for p in path.parent.iterdir()] == ["run.sqlite"]
    with RunReader(path) as reader:
        assert len(reader.steps()) == 10
    assert [p.name for p in path.parent.iterdir()] == ["run.sqlite"]


def test_several_threads_may_share_a_reader(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(200, SECOND))
    counts: list[int] = []
    with RunReader(path) as reader:
        threads = [
            threading.Thread(target=lambda: counts.extend(len(reader.steps()) for _ in range(5)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [200] * 20


def test_a_store_locked_by_another_program_is_told_and_nothing_is_lost(path):
    with RunWriter(path) as writer:
        writer._db.execute("PRAGMA busy_timeout = 50")
        writer.add_steps(steps(10, SECOND))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            writer.commit()
        with RunReader(path) as reader:
            assert reader.steps() == []
        other.execute("ROLLBACK")
        other.close()
        writer.commit()
        with RunReader(path) as reader:
            assert len(reader.steps()) == 10


def mount_tmpfs(directory: Path, size: str) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
    )
    return done.returncode == 0


@pytest.fixture
def full_disk(tmp_path):
    """A directory with 3 MB of room, as ``(directory, fill, empty)``."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if not (os.geteuid() == 0 and mount_tmpfs(directory, "3m")):
        yield None
        return
    ballast = directory / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    yield directory, fill, ballast.unlink
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk_stops_the_recording_and_room_lets_it_go_on(full_disk, path):
    if full_disk is None:
        assert in_child(lambda: limit_and_write(path)) == 0
        return
    directory, fill, empty = full_disk
    path = directory / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps(100, SECOND))
    writer.commit()
    fill()
    for batch in range(2, 6):
        writer.add_steps(steps(100, batch * SECOND))
        try:
            writer.commit()
        except StoreFull as error:
            assert "Free some room" in str(error)
            refused = batch
            break
    else:
        pytest.fail("the disk was not full")
    with RunReader(path) as reader:
        assert check_whole(reader) == (refused - 1) * 100
    with pytest.raises(StoreFull):
        writer.commit()
    empty()
    writer.commit()
    writer.close()
    with RunReader(path) as reader:
        assert check_whole(reader) == refused * 100


def limit_and_write(path: Path) -> None:
    """What a full disk does, by a limit on the size of files."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = RunWriter(path)
    writer.add_steps(steps(100, SECOND))
    writer.commit()
    log = path.with_name("run.sqlite-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (log, resource.RLIM_INFINITY))
    writer.add_steps(steps(1000, 2 * SECOND))
    with pytest.raises(StoreFull):
        writer.commit()
    with RunReader(path) as reader:
        assert check_whole(reader) == 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    writer.commit()
    with RunReader(path) as reader:
        assert check_whole(reader) == 1100


def test_a_limit_on_file_sizes_is_met_like_a_full_disk(path):
    assert in_child(lambda: limit_and_write(path)) == 0


def test_a_store_closed_on_a_full_disk_is_readable_all_the_same(full_disk):
    if full_disk is None:
        pytest.fail("needs root to mount a small disk")
    directory, fill, _ = full_disk
    path = directory / "run.sqlite"
    writer = RunWriter(path)
    writer.add_steps(steps(100, SECOND))
    writer.commit()
    fill()
    writer.add_steps(steps(3000, 2 * SECOND))
    with pytest.raises(StoreFull):
        writer.close()
    with RunReader(path) as reader:
        assert check_whole(reader) == 100


def test_what_waits_for_a_full_disk_is_bounded_and_its_loss_is_told(path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_BACKLOG_ROWS", 2_000)

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = RunWriter(path)
        writer.set_meta("first", 1)
        writer.commit()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        for batch in range(60):
            writer.add_steps(steps(100, batch * SECOND))
            writer.put_sites([site(1, batch, batch)], t_ns=batch * SECOND)
            writer.put_probe_state(0, {"n": batch}, t_ns=batch)
            writer.add_note(batch, "kept", {"n": batch})
            with pytest.raises(StoreFull):
                writer.commit()
            assert sum(map(len, writer._pending.values())) <= 2_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        writer.commit()
        writer.commit()
        writer.close()

    assert in_child(work) == 0
    with RunReader(path) as reader:
        kept = reader.steps()
        assert kept[-1].t1_ns == 60 * SECOND
        assert len(kept) < 2_000
        assert len(reader.notes("kept")) == 60
        assert reader.probe_states()[0]["n"] == 59
        (lost,) = reader.notes("store-rows-dropped")
        assert lost.body["rows"] >= 6_000 - len(kept)


def test_a_stopped_reader_cannot_make_the_log_grow_without_bound(path, monkeypatch):
    monkeypatch.setattr(writer_module, "WAL_SOFT_BYTES", 1 << 19)
    monkeypatch.setattr(writer_module, "WAL_HARD_BYTES", 1 << 20)
    now = [0]
    log = path.with_name("run.sqlite-wal")
    with RunWriter(path, now_ns=lambda: now[0]) as writer, RunReader(path) as reader:
        writer.add_steps(steps(100, SECOND))
        writer.commit()
        with reader.snapshot():  # as by a process stopped in the midst of a call
            assert len(reader.steps()) == 100
            largest = 0
            for batch in range(2, 500):
                now[0] = batch * SECOND
                writer.add_steps(steps(100, now[0]))
                writer.commit()
                largest = max(largest, log.stat().st_size)
        assert 1 << 19 < largest < 2 << 20
        writer.commit()
        writer.add_steps(steps(1, 500 * SECOND))
        now[0] = 501 * SECOND
        writer.commit()
        assert reader.steps_tail(1)[0].t1_ns > 500 * SECOND
        assert len({r.sec for r in reader.step_rollups()}) > 490


def test_windows_and_tails_are_found_by_key_and_never_by_a_scan(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(100, SECOND))
    growing = set(schema_tables()) - {"device", "interval", "meta", "note"}
    seen: list[str] = []
    with RunReader(path) as reader:
        reader._session._db.set_trace_callback(seen.append)
        reader.steps(SECOND, 2 * SECOND)
        reader.steps_tail(200)
        reader.step_rollups(SECOND, 2 * SECOND)
        reader.memory(SECOND, 2 * SECOND)
        reader.procs(SECOND, 2 * SECOND)
        reader.host(SECOND, 2 * SECOND)
        reader.latest_finding()
        reader.span()
        reader._session._db.set_trace_callback(None)
        selects = [query for query in seen if query.startswith("SELECT")]
        for query in selects:
            plan = reader._session._db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
            scanned = {row[3].split()[1] for row in plan if row[3].startswith("SCAN")}
            assert not scanned & growing, (query, plan)
    assert len(selects) > 8


def test_a_reader_keeps_its_locks_while_a_writer_opens_the_store_in_its_process(path):
    with RunWriter(path) as writer:
        writer.add_steps(steps(10, SECOND))
        with RunReader(path) as reader, reader.snapshot():
            reader.steps()
            with pytest.raises(StoreError):
                RunWriter(path.parent)
            RunWriter(path).close()  # looks at the file, and closes what it looked through
            locks = Path("/proc/locks").read_text()
            assert f":{path.stat().st_ino} " in locks
