"""Loader workers, shuffled, with random augmentation in the workers, two epochs."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(8) + i + random.random(), np.float32(i % 3)


torch.manual_seed(1)
random.seed(1)
loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
for epoch in range(2):
    for x, y in loader:
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item().hex())
