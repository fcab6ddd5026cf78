"""``gputop-train check`` as a CI runs it: real repositories, real training, real exit codes.

Steps sleep, so that what they take does not depend on the machine; a check goes on until its
interval is clear, so that a noisy machine makes it longer and not wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputop_train.check_commands import check as check_command
from gputop_train.trial import baseline
from gputop_train.trial.check_record import Side
from gputop_train.trial.record import LegResult
from tests.integration.test_versions import git
from tests.launching import World, world

TRAIN = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from pace import PACE

    print(open("data/note.txt").read())
    data = TensorDataset(torch.zeros(8 * {steps}, 4), torch.zeros(8 * {steps}))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {save}
    for x, y in DataLoader(data, batch_size=8):
        time.sleep(PACE)
        loss = ((model(x).squeeze(1) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
SAVE = 'torch.save(model.state_dict(), "model.pt")'
SHORT = ("--steps", "20", "--warmup", "3")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "repo") as made:
        made.place.mkdir()
        made.root = tmp_path / "kept"
        made.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        # The working directory is the person's: what we are must not come from it.
        made.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        yield made


def repository(here: World, *, steps: int = 200, pace: float = 0.05) -> None:
    """A repository whose one commit is tagged ``before``."""
    here.script(TRAIN.format(steps=steps, save=SAVE))
    here.script(f"PACE = {pace}\n", "pace.py")
    here.script("data/\n", ".gitignore")
    here.script("untracked", "data/note.txt")
    here.script("saved before", "model.pt")
    git(here.place, "init", "-q", "-b", "main")
    git(here.place, "add", ".")
    git(here.place, "commit", "-qm", "before")
    git(here.place, "tag", "before")


def check(here: World, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "gputop_train", "check", "--run-root", str(here.root)]
    return subprocess.run(
        [*command, *words],
        cwd=here.place,
        env=here.environ,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def tree(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """The whole working tree, git's own files included."""
    return {
        str(p.relative_to(place)): (p.lstat().st_mode, p.lstat().st_mtime_ns, p.read_bytes())
        for p in sorted(place.rglob("*"))
        if p.is_file()
    }


@pytest.mark.long
def test_a_planted_slowdown_of_a_fifth_fails_and_nothing_in_the_tree_changes(here: World) -> None:
    repository(here)
    here.script("PACE = 0.06\n", "pace.py")
    before = tree(here.place)
    done = check(here, "--baseline-ref", "before", "--json", "-", *SHORT, "train.py")
    found = json.loads(done.stdout)
    assert (done.returncode, found["result"]) == (4, "regression"), done.stderr
    assert found["baseline"].startswith("before (")
    assert found["interval"][0] > 1.05
    assert found["invariants"]["recompiles"]["ok"] is True
    assert any("allowed" in reason for reason in found["reasons"])
    assert tree(here.place) == before
    assert not list(Path(found["trial"]).glob("older"))
    assert not list(here.root.glob(".trial-*"))


def test_what_does_not_drift_passes_also_where_the_older_code_runs_elsewhere(here: World) -> None:
    """Without overlays a leg may not change ``model.pt``, so neither version does."""
    repository(here, steps=40, pace=0.001)
    here.script(TRAIN.format(steps=40, save=""))
    git(here.place, "commit", "-qam", "save nothing")
    here.script("PACE = 0.002\n", "pace.py")
    summary = here.place.parent / "summary.md"
    summary.write_text("before\n")
    done = check(
        here,
        *("--baseline-ref", "HEAD", "--guard", "refuse", "--no-time"),
        *("--markdown", str(summary), *SHORT, "train.py"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert b"pass against HEAD" in done.stdout
    told = summary.read_text()
    assert told.startswith("before\n### gputop-train check: pass")
    assert "| recompilations | 0 | 0 | 0 | ok |" in told


def test_too_few_steps_are_inconclusive_and_the_number_needed_is_said(here: World) -> None:
    repository(here, steps=8, pace=0.01)
    done = check(here, "--baseline-ref", "before", "--json", "-", "train.py")
    found = json.loads(done.stdout)
    assert (done.returncode, found["result"]) == (3, "inconclusive"), done.stderr
    assert "8 steps" in found["reasons"][0] and "at least 10" in found["reasons"][0]
    assert found["step_ratio"] is None


def test_too_few_steps_asked_for_are_inconclusive_at_once(here: World) -> None:
    repository(here)
    words = ("--baseline-ref", "before", "--steps", "5", "--json", "-", "train.py")
    done = check(here, *words)
    found = json.loads(done.stdout)
    assert (done.returncode, found["result"]) == (3, "inconclusive")
    assert found["reasons"] == ["5 measured steps are too few: a leg needs 10 at least."]
    assert not list(here.root.glob("trials/*"))


def test_a_script_that_fails_is_failed_with_its_own_last_words(here: World) -> None:
    here.script("raise RuntimeError('no such data')")
    here.script("print()", "old.py")
    done = check(here, "--baseline-ref", "./old.py", "--json", "-", "train.py")
    found = json.loads(done.stdout)
    assert (done.returncode, found["result"]) == (1, "failed")
    assert "RuntimeError: no such data" in found["reasons"][0]


def test_a_baseline_is_stored_for_everybody_to_read(here: World) -> None:
    repository(here, steps=40, pace=0.001)
    file = here.place / "base.json"
    done = check(here, "--save-baseline", "base.json", "--rounds", "1", *SHORT, "train.py")
    assert done.returncode == 0, done.stderr
    assert b"check --baseline base.json train.py" in done.stderr
    found = baseline.load(file)
    assert (found.side.steps, found.side.samples) == (20, 8.0)
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_baseline_of_another_machine_judges_no_time_and_gates_the_rest(here: World) -> None:
    repository(here, steps=40, pace=0.001)
    leg = LegResult("now", "measured", step_ns=(10**6,) * 60, invariants={"recompiles": 0.0})
    stored = baseline.encode(Side.of("now", [leg, leg]), {"cpu": "another"}, script="", warmup=3)
    file = here.place.parent / "base.json"
    file.write_bytes(stored)
    words = ("--baseline", str(file), "--rounds", "1", "--json", "-", *SHORT, "train.py")
    done = check(here, *words)
    found = json.loads(done.stdout)
    assert (done.returncode, found["result"]) == (3, "inconclusive"), done.stderr
    assert "CPU model another then" in " ".join(found["reasons"])
    assert found["invariants"]["recompiles"]["ok"] is True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train.py",), "Name one thing to check against"),
        (("--baseline", "x", "--baseline-ref", "y", "train.py"), "Name one thing"),
        (("--baseline", "absent.json", "train.py"), "cannot be read"),
        (("--baseline", "pace.py", "train.py"), "is no baseline"),
        (("--baseline-ref", "nowhere", "train.py"), "git knows no commit nowhere"),
        (("--baseline-ref", "before"), "nothing to run"),
        (("--baseline-ref", "before", "--json", "no/such/x", "train.py"), "cannot be written"),
        (("--baseline-ref", "before", "absent.py"), "no script absent.py"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_runs(
    here: World, words: tuple[str, ...], said: str
) -> None:
    repository(here)
    done = check(here, *words)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert not list(here.root.glob("trials/*/runs/*"))


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0), (4, 4)])
def test_the_sample_workflow_fails_on_a_regression_and_warns_of_doubt(
    tmp_path: Path, code: int, ends: int
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / "check.yml").read_text()
    block = text.partition("        run: |\n")[2].partition("\n      - ")[0]
    stub = tmp_path / "gputop-train"
    stub.write_text(f'#!/bin/sh\necho "$@" > called\nexit {code}\n')
    stub.chmod(0o755)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", textwrap.dedent(block)],  # as GitHub starts it
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "GITHUB_BASE_REF": "main",
            "GITHUB_STEP_SUMMARY": "summary.md",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ends, done.stderr
    assert ("::warning::" in done.stdout) == (code == 3)
    words = (tmp_path / "called").read_text().split()
    assert words[:3] == ["check", "--baseline-ref", "origin/main"]
    # What the workflow passes is what the command takes.
    own = words[1 : words.index("train.py")]
    known = {name for option in check_command.params for name in option.opts}
    assert {word for word in own if word.startswith("--")} <= known
