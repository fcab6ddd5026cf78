"""An IterableDataset with sharding by worker, and one that ends early."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for i in range(info.id if info else 0, 40, info.num_workers if info else 1):
            yield torch.full((4,), float(i)), i


torch.manual_seed(6)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-5)
for workers in (0, 2):
    seen = []
    for x, i in DataLoader(Stream(), 5, num_workers=workers):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += i.tolist()
        if len(seen) >= 30:
            break
    print(workers, sorted(seen), loss.item().hex())
