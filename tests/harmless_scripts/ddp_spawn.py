"""DistributedDataParallel over gloo, two ranks started by torch.multiprocessing.spawn."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def worker(rank, place):
    dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=2)
    torch.manual_seed(17)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    sampler = DistributedSampler(data, 2, rank)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, 8, sampler=sampler):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    with open(f"rank{rank}.txt", "w") as stream:
        print(total.item().hex(), loss.item().hex(), file=stream)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    mp.spawn(worker, (os.path.abspath("store"),), 2)
    print(Path("rank0.txt").read_text(), Path("rank1.txt").read_text())
