"""A store is private, and a bad one gives a sentence: never a crash, a hang or somebody's file."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from gputop_train.model import HostSample, Interval, MemorySample, UtilSample
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from tests.store_support import GPU, NOBODY, SECOND, in_child, loader, site, steps


def fill(writer: RunWriter) -> None:
    """Something in every table."""
    writer.add_steps(steps(400, SECOND))
    writer.add_intervals([Interval(0, "checkpoint", 2 * SECOND, 3 * SECOND, 1, 10**9)])
    writer.put_sites([site(n, n, n) for n in range(40)], t_ns=SECOND)
    writer.put_loaders([loader(ready=2)], t_ns=SECOND)
    writer.put_probe_state(0, {"v": 1}, t_ns=SECOND)
    writer.add_memory(MemorySample(0, t * SECOND, t, "rss-anon", t) for t in range(20))
    writer.add_util(UtilSample(t * SECOND, GPU, 40.0) for t in range(20))
    writer.add_host(HostSample(t * SECOND, 1.5) for t in range(20))
    writer.add_finding(SECOND, {"status": "healthy", "text": "x" * 500})
    writer.add_note(SECOND, "kind", {"a": 1})
    writer.commit()


def read_all(reader: RunReader) -> int:
    """Calls everything a reader has; returns how many records came."""
    names = [
        "steps",
        "step_rollups",
        "intervals",
        "sites",
        "sites_between",
        "loaders",
        "loader_depths",
        "probe_states",
        "memory",
        "util",
        "util_rollups",
        "gpu",
        "gpm",
        "host",
        "procs",
        "findings",
        "notes",
        "ranks",
    ]
    count = sum(len(getattr(reader, name)()) for name in names)
    past = reader.as_of(2 * SECOND)
    past.sites(), past.loaders(), past.latest_finding(), reader.span(), reader.meta("layout")
    return count


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.sqlite"


@pytest.fixture
def filled(path):
    with RunWriter(path) as writer:
        fill(writer)
    return path


def test_the_files_are_private_whatever_the_umask(path):
    before = os.umask(0)
    try:
        with RunWriter(path) as writer:
            fill(writer)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) == {"run.sqlite", "run.sqlite-wal", "run.sqlite-shm"}
    assert set(modes.values()) == {0o600}


def test_a_store_that_was_left_open_to_others_is_closed_to_them(filled):
    filled.chmod(0o644)
    RunWriter(filled).close()
    assert stat.S_IMODE(filled.stat().st_mode) == 0o600


def test_a_link_at_the_path_is_never_followed(tmp_path, path):
    target = tmp_path / "precious"
    target.write_bytes(b"")
    path.symlink_to(target)
    for open_it in (RunWriter, RunReader):
        with pytest.raises(StoreError, match="symbolic link"):
            open_it(path)
    assert target.read_bytes() == b""
    target.unlink()
    with pytest.raises(StoreError, match="symbolic link"):
        RunWriter(path)
    assert not target.exists()


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), os.mkfifo])
def test_something_that_is_no_file_is_refused_without_waiting(path, make):
    make(path)
    for open_it in (RunWriter, RunReader):
        with pytest.raises(StoreError):
            open_it(path)


def needs_root() -> None:
    assert os.geteuid() == 0, "this test changes users, so it must be run as root"


def refused(work, words: str) -> None:
    try:
        work()
    except StoreError as error:
        assert words in str(error), error
    else:
        raise AssertionError("was not refused")


@pytest.fixture
def shared(tmp_path):
    """A directory any user may write to, at a place any user can reach."""
    needs_root()
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o711)
        if parent == Path(parent.anchor):
            break
    tmp_path.chmod(0o777)
    return tmp_path


def test_a_file_of_another_user_is_not_written(shared):
    path = shared / "run.sqlite"
    path.touch(mode=0o666)
    path.chmod(0o666)
    assert in_child(lambda: refused(lambda: RunWriter(path), "another user"), uid=NOBODY) == 0
    assert path.stat().st_size == 0


def test_a_file_of_a_third_user_is_not_read(shared):
    path = shared / "run.sqlite"
    with RunWriter(path) as writer:
        fill(writer)
    path.chmod(0o644)
    os.chown(path, 12345, 12345)
    assert in_child(lambda: refused(lambda: RunReader(path), "another user"), uid=NOBODY) == 0
    os.chown(path, NOBODY, NOBODY)
    assert in_child(lambda: RunReader(path).steps(), uid=NOBODY) == 0


@pytest.mark.parametrize("live", [True, False], ids=["with its log", "finished"])
def test_a_directory_that_cannot_be_written_can_be_read(shared, live):
    directory = shared / "run"
    directory.mkdir()
    path = directory / "run.sqlite"
    writer = RunWriter(path)
    fill(writer)
    if live:  # as a copy of a live run is: database and log, nobody behind them
        copy = shared / "copy"
        copy.mkdir()
        for name in ("run.sqlite", "run.sqlite-wal"):
            shutil.copy(directory / name, copy / name)
        path = copy / "run.sqlite"
    writer.close()
    for file in path.parent.iterdir():
        os.chown(file, NOBODY, NOBODY)
    os.chmod(path.parent, 0o555)

    def read() -> None:
        with RunReader(path) as reader:
            assert len(reader.steps()) == 400

    assert in_child(read, uid=NOBODY) == 0
    assert {p.name for p in path.parent.iterdir()} <= {"run.sqlite", "run.sqlite-wal"}


def test_a_file_without_permission_is_refused_in_a_sentence(shared):
    path = shared / "run.sqlite"
    with RunWriter(path) as writer:
        fill(writer)
    assert in_child(lambda: refused(lambda: RunReader(path), "permissions"), uid=NOBODY) == 0


def test_a_copy_without_its_log_shows_what_had_reached_the_file(tmp_path, path):
    with RunWriter(path) as writer:
        fill(writer)
        copy = tmp_path / "copy.sqlite"
        shutil.copy(path, copy)
    with RunReader(copy) as reader:
        assert reader.steps() == []
        assert reader.span() is None


def test_no_store_says_so(path):
    with pytest.raises(StoreError, match="There is no store"):
        RunReader(path)
    with pytest.raises(StoreError, match="There is no store"):
        RunReader(path.parent)


def test_a_store_that_is_just_being_made_says_try_again(path):
    path.touch()
    with pytest.raises(StoreError, match="Try again in a moment"):
        RunReader(path)


def test_files_of_other_programs_are_refused_and_left_alone(path):
    path.write_text("import torch\n" * 100)
    before = path.read_bytes()
    for open_it in (RunReader, RunWriter):
        with pytest.raises(StoreError, match=r"not a store|cannot be written"):
            open_it(path)
    assert path.read_bytes() == before
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
    for open_it in (RunReader, RunWriter):
        with pytest.raises(StoreError, match=r"not a store|something else"):
            open_it(path)


def test_a_newer_schema_is_refused_politely(filled):
    with sqlite3.connect(filled) as db:
        db.execute("PRAGMA user_version = 7")
    for open_it in (RunReader, RunWriter):
        with pytest.raises(StoreError, match=r"newer gputop-train \(schema 7\).*Upgrade"):
            open_it(filled)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE step; CREATE VIEW step AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
        "DROP TABLE note",
        "UPDATE meta SET value = '{\"labels\": [1]}' WHERE key = 'layout'",
        "UPDATE meta SET value = '{}' WHERE key = 'layout'",
        "UPDATE step SET labels = 'text'",
        "UPDATE step SET labels = x'91ff'",
        "UPDATE step SET idx = 'many'",
        "UPDATE step_rollup SET exposed = x'8100a0'",
        "UPDATE site SET body = x'c1'",
        "UPDATE host SET body = x'90'; UPDATE finding SET body = '[' || body",
        "UPDATE loader SET body = x'91a0'",
        "UPDATE probe_state SET body = '[]'",
    ],
)
def test_a_tampered_store_is_called_damaged(filled, sql):
    db = sqlite3.connect(filled)
    db.executescript(sql)
    db.close()
    with pytest.raises(StoreError, match="is damaged"), RunReader(filled) as reader:
        read_all(reader)


def test_a_store_cannot_send_the_terminal_its_own_commands(filled):
    with sqlite3.connect(filled) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = 'CREATE \x1b[2J' WHERE name = 'step'")
    with pytest.raises(StoreError, match="is damaged") as caught:
        RunReader(filled)
    assert str(caught.value).isprintable()


def test_a_store_made_to_hang_its_reader_is_given_up(filled):
    with RunReader(filled, time_limit_s=0.2) as reader:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        query = endless + "SELECT count(*) FROM n"
        with pytest.raises(StoreError, match="took too long"):
            reader._session.guard(lambda: reader._session.rows(query))
        assert len(reader.steps()) == 400  # and the next call works


def test_random_damage_gives_data_or_a_sentence(filled, tmp_path):
    whole = filled.read_bytes()
    rng = random.Random(20261129)
    outcomes = {"data": 0, "refused": 0}
    for round_ in range(120):
        broken = bytearray(whole)
        if round_ % 3 == 0:
            del broken[rng.randrange(1, len(broken)) :]
        else:
            for _ in range(rng.choice((1, 20, 400))):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
        copy = tmp_path / "broken.sqlite"
        copy.write_bytes(broken)
        try:
            with RunReader(copy, time_limit_s=5) as reader:
                read_all(reader)
            outcomes["data"] += 1
        except StoreError as error:
            assert str(error).count(". ") == 1, error
            outcomes["refused"] += 1
        try:
            with RunWriter(copy) as writer:
                fill(writer)
                writer.prune(10**13)
        except StoreError as error:
            assert str(error).isprintable()
    assert min(outcomes.values()) > 5, outcomes


def test_damage_to_the_log_costs_whole_transactions_and_never_half_of_one(tmp_path, path):
    with RunWriter(path) as writer:
        fill(writer)
        log = path.with_name("run.sqlite-wal").read_bytes()
        main = path.read_bytes()
    rng = random.Random(7)
    for _ in range(40):
        broken = bytearray(log)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        del broken[rng.randrange(len(broken) // 2, len(broken)) :]
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "run.sqlite").write_bytes(main)
        (copy / "run.sqlite-wal").write_bytes(broken)
        with RunReader(copy) as reader:
            assert len(reader.steps()) in (0, 400)  # a transaction is whole or absent
        shutil.rmtree(copy)


def test_a_damaged_store_is_not_written_over(filled):
    data = bytearray(filled.read_bytes())
    data[4096:12288] = b"\xff" * 8192
    filled.write_bytes(data)
    with pytest.raises(StoreError, match="aside"):
        RunWriter(filled)
    assert filled.read_bytes()[4096:12288] == b"\xff" * 8192
