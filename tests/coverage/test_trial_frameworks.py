"""A trial of a framework that throws old checkpoints away keeps them. By hand: ``pytest -m frameworks``.

Needs ``pip install -e '.[test,frameworks]'``. Each script continues a training that stood still, in
the directory where that one left its checkpoint, and its framework is told to keep one alone. With
``TRIAL_TABLE=FILE`` each row's result is added to a table (docs/trial-safety.md shows one).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.trees import PLAIN, PLAIN_BEFORE, fingerprint
from tests.unprivileged import NOBODY, REPOSITORY, open_to_all, run_as_nobody

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

TRAINER = """
import sys
import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.inner(x) - labels).square().mean()}

torch.manual_seed(0)
rows = [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(2000)]
first = "first" in sys.argv
arguments = TrainingArguments(
    output_dir="out", max_steps=10 if first else 1000, save_steps=5, save_total_limit=1,
    logging_steps=5, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True,
)
print("found", open("out/checkpoint-10/trainer_state.json").read(20) if not first else "", flush=True)
Trainer(model=Net(), args=arguments, train_dataset=rows).train(resume_from_checkpoint=not first)
"""

LIGHTNING = """
import os, sys
import lightning, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = self.inner(batch[0]).square().mean()
        self.log("falling", -float(self.global_step))
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

lightning.seed_everything(0)
first = "first" in sys.argv
keep = ModelCheckpoint(
    "kept", monitor="falling", save_top_k=1, save_last=True, every_n_train_steps=5
)
trainer = lightning.Trainer(
    max_steps=10 if first else 1000, accelerator="cpu", callbacks=[keep], log_every_n_steps=5,
    enable_progress_bar=False, enable_model_summary=False,
)
before = sorted(os.listdir("kept")) if not first else []
print("found", before, flush=True)
loader = DataLoader(TensorDataset(torch.randn(4000, 8)), batch_size=2)
trainer.fit(Net(), loader, ckpt_path=None if first else "kept/last.ckpt")
"""


@dataclass(frozen=True)
class Row:
    """A script, what makes the tree it finds, and the call a guard ends it before."""

    distribution: str
    script: str
    before: str
    refused: str


ROWS = {
    "torch.save and rename over, JSON, NumPy": Row("torch", PLAIN, PLAIN_BEFORE, "os.replace"),
    "transformers Trainer, save_total_limit=1": Row(
        "transformers", TRAINER, "import sys; sys.argv.append('first')\n" + TRAINER, "rmtree"
    ),
    # Lightning spares the file it continued from, so that is the other one.
    "Lightning ModelCheckpoint, save_top_k=1": Row(
        "lightning", LIGHTNING, "import sys; sys.argv.append('first')\n" + LIGHTNING, "os.remove"
    ),
}
RUN = "import runpy; runpy.run_module('gputop_train.cli', run_name='__main__', alter_sys=True)"


def trial(place: Path, guard: str, user: int) -> subprocess.CompletedProcess[str]:
    """``gputop-train trial`` in the project of ``place``."""
    words = [
        *("trial", "--run-root", str(place / "runs"), "--guard", guard, "--steps", "10"),
        *("--warmup", "5", "--rounds", "1", "--set", "num_workers=1", "train.py"),
    ]
    if user != os.geteuid():
        return run_as_nobody(RUN, *words, cwd=place / "project", timeout=600)
    return subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=place / "project",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def note(name: str, row: Row, guard: str, user: int, said: str) -> None:
    """Add a line to the table, if one is asked for."""
    table = os.environ.get("TRIAL_TABLE")
    if table:
        version = importlib.metadata.version(row.distribution)
        with Path(table).open("a", encoding="utf-8") as file:
            file.write(f"| {name} | {row.distribution} {version} | {guard} | {user} | {said} |\n")


@pytest.mark.parametrize("user", [0, NOBODY])
@pytest.mark.parametrize("guard", ["overlay", "refuse"])
@pytest.mark.parametrize("name", ROWS)
def test_what_a_framework_throws_away_is_there_after_a_trial(
    tmp_path: Path, name: str, guard: str, user: int
) -> None:
    if os.geteuid() != 0:
        pytest.fail("only root can try it as root and as somebody else")
    row = ROWS[name]
    if importlib.util.find_spec(row.distribution) is None:
        pytest.fail(f"{row.distribution} is not installed: pip install -e '.[test,frameworks]'")
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "runs").mkdir()
    subprocess.run([sys.executable, "-c", row.before], cwd=project, check=True, timeout=300)
    (project / "train.py").write_text(row.script)
    if user:
        open_to_all(tmp_path)
        for path in [tmp_path, *tmp_path.rglob("*")]:
            os.chown(path, user, user, follow_symlinks=False)
    before = fingerprint(project)
    done = trial(tmp_path, guard, user)
    said = done.stdout + done.stderr
    assert fingerprint(project) == before, said
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["trials"]
    (kept,) = (tmp_path / "runs").glob("trials/*/trial.json")
    found = json.loads(kept.read_text())
    assert found["plan"]["guard"] == guard
    if guard == "refuse":
        (leg,) = found["legs"]
        assert leg["status"] == "refused" and row.refused in leg["why"], said
        assert done.returncode == 1, said
        note(name, row, guard, user, f"refused before: {leg['why']}")
    else:
        statuses = [(leg["arm"], leg["status"], leg["steps"]) for leg in found["legs"]]
        assert done.returncode == 0, said
        assert [status for _, status, _ in statuses] == ["measured"] * 2, said
        note(name, row, guard, user, "both legs measured")
