"""A worker's exception ends the run; the traceback is the worker's own."""

import torch
from torch import nn
from torch.utils.data import DataLoader


class Broken:
    def __len__(self):
        return 32

    def __getitem__(self, i):
        if i == 13:
            raise KeyError(f"planted {i}")
        return torch.full((4,), float(i))


torch.manual_seed(9)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for x in DataLoader(Broken(), 4, num_workers=1):
    model(x).sum().backward()
    optimizer.step()
