"""What one leg of a trial compiles, the next finds; nothing of it stays or was there before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop_train.launch import spawn
from gputop_train.launch.options import Setting, SettingValue, Target
from gputop_train.trial.leg import LegPlan
from gputop_train.trial.record import Arm
from gputop_train.trial.scratch import Scratch, guard_available

#: As Inductor and Triton: makes its directory where the variable says, and leaves a file there.
SCRIPT = """
import os
for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
    place = os.environ.get(name, "nowhere")
    print(name, place, sorted(os.listdir(place)) if os.path.isdir(place) else None)
    if name in os.environ and not os.path.isdir(place):
        os.makedirs(place)
        open(os.path.join(place, "kernel"), "w").close()
"""


def told_by_leg(scratch: Scratch, runs: Path, key: str, value: SettingValue) -> list[list[str]]:
    """Run one leg with a setting; its lines, in words."""
    arm = Arm("candidate", (Setting(key, value, None),))
    plan = LegPlan(arm, Target("script", ("train.py",)), runs, 0, 1)
    with scratch.leg() as leg:
        options = plan.options(leg)
        launched = spawn.launch(options, spawn.resolve_command(options, os.environ), os.environ)
        os.waitpid(launched.shim_pid, 0)
        os.waitpid(launched.supervisor_pid, 0)
        ended = json.loads((launched.run_dir / "exit.json").read_text())
        output = (launched.run_dir / "output.log").read_text()
    assert ended["exit_code"] == 0, output
    return [line.split(" ", 2) for line in output.splitlines()]


def test_legs_compiled_for_a_trial_share_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(SCRIPT)
    runs = tmp_path / "runs"
    found, why = guard_available(tmp_path, runs)
    if found != "overlay":
        pytest.skip(f"no overlay here: {why}")
    with Scratch(runs) as scratch:
        first = told_by_leg(scratch, runs / "legs", "compile", True)
        second = told_by_leg(scratch, runs / "legs", "compile", "reduce-overhead")
        other = told_by_leg(scratch, runs / "legs", "num_workers", 2)
    assert [line[2] for line in first] == ["None", "None"]
    assert [line[2] for line in second] == ["['kernel']", "['kernel']"]
    assert [line[1] for line in first] == [line[1] for line in second]
    assert all(Path(line[1]).is_relative_to(runs) for line in first)
    assert [line[1] for line in other] == ["nowhere", "nowhere"], "the person's own caches are his"
    assert sorted(path.name for path in runs.iterdir()) == ["legs"]


def test_a_guarded_leg_keeps_its_caches_to_itself(tmp_path: Path) -> None:
    plan = LegPlan(
        Arm("candidate", (Setting("compile", True, None),)),
        Target("script", ("train.py",)),
        tmp_path,
        0,
        1,
        guard="refuse",
    )
    with Scratch(tmp_path) as scratch, scratch.leg() as leg:
        made = plan.options(leg).trial
    assert made is not None
    assert made.caches is None, "the guard leaves free what is the leg's alone"
