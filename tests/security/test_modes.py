"""What a run leaves on a machine is its owner's alone, whatever the umask it was started under."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch.control import client_of
from tests.integration.supervised import Runs, wait_for
from tests.launching import PATIENCE_S, World, world
from tests.unprivileged import open_to_all, run_as_nobody

_NOT_OURS = ("__pycache__", "torchinductor_")


def open_to_others(*places: Path) -> list[str]:
    """What below these places others could enter, read, write or run, and under which mode.

    Directories that Python makes for its bytecode are Python's, and lie in directories of ours; what
    torch keeps in ``TMPDIR`` a bare script would have made as well.
    """
    found = []
    for place in places:
        for path in (place, *place.rglob("*")):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or path.name.startswith(_NOT_OURS):
                continue
            if stat.S_IMODE(mode) & 0o077:
                found.append(f"{stat.S_IMODE(mode):04o} {path}")
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Runs whose root is made by the first of them."""
    runs = Runs(tmp_path / "runs")
    yield runs
    runs.clean()


def owners_of_files(pid: int) -> set[int]:
    """Owners of the regular files a process holds open for writing."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            info = link.stat()
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode) and os.access(link, os.W_OK):
            found.add(info.st_uid)
    return found


SECOND_USER = """
import os, signal, socket, sys
run, ring, door, child, supervisor = sys.argv[1:]
def ask(what, *given):
    try:
        what(*given)
        print(what.__name__, "was allowed", given)
    except OSError as error:
        print(type(error).__name__)
ask(os.listdir, run)
ask(open, os.path.join(run, "run.json"))
ask(os.rename, run, run + "-away")
ask(os.listdir, os.path.dirname(ring))
ask(open, ring, "rb")
ask(open, ring, "r+b")
ask(socket.socket(socket.AF_UNIX).connect, door)
ask(os.kill, int(child), signal.SIGTERM)
ask(os.kill, int(supervisor), signal.SIGTERM)
ask(open, f"/proc/{child}/environ", "rb")
ask(open, f"/proc/{child}/mem", "rb")
"""


def test_a_live_run_is_its_owners_alone_under_any_umask(runs: Runs) -> None:
    """root proves nothing: the one who asks is a second user without any right."""
    before = os.umask(0)
    try:
        run = runs.start("--steps", "30", "--step-ms", "1", held=True)
    finally:
        os.umask(before)
    wait_for(run.watched)
    assert client_of(run.dir).ping()["run"] == run.dir.name
    ring = wait_for(lambda: next(run.ring_dir.glob("*.ring"), None))
    wait_for((run.dir / "run.sqlite-wal").exists)
    assert not open_to_others(runs.root, run.ring_dir, run.ring_dir.parent)
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in run.ring_dir.iterdir()}
    assert kinds == {stat.S_IFREG, stat.S_IFSOCK}
    for pid in (run.supervisor, run.child.pid):
        assert not owners_of_files(pid) - {os.geteuid()}

    open_to_all(runs.root.parent)
    runs.root.chmod(0o755)  # as a person's own directory may be
    places = (str(run.dir), str(ring), str(run.ring_dir / "control.sock"))
    refused = run_as_nobody(SECOND_USER, *places, str(run.child.pid), str(run.supervisor))
    assert refused.stdout.split() == ["PermissionError"] * 11, refused.stdout + refused.stderr
    cli = "import sys; from gputop_train.cli import main; main(sys.argv[1:])"
    root = ("--run-root", str(runs.root))
    attached = run_as_nobody(cli, "attach", run.dir.name, "--no-tui", *root)
    assert attached.returncode == 1 and "There is no run" in attached.stderr

    run.let_go()
    run.wait_report()
    assert run.wait_supervisor() == 0
    assert {"run.json", "exit.json", "report.json", "run.sqlite"} <= set(os.listdir(run.dir))
    runs.root.chmod(0o700)
    assert not open_to_others(runs.root)


TRAIN = """
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(int(sys.argv[1])):
    for x, y in DataLoader(TensorDataset(torch.randn(640, 64), torch.randn(640, 4)), 16):
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    """A world whose temporary and state directories are its own."""
    with world(tmp_path) as made:
        for name in ("tmp", "state", "runtime"):
            (tmp_path / name).mkdir(mode=0o700)
        made.environ["TMPDIR"] = str(tmp_path / "tmp")
        made.environ["XDG_RUNTIME_DIR"] = str(tmp_path / "runtime")
        made.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        yield made


@pytest.mark.long
@pytest.mark.parametrize("mask", [0o000, 0o077], ids=oct)
def test_no_command_leaves_anything_that_others_can_read(here: World, mask: int) -> None:
    """Run, trial, report, recording, attach, doctor, serve: then every file is looked at."""
    here.script(TRAIN)
    patient = {"umask": mask, "env": here.environ, "cwd": here.place, "timeout": 10 * PATIENCE_S}

    def call(*words: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            here.command(*words, root=False), capture_output=True, check=False, **patient
        )
        assert done.returncode == 0, done.stderr.decode()
        return done

    kept = ["--run-root", str(here.root)]
    call("--no-tui", *kept, "train.py", "8")
    call("report", here.run_dir().name, *kept)
    call(
        "trial", "--set", "num_workers=0", "--steps", "10", "--rounds", "1", *kept, "train.py", "9"
    )
    call("doctor", "--json", *kept)
    live = here.start("--no-tui", "train.py", "100000", umask=mask)
    ended = [path.parent for path in here.root.glob("*/exit.json")]
    begun = wait_for(
        lambda: [p.parent for p in here.root.glob("*/run.json") if p.parent not in ended]
    )
    run_dir = begun[0]
    wait_for((run_dir / "run.sqlite").exists)
    call("attach", run_dir.name, "--duration", "1", *kept)
    view = here.start("serve", f"{run_dir}/", "--port", "0", root=False, umask=mask)
    assert view.stdout is not None
    assert view.stdout.readline().startswith(b"Open ")
    places = [here.root, here.place / "tmp", here.place / "state", here.place / "runtime"]
    seen = open_to_others(*places)
    view.send_signal(signal.SIGINT)
    view.communicate(timeout=PATIENCE_S)
    live.send_signal(signal.SIGINT)
    live.wait(timeout=PATIENCE_S)
    wait_for((run_dir / "report.json").exists)
    assert not seen
    assert not open_to_others(*places)
    assert set(os.listdir(here.place)) == {"kept", "train.py", "tmp", "state", "runtime"}
