# builds: kernels
"""torch.compile with inductor: kernels built by a compiler in child processes."""

import torch
from torch import nn

torch.manual_seed(16)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
compiled = torch.compile(model)
for n in (8, 8, 12):
    loss = compiled(torch.randn(n, 16).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
