# needs: pytorch_lightning
"""Lightning: fit with validation, checkpoints, gradient clipping and its progress bar."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


pl.seed_everything(21)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), 8)
model = Model()
trainer = pl.Trainer(
    max_epochs=2,
    gradient_clip_val=1.0,
    accumulate_grad_batches=2,
    logger=False,
    accelerator="cpu",
    enable_progress_bar=False,
)
trainer.fit(model, loader, loader)
print(trainer.callback_metrics["loss"].item().hex(), trainer.global_step)
