"""An ordinary training that lasts: ``MINUTES DEVICE FOLDER``.

A loader with two workers, a print each 20 steps, a checkpoint a minute (over the last one) and an
evaluation every two. Batches take 30 ms to prepare, most of it asleep, so that an hour of it leaves
the machine to others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0035)
        row = torch.full((256,), index % 97 / 97)
        return row, row.sum()


def main(minutes: float, device: str, folder: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.MSELoss()
    train = DataLoader(Rows(16_000), batch_size=16, num_workers=2, shuffle=True)
    test = DataLoader(Rows(160), batch_size=16)
    end = time.monotonic() + minutes * 60
    saved = evaluated = time.monotonic()
    step = epoch = 0
    while time.monotonic() < end:
        for rows, target in train:
            rows, target = rows.to(device), target.to(device)
            loss = loss_of(model(rows)[:, 0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            now = time.monotonic()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if now - saved > 60:
                saved = now
                torch.save({"model": model.state_dict(), "step": step}, folder / "last.pt")
            if now - evaluated > 120:
                evaluated = now
                model.eval()
                with torch.no_grad():
                    losses = [loss_of(model(r.to(device))[:, 0], t.to(device)) for r, t in test]
                print(f"evaluation {torch.stack(losses).mean().item():.4f}", flush=True)
                model.train()
            if now > end:
                break
        epoch += 1


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
