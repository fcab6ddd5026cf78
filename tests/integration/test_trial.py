"""``gputop-train trial`` on small real scripts whose speed is a sleep's, not the machine's."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launching import World, wait_for

#: Loading takes 20 ms a batch in its sleeps, training 5 ms: two workers halve a step at least.
STARVED = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return {rows}
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((4,), float(index)), torch.zeros(1)

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
print("it begins", flush=True)
for rows, target in DataLoader(Rows(), batch_size=2):
    loss = ((model(rows) - target) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
"""


class TrialWorld(World):
    """A world whose commands are trials."""

    def command(self, *arguments: str | bytes, root: bool = True) -> list[str | bytes]:
        own: list[str | bytes] = ["--run-root", str(self.root)] if root else []
        return [sys.executable, "-m", "gputop_train.cli", "trial", *own, *arguments]

    def run(self, *arguments: str | bytes, **given: Any) -> subprocess.CompletedProcess[bytes]:
        """A trial is many runs; its time is bounded by ``--max-minutes`` and the test's own."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env=self.environ,
            cwd=self.place,
            timeout=280,
            check=False,
            **given,
        )

    def trial_json(self) -> dict[str, Any]:
        """What the one trial there is has written down."""
        found = wait_for(lambda: list(self.root.glob("trials/*/trial.json")), "a trial")
        assert len(found) == 1
        loaded: dict[str, Any] = json.loads(found[0].read_bytes())
        return loaded

    def clean(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=30)
        super().clean()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TrialWorld]:
    made = TrialWorld(tmp_path)
    try:
        yield made
    finally:
        made.clean()


def tree_hash(place: Path) -> str:
    """Names, modes, times and contents of everything below a directory but the run root."""
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        if "kept" in path.relative_to(place).parts[:1]:
            continue
        known = path.lstat()
        digest.update(f"{path} {known.st_mode} {known.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def left_over(world: World) -> list[str]:
    """Processes that a trial of this world left, and what is left of its scratch."""
    mark = os.fsencode(world.place)
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            told = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
        except OSError:
            continue
        if mark in told and int(place.name) != os.getpid():
            found.append(place.name)
    return found + [path.name for path in world.root.glob(".trial-*")]


def test_a_faster_setting_is_found_beside_what_was_predicted(world: TrialWorld) -> None:
    world.script(STARVED.format(rows=100_000))
    before = tree_hash(world.place)
    ended = world.run(
        "--set", "num_workers=4", "--steps", "20", "--rounds", "2",
        "--price-per-hour", "3.6", "--json", "-", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr.decode()
    found = json.loads(ended.stdout)
    assert tree_hash(world.place) == before
    assert not left_over(world)

    (workers,) = found["candidates"]
    assert workers["settings"] == {"num_workers": 4}
    assert workers["applied"] is True and workers["refused"] is None
    assert workers["changes_results"] == ["num_workers"]
    # Half a step of 25 ms at the least; a noisy host may spoil the proof, never the direction.
    assert workers["speedup"] > 1.3 and workers["pairs"] == 2
    assert workers["verdict"] in ("faster", "inconclusive")
    assert workers["predicted"] > 1.0
    low, high = workers["interval"]
    assert low <= workers["speedup"] <= high

    baseline = found["baseline"]
    # The first leg set the warm-up, so it may have fewer steps after that.
    assert baseline["legs_run"] == 2 and 30 <= baseline["steps"] <= 40
    assert baseline["time_per_sample_us"] > 10_000
    assert baseline["peak_allocated"] is None and baseline["gpu_busy"] is None
    assert found["table"][0]["cost_per_million"] == pytest.approx(
        baseline["time_per_sample_us"] * 3.6 / 3600, rel=1e-3
    )
    told = ended.stderr.decode()
    assert "changes results" in told and "[1] baseline" in told
    assert world.trial_json()["state"] == "done"


def test_a_refused_setting_costs_one_leg_and_few_steps_are_measured_as_they_are(
    world: TrialWorld,
) -> None:
    world.script(STARVED.format(rows=48))
    ended = world.run("--set", "prefetch_factor=4", "--json", "out.json", "train.py")
    assert ended.returncode == 0, ended.stderr.decode()
    assert "The script ends after 24 steps" in ended.stderr.decode()
    found = json.loads((world.place / "out.json").read_bytes())
    assert found["baseline"]["steps"] >= 10
    (prefetch,) = found["candidates"]
    assert prefetch["applied"] is False and "num_workers" in prefetch["refused"]
    assert prefetch["speedup"] is None and prefetch["verdict"] is None
    assert [leg["arm"] for leg in found["legs"]] == ["baseline", "prefetch_factor=4"]
    assert "baseline" in ended.stdout.decode() and "refused" in ended.stdout.decode()


def test_a_script_that_fails_is_no_baseline(world: TrialWorld) -> None:
    world.script("print('reading')\nraise ValueError('no data here')\n")
    ended = world.run("--set", "num_workers=2", "train.py")
    assert ended.returncode == 1
    told = ended.stderr.decode()
    assert "ValueError: no data here" in told and "Traceback" not in told
    assert world.trial_json()["state"] == "failed"
    assert not left_over(world)


def test_a_script_without_training_says_so(world: TrialWorld) -> None:
    world.script("print('nothing to train')\n")
    ended = world.run("--set", "num_workers=2", "train.py")
    assert ended.returncode == 1
    assert "No training step was seen" in ended.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "num_workers", "train.py"], "has no value"),
        (["--set", "num_wokers=2", "train.py"], "num_wokers"),
        (["--set", "num_workers=2", "--set", "num_workers=2", "train.py"], "given twice"),
        (["--set", "num_workers=2,num_workers=4", "train.py"], "twice"),
        (["--set", "num_workers=2", "--search", "workers", "train.py"], "--search"),
        (["--what-if", "more_money", "train.py"], "more_money"),
        (["--steps", "3", "train.py"], "--steps"),
        (["--set", "num_workers=2"], "nothing to run"),
        (["--set", "num_workers=2", "nowhere.py"], "no script nowhere.py"),
        (["--json", "/nowhere/out.json", "train.py"], "/nowhere"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    world: TrialWorld, arguments: list[str], told: str
) -> None:
    world.script("raise SystemExit('it ran')\n")
    ended = world.run(*arguments)
    assert ended.returncode == 2
    assert told in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr and b"it ran" not in ended.stderr
    assert not list(world.root.glob("trials/*/runs/*"))


def test_what_follows_the_script_belongs_to_the_script(world: TrialWorld) -> None:
    world.script("import sys\nprint(sys.argv[1:])\nraise SystemExit(3)\n")
    ended = world.run("--set", "num_workers=2", "train.py", "--set", "lr=1", "--steps", "-x")
    assert ended.returncode == 1
    (run,) = world.root.glob("trials/*/runs/*")
    assert run.joinpath("output.log").read_text().strip() == "['--set', 'lr=1', '--steps', '-x']"


def test_ctrl_c_before_the_first_step_leaves_nothing(world: TrialWorld) -> None:
    world.script("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    process = world.start("--set", "num_workers=2", "train.py")
    wait_for(lambda: any(world.root.glob("trials/*/runs/*/output.log")), "a leg")
    wait_for(lambda: b"here" in _output(world), "its output")
    _interrupted(world, process, signal.SIGINT, 130)
    assert world.trial_json()["legs"][0]["status"] == "stopped"


@pytest.mark.parametrize(
    ("arm", "number"), [("baseline", signal.SIGTERM), ("num_workers=2", signal.SIGINT)]
)
def test_a_signal_amid_a_leg_ends_it_and_tells_what_is_known(
    world: TrialWorld, arm: str, number: signal.Signals
) -> None:
    world.script(STARVED.format(rows=100_000))
    # The baseline's leg is to be met at its steps, so that has many; a candidate's follows few.
    steps = "2000" if arm == "baseline" else "20"
    before = tree_hash(world.place)
    process = world.start("--set", "num_workers=2", "--steps", steps, "train.py")

    def training() -> bool:
        at = world.trial_json()["progress"] or {}
        return at.get("arm") == arm and at.get("phase") != "ending"

    wait_for(training, f"a leg of {arm}")
    if arm == "baseline":
        wait_for(lambda: (world.trial_json()["progress"] or {}).get("step"), "its steps")
    _interrupted(world, process, number, 128 + number)
    assert tree_hash(world.place) == before
    found = world.trial_json()
    assert found["state"] == "stopped"
    assert found["candidates"] == [] or found["candidates"][0]["status"] == "stopped"


def _output(world: World) -> bytes:
    return b"".join(p.read_bytes() for p in world.root.glob("trials/*/runs/*/output.log"))


def _interrupted(
    world: World, process: subprocess.Popen[bytes], number: signal.Signals, code: int
) -> None:
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err.decode()
    assert b"Traceback" not in err + out
    assert not left_over(world)
