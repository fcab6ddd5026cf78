"""Training that was started without us: named, looked at from outside, and left as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gputop_train.launch.outside import facts, listing, spying
from gputop_train.launch.outside.session import Session
from gputop_train.launch.outside.target import Refused, look_at
from gputop_train.launch.processes import process_table
from gputop_train.report.schema import validate
from tests.unprivileged import run_as_nobody

DEMOS = Path(__file__).parents[2] / "demos"
PATIENCE_S = 120.0
IDLE = "import sys, time, torch\nprint('ready', flush=True)\ntime.sleep(600)\n"


class Plain:
    """Scripts started as anybody would, and ended with the test."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._started: list[subprocess.Popen[bytes]] = []

    def demo(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.start(str(DEMOS / f"{name}.py"), *arguments, ready="step ")

    def start(self, *arguments: str, ready: str | None = None) -> subprocess.Popen[bytes]:
        log = self._place / f"{len(self._started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-u", *arguments], stdout=out, stderr=out, cwd=self._place
            )
        process.log = log  # type: ignore[attr-defined]
        self._started.append(process)
        deadline = time.monotonic() + PATIENCE_S
        while ready is not None and ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        return process

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def plain(tmp_path):
    started = Plain(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    started = Plain(tmp_path_factory.mktemp("idle"))
    yield started.start("-c", IDLE, "--api-token", "hunter2hunter2", ready="ready")
    started.end()


def cli(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "gputop_train.cli", *map(str, arguments)]


def attach(*arguments: object, **given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        cli("attach", *arguments), capture_output=True, text=True, timeout=PATIENCE_S, **given
    )


def watched(pid: int) -> dict[str, object]:
    """The report of a process once there is a verdict: by what was seen, not by the clock."""
    session, leave = Session(look_at(pid), spying.find()), threading.Event()
    deadline = time.monotonic() + PATIENCE_S

    def tell() -> None:
        if session.judged()[1].status == "verdict" or time.monotonic() > deadline:
            leave.set()

    session.watch(None, leave, tell)
    seen, found = session.judged()
    report = facts.build(look_at(pid), seen, found, ended=False, started_wall_ns=time.time_ns())
    assert validate(report) == []
    assert report["status"] == "verdict", report
    assert facts.summary(report, 100) and all(
        map(str.isascii, facts.summary(report, 80, ascii_only=True))
    )
    return report


def spies_on(pid: int) -> list[int]:
    found = []
    for other in process_table():
        try:
            words = Path(f"/proc/{other}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"record" in words and str(pid).encode() in words:
            found.append(other)
    return found


def test_a_loader_without_workers_is_named_with_its_line_and_the_datasets(plain, tmp_path):
    shutil.copy(DEMOS / "starved.py", tmp_path / "train.py")
    demo = plain.start("train.py", "--steps", "100000", ready="step ")  # its frames say "train.py"
    report = watched(demo.pid)
    verdict = report["verdict"]
    assert (verdict["id"], verdict["refined"]) == ("input-bound", "main-process-loading")
    assert verdict["confidence"] in ("low", "medium")
    source = (DEMOS / "starved.py").read_text().splitlines()
    first, *others = verdict["where"]
    assert "DataLoader(" in source[first["line"] - 1]
    assert others and all(w["file"] == str(tmp_path / "train.py") for w in others)
    # What nobody sees from outside is not made up.
    assert set(report["steps"].values()) == {None}
    assert set(report["gpu"]["exposed"].values()) == {None}
    assert {"steps", "exposed_idle", "nvml"} <= set(report["run"]["signals_missing"])
    assert abs(sum(v for v in report["time"]["shares"].values() if v) - 1) < 0.01


@pytest.mark.long
def test_saves_are_named_with_the_line_that_saves_and_ctrl_c_leaves(plain, tmp_path):
    demo = plain.demo("checkpointing", "--steps", "100000")
    report = watched(demo.pid)
    assert report["verdict"]["id"] == "checkpoint-stall"
    source = (DEMOS / "checkpointing.py").read_text().splitlines()
    assert "torch.save(" in source[report["verdict"]["where"][0]["line"] - 1]
    leave_by_ctrl_c(demo, tmp_path / "runs")


def leave_by_ctrl_c(demo, root):
    joined = subprocess.Popen(
        cli("attach", demo.pid, "--run-root", root, "--json", "-"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not spies_on(demo.pid):
        assert time.monotonic() < deadline and joined.poll() is None
        time.sleep(0.05)
    joined.send_signal(signal.SIGINT)
    told, said = joined.communicate(timeout=PATIENCE_S)
    assert joined.returncode == 0
    assert "Left; training goes on." in said
    assert json.loads(told)["attached"]["pid"] == demo.pid
    assert demo.poll() is None
    assert spies_on(demo.pid) == []


def test_training_ends_as_without_us_and_nothing_is_left(plain, tmp_path):
    steps = ("--steps", "40", "--batch-size", "8", "--seed", "3")
    alone = plain.start(str(DEMOS / "starved.py"), *steps)
    assert alone.wait(PATIENCE_S) == 0
    seen = plain.demo("starved", *steps)
    target, root = tmp_path / "seen.json", tmp_path / "runs"
    before = set(tmp_path.iterdir())
    joined = attach(seen.pid, "--json", target, "--run-root", root)
    assert seen.wait(PATIENCE_S) == 0
    assert "Traceback" not in joined.stderr
    assert f"Process {seen.pid} has ended" in joined.stderr
    assert validate(json.loads(target.read_text())) == []
    last = [p.log.read_text().splitlines()[-1].partition("final loss")[2] for p in (alone, seen)]
    assert last[0] and last[0] == last[1]
    assert set(tmp_path.iterdir()) - before <= {target}
    assert spies_on(seen.pid) == []


def test_a_process_that_does_not_train_is_no_verdict(idle):
    joined = attach(idle.pid, "--duration", "3", "--json", "-")
    assert joined.returncode == 0
    report = json.loads(joined.stdout)
    assert (report["status"], report["healthy"]) == ("no-steps", None)


def test_what_trains_is_listed_with_its_secrets_masked(idle, tmp_path):
    found = {one.pid: one for one in listing.find(tmp_path)}
    mine = found[idle.pid]
    assert (mine.sight, mine.workers, mine.run) == ("sampling", 0, None)
    shown = "\n".join(listing.lines(list(found.values()), 200))
    assert str(idle.pid) in shown and "--api-token ***" in shown and "hunter2" not in shown
    assert os.getpid() not in found
    with_ring = listing.choose([mine], [])
    assert with_ring == idle.pid
    with pytest.raises(Refused, match=r"gputop-train train\.py"):
        listing.choose([], [])
    with pytest.raises(Refused, match=f"gputop-train attach {mine.pid}"):
        listing.choose([mine, mine], [])


def test_every_refusal_says_what_to_do(tmp_path):
    other = subprocess.Popen(["sleep", "600"])
    ended = subprocess.Popen(["true"])
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    try:
        while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        for pid, words in (
            (other.pid, "is not Python: it runs"),
            (ended.pid, "has ended already"),
            (4_000_000_000, "no process"),
            (thread.native_id, f"is a thread of process {os.getpid()}"),
        ):
            refused = attach(pid, "--run-root", tmp_path)
            assert refused.returncode == 1
            assert words in refused.stderr
            assert refused.stderr.count("\n") == 1 and "gputop-train attach" in refused.stderr
    finally:
        leave.set()
        other.kill()
        other.wait()
        ended.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_users_process_is_refused_in_words(idle, tmp_path):
    code = "import sys; from gputop_train.cli import main; sys.argv[0] = 'gputop-train'; main()"
    refused = run_as_nobody(code, "attach", str(idle.pid), "--run-root", str(tmp_path / "none"))
    assert refused.returncode == 1, refused.stderr
    assert f"Process {idle.pid} belongs to root" in refused.stderr
    assert "sudo -u root" in refused.stderr
    assert idle.poll() is None
