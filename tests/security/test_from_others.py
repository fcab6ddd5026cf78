"""A run directory, a report or a recording may come from anyone: reading one moves, removes and
writes nothing of ours, waits for nothing, and root does nothing for its owner."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from gputop_train.launch import conclude, ending, spawn
from gputop_train.launch.runs import store_path
from gputop_train.launch.supervisor import Supervisor
from gputop_train.probe.ring import RingWriter
from gputop_train.store.recording import RecordingError, import_recording
from tests.security.hostile import make_run
from tests.store_support import in_child
from tests.unprivileged import open_to_all, run_as_nobody

CLI = "import sys; from gputop_train.cli import main; main(sys.argv[1:])"


def lured(tmp_path: Path, **told: Any) -> Path:
    """A run that ended without a report, whose ``run.json`` says so much more."""
    run_dir = make_run(tmp_path / "from-them" / "3f2a91", report=False)
    body = json.loads((run_dir / "run.json").read_bytes())
    (run_dir / "run.json").write_text(json.dumps({**body, **told}))
    return run_dir


def snapshot(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, modes, owners and contents of a tree."""
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(place.rglob("*"))
    }


def test_a_run_cannot_have_a_file_of_ours_put_aside_or_removed_as_its_store(
    tmp_path: Path,
) -> None:
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o755)
    for name in ("mail.sqlite", "run.sqlite"):
        (ours / name).write_bytes(b"SQLite format 3\0 and years of letters")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "mail.sqlite").write_bytes(b"more letters")
    (tmp_path / "linked").symlink_to(private)
    before = snapshot(ours) | snapshot(private)
    named = (ours / "mail.sqlite", ours / "run.sqlite", private / "mail.sqlite")
    for place in (*named, tmp_path / "linked" / "run.sqlite"):
        assert store_path(tmp_path, {"store": str(place)}) == tmp_path / "run.sqlite"
    run_dir = lured(tmp_path, store=str(ours / "run.sqlite"))
    assert conclude.finalize(run_dir)["steps"]["count"] == 200
    assert snapshot(ours) | snapshot(private) == before


def test_a_run_cannot_have_the_rings_of_another_one_read_or_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "aaaaaa"
    theirs.mkdir(mode=0o700)
    ring = RingWriter(
        str(theirs / "4194303-5.ring"), pid=4194303, start_ticks=5, rank=-1, local_rank=-1,
        wall_ns=1, mono_ns=1, words=4096, snapshot_bytes=4096,
    )  # fmt: skip
    ring.close()
    (theirs / "control.sock").touch()
    before = snapshot(theirs)
    conclude.finalize(lured(tmp_path, ring_dir=str(theirs)))
    assert snapshot(theirs) == before


def test_of_its_own_ring_directory_only_what_we_make_is_removed(tmp_path: Path) -> None:
    rings = tmp_path / "3f2a91"
    rings.mkdir(mode=0o700)
    for name in ("1-1.ring", "1-1.ring.tmp7", "control.sock", "my.ring.txt", "notes"):
        (rings / name).touch()
    conclude.remove_ring_dir({"id": "3f2a91", "ring_dir": str(rings)})
    assert {path.name for path in rings.iterdir()} == {"my.ring.txt", "notes"}
    (rings / "1-1.ring").touch()
    rings.chmod(0o755)  # not one of ours
    conclude.remove_ring_dir({"id": "3f2a91", "ring_dir": str(rings)})
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "3f2a91").symlink_to(rings)
    conclude.remove_ring_dir({"id": "3f2a91", "ring_dir": str(tmp_path / "link" / "3f2a91")})
    assert (rings / "1-1.ring").exists()


def test_a_supervisor_makes_its_socket_nowhere_but_where_a_run_has_it(tmp_path: Path) -> None:
    door = tmp_path / "elsewhere" / "control.sock"
    watched = Supervisor.__new__(Supervisor)
    watched._dir = tmp_path / "3f2a91"
    watched._run = {"control_socket": str(door)}
    assert door not in watched._doors()
    watched._run = {"control_socket": str(tmp_path / "3f2a91" / "control.sock")}
    assert watched._doors()[0] == tmp_path / "3f2a91" / "control.sock"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A run of another user, where anybody can reach it."""
    assert os.geteuid() == 0, "this test changes users, so it must be run as root"
    run_dir = lured(tmp_path)
    open_to_all(tmp_path / "from-them").chmod(0o777)
    for path in (run_dir, *run_dir.iterdir()):
        os.chown(path, 12345, 12345)
        path.chmod(0o755 if path.is_dir() else 0o644)
    return run_dir


@pytest.mark.parametrize("command", ["report", "attach"])
def test_another_users_run_is_not_opened_by_its_path(theirs: Path, command: str) -> None:
    options = ["--no-tui"] if command == "attach" else []
    done = run_as_nobody(CLI, command, str(theirs), *options)
    assert done.returncode == 1
    assert "belongs to another user (uid 12345). Copy it" in done.stderr


def test_root_makes_nothing_in_another_users_run(theirs: Path) -> None:
    precious = theirs.parent.parent / "precious"
    precious.write_text("root's")
    for name in (".run.sqlite", ".report.json", ".exit"):
        (theirs / f"{name}.{os.getpid()}").symlink_to(precious)
    before = snapshot(theirs)
    with pytest.raises(conclude.ConcludeError, match="belongs to another user"):
        conclude.finalize(theirs)
    assert snapshot(theirs) == before
    assert precious.read_text() == "root's"


def test_a_report_is_never_written_through_a_link_laid_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, precious = tmp_path / "shared", tmp_path / "precious"
    shared.mkdir()
    shared.chmod(0o1777)
    precious.write_text("ours")
    (shared / f".r.json.{os.getpid()}").symlink_to(precious)
    ending.write_file(shared / "r.json", b"{}")
    assert (shared / "r.json").read_bytes() == b"{}"
    monkeypatch.setattr(os, "urandom", lambda n: bytes(n))  # the one name that could be guessed
    (shared / f".r.json.{'0' * 12}").symlink_to(precious)
    with pytest.raises(FileExistsError):
        ending.write_file(shared / "r.json", b"{}")
    assert precious.read_text() == "ours"


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "brackets", "digits", "large"])
@pytest.mark.parametrize("suffix", [".json", ".zip"])
def test_what_is_given_as_a_report_or_a_recording_may_be_anything(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    given = tmp_path / f"given{suffix}"
    if kind == "pipe":
        os.mkfifo(given)
    elif kind == "device":
        given.symlink_to("/dev/zero")
    elif kind == "directory":
        given.mkdir()
    elif kind == "large":
        with given.open("wb") as file:
            file.truncate(1 << 40)
    else:
        given.write_text({"brackets": "[" * 300_000, "digits": '{"schema": ' + "9" * 90_000}[kind])

    def read() -> None:
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if suffix == ".zip":
            with pytest.raises(RecordingError, match=r"\. \w"):
                import_recording(given, tmp_path / "unpacked")
        else:
            from click import ClickException

            from gputop_train.check_commands import _report_file

            with pytest.raises(ClickException, match=r"[.:] \w"):
                _report_file(given)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 256 << 10

    assert in_child(read) == 0
    assert not (tmp_path / "unpacked").exists()


def test_a_store_and_a_socket_of_a_third_user_are_refused_to_a_second_one(theirs: Path) -> None:
    code = """
import sys
from gputop_train.store.reader import RunReader, StoreError
from gputop_train.store.writer import RunWriter
for use in (RunReader, RunWriter):
    try:
        use(sys.argv[1])
    except StoreError as error:
        print(error)
"""
    done = run_as_nobody(code, str(theirs / "run.sqlite"))
    assert done.stdout.count("another user (uid 12345)") == 2, done.stderr


def test_no_supervisor_is_started_in_a_directory_whose_log_is_a_link(tmp_path: Path) -> None:
    run_dir = lured(tmp_path)
    (tmp_path / "precious").write_text("ours")
    (run_dir / "supervisor.log").symlink_to(tmp_path / "precious")
    assert spawn.start_supervisor(run_dir, dict(os.environ)) is None
    assert (tmp_path / "precious").read_text() == "ours"
