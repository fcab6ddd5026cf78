"""Runs kept on a file system that is slow, hangs, or is written by others: training does not wait."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.disks import small_disk
from tests.faults.matrix import told
from tests.faults.training import EXIT_CODE, TRAINING, Plain, lost_words, plain, report, unharmed
from tests.launching import World, wait_for, world

SERVER = Path(__file__).with_name("slow_fs.py")
STEPS = 100


@dataclass
class Network:
    """A slow file system and the process that serves it."""

    place: Path
    server: subprocess.Popen[bytes]

    def hang(self) -> None:
        """Stop answering."""
        self.server.send_signal(signal.SIGSTOP)

    def answer(self) -> None:
        """Answer again, what was asked meanwhile first."""
        self.server.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def network(place: Path, backing: Path, delay_s: float) -> Iterator[Network]:
    """Mount one; skips where FUSE cannot be had."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no FUSE for this user")
    place.mkdir(exist_ok=True)
    backing.mkdir(exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(backing), str(place), str(delay_s)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        if server.stdout is None or server.stdout.readline() != b"mounted\n":
            _, said = server.communicate()
            pytest.skip("no FUSE can be mounted here: " + said.decode()[-200:])
        yield Network(place, server)
    finally:
        server.send_signal(signal.SIGCONT)
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
        server.kill()
        server.communicate()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    return plain(tmp_path_factory.mktemp("plain"), STEPS, 1)


def test_a_script_goes_on_and_hears_signals_while_its_run_directory_hangs(here: World) -> None:
    beats, ended = here.place / "beats", here.place / "ended"
    here.script(
        f"""
        import os, signal, sys, time
        heard = []
        signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
        print("begins", flush=True)
        while not heard:
            with open({str(beats)!r}, "a") as file: file.write(".")
            time.sleep(0.02)
        open({str(ended)!r}, "w").close()
        os._exit(3)
        """
    )
    with network(here.root, here.place / "backing", 0.0) as remote:
        front = here.start("--no-tui", "train.py")
        here.wait_for_output(b"begins")
        here.supervisor_pid()
        store, ring_dir = Path(here.run_json()["store"]), Path(here.run_json()["ring_dir"])
        assert not store.is_relative_to(here.root) and not ring_dir.is_relative_to(here.root)
        remote.hang()
        before = beats.stat().st_size
        wait_for(lambda: beats.stat().st_size > before + 20, "the script goes on")
        front.send_signal(signal.SIGUSR1)
        wait_for(ended.exists, "the signal")
        remote.answer()
        out, err = front.communicate(timeout=120)
        assert (front.returncode, out) == (3, b"begins\n")
        assert b"Traceback" not in err
        assert (here.run_dir() / "run.sqlite").exists() and not store.exists()


@pytest.mark.long
@pytest.mark.parametrize("delay_ms", [1, 10])
def test_training_in_a_slow_home_is_the_same_to_a_bit(
    here: World, bare: Plain, delay_ms: int
) -> None:
    here.script(TRAINING)
    with network(here.root, here.place / "backing", delay_ms / 1000):
        front = here.start("--no-tui", *bare.arguments(0.02))
        out, err = front.communicate(timeout=240)
        assert (front.returncode, out) == (EXIT_CODE, bare.output)
        unharmed(here, bare)
        found = report(here)
        assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
        assert b"Traceback" not in err
        told("slow file system", lost=lost_words(found), detail=f"{delay_ms} ms a request")


@pytest.mark.long
@pytest.mark.parametrize("hung_s", [3, 20])
def test_training_in_a_home_that_hangs_for_a_while_is_the_same_to_a_bit(
    here: World, bare: Plain, hung_s: float
) -> None:
    """What the script prints meanwhile waits, as into any file there; it prints nothing here."""
    gate = here.place / "gate"
    here.script(
        TRAINING.replace(
            'print("step"',
            f'open({str(here.place / "beats")!r}, "a").write("."); kept.append(("step"',
        )
        .replace("flush=True)", "))")
        .replace("told = ", "[print(*line) for line in kept]\ntold = ")
        .replace("torch.manual_seed(0)", "torch.manual_seed(0); kept = []")
    )
    with network(here.root, here.place / "backing", 0.001) as remote:
        front = here.start("--no-tui", *bare.arguments(0.02, gate, 20))
        beats = here.place / "beats"
        wait_for(lambda: beats.exists() and beats.stat().st_size == 20, "step 20")
        remote.hang()
        gate.touch()
        until = time.monotonic() + hung_s
        wait_for(lambda: beats.stat().st_size == STEPS, "all steps while it hangs")
        time.sleep(max(0.0, until - time.monotonic()))
        remote.answer()
        out, err = front.communicate(timeout=240)
        assert (front.returncode, out) == (EXIT_CODE, bare.output)
        found = report(here)
        assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
        assert b"Traceback" not in err
        told("file system that hangs", lost=lost_words(found), detail=f"{hung_s} s")


# -- homes that cannot be written, and homes of several machines -------------------------------


@pytest.mark.long
@pytest.mark.parametrize("how", ["mounted read-only", "full"])
def test_a_home_that_takes_no_run_is_said_and_the_run_kept_elsewhere(
    here: World, bare: Plain, how: str
) -> None:
    here.script(TRAINING)
    home, spare = here.place / "home", here.place / "spare"
    spare.mkdir()
    with small_disk(home, "64k", read_only=how != "full") as disk:
        if how == "full":
            disk.fill()
        # The machine's own /var/tmp is hidden, so that nothing of the test stays in it.
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", 'mount --bind "$SPARE" /var/tmp && exec "$@"', "sh",
             *here.command("--no-tui", *bare.arguments(), root=False)],
            cwd=here.place, capture_output=True, timeout=240, check=False,
            env={**here.environ, "HOME": str(home), "XDG_STATE_HOME": str(home), "SPARE": str(spare)},
        )  # fmt: skip
    said = b" ".join(done.stderr.split())
    assert (done.returncode, done.stdout) == (EXIT_CODE, bare.output), said
    kept = f"/var/tmp/gputop-train-{os.geteuid()}"
    assert f"This run is kept in {kept}/runs".encode() in said, said
    why = b"No space left on device" if how == "full" else b"Read-only file system"
    assert why in said and b"Traceback" not in said
    (report_json,) = (spare / Path(kept).name / "runs").glob("*/report.json")
    assert b'"data_lost": []' in report_json.read_bytes()
    told("home full or read-only", detail=how)


@pytest.mark.long
def test_a_store_that_another_machine_holds_locked_costs_a_wait_for_the_report_alone(
    here: World, bare: Plain
) -> None:
    """Its process is stood in for by one of here: a lock that NFS passes on looks the same."""
    here.script(TRAINING)
    gate = here.place / "gate"
    front = here.start("--no-tui", *bare.arguments(0.02, gate, 20))
    here.wait_for_output(b"step 19 ")
    store = Path(here.run_json()["store"])
    wait_for(store.exists, "a store")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    gate.touch()
    out, err = front.communicate(timeout=240)
    assert (front.returncode, out) == (EXIT_CODE, bare.output)
    assert b"The report is not ready after" in err and b"Traceback" not in err
    holder.communicate()
    found = report(here)
    assert (found["steps"]["count"], found["data_lost"]) == (STEPS, [])
    unharmed(here, bare)
    told("store locked by another machine", lost=lost_words(found))


HOLD = """
import sqlite3, sys
store = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
store.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""
