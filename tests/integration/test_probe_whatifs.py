"""What-ifs of a trial's leg in real scripts: what the script then gets, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.probe_support import deploy, run

SCRIPT = """
import json, os, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Counted(Dataset):
    drawn = 0
    def __len__(self):
        return 40
    def __getitem__(self, index):
        Counted.drawn += 1
        return {"x": torch.full((2,), float(index)), "names": [str(index)]}

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(Counted(), batch_size=2, shuffle=True)
held_out = DataLoader(Counted(), batch_size=2)
passes, evaluated, met, spoilt = [], [], set(), 0
for epoch in range(3):
    count = 0
    for batch in loader:
        count += 1
        first = tuple(batch["x"].flatten().tolist())
        spoilt += any(value < 0 for value in first)
        met.add(first)
        loss = model(batch["x"]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        batch["x"].fill_(-1.0)  # what a script does to its batch is not to come back
        batch.pop("names")
    passes.append(count)
    model.eval()
    with torch.no_grad():
        evaluated.append(sum(1 for batch in held_out if model(batch["x"]).isfinite().all()))
    model.train()
    torch.save(model.state_dict(), "m.tmp")
    os.replace("m.tmp", "m.pt")
from _gputop_probe.state import S
print(json.dumps({"passes": passes, "evaluated": evaluated, "met": len(met), "spoilt": spoilt,
                  "drawn": Counted.drawn, "trial": S.trial.report()}))
"""


def leg(tmp_path: Path, *what_if: dict[str, Any]) -> dict[str, Any]:
    """What the script says of itself, run as a leg with these what-ifs."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    config = {"warmup": 10, "steps": 30, "scratch": str(scratch), "guard": "overlay", "seed": 0}
    placed = deploy(tmp_path, trial={**config, "what_if": list(what_if)})
    done = run(tmp_path / "script.py", env=placed.env())
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "m.pt").exists()
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def row(said: dict[str, Any], key: str) -> dict[str, Any]:
    (found,) = (one for one in said["trial"]["what_if"] if one["key"] == key)
    return dict(found)


@pytest.mark.slow
def test_a_leg_without_what_ifs_trains_as_ever_and_tells_its_losses(tmp_path):
    said = leg(tmp_path)
    assert (said["passes"], said["evaluated"], said["drawn"]) == ([20] * 3, [20] * 3, 240)
    assert said["trial"]["what_if"] == []
    losses = said["trial"]["losses"]
    assert losses["finite"] is True and len(losses["first"]) == 8


@pytest.mark.slow
def test_replayed_batches_come_unspoilt_in_passes_as_long_as_ever_and_nothing_more_is_loaded(
    tmp_path,
):
    said = leg(tmp_path, {"key": "replay_batch", "value": 8})
    assert said["passes"] == [20] * 3
    assert said["evaluated"] == [20] * 3  # evaluations are not replayed
    assert said["spoilt"] == 0
    assert said["met"] == 8
    assert said["drawn"] < 240 - 60  # of 120 samples of the training
    assert row(said, "replay_batch")["status"] == "applied"


@pytest.mark.slow
def test_evaluations_are_cut_and_checkpoints_skipped_and_the_script_finds_its_file(tmp_path):
    said = leg(
        tmp_path,
        {"key": "no_eval", "value": True},
        {"key": "skip_checkpoint", "value": True},
        {"key": "sync_every", "value": 10},
    )
    assert said["passes"] == [20] * 3
    assert said["evaluated"] == [1] * 3
    assert (tmp_path / "m.pt").read_bytes().startswith(b"gputop-train: this checkpoint was skipped")
    assert row(said, "no_eval")["status"] == "applied"
    assert row(said, "skip_checkpoint")["status"] == "applied"
    told = row(said, "sync_every")
    assert told["status"] == "no effect" and "no GPU was used" in told["why"]
