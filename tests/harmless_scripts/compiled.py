"""torch.compile: default front end with the eager and aot backends, breaks, recompiles, fullgraph."""

import torch
import torch._dynamo
from torch import nn

torch.manual_seed(15)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
whole = torch.compile(model, backend="aot_eager", fullgraph=True)


@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    loss = whole(x).square().mean()
    if loss.item() > 1e9:
        print("large")
    loss.backward()
    return loss


apply = torch.compile(optimizer.step, backend="eager")
for n in (4, 4, 6, 9, 4):
    loss = step(torch.randn(n, 8))
    apply()
    with torch.no_grad():
        model.eval()
        whole(torch.randn(n, 8))
        model.train()
print(loss.item().hex(), torch._dynamo.utils.counters["stats"]["unique_graphs"])
