"""Spawned, persistent workers behind a main guard, with a worker_init_fn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def seeded(number):
    torch.manual_seed(100 + number)


def main():
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(48, 8), torch.randn(48, 1))
    loader = DataLoader(
        data,
        8,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
        worker_init_fn=seeded,
    )
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(2):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex(), flush=True)


if __name__ == "__main__":
    main()
