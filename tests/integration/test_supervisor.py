"""The supervisor watches a run to its end, can be replaced at any moment, and never matters to it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from supervised import Run, Runs, wait_for

from gputop_train.launch import identity, runfile
from gputop_train.launch.conclude import ConcludeError
from gputop_train.launch.control import ControlError, client_of
from gputop_train.launch.locking import AlreadyWatched, take_lock
from gputop_train.launch.supervisor import Supervisor, finalize
from gputop_train.store.errors import StoreBusy, StoreError
from gputop_train.store.reader import RunReader


@pytest.fixture
def runs(tmp_path):
    started = Runs(tmp_path / "runs")
    yield started
    started.clean()


def stored(run: Run) -> RunReader:
    return RunReader(run.dir)


def stored_steps(run: Run) -> int:
    with contextlib.suppress(StoreError), stored(run) as reader:
        return len(reader.steps())
    return 0


def memory_samples(run: Run) -> int:
    with stored(run) as reader:
        return len(reader.memory(None, None))


def notes(run: Run) -> dict[str, dict[str, object]]:
    with stored(run) as reader:
        return {note.kind: note.body for note in reader.notes()}


def test_a_run_is_recorded_judged_and_reported_and_shared_memory_is_given_back(runs):
    run = runs.start("--steps", "60", "--save-every", "20", "--exit", "7", held=True)
    wait_for(lambda: stored_steps(run) == 60)
    wait_for(lambda: memory_samples(run) > 0)
    run.let_go()
    assert run.wait_supervisor() == 0
    with stored(run) as reader:
        steps = reader.steps()
        assert [step.index for step in steps] == list(range(60))
        assert all(step.samples == 4 for step in steps)
        assert len(reader.intervals(None, None, "checkpoint")) == 3
        assert reader.loaders()[0].line == 3
        assert reader.sites()[0].call == "torch.save(...)"
        assert {sample.basis for sample in reader.memory(None, None)} == {"rss-anon"}
        assert {proc.role for proc in reader.procs(None, None)} == {"trainer"}
        assert reader.host(None, None)
        assert reader.meta("exit_code") == 7
        assert reader.findings()
        assert {note.kind for note in reader.notes()} <= {"claim"}
    report = run.wait_report()
    assert report["run"]["exit_code"] == 7
    assert report["steps"]["count"] == 60
    assert not run.ring_dir.exists()
    assert (run.dir / "supervisor.log").read_text() == ""


def test_a_killed_supervisor_is_replaced_and_every_step_is_there_exactly_once(runs):
    run = runs.start("--steps", "400", "--step-ms", "9", held=True)
    wait_for(lambda: stored_steps(run) > 50)
    run.kill_supervisor()
    run.wait_steps(stored_steps(run) + 100)
    run.start_supervisor()
    run.let_go()
    assert run.wait_supervisor() == 0
    with stored(run) as reader:
        steps = reader.steps()
    assert [step.index for step in steps] == list(range(400))
    assert all(a.t1_ns == b.t0_ns for a, b in pairwise(steps))
    assert "supervisor-replaced" in notes(run)
    assert "words-lost" not in notes(run)
    assert run.wait_report()["run"]["attempts"] == 1


def test_a_second_supervisor_leaves_the_first_alone(runs):
    run = runs.start("--steps", "10", held=True)
    wait_for(run.watched)
    first = run.supervisor
    run.start_supervisor()
    assert run.wait_supervisor() == 0
    assert identity.is_running(first)
    with pytest.raises(AlreadyWatched):
        take_lock(run.dir)
    assert identity.is_alive(run.child)


@pytest.mark.slow
def test_signals_of_a_lost_terminal_do_not_end_the_supervisor(runs):
    run = runs.start("--steps", "150", held=True)
    wait_for(run.watched)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.kill(run.supervisor, number)
    run.let_go()
    assert run.wait_supervisor() == 0
    assert run.wait_report()["steps"]["count"] == 150


@pytest.mark.slow
def test_sigterm_makes_it_leave_the_run_to_another(runs):
    run = runs.start("--steps", "250", held=True)
    wait_for(lambda: stored_steps(run) > 20)
    os.kill(run.supervisor, signal.SIGTERM)
    assert run.wait_supervisor() == 0
    assert identity.is_alive(run.child)
    run.start_supervisor()
    run.let_go()
    run.wait_supervisor()
    assert run.wait_report()["steps"]["count"] == 250


def test_training_ends_as_it_would_when_its_supervisor_is_killed(runs, tmp_path):
    marker = tmp_path / "done"
    run = runs.start("--steps", "50", "--marker", str(marker), "--exit", "3", held=True)
    wait_for(run.watched)
    run.kill_supervisor()
    run.let_go()
    assert run.wait_exit().exit_code == 3
    assert marker.read_text() == "done"


def test_the_report_is_made_in_process_when_the_supervisor_is_gone(runs):
    run = runs.start("--steps", "40", held=True)
    wait_for(run.watched)
    run.kill_supervisor()
    with pytest.raises(ConcludeError, match="still going on"):
        finalize(run.dir)
    run.let_go()
    run.wait_exit()
    report = finalize(run.dir)
    assert report["steps"]["count"] == 40
    assert runfile.read_json(run.dir / "report.json") == report
    assert not run.ring_dir.exists()
    assert finalize(run.dir) == report


@pytest.mark.slow
def test_an_exit_nobody_saw_is_null_with_the_reason(runs):
    run = runs.start("--steps", "60", held=True)
    wait_for(run.watched)
    os.kill(run.launched.shim_pid, signal.SIGKILL)
    os.waitpid(run.launched.shim_pid, 0)
    run.let_go()
    assert run.wait_supervisor() == 0
    ended = runfile.read_exit(run.dir)
    assert ended is not None
    assert (ended.exit_code, ended.signal) == (None, None)
    assert "shim" in (ended.reason or "")
    assert run.wait_report()["run"]["exit_code"] is None


def test_steps_stop_the_run_and_the_report_says_so(runs):
    run = runs.start("--steps", "100000", "--step-ms", "9", steps=50)
    assert run.wait_supervisor() == 0
    report = run.wait_report()
    assert report["run"]["stopped_by"] == "steps"
    assert report["steps"]["count"] >= 50
    assert not identity.is_alive(run.child)


def test_a_script_that_ends_by_itself_at_its_last_step_was_not_stopped(runs):
    run = runs.start("--steps", "50", "--step-ms", "9", steps=50)
    run.wait_supervisor()
    # The supervisor may come first or too late; what it says must be what happened.
    signalled = "SIGINT" in (run.dir / "supervisor.log").read_text()
    assert (run.wait_report()["run"]["stopped_by"] == "steps") == signalled


def test_a_stop_through_the_control_socket_is_told_as_the_users(runs):
    run = runs.start("--steps", "100000", "--step-ms", "9")
    wait_for(run.watched)
    client = client_of(run.dir)
    assert client.ping()["run"] == run.dir.name
    wait_for(lambda: client.status()["steps"] > 5)
    client.stop()
    run.wait_supervisor()
    assert run.wait_report()["run"]["stopped_by"] == "user"
    with pytest.raises(ControlError):
        client.ping()


def test_a_removed_runtime_directory_loses_no_data_and_the_door_opens_again(runs, monkeypatch):
    # What logind does to /run/user/UID at the last logout.
    run = runs.start("--steps", "100000", "--step-ms", "9")
    wait_for(run.watched)
    run.kill_supervisor()
    monkeypatch.setattr("gputop_train.launch.supervisor._SOCKET_CHECK_NS", 0)
    with in_this_process(run) as supervisor:
        wait_for(lambda: stored_steps(run) > 5)
        shutil.rmtree(run.ring_dir)
        wait_for(lambda: answers(run))
        before = stored_steps(run)
        wait_for(lambda: stored_steps(run) > before + 20)
        client_of(run.dir).stop()
        wait_for(lambda: not supervisor.is_alive())
    assert run.wait_report()["run"]["stopped_by"] == "user"
    assert "runtime-removed" in notes(run)


def answers(run: Run) -> bool:
    with contextlib.suppress(ControlError):
        return bool(client_of(run.dir).ping())
    return False


@contextlib.contextmanager
def in_this_process(run: Run, **options: object):
    """Run a supervisor with other settings in a thread; the child and its files are real."""
    made: list[Supervisor] = []

    def watch() -> None:
        supervisor = Supervisor(run.dir, **options)  # type: ignore[arg-type]
        made.append(supervisor)
        supervisor.run()

    thread = threading.Thread(target=watch)
    thread.start()
    wait_for(lambda: made)
    try:
        yield thread
    finally:
        made[0].leave()
        thread.join()


def test_a_stubborn_script_is_killed_with_the_ladders_times(runs):
    run = runs.start("--steps", "100000", "--step-ms", "9", "--stubborn")
    run.wait_steps(1)
    run.kill_supervisor()
    with in_this_process(run, grace_s=(0.4, 0.4)) as thread:
        wait_for(lambda: answers(run))
        client_of(run.dir).stop()
        wait_for(lambda: not thread.is_alive())
    assert run.wait_exit().signal == signal.SIGKILL
    assert run.wait_report()["run"]["exit_code"] == 137


def test_the_log_is_bounded_while_the_script_prints(runs, tmp_path):
    script = tmp_path / "chatty.py"
    script.write_text(
        "import time\n"
        "for n in range(40):\n"
        "    print('x' * 100_000, flush=True)\n"
        "    time.sleep(0.02)\n"
        "print('the end')\n"
    )
    run = runs.start(script=script)
    run.kill_supervisor()
    with in_this_process(run, log_limit_bytes=1_000_000) as thread:
        wait_for(lambda: not thread.is_alive())
    log = run.dir / "output.log"
    assert log.stat().st_size > 4_000_000
    assert log.stat().st_blocks * 512 < 1_500_000
    assert log.read_bytes().endswith(b"the end\n")
    with stored(run) as reader:
        assert reader.meta("log_dropped_bytes") > 2_500_000
    assert "log-dropped" in notes(run)


@pytest.mark.slow
def test_a_run_without_a_probe_says_why(runs, tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("import time\nprint('ready', flush=True)\ntime.sleep(3)\n")
    run = runs.start(script=script)
    wait_for(lambda: "ready" in run.output)
    run.kill_supervisor()
    with in_this_process(run, patience_ns=0) as thread:
        wait_for(lambda: not thread.is_alive())
    assert "has loaded torch" in str(notes(run)["no-probe"]["text"])
    report = run.wait_report()
    assert report["healthy"] is not True


@pytest.mark.slow
def test_damaged_and_foreign_rings_are_refused_and_the_good_one_is_read(runs):
    run = runs.start("--steps", "200", held=True)
    wait_for(run.watched)
    (run.ring_dir / "1-1.ring").write_bytes(b"GPUTOPR1" + b"\xff" * 8000)
    (run.ring_dir / "2-2.ring").write_bytes(b"")
    for name in ("1-1.ring", "2-2.ring"):
        (run.ring_dir / name).chmod(0o600)
    (run.ring_dir / "3-3.ring").symlink_to("/etc/passwd")
    wait_for(lambda: "ring-refused" in notes(run))
    run.let_go()
    assert run.wait_supervisor() == 0
    assert "ring-refused" in notes(run)
    assert run.wait_report()["steps"]["count"] == 200
    assert Path("/etc/passwd").exists()


@pytest.mark.slow
def test_two_trainings_at_once_are_two_ranks_and_one_after_the_other_is_a_restart(runs, tmp_path):
    trainer = Path(__file__).with_name("ring_trainer.py")
    script = tmp_path / "launcher.py"
    script.write_text(
        "import subprocess, sys\n"
        f"train = [sys.executable, {str(trainer)!r}, '--step-ms', '9']\n"
        "both = [subprocess.Popen(train + ['--steps', '60', '--rank', str(r)]) for r in (0, 1)]\n"
        "[p.wait() for p in both]\n"
        "subprocess.check_call(train + ['--steps', '40', '--rank', '0', '--save-every', '10'])\n"
    )
    run = runs.start(script=script)
    assert run.wait_supervisor() == 0
    with stored(run) as reader:
        assert [s.index for s in reader.steps(rank=0)] == list(range(100))
        assert len(reader.steps(rank=1)) == 60
        (restart,) = reader.intervals(None, None, "restart")
        assert reader.steps(rank=0)[59].t1_ns == restart.t0_ns
        assert reader.steps(rank=0)[60].t0_ns == restart.t1_ns
        saves = reader.intervals(None, None, "checkpoint")
        # The second process counts its places from one again; they are not the first one's.
        assert saves
        assert {save.site_id for save in saves} <= {site.id for site in reader.sites(rank=0)}
        assert 1 not in {save.site_id for save in saves}
    report = run.wait_report()
    assert report["run"]["attempts"] == 2
    gap_s = (restart.t1_ns - restart.t0_ns) / 1e9
    time_ = report["time"]
    assert time_["shares"]["restart"] == pytest.approx(gap_s / time_["training_s"], rel=1e-3)
    assert sum(time_["shares"].values()) == pytest.approx(1, rel=1e-4)


@pytest.mark.slow
def test_a_damaged_store_is_put_aside_and_the_run_goes_on(runs):
    run = runs.start("--steps", "300", held=True)
    wait_for(lambda: stored_steps(run) > 5)
    run.kill_supervisor()
    for path in run.dir.glob("run.sqlite*"):
        path.write_bytes(b"not a database at all" * 1000)
    run.start_supervisor()
    run.let_go()
    assert run.wait_supervisor() == 0
    assert "store-damaged" in notes(run)
    assert list(run.dir.glob("run.sqlite.damaged-*"))
    assert run.wait_report()["steps"]["count"] > 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of two megabytes, or a limit on file size where none may be mounted."""
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield SmallDisk(place, mounted)
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


class SmallDisk:
    def __init__(self, place: Path, mounted: bool) -> None:
        self.place = place
        self.mounted = mounted

    def fill(self, supervisor: int) -> None:
        if not self.mounted:
            size = sum(path.stat().st_size for path in self.place.iterdir())
            resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))
            return
        with open(self.place / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self, supervisor: int) -> None:
        if self.mounted:
            (self.place / "filler").unlink()
        else:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(supervisor, resource.RLIMIT_FSIZE, unlimited)


@pytest.mark.slow
def test_a_full_disk_costs_no_step_and_the_store_kept_elsewhere_comes_home(runs, small_disk):
    run = runs.start("--steps", "100000", "--step-ms", "9")
    wait_for(run.watched)
    run.kill_supervisor()
    for path in run.dir.glob("run.sqlite*"):
        path.unlink()
    described = runfile.read_json(run.dir / "run.json") or {}
    described["store"] = str(small_disk.place / "run.sqlite")
    (run.dir / "run.json").write_text(json.dumps(described))
    run.start_supervisor()
    wait_for(lambda: kept(small_disk.place) > 5)
    small_disk.fill(run.supervisor)
    wait_for(lambda: (run.dir / "supervisor.log").read_text())
    run.wait_steps(run.output.count("step") + 100)
    assert identity.is_alive(run.child)
    assert identity.is_running(run.supervisor)
    small_disk.free(run.supervisor)
    wait_for(lambda: "store-full" in told(small_disk.place))
    client_of(run.dir).stop()
    assert run.wait_supervisor() == 0
    with stored(run) as reader:
        steps = reader.steps()
    assert len(steps) > 100
    assert [step.index for step in steps] == list(range(len(steps)))
    assert all(a.t1_ns == b.t0_ns for a, b in pairwise(steps))
    assert not any(small_disk.place.glob("*"))


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_start_is_waited_for(runs, small_disk):
    if not small_disk.mounted:
        pytest.skip("no small file system may be mounted here")
    run = runs.start("--steps", "60", held=True)
    wait_for(run.watched)
    run.kill_supervisor()
    for path in run.dir.glob("run.sqlite*"):
        path.unlink()
    described = runfile.read_json(run.dir / "run.json") or {}
    described["store"] = str(small_disk.place / "run.sqlite")
    (run.dir / "run.json").write_text(json.dumps(described))
    small_disk.fill(os.getpid())
    with pytest.raises(StoreError):
        Supervisor(run.dir)
    small_disk.free(os.getpid())
    supervisor = Supervisor(run.dir)  # the failed one must not have kept the lock
    supervisor.leave()
    supervisor.run()
    run.start_supervisor()
    run.let_go()
    run.wait_supervisor()
    assert run.wait_report()["steps"]["count"] == 60


def test_the_end_of_a_run_prunes_the_oldest_ones(runs):
    runs.root.mkdir()
    for number in range(55):
        old = runs.root / f"old{number:03}"
        old.mkdir()
        body = {"id": old.name, "host": os.uname().nodename, "started_wall_ns": number}
        (old / "run.json").write_text(json.dumps(body))
        (old / "exit.json").write_text('{"exit_code": 0, "signal": null}')
    run = runs.start("--steps", "5")
    run.wait_supervisor()
    left = {path.name for path in runs.root.iterdir()}
    assert len(left) == 50
    assert run.dir.name in left
    assert "old054" in left
    assert "old000" not in left


def kept(place: Path) -> int:
    with contextlib.suppress(StoreError), RunReader(place / "run.sqlite") as reader:
        return len(reader.steps())
    return 0


def told(place: Path) -> set[str]:
    with contextlib.suppress(StoreError), RunReader(place / "run.sqlite") as reader:
        return {note.kind for note in reader.notes()}
    return set()


def test_a_store_locked_at_the_end_is_waited_for_and_nothing_is_lost(runs):
    run = runs.start("--steps", "60", held=True)
    wait_for(lambda: stored_steps(run) > 0)
    shell = sqlite3.connect(run.dir / "run.sqlite", isolation_level=None)
    shell.execute("BEGIN EXCLUSIVE")
    run.let_go()
    run.wait_exit()
    # Longer than one attempt waits by itself (2 s), so that attempts fail before this one.
    wait_for(lambda: "waits: Another program" in (run.dir / "supervisor.log").read_text())
    shell.execute("ROLLBACK")
    shell.close()
    assert run.wait_report()["steps"]["count"] == 60
    assert run.wait_supervisor() == 0


def test_a_locked_store_is_not_taken_for_a_damaged_one(runs):
    run = runs.start("--steps", "30", held=True)
    wait_for(lambda: stored_steps(run) == 30)
    run.kill_supervisor()
    shell = sqlite3.connect(run.dir / "run.sqlite", isolation_level=None)
    shell.execute("PRAGMA locking_mode = EXCLUSIVE")
    shell.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreBusy):
            Supervisor(run.dir)
    finally:
        shell.close()
    assert not list(run.dir.glob("*.damaged-*"))
    run.start_supervisor()
    run.let_go()
    assert run.wait_report()["steps"]["count"] == 30
