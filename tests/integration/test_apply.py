"""A watched run's advice as a diff, applied by patch and by ``apply``, and undone."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launching import World, wait_for, world

pytestmark = pytest.mark.slow

SCRIPT = """\
import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--forever", action="store_true")
args = parser.parse_args()


class Slow(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        time.sleep(0.006)  # asleep: workers need no core that other tests may have
        return torch.zeros(8), torch.zeros(1)


model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(
    Slow(),
    batch_size=4,  # small
)
for epoch in range(10**6 if args.forever else 2):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", flush=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def on_terminal(here: World, typed: bytes, *words: str) -> tuple[int, bytes]:
    """Run a command with a terminal as its stdin; return its exit code and stderr."""
    master, slave = pty.openpty()
    try:
        os.write(master, typed)
        done = here.run(*words, root=False, stdin=slave)
        return done.returncode, done.stderr
    finally:
        os.close(slave)
        os.close(master)


def test_advice_is_shown_applied_and_undone(here: World) -> None:
    script = here.script(SCRIPT)
    script.chmod(0o750)
    here.run("train.py")
    run, root = here.run_dir().name, ("--run-root", str(here.root))
    apply = ("apply", run, *root)

    shown = here.run("report", run, *root, "--diff", root=False)
    assert shown.returncode == 0
    workers = re.search(rb"^\+    num_workers=(\d+),$", shown.stdout, re.MULTILINE)
    assert workers is not None, shown.stdout
    assert script.read_text() == SCRIPT
    wanted = b"    batch_size=4,  # small\n    num_workers=" + workers[1] + b",\n"

    copy = here.script(SCRIPT, "copy/train.py")
    tools = [["git", "apply"], *([["patch", "-p1"]] if shutil.which("patch") else [])]
    for tool in tools:
        copy.write_text(SCRIPT)
        done = subprocess.run(tool, input=shown.stdout, cwd=copy.parent, check=False)
        assert done.returncode == 0 and wanted in copy.read_bytes()

    unasked = here.run(*apply, root=False)
    assert unasked.returncode == 2 and b"--yes" in unasked.stderr
    absent = here.run(*apply, "--only", "99", "--yes", root=False)
    assert absent.returncode == 2 and b"no advice number 99" in absent.stderr
    code, said = on_terminal(here, b"n\n", *apply)
    assert code == 0 and b"Nothing was changed" in said
    assert script.read_text() == SCRIPT

    code, said = on_terminal(here, b"y\n", *apply, "--only", "1")
    assert code == 0, said
    assert wanted in script.read_bytes()
    assert script.stat().st_mode & 0o777 == 0o750
    backup = here.place / "train.py.gputop-train.bak"
    assert backup.read_text() == SCRIPT
    compile(script.read_text(), "train.py", "exec")

    # The file is newer than the run now, but by our own hand; the line says so already.
    again = here.run(*apply, "--only", "1", "--yes", root=False)
    assert again.returncode == 1 and b"changed after" not in again.stdout

    undo = re.search(rb"To undo it: (mv .*)", said)
    assert undo is not None
    subprocess.run(["sh", "-c", undo[1].strip()], check=True)
    assert script.read_text() == SCRIPT and not backup.exists()
    assert here.run(*apply, "--yes", root=False).returncode == 0

    script.write_text("# mine\n" + SCRIPT)
    stale = here.run(*apply, "--yes", root=False)
    assert stale.returncode == 1 and b"changed after this run began" in stale.stdout
    assert script.read_text() == "# mine\n" + SCRIPT


def test_a_file_of_a_run_that_still_trains_is_left_alone(here: World) -> None:
    script = here.script(SCRIPT)
    started = here.start("train.py", "--forever")
    here.wait_for_output(b"epoch")
    run = here.run_dir().name
    refused = here.run("apply", run, "--yes", "--run-root", str(here.root), root=False)
    assert refused.returncode == 1 and b"still trains" in refused.stderr
    assert script.read_text() == SCRIPT
    started.terminate()
    wait_for(lambda: started.poll() is not None, "the end")


def test_explain_prints_a_page_and_lists_them(here: World) -> None:
    listed = here.run("explain", root=False)
    assert listed.returncode == 0 and b"main-process-loading" in listed.stdout
    page = here.run("explain", "main-process-loading", root=False).stdout.decode()
    assert page.startswith("# main-process-loading") and "## Thresholds" in page
    unknown = here.run("explain", "gremlins", root=False)
    assert unknown.returncode == 2 and b"no diagnosis gremlins" in unknown.stderr
