"""The list of runs survives whatever lies in the run root."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from gputop_train.launch import conclude, identity
from gputop_train.launch.attach import report_of
from gputop_train.launch.housekeeping import prune, surplus
from gputop_train.launch.runs import (
    RunInfo,
    _state_words,
    exit_code,
    list_runs,
    read_run,
    runs_json,
    runs_table,
    store_path,
)

DAY_NS = 86_400 * 10**9
HOST = socket.gethostname()


def make_run(
    root: Path, run_id: str, *, ended: bool = True, size: int = 0, **fields: object
) -> Path:
    path = root / run_id
    path.mkdir()
    run = {
        "schema": 1,
        "id": run_id,
        "name": None,
        "command": ["python", "train.py"],
        "host": HOST,
        "boot_id": identity.boot_id(),
        "started_wall_ns": 10**18,
        **fields,
    }
    (path / "run.json").write_text(json.dumps(run))
    if ended:
        body = {"exit_code": 0, "signal": None, "ended_wall_ns": 10**18 + 5 * 10**9}
        (path / "exit.json").write_text(json.dumps(body))
    if size:
        (path / "output.log").write_bytes(b"x" * size)
    return path


def child_of(process: subprocess.Popen[bytes]) -> dict[str, int]:
    ticks = identity.start_ticks(process.pid)
    assert ticks is not None
    return {"pid": process.pid, "start_ticks": ticks, "pgid": process.pid, "sid": process.pid}


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_newest_first_with_state_and_exit_code(tmp_path):
    make_run(tmp_path, "aaa", started_wall_ns=1 * DAY_NS)
    make_run(tmp_path, "bbb", started_wall_ns=2 * DAY_NS)
    runs = list_runs(tmp_path)
    assert [(r.id, r.state, r.exit_code) for r in runs] == [
        ("bbb", "finished", 0),
        ("aaa", "finished", 0),
    ]


def test_a_living_script_is_live_with_its_supervisor_and_orphaned_without(tmp_path, sleeper):
    path = make_run(tmp_path, "aaa", ended=False, child=child_of(sleeper))
    assert read_run(path).state == "orphaned"
    me = {"pid": os.getpid(), "start_ticks": identity.start_ticks(os.getpid())}
    (path / "supervisor.json").write_text(json.dumps({**me, "boot_id": identity.boot_id()}))
    assert read_run(path).state == "live"
    (path / "supervisor.json").write_text(json.dumps({**me, "boot_id": "another boot"}))
    assert read_run(path).state == "orphaned"


def test_a_script_that_is_gone_without_an_exit_record_is_lost(tmp_path, sleeper):
    child = child_of(sleeper)
    path = make_run(tmp_path, "aaa", ended=False, child={**child, "start_ticks": 1})
    assert read_run(path).state == "lost"


def test_a_script_whose_end_nobody_saw_is_lost_not_finished(tmp_path):
    path = make_run(tmp_path, "aaa")
    (path / "exit.json").write_text('{"exit_code": null, "signal": null, "reason": "no shim"}')
    assert read_run(path).state == "lost"


def test_a_run_of_another_machine_is_not_judged_from_here(tmp_path, sleeper):
    # Its pid may well exist here, as somebody else.
    path = make_run(tmp_path, "aaa", ended=False, host="node17", child=child_of(sleeper))
    info = read_run(path)
    assert info.state == "elsewhere"
    assert info.protected


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"host": "node17"}, "on node17"),
        ({"pid_ns": "pid:[4026539999]"}, "in a container"),
    ],
)
def test_a_run_that_lives_elsewhere_is_never_ended_from_here(tmp_path, fields, where):
    # The PID is nobody's here, which says nothing about there; no lock of theirs reaches us.
    child = {"pid": 2**22 - 1, "start_ticks": 1, "pgid": 2**22 - 1, "sid": 2**22 - 1}
    path = make_run(tmp_path, "aaa", ended=False, child=child, **fields)
    assert read_run(path).state == "elsewhere"
    assert _state_words(read_run(path)) == where
    with pytest.raises(conclude.ConcludeError, match="its report is made there"):
        conclude.finalize(path, wait_s=0)
    assert report_of(path) is None
    assert sorted(file.name for file in path.iterdir()) == ["run.json"]


def test_an_ended_run_whose_store_lies_on_another_machine_is_reported_there(tmp_path):
    path = make_run(tmp_path, "aaa", host="node17", store="/var/tmp/nowhere/run.sqlite")
    with pytest.raises(conclude.ConcludeError, match="is on node17, and its report is made there"):
        conclude.finalize(path, wait_s=0)
    assert not (path / "report.json").exists()


def test_a_container_that_was_killed_long_ago_left_a_lost_run(tmp_path):
    path = make_run(tmp_path, "aaa", ended=False, pid_ns="pid:[4026539999]", child=None)
    old = time.time() - 2 * 3600
    os.utime(path / "run.json", (old, old))
    os.utime(path, (old, old))
    assert read_run(path).state == "lost"


def test_a_run_of_another_machine_is_kept_for_a_month_without_a_sign_of_life(tmp_path):
    path = make_run(tmp_path, "aaa", ended=False, host="node17")
    for days, protected in ((29, True), (31, False)):
        then = time.time() - days * 86_400
        os.utime(path, (then, then))
        assert (read_run(path).state, read_run(path).protected) == ("elsewhere", protected)


def test_a_killed_script_shows_the_code_a_shell_would_give():
    assert exit_code({"exit_code": None, "signal": 9}) == 137
    assert exit_code({"exit_code": 7, "signal": None}) == 7
    assert exit_code({"exit_code": None, "signal": None}) is None
    assert exit_code(None) is None


def test_foreign_damaged_and_half_written_things_do_not_hide_the_good_run(tmp_path):
    make_run(tmp_path, "good")
    (tmp_path / "notes.txt").write_text("not a run")
    (tmp_path / "empty").mkdir()
    for name, text in {
        "binary": "\x00\xff",
        "list": "[1]",
        "deep": "[" * 100_000,
        "otherid": '{"id": "good"}',
        "half": '{"id": "ha',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "run.json")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert [run.id for run in list_runs(tmp_path)] == ["good"]


def test_wrong_types_in_a_run_become_not_recorded(tmp_path):
    path = make_run(
        tmp_path, "odd", ended=False, command="rm", name=3, child="x", started_wall_ns="yesterday"
    )
    (path / "exit.json").write_text('{"exit_code": "seven", "signal": []}')
    (path / "report.json").write_text('{"verdict": [], "status": 4}')
    info = read_run(path)
    assert (info.command, info.name, info.pid, info.started_wall_ns) == ((), None, None, None)
    assert (info.exit_code, info.verdict, info.status) == (None, None, None)
    assert runs_json([info])[0]["started_wall_ns"] is None


def test_a_missing_root_is_no_runs(tmp_path):
    assert list_runs(tmp_path / "nowhere") == []


def table_text(runs: list[RunInfo]) -> str:
    console = Console(width=100, file=None, record=True, color_system=None)
    with console.capture() as capture:
        console.print(runs_table(runs, now_ns=10**18 + 60 * 10**9, ascii_only=True))
    return capture.get()


def test_the_table_says_what_a_person_looks_for(tmp_path):
    path = make_run(tmp_path, "3f2a", name="baseline")
    report = {"status": "verdict", "verdict": {"id": "input-bound", "refined": "prep-stall"}}
    (path / "report.json").write_text(json.dumps(report))
    (path / "exit.json").write_text('{"exit_code": 7, "signal": null, "ended_wall_ns": null}')
    text = table_text(list_runs(tmp_path))
    for word in ("3f2a baseline", "exit 7", "prep-stall", "python train.py"):
        assert word in text


def test_a_run_we_stopped_is_not_shown_as_a_failure(tmp_path):
    path = make_run(tmp_path, "3f2a", command=["/opt/env/bin/python3", "train.py"])
    (path / "exit.json").write_text('{"exit_code": 130, "signal": null}')
    assert "exit 130" in table_text(list_runs(tmp_path))
    (path / "report.json").write_text('{"run": {"stopped_by": "steps"}}')
    text = table_text(list_runs(tmp_path))
    assert "stopped" in text
    assert "exit" not in text
    assert " python3 train.py" in text


def test_a_long_command_takes_no_room_from_what_else_is_told(tmp_path):
    path = make_run(tmp_path, "3f2a91", command=["python", "train.py", "--data", "/very/long" * 40])
    (path / "exit.json").write_text('{"exit_code": 7, "signal": null}')
    rows = table_text(list_runs(tmp_path)).splitlines()
    (row,) = [row for row in rows if "train.py" in row]
    assert "3f2a91" in row and "exit 7" in row and len(row.rstrip()) <= 100
    assert "started" in rows[1] and "verdict" in rows[1]


def test_control_characters_in_a_command_cannot_reach_the_terminal(tmp_path):
    make_run(tmp_path, "evil", command=["python", "\x1b]0;owned\x07.py"])
    assert "\x1b" not in table_text(list_runs(tmp_path))


def old(run_id: str, size: int, **fields: object) -> RunInfo:
    return RunInfo(id=run_id, path=Path(run_id), state="finished", size_bytes=size, **fields)


def test_the_newest_runs_stay_up_to_a_number_and_a_size():
    runs = [old(str(n), 10) for n in range(6)]
    assert [r.id for r in surplus(runs, keep_runs=4, keep_bytes=10**9)] == ["4", "5"]
    assert [r.id for r in surplus(runs, keep_runs=50, keep_bytes=35)] == ["3", "4", "5"]


def test_the_newest_run_stays_however_large_it_is():
    runs = [old("big", 10**12), old("small", 1)]
    assert [r.id for r in surplus(runs, keep_bytes=100)] == ["small"]


def test_pruning_removes_old_runs_and_never_a_living_named_or_foreign_one(tmp_path, sleeper):
    make_run(tmp_path, "new", started_wall_ns=9 * DAY_NS)
    make_run(tmp_path, "old", started_wall_ns=5 * DAY_NS, size=100_000)
    make_run(tmp_path, "named", started_wall_ns=4 * DAY_NS, name="baseline")
    make_run(tmp_path, "far", started_wall_ns=3 * DAY_NS, ended=False, host="node17")
    make_run(tmp_path, "alive", started_wall_ns=2 * DAY_NS, ended=False, child=child_of(sleeper))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("...")
    pruned = prune(tmp_path, keep_runs=1)
    assert pruned.removed == ("old",)
    assert pruned.freed_bytes >= 100_000
    assert {entry.name for entry in tmp_path.iterdir()} == {
        "new",
        "named",
        "far",
        "alive",
        "precious",
    }


def test_pruning_does_not_follow_links_out_of_the_root(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "data.bin").write_text("keep me")
    root = tmp_path / "runs"
    root.mkdir()
    make_run(root, "new", started_wall_ns=2 * DAY_NS)
    victim = make_run(root, "old", started_wall_ns=1 * DAY_NS)
    (victim / "checkpoints").symlink_to(outside)
    prune(root, keep_runs=1)
    assert not victim.exists()
    assert (outside / "data.bin").read_text() == "keep me"


def test_a_lost_run_that_was_written_to_just_now_is_kept(tmp_path):
    # It may live in another process namespace that shares this directory.
    make_run(tmp_path, "new", started_wall_ns=2 * DAY_NS)
    lost = make_run(tmp_path, "lost", started_wall_ns=1 * DAY_NS, ended=False, child={
        "pid": 2**22 - 1, "start_ticks": 1, "pgid": 1, "sid": 1})  # fmt: skip
    log = lost / "output.log"
    log.write_text("still going\n")
    assert prune(tmp_path, keep_runs=1).removed == ()
    long_ago = time.time() - 7200
    os.utime(log, (long_ago, long_ago))
    os.utime(lost, (long_ago, long_ago))
    assert prune(tmp_path, keep_runs=1).removed == ("lost",)


def test_an_interrupted_removal_is_finished_later(tmp_path):
    trash = tmp_path / ".trash-old-1234"
    trash.mkdir()
    (trash / "run.json").write_text("{}")
    prune(tmp_path)
    assert not trash.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_run_is_neither_shown_nor_removed(tmp_path):
    make_run(tmp_path, "mine", started_wall_ns=2 * DAY_NS)
    theirs = make_run(tmp_path, "theirs", started_wall_ns=1 * DAY_NS)
    os.chown(theirs, 65534, 65534)
    assert [run.id for run in list_runs(tmp_path)] == ["mine"]
    assert prune(tmp_path, keep_runs=1).removed == ()
    assert theirs.exists()


def test_a_copied_run_reads_its_own_store_and_never_the_originals(tmp_path):
    original, copy, local = tmp_path / "a" / "3f2a91", tmp_path / "b" / "3f2a91", tmp_path / "local"
    for directory in (original, copy, local):
        directory.mkdir(mode=0o700, parents=True)
        (directory / "run.sqlite").touch()
    (original / "run.json").touch()
    run = {"store": str(original / "run.sqlite")}
    assert store_path(original, run) == original / "run.sqlite"
    assert store_path(copy, run) == copy / "run.sqlite"
    away = {"store": str(local / "run.sqlite")}
    assert store_path(copy, away) == local / "run.sqlite", "kept on local disk while it runs"
    (local / "run.sqlite").unlink()
    assert store_path(copy, away) == copy / "run.sqlite"


def test_a_run_that_ends_keeps_as_many_as_was_said_at_its_start(tmp_path):
    for number in range(4):
        make_run(tmp_path, f"run{number}", started_wall_ns=number * DAY_NS, size=1000)
    conclude._prune(tmp_path, {"options": {"keep": {"runs": 3, "gb": 5.0}}})
    assert [run.id for run in list_runs(tmp_path)] == ["run3", "run2", "run1"]
    conclude._prune(tmp_path, {"options": {"keep": {"runs": 3, "gb": 1e-9}}})
    assert [run.id for run in list_runs(tmp_path)] == ["run3"]
    conclude._prune(tmp_path, {"options": {}})  # of an older release
