"""A store or a recording made to execute, hang or exhaust whoever reads it does neither."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_train.diagnose import evidence
from gputop_train.launch import conclude, runfile, verdicts
from gputop_train.report import line_facts, text
from gputop_train.report import lines as by_line
from gputop_train.report import memory as held
from gputop_train.store import files
from gputop_train.store.errors import StoreError
from gputop_train.store.reader import RunReader
from gputop_train.store.writer import RunWriter
from tests.security.hostile import make_run
from tests.store_support import steps

#: SQL that acts as soon as a row is read or written, each in its own way.
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
ACTING = {
    "trigger": "CREATE TRIGGER t AFTER INSERT ON step BEGIN INSERT INTO meta VALUES('owned', '1'); END",
    "trigger without end": "CREATE TRIGGER t AFTER INSERT ON meta BEGIN "
    f"UPDATE meta SET value = (SELECT count(*) FROM ({_ENDLESS} SELECT * FROM n)); END",
    "view beside": f"CREATE VIEW v AS {_ENDLESS} SELECT * FROM n",
    "index on an expression": "CREATE INDEX x ON step (hex(zeroblob(idx % 2)))",
    "virtual table": "CREATE VIRTUAL TABLE v USING dbstat",
    "full-text table": "CREATE VIRTUAL TABLE v USING fts5(a)",
    "unknown table": "CREATE TABLE bookmarks (url TEXT)",
    "checked column": "DROP TABLE note; CREATE TABLE note (id INTEGER PRIMARY KEY, t_ns INTEGER NOT "
    "NULL, kind TEXT NOT NULL, body TEXT NOT NULL CHECK (length(zeroblob(900000000)) > 0))",
    "computed column": "DROP TABLE host; CREATE TABLE host (t_ns INTEGER PRIMARY KEY, body BLOB NOT "
    "NULL GENERATED ALWAYS AS (zeroblob(900000000)) VIRTUAL)",
    "default": "DROP TABLE device; CREATE TABLE device (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL "
    "UNIQUE DEFAULT (hex(zeroblob(400000000))))",
    "collation": "DROP TABLE device; CREATE TABLE device (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL "
    "UNIQUE COLLATE NOCASE)",
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended without a report."""
    return make_run(tmp_path_factory.mktemp("sound") / "3f2a91", report=False)


@pytest.fixture
def run_dir(sound: Path, tmp_path: Path) -> Path:
    """A copy of it to be tampered with."""
    return Path(shutil.copytree(sound, tmp_path / "3f2a91"))


def tamper(run_dir: Path, sql: str) -> Path:
    store = run_dir / "run.sqlite"
    db = sqlite3.connect(store)
    try:
        db.executescript(sql)
    finally:
        db.close()
    return store


@pytest.mark.parametrize("name", ACTING)
def test_a_store_that_acts_is_refused_by_reader_and_writer_before_it_can(
    run_dir: Path, name: str
) -> None:
    try:
        store = tamper(run_dir, ACTING[name])
    except sqlite3.OperationalError as error:
        assert "no such module" in str(error)  # an SQLite without it cannot be harmed by it
        return
    for use in (RunReader, RunWriter):
        with pytest.raises(StoreError, match="is not one of ours") as refused:
            use(store)
        assert str(refused.value).count(". ") == 1
    with sqlite3.connect(store) as db:
        assert not db.execute("SELECT * FROM meta WHERE key = 'owned'").fetchall()


def test_a_run_whose_store_acts_gets_its_report_from_a_new_one(run_dir: Path) -> None:
    tamper(run_dir, ACTING["trigger without end"])
    assert conclude.finalize(run_dir)["steps"]["count"] == 0
    (aside,) = run_dir.glob("run.sqlite.damaged-*")
    assert aside.stat().st_size > 0


def test_comments_and_blanks_of_another_version_are_no_damage(run_dir: Path) -> None:
    with sqlite3.connect(run_dir / "run.sqlite") as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' TEXT', ' -- why (so)\n  TEXT')")
    with RunReader(run_dir) as reader:
        assert len(reader.steps()) == 200


@pytest.mark.parametrize(
    "body",
    ["ddffffffff", "91" * 200_000, "c6ffffffff", "dbffffffff61", "df7fffffff", "c9ffffffff00"],
    ids=["array of 4 G", "deep", "blob of 4 G", "text of 4 G", "map of 2 G", "extension of 4 G"],
)
def test_a_body_that_promises_more_than_there_is_costs_nothing(run_dir: Path, body: str) -> None:
    store = tamper(run_dir, f"UPDATE site SET body = x'{body}'; UPDATE gpu SET body = x'{body}'")
    with RunReader(store) as reader:
        for read in (reader.sites, reader.gpu):
            with pytest.raises(StoreError, match="is damaged"):
                read()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="SQLite's limits cannot be set from there")
def test_a_value_of_many_megabytes_is_not_read(run_dir: Path) -> None:
    more = files.LARGEST_VALUE_BYTES + 1
    store = tamper(run_dir, f"UPDATE note SET body = CAST(zeroblob({more}) AS TEXT)")
    with RunReader(store) as reader:
        with pytest.raises(StoreError, match="is damaged"):
            reader.notes()
        assert len(reader.steps()) == 200


#: Started by a process that holds much: its peak is the reader's too, and must not hide what is taken.
READS_MUCH = """
import sys
from gputop_train.store import session
from gputop_train.store.reader import RunReader
session.MEMORY_LIMIT_KIB, session.MEMORY_PER_SIZE, session._OPS_BETWEEN_CHECKS = 8 << 10, 0, 20
with RunReader(sys.argv[1]) as reader:
    reader.notes()
"""


def test_many_large_values_are_given_up_long_before_memory_ends(run_dir: Path) -> None:
    rows = f"{_ENDLESS} SELECT i, i, 'k', '\"' || hex(zeroblob(500000)) || '\"' FROM n LIMIT 120"
    store = tamper(run_dir, f"INSERT INTO note {rows.replace('SELECT i, i', 'SELECT i + 9, i')}")
    starts = (
        "import subprocess, sys; held = b'x' * (400 << 20); sys.exit(subprocess.call(sys.argv[1:]))"
    )
    read = [sys.executable, "-c", starts, sys.executable, "-c", READS_MUCH, str(store)]
    done = subprocess.run(read, capture_output=True, text=True, check=False, timeout=120)
    assert "took too long or too much memory" in done.stderr.splitlines()[-1]


MOST = (1 << 63) - 1
#: Numbers that no run has, many at once: what one query survives, the next must too.
ABSURD = (
    f"UPDATE step SET samples = {MOST}, micro = {MOST}, syncs = {MOST}, measured_ns = {MOST}, "
    "dry = 9e999; UPDATE step_rollup SET n = 0; UPDATE memory SET allocated = -1, t_ns = t_ns * 1000",
    f"UPDATE step SET t0_ns = -{MOST}, idx = {MOST}, rank = -1; UPDATE step_rollup SET rank = -1",
    f"UPDATE step SET t0_ns = {MOST} WHERE idx = 5; UPDATE step SET t0_ns = t1_ns WHERE idx > 7; "
    f"UPDATE memory SET allocated = {MOST}; UPDATE util SET util = 9e999; UPDATE util_rollup SET "
    "mean = -9e999; UPDATE site_at SET count = -1, total_ns = -5",
    f"UPDATE step_rollup SET n = {MOST}, samples = {MOST}, first_idx = {MOST}, median_ns = {MOST}, "
    f"t0_ns = -{MOST}, t1_ns = {MOST}, dry = 5, dry_n = 0",
    f"UPDATE site_at SET count = {MOST}, total_ns = {MOST}; UPDATE util SET util = 1e308; "
    f"UPDATE loader_at SET wait_ns = {MOST}, batches = {MOST}, ready = -{MOST}; INSERT INTO "
    f"interval VALUES (0, 'checkpoint', 1, {MOST}, 1, {MOST}), (0, 'odd', 5, 3, 1, 1)",
    """UPDATE probe_state SET body = '{"cost": {"total_ns": 1e308, "steps": 1}, "ddp": [{"samples":
    1e308}], "cuda": {"initialized": true}, "held": {"parameters": 1e300}, "memory":
    {"peak_allocated": 1e308, "peak_reserved": -5}}'""",
    """UPDATE probe_state SET body = '{"cost": {"total_ns": -1, "steps": 0}, "hooks": 7, "flags": [1],
    "cuda": 3, "memory": [], "ring": 5, "burst": 3, "oom": {"count": 1e99}}';
    INSERT OR REPLACE INTO meta VALUES ('devices', '[]'), ('attempts', '"many"'), ('exit_code',
    '[1]'), ('tails', '{"0": {"labels": {"data_wait": 1e300}, "t0_ns": 1, "t1_ns": 1e99}}'),
    ('eval_sub', '{"0": [1]}'), ('supervisor', '{"cpu_s": 1e308, "wall_s": 0}'),
    ('ranks', '{"0": [1e9, 2, 3, 4]}'), ('log_dropped_bytes', '"a"'), ('run', '"x"')""",
    "UPDATE meta SET value = '7' WHERE key <> 'layout'",
    "INSERT INTO note VALUES (99, 5, 'words-lost', '{\"words\": 1e999}')",
    f"INSERT INTO finding VALUES (99, '{{\"status\": {'[' * 9000}')",
)


@pytest.mark.parametrize("number", range(len(ABSURD)))
def test_absurd_numbers_give_a_report_of_plain_json_or_a_sentence(
    run_dir: Path, number: int
) -> None:
    store = tamper(run_dir, ABSURD[number])
    run, exit_ = (runfile.read_json(run_dir / name) for name in ("run.json", "exit.json"))
    try:
        judged = verdicts.judge_run(store, final=True)
        report = verdicts.build_report(store, run or {}, exit_, judged)
        json.dumps(report, allow_nan=False)
        text.summary(report, 100)
        with RunReader(store) as reader:
            by_line.lines(line_facts.gather(reader, "3f2a91", None), 100)
            held.lines(held.gather(reader, evidence.build(reader, final=True)), 100)
            reader.latest_finding()
    except StoreError as error:
        assert str(error).count(". ") == 1, error


def test_a_store_is_gone_on_with_only_if_it_is_plain(run_dir: Path) -> None:
    """The same writer that refuses those above takes the sound one up where it ended."""
    with RunWriter(run_dir / "run.sqlite") as writer:
        writer.add_steps(steps(3, 10**15))
    with RunReader(run_dir) as reader:
        assert len(reader.steps()) == 203
        assert reader.span() is not None
