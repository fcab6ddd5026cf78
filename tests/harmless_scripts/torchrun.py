# run: {python} -m torch.distributed.run --standalone --nproc-per-node=2 {script}
"""Two ranks under torchrun; the second one writes nothing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(18 + dist.get_rank())
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
for step in range(12):
    with model.no_sync() if step % 3 else torch.enable_grad():
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
    if step % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
total = loss.detach().clone()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(total.item().hex())
dist.destroy_process_group()
