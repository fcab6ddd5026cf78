"""Whatever a script prints, and however fast: it arrives whole, and nothing of ours suffers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.launch.logtail import MAX_WIDTH, LogTail
from gputop_train.launch.printed import printed
from tests.faults.matrix import told
from tests.faults.training import lost_words, report, screen
from tests.launching import World, wait_for, world

#: Each kind of flood, as a statement; ``w`` writes to stdout without a buffer.
FLOODS = {
    "one line of 10 MB": 'w(b"x" * 10_000_000)',
    "binary output": "w(bytes(range(256)) * 4096)",
    "text that is no UTF-8": 'w("caf\\xe9 \\xff\\xfe\\n".encode("latin-1") * 5_000)',
    "control sequences": 'w(b"\\x1b[2J\\x1b]0;title\\x07\\x1b[999;999H\\x9b31m\\r\\n" * 5_000)',
    "a progress bar without an end": 'w(b"\\r 50%|#####     | loss=0.1" * 50_000)',
    "100,000 lines": 'w(b"".join(b"line %d\\n" % i for i in range(100_000)))',
}
WRITER = """
import hashlib, os, sys, time
def w(data):
    while data:
        data = data[os.write(1, data):]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def bare_output(here: World, *words: str, script: str = "train.py") -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, script, *words],
        cwd=here.place, env={**here.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_flood_of_every_kind_arrives_whole_and_is_bounded_wherever_it_is_shown(
    here: World,
) -> None:
    here.script(WRITER + "\n".join(FLOODS.values()) + "\nsys.exit(3)\n")
    bare = bare_output(here)
    done = here.run("--no-tui", "--json", "out.json", "train.py")
    assert (done.returncode, hash_of(done.stdout)) == (bare[0], hash_of(bare[1]))
    assert hash_of(here.output()) == hash_of(bare[1])
    assert b"Traceback" not in done.stderr
    assert json.loads((here.place / "out.json").read_bytes())["data_lost"] == []
    shows_within_bounds(here.run_dir() / "output.log")


def shows_within_bounds(log: Path) -> None:
    """The screen's pane and page of a log, and what the report counts of it."""
    with contextlib.closing(LogTail(log)) as tail:
        tail.poll()
        assert tail.lines() and all(len(line) <= MAX_WIDTH for line in tail.lines())
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", "".join(tail.lines()))
    found = printed(log)
    assert found is not None and found.total_bytes == log.stat().st_size


def hash_of(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


#: Prints as fast as it is told to between steps of training, which must not notice.
FLOODED = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
lines = b"".join(b"line %07d of a flood\\n" % i for i in range(2_000))
kind, steps = sys.argv[1], int(sys.argv[2])
for step in range(steps):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if kind == "100,000 lines/s":
        w(lines); time.sleep(0.015)  # 2,000 lines each 20 ms
    elif step % 10 == 0:
        FLOODS
    if kind != "one line of 10 MB":
        w(b"step %d %s\\n" % (step, loss.item().hex().encode()))
for value in model.state_dict().values():
    w(hashlib.sha256(value.numpy().tobytes()).hexdigest().encode())
sys.exit(3)
"""
FLOODED_SCRIPT = WRITER + FLOODED.replace(
    "FLOODS",
    "\n        ".join(f"if kind == {name!r}: {flood}" for name, flood in FLOODS.items()),
)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [*FLOODS, "100,000 lines/s"])
def test_training_under_a_flood_is_the_same_to_a_bit(here: World, kind: str) -> None:
    here.script(FLOODED_SCRIPT)
    steps = "500" if kind == "100,000 lines/s" else "60"
    code, bare = bare_output(here, kind, steps)
    assert code == 3
    with open(here.place / "shown", "wb") as shown, open(here.place / "said", "wb") as said:
        front = here.start("--no-tui", "train.py", kind, steps, stdout=shown, stderr=said)
        assert front.wait(240) == 3
    assert hash_of((here.place / "shown").read_bytes()) == hash_of(bare)
    assert hash_of(here.output()) == hash_of(bare)
    shows_within_bounds(here.run_dir() / "output.log")
    found = report(here)
    assert found["steps"]["count"] == int(steps)
    assert b"Traceback" not in (here.place / "said").read_bytes()
    told("floods of output", lost=lost_words(found), detail=kind)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["100,000 lines/s", "control sequences", "one line of 10 MB"])
def test_a_screen_beside_a_flood_stays_and_the_training_is_the_same_to_a_bit(
    here: World, kind: str
) -> None:
    here.script(FLOODED_SCRIPT)
    steps = "300" if kind == "100,000 lines/s" else "60"
    code, bare = bare_output(here, kind, steps)
    assert code == 3
    with screen(here, "train.py", kind, steps) as shown:
        shown.shows()
        shown.type(b"9")  # the page that shows what is printed
        assert here.exit_json()["exit_code"] == 3
        wait_for(here.gone, "the script's end")
        shown.shows(b"exit code 3")
        assert not shown.ended()
    assert hash_of(here.output()) == hash_of(bare)
    assert b"Traceback" not in shown.said and b"\x1b]0;title" not in shown.said
    found = report(here)
    assert (found["steps"]["count"], found["data_lost"]) == (int(steps), [])
    told("floods of output", lost=lost_words(found), detail=f"{kind}, on the screen")


@pytest.mark.long
def test_a_run_whose_names_are_no_utf_8_is_recorded(here: World) -> None:
    """Arguments, script and directories are bytes on Linux; one such byte once cost the record."""
    odd = os.fsdecode(b"caf\xe9")
    here.place = here.place / odd
    here.root = here.place / odd
    script = here.script(WRITER + FLOODED.replace("FLOODS", "pass"), f"{odd}.py")
    bare = bare_output(here, odd, "60", script=script.name)
    done = here.run("--no-tui", script.name, odd, "60")
    assert (done.returncode, done.stdout) == bare
    found = report(here)
    assert (found["steps"]["count"], found["data_lost"]) == (60, [])
    assert b"Traceback" not in done.stderr and b"gone" not in done.stderr, done.stderr
    told("names that are no UTF-8", lost=lost_words(found))
