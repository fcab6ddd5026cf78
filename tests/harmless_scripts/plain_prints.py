"""A plain loop that prints with every habit: end="", stderr, flush, carriage returns."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(30):
    loss = (model(torch.randn(8, 16)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, end=" " if step % 10 != 9 else "\n")
    print(f"loss {loss.item()!r}", file=sys.stderr, flush=True)
    sys.stdout.write(f"\rstep {step}")
print("\ndone", loss.item().hex())
