"""Settings of the loader that feeds the training, as frameworks build it. By hand, like its neighbour.

Each loop evaluates too, and each is asked what its iterators were made with.
"""

from __future__ import annotations

import importlib.util
import json
import textwrap
from pathlib import Path

import pytest

from gputop_train.collect.ring_reader import Ring
from tests.probe_support import deploy, run

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]

PRELUDE = """
import json
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import dataloader

made = []
begin = dataloader._BaseDataLoaderIter.__init__

def watched(self, loader):
    begin(self, loader)
    made.append([loader.num_workers, loader.batch_sampler.batch_size])

dataloader._BaseDataLoaderIter.__init__ = watched
DATA = TensorDataset(torch.randn(64, 8))
"""
LOOPS = {
    "transformers": """
        from transformers import Trainer, TrainingArguments
        class Rows(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                return {"x": torch.ones(8) * index, "labels": torch.ones(1)}
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__(); self.last = torch.nn.Linear(8, 1)
            def forward(self, x, labels=None):
                return {"loss": (self.last(x) - labels).square().mean()}
        if __name__ == "__main__":
            options = TrainingArguments(
                "out", per_device_train_batch_size=8, per_device_eval_batch_size=8,
                num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to=[],
                use_cpu=True, disable_tqdm=True, prediction_loss_only=True,
            )
            trainer = Trainer(Net(), options, train_dataset=Rows(), eval_dataset=Rows())
            trainer.evaluate()
            trainer.train()
            print(json.dumps([made, trainer.state.global_step]))
        """,
    "lightning": """
        import lightning
        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__(); self.last = torch.nn.Linear(8, 1)
            def training_step(self, batch, index):
                return self.last(batch[0]).sum()
            def validation_step(self, batch, index):
                self.last(batch[0])
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())
            def train_dataloader(self):
                return DataLoader(DATA, batch_size=8, shuffle=True)
            def val_dataloader(self):
                return DataLoader(DATA, batch_size=8)
        if __name__ == "__main__":
            trainer = lightning.Trainer(
                max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False,
            )
            trainer.fit(Net())
            print(json.dumps([made, trainer.global_step]))
        """,
    "accelerate": """
        from accelerate import Accelerator
        if __name__ == "__main__":
            accelerator = Accelerator(cpu=True)
            model = torch.nn.Linear(8, 1)
            model, optimizer, train, valid = accelerator.prepare(
                model, torch.optim.AdamW(model.parameters()),
                DataLoader(DATA, batch_size=8, shuffle=True), DataLoader(DATA, batch_size=8),
            )
            steps = 0
            for epoch in range(2):
                model.train()
                for (x,) in train:
                    optimizer.zero_grad(); accelerator.backward(model(x).sum()); optimizer.step()
                    steps += 1
                model.eval()
                for (x,) in valid:
                    with torch.no_grad():
                        model(x)
            print(json.dumps([made, steps]))
        """,
    "torchdata": """
        from torchdata.stateful_dataloader import StatefulDataLoader
        if __name__ == "__main__":
            train = StatefulDataLoader(DATA, batch_size=8, shuffle=True)
            valid = StatefulDataLoader(DATA, batch_size=8)
            model = torch.nn.Linear(8, 1)
            optimizer, steps = torch.optim.AdamW(model.parameters()), 0
            for epoch in range(2):
                for (x,) in train:
                    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
                    steps += 1
                with torch.no_grad():
                    for (x,) in valid:
                        model(x)
            print(json.dumps([made, steps]))
        """,
}


@pytest.mark.parametrize("package", sorted(LOOPS))
def test_the_loader_of_the_training_is_changed_and_that_of_evaluation_is_not(
    package: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.fail(f"{package} is not installed")
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(LOOPS[package]))
    asked = {"num_workers": 1, "batch_size": 16}
    deployed = deploy(
        tmp_path, overrides=[{"key": k, "value": v, "loader": None} for k, v in asked.items()]
    )
    result = run(script, env=deployed.env(CUDA_VISIBLE_DEVICES=""))
    assert result.returncode == 0, result.stderr.decode()
    made, steps = json.loads(result.stdout.decode().splitlines()[-1])
    assert steps == 8
    assert {tuple(row) for row in made} == {(1, 16), (0, 8)}
    assert made.count([1, 16]) == 2
    with Ring.open(deployed.ring_files()[0]) as ring:
        snapshot = ring.snapshot()
    assert snapshot is not None
    told = {(row["key"], row["status"]) for row in snapshot["overrides"]}
    # Of two loaders that one line of the script has built, the row says what became of the first.
    assert told >= {*((key, "applied") for key in asked), ("batch_size", "refused")}
